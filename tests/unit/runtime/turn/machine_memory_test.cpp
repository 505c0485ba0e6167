// The turn machine and memory: what is restored with a turn, what is evicted for others, and what happens if memory
// does not come back.
#include <catch2/catch.hpp>

#include "tests/unit/runtime/turn/machine_process.h"

using namespace rota::test;

TEST_CASE("a program that may run without a lease has its memory restored first, and then runs") {
  Process process;
  process.seen.resident = false;
  process.resident = false;
  process.seen.standing = 1;
  SECTION("rotad has gone and the grace is over") {
    process.lose();
    process.run(Machine::kGrace + 1s);
  }
  SECTION("rotad does not serve its GPUs") {
    process.step(event::Gpus{.any = true, .answered = true, .served = 0});
    process.run(2s);
  }
  CHECK(process.did(Act::kBringBack));
  CHECK_FALSE(process.machine.gate_open());
  process.resident = true;
  process.run(100ms);
  CHECK(process.machine.gate_open());
}

TEST_CASE("memory that obstructs the next holder is evicted once the work has finished, before the lease goes back") {
  Process process;
  process.hold();
  process.press();
  process.seen.lease.in_the_way = 1;
  process.run(100ms);
  CHECK_FALSE(process.did(Act::kMoveOut));  // its work is still running
  process.seen.done = true;
  process.run(10ms);
  const auto at = [&](Act act) {
    return std::find_if(process.done.begin(), process.done.end(), [&](const Action& one) { return one.act == act; });
  };
  REQUIRE(process.did(Act::kMoveOut));
  CHECK(at(Act::kMoveOut)->gpus == 1);
  CHECK(at(Act::kMoveOut) < at(Act::kGiveBack));
  CHECK_FALSE(process.machine.gate_open());
}

TEST_CASE("nothing is evicted where nothing is in the way, or the work could not be drained") {
  Process process;
  process.hold();
  process.press();
  SECTION("it fits") {
    process.seen.done = true;
    process.run(10ms);
    CHECK(process.did(Act::kGiveBack));
  }
  SECTION("it runs beside the next one") {
    process.seen.lease.in_the_way = 1;
    process.run_until(Phase::kBeside);
    CHECK(process.did(Act::kGiveBack));
  }
  CHECK_FALSE(process.did(Act::kMoveOut));
}

TEST_CASE("memory that others need goes while nothing of the process runs, at once and without the lease") {
  Process process;
  process.hold();
  process.run(10ms);
  process.seen.lease.waiters = 1;
  process.seen.lease.drain_at = process.now;
  process.seen.looked = process.seen.done = true;
  process.run_until(Phase::kResting);
  CHECK(process.machine.still());
  // rotad has seen that the lease was given back, and another client needs room.
  process.seen.lease = {.in_the_way = 1};
  process.look();
  REQUIRE(process.did(Act::kMoveOut));
  CHECK(process.done.at(0).gpus == 1);
  process.seen.lease = {};
  process.seen.resident = false;
  process.look();
  CHECK_FALSE(process.did(Act::kMoveOut));
  // Also while it waits; its own turn brings all of it back before the gate opens.
  process.seen.standing = 1;
  process.look();
  REQUIRE(process.machine.phase() == Phase::kWaiting);
  process.seen.lease = {.in_the_way = 1};
  process.look();
  CHECK(process.did(Act::kMoveOut));
  process.seen.lease = {.grant = 2, .held = 1};
  process.look();
  CHECK(process.did(Act::kBringBack));
  CHECK(process.machine.gate_open());
  CHECK_FALSE(process.machine.still());
}

TEST_CASE("memory goes before the first turn, and not where the work of an earlier one may still run") {
  Process process;
  CHECK(process.machine.still());
  process.seen.lease = {.in_the_way = 1};
  process.look();
  CHECK(process.did(Act::kMoveOut));
  process.seen.lease = {};
  process.look();
  process.hold();
  CHECK_FALSE(process.machine.still());
  SECTION("revoked") {
    process.seen.lease = {.in_the_way = 1};
    process.run(20ms);
    REQUIRE(process.machine.phase() == Phase::kResting);
  }
  SECTION("rotad has gone while it ran, and another comes") {
    process.lose();
    process.welcome();
    process.seen.lease = {.in_the_way = 1};
    process.look();
    REQUIRE(process.machine.phase() == Phase::kWaiting);
  }
  CHECK_FALSE(process.machine.still());
  CHECK_FALSE(process.did(Act::kMoveOut));
}

