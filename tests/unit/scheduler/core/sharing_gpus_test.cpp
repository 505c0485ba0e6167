// How programs share GPUs of which some need several: those are decided on as one.
#include <catch2/catch.hpp>

#include "scheduler/core/policy/sharing.h"
#include "tests/unit/scheduler/core/programs_sim.h"

namespace rota::scheduler {
namespace {

using namespace std::chrono_literals;
using sim::Fixed;
using sim::Program;
using sim::Result;
using sim::shared;
using sim::World;

constexpr GpuMask kBoth = 3;
constexpr Program kRanks{.kernel = 1ms, .gpus = kBoth};
constexpr Program kOnFirst{.kernel = 1ms, .gpus = 1};
constexpr Program kOnSecond{.kernel = 1ms, .gpus = 2};

TEST_CASE("programs on the same two GPUs take turns on both at once, where the driver would give each a quarter") {
  const Result native = World({kRanks, kRanks}, Fixed{Candidate::kTogether, {false, false}}).run(10s);
  const Result result = shared({kRanks, kRanks}, 10s);
  CHECK(result.candidate == Candidate::kTurns);
  CHECK(result.out_of_step == Time{});
  CHECK(result.kernels[0] + result.kernels[1] >= 0.95 * 1000);
  CHECK(std::abs(result.kernels[0] - result.kernels[1]) <= 0.05 * 1000);
  CHECK(result.kernels[0] + result.kernels[1] >= native.kernels[0] + native.kernels[1]);
}

TEST_CASE("a program on two GPUs and one on each of them have half of the time each") {
  const Result result = shared({kRanks, kOnFirst, kOnSecond}, 10s);
  CHECK(result.candidate == Candidate::kTurns);
  CHECK(result.out_of_step == Time{});
  for (const double rate : result.kernels) CHECK(rate == Approx(500).margin(50));
}

TEST_CASE("programs that leave their GPUs idle run together on all of them") {
  constexpr Program kTinyRanks{.kernel = 250us, .cpu = 3ms, .gpus = kBoth};
  constexpr Program kTiny{.kernel = 250us, .cpu = 3ms, .gpus = 2};
  const Result result = shared({kTinyRanks, kTinyRanks, kTiny}, 5s);
  CHECK(result.candidate == Candidate::kTogether);
  CHECK(result.out_of_step == Time{});
}

// They keep their GPUs busy, but not the same one.
TEST_CASE("programs on different GPUs do not collide") {
  constexpr Program kTinyRanks{.kernel = 250us, .cpu = 10ms, .gpus = kBoth};
  const Result result = shared({kTinyRanks, kOnFirst, kOnSecond}, 5s);
  CHECK(result.candidate == Candidate::kTogether);
  CHECK(result.changes == 0);
}

TEST_CASE("GPUs are decided on separately again once no active program needs both") {
  Settings settings;
  settings.measured_turns = true;
  Core core(settings);
  Time now = 1s;
  const auto add = [&](ClientId id, GpuMask gpus) {
    core.step(event::Join{id}, now);
    for_each_gpu(gpus, [&](GpuIndex gpu) { core.step(event::AddGpu{id, gpu, Bytes{80} << 30, 1}, now); });
    core.step(event::Want{id, gpus}, now);
  };
  add(1, 1);
  add(2, 1);
  add(3, kBoth);
  add(4, 2);
  std::uint64_t calls = 0;
  // Clients 1 and 2 keep their GPU busy, and 4 its own.
  const auto busy = [&](Time length, std::initializer_list<ClientId> ids) {
    for (const Time end = now + length; now < end; now += 10ms) {
      calls += 10;
      for (const ClientId id : ids) {
        event::Activity activity{.client = id, .calls = calls};
        activity.samples = activity.busy = activity.in_spells = calls;
        activity.counted = activity.open = now;
        core.step(activity, now);
      }
      core.step(event::Tick{}, now);
      for (const ClientId id : ids) {
        const ClientState state = *core.client(id);
        const GpuMask gpus = id == 4 ? 2 : id == 3 ? kBoth : 1;
        if (state.held != 0 && state.waiters != 0 && state.drain_at <= now) {
          core.step(event::GiveBack{id, state.grant}, now);
        }
        if (state.held == 0 && state.wanted == 0) core.step(event::Want{id, gpus}, now);
      }
    }
  };
  busy(3s, {1, 2, 3, 4});
  CHECK(core.gpu(0).candidate == Candidate::kTurns);
  CHECK(core.gpu(1).candidate == Candidate::kTurns);
  core.step(event::Leave{3}, now);
  core.step(event::Tick{}, now);
  CHECK(core.gpu(1).candidate == Candidate::kTogether);
  busy(3s, {1, 2, 4});
  CHECK(core.gpu(0).candidate == Candidate::kTurns);
  CHECK(core.gpu(1).candidate == Candidate::kTogether);
}

// Its turns on the other GPU may last for seconds, which must not keep a light program from this one.
TEST_CASE("a GPU where memory does not fit is decided on by itself") {
  Settings settings;
  settings.measured_turns = true;
  Core core(settings);
  Time now = 1s;
  for (const ClientId id : {1U, 2U, 3U}) {
    core.step(event::Join{id}, now);
    for_each_gpu(id == 3 ? 2 : kBoth, [&](GpuIndex gpu) {
      core.step(event::AddGpu{id, gpu, Bytes{80} << 30, 1}, now);
      core.step(event::Usage{id, gpu, Bytes{gpu == 0 ? 50U : 1U} << 30}, now);
    });
  }
  core.step(event::Want{1, kBoth}, now);
  core.step(event::Want{2, kBoth}, now);
  REQUIRE(core.gpu(0).crowded);
  CHECK(core.client(2)->held == 0);
  core.step(event::Want{3, 2}, now);
  CHECK(core.client(3)->held == 2);
  CHECK(core.gpu(1).candidate == Candidate::kTogether);
  CHECK(core.sharing_why(1).reason == protocol::SharingReason::kNoCollision);
}

}  // namespace
}  // namespace rota::scheduler
