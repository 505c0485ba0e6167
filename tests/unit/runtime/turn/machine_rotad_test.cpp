// What a process does while rotad is away, and once the next one is there.
#include <algorithm>
#include <catch2/catch.hpp>
#include <vector>

#include "tests/unit/runtime/turn/machine_process.h"

using namespace rota::test;

TEST_CASE("while rotad is away for a moment a holder's gate stays open and a waiter's closed") {
  Process holder;
  holder.hold();
  Process waiter;
  waiter.seen.standing = 1;
  waiter.look();
  REQUIRE(waiter.did(Act::kWant));
  for (Process* process : {&holder, &waiter}) {
    const bool open = process->machine.gate_open();
    process->lose();
    process->run(Machine::kGrace - 1s);
    CHECK_FALSE(process->did(Act::kOpen));
    CHECK_FALSE(process->did(Act::kClose));
    process->welcome();
    process->look();
    CHECK(process->machine.gate_open() == open);
    REQUIRE(process->did(Act::kWant));
    CHECK(process->done.front().running == open);
    // It waits until others have come back as well.
    process->run(1s);
    CHECK(process->machine.gate_open() == open);
  }
}

TEST_CASE("a waiter's ten seconds without rotad begin anew once rotad has been back for a while") {
  const auto waits_with = [](Time back) {
    Process process;
    process.seen.standing = 1;
    process.look();
    REQUIRE(process.did(Act::kWant));
    process.lose();
    process.run(1s);
    process.welcome();
    process.run(back);
    process.lose();
    process.run(Machine::kGrace - 2s);
    return !process.machine.gate_open();
  };
  CHECK(waits_with(20s));
  CHECK(waits_with(Machine::kGrace / 2 + 1s));
  // One that ends again at once is not back.
  CHECK_FALSE(waits_with(Machine::kGrace / 2 - 1s));
}

TEST_CASE("a rotad that does not answer counts as dead sooner than one that is gone") {
  Process process;
  process.seen.standing = 1;
  process.look();
  REQUIRE(process.did(Act::kWant));
  process.seen.lease = {};
  process.step(event::Lost{.silent = true});
  process.run(Machine::kSilentGrace - 10ms);
  CHECK_FALSE(process.machine.gate_open());
  process.run(20ms);
  CHECK(process.machine.gate_open());
}

TEST_CASE("programs that lose the same rotad do not all look for the next at the same moments") {
  const auto attempts = [](std::uint32_t seed) {
    Machine machine(seed);
    Time now = 1000s;
    std::vector<Time> times;
    machine.step(event::Lost{}, now);
    while (times.size() < 10) {
      now = std::max(machine.look_at(), now + 1ms);
      const std::vector<Action> done = machine.step(event::Look{}, now);
      if (std::ranges::none_of(done, [](const Action& action) { return action.act == Act::kConnect; })) continue;
      times.push_back(now);
      machine.step(event::NotConnected{}, now);
    }
    return times;
  };
  CHECK(attempts(1) != attempts(2));
  for (const std::uint32_t seed : {1U, 4711U, 0xffffffffU}) {
    const std::vector<Time> times = attempts(seed);
    CHECK(times.front() <= 1000s + Machine::kSpread + 1ms);
    for (std::size_t i = 1; i < times.size(); ++i) CHECK(times[i] - times[i - 1] <= Machine::kOftenAttempt + 2ms);
  }
}