TEST_CASE("once the work of a turn that was revoked has finished, memory goes without another turn") {
  Process process;
  process.hold();
  process.press();
  process.seen.lease = {};
  SECTION("of a program that rests") {
    process.seen.standing = 0;
    process.run(20ms);
    REQUIRE(process.machine.phase() == Phase::kResting);
  }
  SECTION("of one that waits for its next turn") {
    process.run(20ms);
    REQUIRE(process.machine.phase() == Phase::kWaiting);
  }
  SECTION("of one with a call that may submit more") {
    process.seen.inside = 1;
    process.run(20ms);
  }
  CHECK(process.machine.finishes());
  CHECK(process.machine.watches_gpu());
  process.seen.lease.in_the_way = 1;
  process.run(1min);  // however long its kernel takes
  CHECK_FALSE(process.did(Act::kMoveOut));
  CHECK_FALSE(process.did(Act::kOpen));
  CHECK_FALSE(process.machine.still());
  process.seen.done = true;
  if (process.seen.inside != 0) {
    process.run(1s);
    CHECK_FALSE(process.machine.still());
    process.seen.inside = 0;
  }
  process.run(50ms);
  CHECK(process.machine.still());
  CHECK_FALSE(process.machine.finishes());
  CHECK_FALSE(process.machine.watches_gpu());
  CHECK(process.did(Act::kMoveOut));
  CHECK_FALSE(process.did(Act::kOpen));
}

TEST_CASE("a turn that comes while the work of a revoked one still runs is like any other") {
  Process process;
  process.hold();
  process.press();
  process.seen.lease = {};
  process.run(20ms);
  REQUIRE(process.machine.finishes());
  process.seen.lease = {.grant = 2, .held = 1};
  process.run(10ms);
  CHECK(process.machine.gate_open());
  CHECK_FALSE(process.machine.finishes());
  CHECK_FALSE(process.machine.still());
  process.seen.standing = 0;
  process.seen.lease.waiters = 1;
  process.seen.lease.drain_at = process.now;
  process.seen.done = true;
  process.run_until(Phase::kResting);
  CHECK(process.machine.still());
  CHECK(process.machine.gate_open() == false);
}

TEST_CASE("what a holder was told to evict is not moved again before rotad has its give-back") {
  Process process;
  process.hold();
  process.run(10ms);
  process.seen.lease.waiters = 1;
  process.seen.lease.drain_at = process.now;
  process.seen.lease.in_the_way = 1;
  process.seen.looked = process.seen.done = true;
  process.run_until(Phase::kResting);
  process.run(50ms);
  CHECK_FALSE(process.did(Act::kMoveOut));
}

TEST_CASE("memory that does not go is tried again, less and less often") {
  Process process;
  process.seen.lease = {.in_the_way = 1};
  process.run(10s);
  const auto tries = std::count_if(process.done.begin(), process.done.end(),
                                   [](const Action& action) { return action.act == Act::kMoveOut; });
  CHECK(tries > 20);
  CHECK(tries < 60);
}

// The lease is granted, and its memory does not come back.
struct Short : Process {
  Short() {
    resident = false;
    seen.standing = 1;
    look();
    seen.lease = {.grant = 1, .held = 1};
    look();
    REQUIRE_FALSE(machine.gate_open());
  }
  long tries() const {
    return std::count_if(done.begin(), done.end(), [](const Action& action) { return action.act == Act::kBringBack; });
  }
};

TEST_CASE("a holder whose memory does not come goes on trying without spinning, and says so once") {
  Short process;
  process.run(1s);
  CHECK(process.tries() > 20);
  CHECK(process.tries() < 100);
  for (int i = 0; i < 1000; ++i) {  // however often it is woken
    process.look();
    CHECK_FALSE(process.did(Act::kBringBack));
  }
  process.run(10s);
  CHECK(process.said(Note::kNoRoom));
  process.run(60s);
  CHECK_FALSE(process.said(Note::kNoRoom));
  CHECK(process.machine.phase() == Phase::kHolding);
  CHECK_FALSE(process.machine.gate_open());
  process.resident = true;
  process.run(1s);
  CHECK(process.machine.gate_open());
}

TEST_CASE("a program that has long lacked memory says so, also if each of its turns was short") {
  Short process;
  bool said = false;
  for (std::uint32_t grant = 2; grant < 20 && !said; ++grant) {
    process.seen.lease.waiters = 1;
    process.seen.lease.drain_at = process.now;
    process.run(700ms);
    said = process.said(Note::kNoRoom);
    if (said) break;
    REQUIRE(process.did(Act::kGiveBack));
    process.seen.lease = {};
    process.run(500ms);
    process.seen.lease = {.grant = grant, .held = 1};
    process.run(50ms);
    said = process.said(Note::kNoRoom);
  }
  CHECK(said);
}

TEST_CASE("a holder whose memory is lost gives the lease back and wants nothing any more") {
  Short process;
  process.step(event::Brought{.resident = false, .lost = true});
  CHECK(process.did(Act::kGiveBack));
  process.seen.lease = {};
  process.run(10s);
  CHECK_FALSE(process.did(Act::kWant));
  CHECK_FALSE(process.did(Act::kBringBack));
  CHECK_FALSE(process.machine.gate_open());
  SECTION("nor when rotad goes") {
    process.lose();
    process.run(10s);
    CHECK_FALSE(process.did(Act::kBringBack));
    CHECK_FALSE(process.machine.gate_open());
    // Nor when another one arrives.
    process.welcome();
    process.run(10s);
    CHECK_FALSE(process.did(Act::kWant));
  }
}

TEST_CASE("memory that begins to go is tried again soon") {
  Process process;
  process.seen.lease = {.in_the_way = 1};
  process.run(10s);
  process.step(event::Cleared{});
  process.run(15ms);
  CHECK(process.did(Act::kMoveOut));
}

