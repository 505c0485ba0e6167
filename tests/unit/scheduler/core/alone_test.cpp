// A client that measures has its GPUs to itself for a moment: others leave at once and come back, and no client gets
// more of that than its share, whatever it reports.
#include <catch2/catch.hpp>
#include <map>
#include <sstream>

#include "scheduler/core/core.h"
#include "scheduler/core/event_log.h"

namespace rota::scheduler {
namespace {

using namespace std::chrono_literals;

// Programs that run together, and what each of them does when it is told to yield.
struct Together {
  explicit Together(bool measured_turns = false, Mode mode = Mode::kAutomatic)
      : settings{.mode = mode, .quantum = 2s, .measured_turns = measured_turns, .grace = 10s},
        core(settings),
        log(log_header(settings)) {}

  void step(const Event& event) {
    log += log_line(event, now);
    for (const Decision& decision : core.step(event, now)) {
      log += log_line(decision);
      if (decision.change == Change::kGranted) ++grants;
    }
  }
  void client(ClientId id, GpuMask gpus = 1, Bytes used = 100) {
    step(event::Join{id});
    for_each_gpu(gpus, [&](GpuIndex gpu) {
      step(event::AddGpu{id, gpu, 1000, 10});
      step(event::Usage{id, gpu, used});
    });
    step(event::Want{id, gpus});
  }
  const ClientState& state(ClientId id) const { return *core.client(id); }
  bool holds(ClientId id) const { return state(id).held != 0; }
  bool alone(ClientId id) const { return state(id).alone_until > now; }
  bool goes(ClientId id) const { return state(id).waiters != 0 && state(id).drain_at <= now; }
  void alone(ClientId id, bool wants) { step(event::Want{id, state(id).touched, false, false, wants}); }
  // Gives back, and waits at the gate again.
  void yield(ClientId id) {
    step(event::GiveBack{id, state(id).grant});
    step(event::Want{id, state(id).touched});
  }
  // A client that is told to yield does so a moment later.
  void run(Time time, Time drain = 1ms) {
    for (const Time until = now + time; now < until; now += drain) {
      if (core.next_deadline() && *core.next_deadline() <= now) step(event::Tick{});
      for (ClientId id = 1; id <= 9; ++id) {
        if (core.client(id) == nullptr) continue;
        if (holds(id)) held[id] += drain;
        if (alone(id)) was_alone[id] += drain;
        if (holds(id) && goes(id)) yield(id);
      }
    }
  }

