// A client that measures has its GPUs exclusively for a moment: the other holders yield at once and continue
// afterwards. No client gets more of such time than its share, whatever it reports.
#include <catch2/catch.hpp>
#include <map>
#include <sstream>

#include "scheduler/core/core.h"
#include "scheduler/log/event_log.h"

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

TEST_CASE(
    "holders whose kernels run longer than a quarter of a second are asked to yield less and less often, until they "
    "yield in time") {
  Together programs;
  programs.client(1);
  programs.client(2);
  // Client 1 asks whenever it may; client 2 never yields.
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
  // Client 2's long kernel has finished.
  programs.now += Alone::kLongestAfterFutile;
  programs.alone(1, true);
  REQUIRE(programs.goes(2));
  programs.yield(2);
  REQUIRE(programs.alone(1));
  programs.alone(1, false);
  programs.now += 10ms;
  programs.alone(1, true);
  CHECK(programs.goes(2));
}

TEST_CASE("a client has all of its exclusive time once the others have yielded, however long that takes") {
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

TEST_CASE(
    "a client that always wants exclusive time gets a fifth of the time, and no more than a quarter of a second at "
    "once") {
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

TEST_CASE("a client that asks for exclusive time and withdraws all the time is charged for each request") {
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
  // It may make the other yield 200 times in 10 seconds; the test runs for 40.
  CHECK(programs.grants <= 5 * 200);
}

TEST_CASE("a client that never wants exclusive time has half of the time next to several that always do") {
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