TEST_CASE("a holder whose memory does not come lets others go first when its turn is over, and asks again") {
  Short process;
  process.seen.lease.waiters = 1;
  process.seen.lease.drain_at = process.now + 2s;
  process.run(1900ms);
  CHECK(process.machine.phase() == Phase::kHolding);
  SECTION("none of it comes") {
    process.run(200ms);
    CHECK(process.did(Act::kGiveBack));
    CHECK(process.said(Note::kGaveBackUnused));
    CHECK(process.did(Act::kWant));
    CHECK(process.machine.still());
  }
  SECTION("it comes a little at a time") {
    process.some = true;
    process.run(5s);
    CHECK_FALSE(process.did(Act::kGiveBack));
    process.resident = true;
    process.run(1s);
    CHECK(process.machine.gate_open());
    // It is used although its time is over: for as long as bringing the memory back took, within bounds.
    process.seen.looked = true;
    process.run(Machine::kLongestUse - 2s);
    CHECK(process.machine.gate_open());
    process.run(2s);
    CHECK(process.machine.phase() == Phase::kDraining);
  }
  SECTION("it stops coming") {
    process.some = true;
    process.run(1s);
    process.some = false;
    process.run(Machine::kNothingComes + 100ms);
    CHECK(process.did(Act::kGiveBack));
  }
}

TEST_CASE("memory that turns out to be there when the turn's time is over is used first") {
  Short process;
  process.seen.lease.waiters = 1;
  process.seen.lease.drain_at = process.now + 100ms;
  process.run(200ms);
  REQUIRE(process.machine.phase() == Phase::kHolding);
  REQUIRE_FALSE(process.machine.gate_open());
  process.seen.resident = true;  // the last of it came with another GPU's turn
  process.seen.looked = true;
  process.look();
  CHECK(process.machine.gate_open());
  process.run(150ms);
  CHECK(process.machine.gate_open());
  process.run(200ms);
  CHECK(process.machine.phase() == Phase::kDraining);
}

TEST_CASE("a holder whose memory does not come, or has just come, gives its lease back before it would be revoked") {
  Short process;
  process.seen.lease.waiters = 1;
  process.seen.lease.drain_at = process.now + 300ms;
  process.seen.lease.give_back_by = process.now + 400ms;
  process.some = true;  // as slowly as it can
  process.run(300ms);
  CHECK(process.machine.phase() == Phase::kHolding);
  SECTION("it does not") {
    process.run(90ms);
    CHECK(process.did(Act::kGiveBack));
    CHECK(process.said(Note::kGaveBackUnused));
    CHECK(process.machine.still());
  }
  SECTION("it has come") {
    process.resident = true;
    process.run(20ms);
    CHECK(process.machine.gate_open());
    process.seen.looked = process.seen.done = true;
    process.run(70ms);
    CHECK(process.did(Act::kGiveBack));
  }
  SECTION("rotad does not say when it would be") {
    process.seen.lease.give_back_by = Time{0};
    process.run(5s);
    CHECK(process.machine.phase() == Phase::kHolding);
  }
}

TEST_CASE("a holder that comes to need more memory than there is drains when its turn is over") {
  Process process;
  process.hold();
  process.resident = process.seen.resident = false;
  process.look();
  REQUIRE(process.done.size() >= 2);
  CHECK(process.done.at(0).act == Act::kClose);  // before any memory is brought back
  CHECK(process.done.at(1).act == Act::kBringBack);
  REQUIRE_FALSE(process.machine.gate_open());
  process.seen.lease.waiters = 1;
  process.seen.lease.drain_at = process.now;
  process.seen.standing = 1;
  process.run(Machine::kNothingComes + 100ms);
  REQUIRE(process.machine.phase() == Phase::kDraining);
  process.seen.looked = process.seen.done = true;
  process.run(100ms);
  CHECK(process.did(Act::kGiveBack));
  CHECK(process.machine.still());
}

TEST_CASE("a lost rotad opens no gate before memory has been checked: some may have been allocated since") {
  Process process;
  process.hold();
  process.press();  // it drains
  process.lose();
  CHECK_FALSE(process.did(Act::kOpen));
  process.resident = process.seen.resident = false;
  process.look();
  CHECK_FALSE(process.did(Act::kOpen));
  CHECK(process.did(Act::kBringBack));
  process.resident = true;
  process.run(20ms);
  CHECK(process.machine.gate_open());
}

TEST_CASE("a program whose memory is evicted when rotad ends restores it by itself, once the grace is over") {
  Process process;
  process.seen.lease = {.in_the_way = 1};
  process.look();
  process.seen.lease = {};
  process.seen.resident = false;
  process.seen.standing = 1;
  process.look();
  process.resident = false;
  process.lose();
  process.run(Machine::kGrace - 10ms);
  CHECK_FALSE(process.did(Act::kBringBack));
  process.run(1s);
  CHECK(process.did(Act::kBringBack));
  CHECK_FALSE(process.machine.gate_open());
  process.resident = true;
  process.run(1s);
  CHECK(process.machine.gate_open());
}
