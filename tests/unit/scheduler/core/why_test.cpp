// The core's explanation of why programs share a GPU as they do, and of how each uses it.
#include <catch2/catch.hpp>

#include "tests/unit/scheduler/core/programs_sim.h"

namespace rota::scheduler {
namespace {

using namespace std::chrono_literals;
using protocol::SharingReason;
using sim::Program;
using sim::World;

constexpr Program kBusy{.kernel = 1ms};
constexpr Program kHalfBusy{.kernel = 500us, .cpu = 500us};
constexpr Program kLightlyBusy{.kernel = 250us, .cpu = 2ms};

// Two clients on a GPU of 80 GiB.
struct Pair {
  explicit Pair(const Settings& settings) : core(settings) {
    for (const ClientId id : {1U, 2U}) {
      core.step(event::Join{id}, now);
      core.step(event::AddGpu{id, 0, Bytes{80} << 30, 1}, now);
    }
  }
  void both_want() {
    core.step(event::Want{1, 1}, now);
    core.step(event::Want{2, 1}, now);
  }
  SharingReason reason() const { return core.sharing_why(0).reason; }
  Core core;
  Time now = 1s;
};

Settings measured() {
  Settings settings;
  settings.measured_turns = true;
  return settings;
}

TEST_CASE("of programs that keep a GPU busy it is known by how much turns are better, how busy and how fast they are") {
  const sim::Result result = World({kBusy, kBusy}, std::nullopt).run(5s);
  REQUIRE(result.candidate == Candidate::kTurns);
  CHECK(result.why.reason == SharingReason::kTrial);
  CHECK(result.why.trial > 0.8);
  CHECK(result.why.trial < 1);
  for (const ClientUse& use : result.uses) {
    REQUIRE(use.busy);
    CHECK(*use.busy > 0.95);
    REQUIRE(use.calls);
    CHECK(*use.calls == Approx(1000).epsilon(0.05));
    CHECK_FALSE(use.light);
    CHECK(use.held > 2s);
    CHECK(use.waited > 1s);
    CHECK(use.held + use.waited <= 6s);
  }
}

TEST_CASE("of programs that leave a GPU idle it is known that they do not collide") {
  const sim::Result result = World({kHalfBusy, kHalfBusy}, std::nullopt).run(5s);
  REQUIRE(result.candidate == Candidate::kTogether);
  CHECK(result.why.reason == SharingReason::kNoCollision);
  CHECK(result.why.trial == 0);
  CHECK_FALSE(result.uses[0].busy);
}

TEST_CASE("a program that runs at any time concurrently with others in turns is known by that") {
  const sim::Result result = World({kBusy, kBusy, kLightlyBusy}, std::nullopt).run(5s);
  REQUIRE(result.candidate == Candidate::kLightOpen);
  CHECK(result.why.reason == SharingReason::kTrial);
  CHECK(result.why.trial >= 1);
  CHECK_FALSE(result.uses[0].light);
  CHECK_FALSE(result.uses[1].light);
  CHECK(result.uses[2].light);
}

TEST_CASE("a program that keeps coming next to one with bursts is told from a trial") {
  const Program burst{.kernel = 1ms, .cpu = 0ms, .burst = 20, .think = 200ms};
  CHECK(World({kBusy, burst}, std::nullopt).run(5s).why.reason == SharingReason::kFewContend);
}

TEST_CASE("what is not known of a client is not zero") {
  Pair pair(measured());
  pair.both_want();
  CHECK(pair.reason() == SharingReason::kNoCollision);
  CHECK_FALSE(pair.core.use(1, 0, pair.now).busy);
  CHECK_FALSE(pair.core.use(1, 0, pair.now).calls);
  CHECK_FALSE(pair.core.use(3, 0, pair.now).busy);
  CHECK_FALSE(pair.core.use(1, 1, pair.now).busy);
  CHECK(pair.core.use(1, 1, pair.now).held == 0s);
}

TEST_CASE("while turns are taken for samples, that is the reason") {
  Pair pair(measured());
  pair.both_want();
  // They make calls, and do not report whether the GPU is busy: they may collide.
  for (const ClientId id : {1U, 2U}) pair.core.step(event::Activity{.client = id, .calls = 1}, pair.now);
  for (const Time end = pair.now + 1s; pair.now < end && !pair.core.gpu(0).looking; pair.now += 10ms) {
    pair.core.step(event::Tick{}, pair.now);
  }
  CHECK(pair.core.gpu(0).looking);
  CHECK(pair.reason() == SharingReason::kMeasuring);
}

TEST_CASE("that programs did not fit a moment ago is the reason why nothing is measured") {
  Pair pair(measured());
  const auto both_use = [&](Bytes bytes) {
    for (const ClientId id : {1U, 2U}) pair.core.step(event::Usage{.client = id, .gpu = 0, .used = bytes}, pair.now);
  };
  both_use(Bytes{50} << 30);
  pair.both_want();
  CHECK(pair.reason() == SharingReason::kMemory);
  // For longer than their peak counts.
  both_use(1);
  for (int i = 0; i < 100 && pair.reason() == SharingReason::kMemory; ++i) {
    pair.now += 100ms;
    both_use(1);
  }
  CHECK(pair.reason() == SharingReason::kMemoryLately);
}

TEST_CASE("the time of holders and of waiting programs is counted while it goes on") {
  Settings settings;
  settings.mode = Mode::kExclusive;
  Pair pair(settings);
  pair.both_want();
  pair.now += 3s;
  CHECK(pair.core.use(1, 0, pair.now).held == 3s);
  CHECK(pair.core.use(1, 0, pair.now).waited == 0s);
  CHECK(pair.core.use(2, 0, pair.now).held == 0s);
  CHECK(pair.core.use(2, 0, pair.now).waited == 3s);
}

TEST_CASE("where nothing is measured the reason is the mode, the memory, or that it fits") {
  Settings settings;
  Pair pair(settings);
  pair.both_want();
  CHECK(pair.reason() == SharingReason::kFits);
  for (const ClientId id : {1U, 2U})
    pair.core.step(event::Usage{.client = id, .gpu = 0, .used = Bytes{50} << 30}, pair.now);
  CHECK(pair.reason() == SharingReason::kMemory);
  for (const Mode mode : {Mode::kExclusive, Mode::kConcurrent}) {
    settings.mode = mode;
    pair.core.step(event::Configure{settings}, pair.now);
    CHECK(pair.reason() == SharingReason::kMode);
  }
  Pair idle(measured());
  idle.core.step(event::Want{1, 1}, idle.now);
  CHECK(idle.reason() == SharingReason::kAlone);
}

}  // namespace
}  // namespace rota::scheduler