  Settings settings;
  Time now = 100s;
  Core core;
  std::string log;
  int grants = 0;
  std::map<ClientId, Time> held;
  std::map<ClientId, Time> was_alone;
};

}  // namespace

TEST_CASE("who measures has the GPU alone: the others leave at once, nobody joins, and all come back when it is done") {
  const bool measured_turns = GENERATE(false, true);
  Together programs(measured_turns);
  for (ClientId id = 1; id <= 3; ++id) programs.client(id);
  programs.now += 10ms;
  REQUIRE((programs.holds(1) && programs.holds(2) && programs.holds(3)));
  programs.alone(1, true);
  CHECK(programs.goes(2));
  CHECK(programs.goes(3));
  CHECK_FALSE(programs.goes(1));
  CHECK_FALSE(programs.alone(1));
  programs.yield(2);
  CHECK_FALSE(programs.alone(1));  // one is still there
  programs.yield(3);
  REQUIRE(programs.alone(1));
  CHECK(programs.state(1).alone_until == programs.now + 250ms);
  programs.client(4);  // it fits, but not now
  CHECK_FALSE(programs.holds(4));
  CHECK_FALSE(programs.holds(2));
  CHECK_FALSE(programs.goes(1));
  programs.now += 20ms;
  programs.alone(1, false);
  CHECK(programs.state(1).alone_until == 0s);
  for (ClientId id = 1; id <= 4; ++id) CHECK(programs.holds(id));
}

TEST_CASE("who has the GPU to itself anyway is alone at once") {
  Together programs;
  programs.client(1);
  programs.client(2);
  programs.yield(2);
  programs.step(event::Want{2, 0});
  programs.step(event::GiveBack{2, programs.state(2).grant});
  programs.alone(1, true);
  CHECK(programs.alone(1));
}

TEST_CASE("a GPU is left to one that measures for a quarter of a second at most") {
  Together programs;
  programs.client(1);
  programs.client(2);
  programs.alone(1, true);
  programs.run(3ms);
  REQUIRE(programs.alone(1));
  const Time until = programs.state(1).alone_until;
  REQUIRE(programs.core.next_deadline());
  CHECK(*programs.core.next_deadline() == until);
  programs.now = until;
  programs.step(event::Tick{});
  CHECK_FALSE(programs.alone(1));
  CHECK(programs.holds(1));
  CHECK(programs.holds(2));
  programs.run(100ms);
  CHECK_FALSE(programs.goes(1));
}

TEST_CASE("if the others do not leave, it has asked in vain, and they stay") {
  Together programs;
  programs.client(1);
  programs.client(2);
  programs.alone(1, true);
  REQUIRE(programs.goes(2));
  programs.now += Alone::kLongest;
  programs.step(event::Tick{});
  CHECK_FALSE(programs.goes(2));
  CHECK(programs.state(2).waiters == 0);
  CHECK(programs.holds(1));
  programs.step(event::GiveBack{2, programs.state(2).grant});
  CHECK_FALSE(programs.alone(1));
}

TEST_CASE(
    "beside kernels longer than a quarter of a second others are pressed less and less often, until they leave in "
    "time") {
  Together programs;
  programs.client(1);
  programs.client(2);
  // Client 1 asks whenever it may; client 2 never leaves.
  const auto presses = [&](Time time) {
    int count = 0;
    for (const Time until = programs.now + time; programs.now < until;) {
      programs.alone(1, true);
      if (programs.goes(2)) {
        ++count;
        programs.now += Alone::kLongest;
        programs.step(event::Tick{});
        CHECK_FALSE(programs.goes(2));
      } else {
        programs.alone(1, false);
        programs.now += 10ms;
      }
    }
    return count;
  };
  CHECK(presses(10s) <= 4);
  const int in_a_minute = presses(60s);
  CHECK(in_a_minute >= 1);
  CHECK(in_a_minute <= 4);
  // Its long kernel is over.
  programs.now += Alone::kLongestInVain;
  programs.alone(1, true);
  REQUIRE(programs.goes(2));
  programs.yield(2);
  REQUIRE(programs.alone(1));
  programs.alone(1, false);
  programs.now += 10ms;
  programs.alone(1, true);
  CHECK(programs.goes(2));
}

TEST_CASE("who has been pressed in vain and has left since is in nobody's way") {
  Together programs;
  programs.client(1);
  programs.client(2);
  programs.alone(1, true);
  programs.now += Alone::kLongest;
  programs.step(event::Tick{});
  programs.step(event::GiveBack{2, programs.state(2).grant});
  programs.alone(1, true);
  CHECK(programs.alone(1));
}

TEST_CASE("whoever has others leave has all of its time once they have left, however long that takes") {
  Together programs;
  programs.client(1);
  programs.client(2);
  int times = 0;
  Time taken{};
  for (const Time begun = programs.now; programs.now < begun + 10s;) {
    programs.alone(1, true);
    if (!programs.goes(2)) {
      programs.alone(1, false);
      programs.now += 10ms;
      continue;
    }
    const Time pressed = programs.now;
    programs.now += 170ms;  // a long kernel
    programs.yield(2);
    REQUIRE(programs.alone(1));
    CHECK(programs.state(1).alone_until == programs.now + Alone::kLongest);
    programs.now += Alone::kLongest;
    programs.step(event::Tick{});
    taken += programs.now - pressed;
    ++times;
  }
  CHECK(times >= 4);
  CHECK(taken <= protocol::kMostAlone);
}

TEST_CASE("two that measure come one after the other") {
  Together programs;
  for (ClientId id = 1; id <= 3; ++id) programs.client(id);
  programs.alone(2, true);
  programs.alone(1, true);
  programs.run(2ms);
  CHECK(programs.alone(2));
  CHECK_FALSE(programs.holds(1));
  programs.alone(2, false);
  REQUIRE(programs.holds(1));
  CHECK_FALSE(programs.alone(1));  // it has given back meanwhile, and asks again
  programs.alone(1, true);
  programs.run(2ms);
  CHECK(programs.alone(1));
  programs.alone(1, false);
  for (ClientId id = 1; id <= 3; ++id) CHECK(programs.holds(id));
}

TEST_CASE("one that asks for it before its turn has come is not moved forward, and has it once it holds the GPU") {
  Together programs;
  programs.client(1, 1, 600);
  programs.client(2, 1, 200);
  programs.client(3, 1, 600);  // does not fit beside the first
  REQUIRE_FALSE(programs.holds(3));
  programs.alone(3, true);
  CHECK_FALSE(programs.goes(1));
  programs.now += 3s;
  programs.step(event::Tick{});
  REQUIRE(programs.goes(1));
  programs.step(event::GiveBack{1, programs.state(1).grant});
  REQUIRE(programs.holds(3));
  CHECK(programs.goes(2));
  programs.yield(2);
  CHECK(programs.alone(3));
}

TEST_CASE("its own turn does not end while it measures, and does right after") {
  Together programs;
  programs.client(1, 1, 600);
  programs.client(2, 1, 600);
  REQUIRE(programs.state(1).drain_at == programs.now + 2s);
  programs.now += 2s - 10ms;
  programs.alone(1, true);
  REQUIRE(programs.alone(1));
  CHECK(programs.state(1).drain_at == programs.state(1).alone_until);
  programs.now += 100ms;
  programs.alone(1, false);
  CHECK(programs.goes(1));
}

TEST_CASE("programs that have handed memory to others are not sent away, and have no GPU alone") {
  Together programs;
  for (ClientId id = 1; id <= 3; ++id) programs.client(id);
  programs.step(event::Activity{.client = 2, .shares = true});
  programs.alone(1, true);
  CHECK_FALSE(programs.goes(2));
  CHECK(programs.goes(3));
  programs.yield(3);
  CHECK(programs.alone(1));
  CHECK(programs.holds(2));
  programs.alone(1, false);
  programs.alone(2, true);
  CHECK_FALSE(programs.goes(1));
  CHECK_FALSE(programs.alone(2));
}

TEST_CASE("in the other modes nobody is sent away for a measurement") {
  Together exclusive(false, Mode::kExclusive);
  exclusive.client(1);
  exclusive.client(2);
  exclusive.alone(1, true);
  CHECK(exclusive.state(1).alone_until == 0s);
  CHECK(exclusive.state(1).drain_at == exclusive.now + 2s);
  Together together;
  together.client(1);
  together.client(2);
  together.alone(1, true);
  together.yield(2);
  REQUIRE(together.alone(1));
  Settings settings = together.settings;
  settings.mode = Mode::kConcurrent;
  together.step(event::Configure{settings});
  CHECK_FALSE(together.alone(1));
  CHECK(together.holds(2));
}

TEST_CASE("one that gives back, leaves or withdraws while it measures frees the GPU at once") {
  Together programs;
  for (ClientId id = 1; id <= 3; ++id) programs.client(id);
  const auto alone = [&](ClientId id) {
    programs.alone(id, true);
    programs.run(2ms);
    REQUIRE(programs.alone(id));
  };
  alone(1);
  programs.step(event::GiveBack{1, programs.state(1).grant});
  CHECK((programs.holds(2) && programs.holds(3)));
  programs.step(event::Want{1, 1});
  alone(2);
  programs.step(event::Want{2, 0});
  CHECK((programs.holds(1) && programs.holds(2) && programs.holds(3)));
  alone(3);
  programs.step(event::Leave{3});
  CHECK((programs.holds(1) && programs.holds(2)));
}

TEST_CASE(
    "one that always wants to be alone is for a fifth of the time, and stops nobody for more than a quarter second") {
  Together programs;
  programs.client(1);
  programs.client(2);
  programs.run(20ms);
  programs.held.clear();
  for (int i = 0; i < 60'000; ++i) {  // a minute
    programs.alone(1, true);
    programs.run(1ms);
  }
  CHECK(programs.was_alone[1] > 9s);
  CHECK(programs.was_alone[1] <= 12s + 250ms);
  CHECK(programs.held[2] >= 47s);
}

TEST_CASE("one that asks and takes it back all the time pays for each time") {
  Together programs;
  programs.client(1);
  programs.client(2);
  programs.run(20ms);
  programs.grants = 0;
  for (int i = 0; i < 20'000; ++i) {
    programs.alone(1, true);
    programs.run(1ms);
    programs.alone(1, false);
    programs.run(1ms);
  }
  // In 40 seconds it may send the other away 200 times in ten.
  CHECK(programs.grants <= 5 * 200);
}

TEST_CASE("several that always want to be alone, and one that never does: it has half of the time all the same") {
  Together programs;
  for (ClientId id = 1; id <= 6; ++id) programs.client(id);
  programs.run(20ms);
  programs.held.clear();
  for (int i = 0; i < 60'000; ++i) {
    for (ClientId id = 1; id <= 5; ++id) programs.alone(id, true);
    programs.run(1ms);
  }
  CHECK(programs.held[6] >= 29s);
}

TEST_CASE("the event log has what was asked and what came of it, and plays") {
  Together programs;
  programs.client(1);
  programs.client(2);
  programs.alone(1, true);
  programs.yield(2);
  programs.now += 5ms;
  programs.alone(1, false);
  programs.step(event::Want{1, 1, false, true, true});
  CHECK(programs.log.find("want 1 1 0 alone\n") != std::string::npos);
  CHECK(programs.log.find("want 1 1 0 urgent alone\n") != std::string::npos);
  CHECK(programs.log.find("> alone 1 1 250000000\n") != std::string::npos);
  CHECK(programs.log.find("> alone 1 1 0\n") != std::string::npos);
  std::istringstream text(programs.log);
  const Replay played = replay(text);
  CHECK(played.problem.empty());
  CHECK(played.decisions >= 6);
}

}  // namespace rota::scheduler
