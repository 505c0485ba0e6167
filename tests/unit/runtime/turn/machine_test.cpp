// The turn machine by itself: phases, failed drains, a rotad that comes and goes. Time is a parameter.
#include <catch2/catch.hpp>

#include "tests/unit/runtime/turn/machine_process.h"

using namespace rota::test;

TEST_CASE("the predicate: a claim to the GPU opens the gate, but never while memory is away or on its way") {
  CHECK_FALSE(may_open({}));
  CHECK(may_open({.lease = true}));
  CHECK(may_open({.unserved = true}));
  CHECK(may_open({.excused = true}));
  CHECK_FALSE(may_open({.lease = true, .resident = false}));
  CHECK_FALSE(may_open({.unserved = true, .resident = false}));
  CHECK_FALSE(may_open({.lease = true, .moving = true}));
  CHECK_FALSE(may_open({.excused = true, .moving = true}));
}

TEST_CASE("a grant opens the gate only once the memory is back") {
  Process process;
  process.resident = false;
  process.seen.standing = 1;
  process.look();
  process.seen.lease = {.grant = 1, .held = 1};
  process.look();
  CHECK(process.did(Act::kBringBack));
  CHECK_FALSE(process.machine.gate_open());
  process.run(5s);  // retried again and again
  CHECK_FALSE(process.machine.gate_open());
  // Nor does losing rotad open it, however long the grace period.
  process.lose();
  process.run(5s);
  CHECK_FALSE(process.machine.gate_open());
}

TEST_CASE("however long its turn is, a process soon gives way to one that it shares memory with and that waits") {
  Process process;
  process.hold();
  process.seen.lease.waiters = 1;
  process.seen.standing = 0;
  SECTION("which waits") {
    process.seen.sharer_waits = true;
    process.run(Machine::kSharersTurn / 2);
    CHECK(process.machine.phase() == Phase::kHolding);
    process.run(Machine::kSharersTurn);
    process.run(Machine::kSharersPatience);
    CHECK(process.machine.phase() == Phase::kBeside);
  }
  SECTION("but the waiting program shares nothing with it") {
    process.run(Machine::kSharersTurn * 10);
    CHECK(process.machine.phase() == Phase::kHolding);
  }
}

TEST_CASE("a drain without progress gives way to a process that this one shares memory with and that waits") {
  Process process;
  process.hold();
  process.press();
  process.seen.standing = 0;  // no call waits at the gate: it would wait for a long kernel
  SECTION("which waits") {
    process.seen.sharer_waits = true;
    process.run(Machine::kSharersPatience / 2);
    CHECK(process.machine.phase() == Phase::kDraining);
    process.run(Machine::kSharersPatience);
    CHECK(process.machine.phase() == Phase::kBeside);
    CHECK(process.machine.gate_open());
    CHECK_FALSE(process.machine.still());
    CHECK(process.said(Note::kBesideSharer));
    CHECK_FALSE(process.said(Note::kBeside));
  }
  SECTION("but the waiting program shares nothing with it") {
    process.run(Machine::kPatience * 5);
    CHECK(process.machine.phase() == Phase::kDraining);
  }
}

TEST_CASE("a task gives a grant back that one of those it was made of had asked for, and asks for its GPUs again") {
  Process process;
  process.step(event::Gpus{.any = true, .answered = true, .served = 3});
  process.seen.standing = 1;
  process.look();
  REQUIRE(process.did(Act::kWant));
  // rotad has not taken that request, since the process held the first GPU by then.
  process.seen.lease = {.grant = 1, .held = 1};
  process.look();
  REQUIRE(process.done.size() == 2);
  CHECK(process.done[0].act == Act::kGiveBack);
  CHECK(process.done[0].grant == 1);
  CHECK(process.done[1].act == Act::kWant);
  CHECK(process.done[1].gpus == 3);
  // The page may still show it.
  process.run(10ms);
  CHECK_FALSE(process.did(Act::kWant));
  CHECK_FALSE(process.did(Act::kGiveBack));
  process.seen.lease = {.grant = 2, .held = 3};
  process.look();
  CHECK(process.machine.gate_open());
}

TEST_CASE("a task that is to become part of another gives back what it has, and asks for nothing") {
  Process process;
  SECTION("while it holds its GPU and nobody waits") {
    process.hold();
    process.seen.looked = true;
    process.seen.done = true;
    process.step(event::Retire{});
    process.seen.standing = 1;
    process.run(10ms);
    CHECK(process.did(Act::kGiveBack));
    CHECK_FALSE(process.did(Act::kWant));
  }
  SECTION("while it waits for its turn") {
    process.seen.standing = 1;
    process.look();
    REQUIRE(process.did(Act::kWant));
    process.step(event::Retire{});
    process.look();
    REQUIRE(process.did(Act::kWant));  // withdrawn
    CHECK(process.done.front().gpus == 0);
    process.run(5s);
    CHECK_FALSE(process.did(Act::kWant));
  }
  CHECK(process.machine.rests());
  CHECK_FALSE(process.machine.gate_open());
}

TEST_CASE("a drain without progress gives way to calls that wait at other gates of the process") {
  Process process;
  process.hold();
  process.press();
  process.seen.standing = 0;
  process.seen.stand_elsewhere = true;
  process.run(Machine::kPatience * 2);
  CHECK(process.machine.gate_open());
}

TEST_CASE("a program without a rotad looks for one at least once a second, however long there was none") {
  Process process;
  process.hold();
  process.lose();
  Time last = process.now;
  for (const Time until = process.now + 5min; process.now < until;) {
    process.run(1ms);
    if (!process.did(Act::kConnect)) continue;
    CHECK(process.now - last <= 1s + 10ms);
    last = process.now;
    process.step(event::NotConnected{});
  }
  CHECK(process.now - last <= 1s + 10ms);
}

TEST_CASE("grace runs from the first loss to the next grant, not anew at every loss") {
  Process process;
  process.seen.standing = 1;
  process.look();
  REQUIRE(process.did(Act::kWant));
  const Time first_loss = process.now;
  process.lose();
  while (!process.machine.gate_open() && process.now < first_loss + 2 * Machine::kGrace) {
    process.run(10ms);
    if (!process.did(Act::kConnect)) continue;
    process.welcome();
    process.run(50ms);
    process.lose();
  }
  CHECK(process.machine.gate_open());
  CHECK(process.now - first_loss <= Machine::kGrace + 100ms);
}

TEST_CASE(
    "reconnecting backs off to a bound, to a larger one once rotad counts as dead, and begins anew with a grant") {
  Process process;
  process.lose();
  std::vector<Time> attempts;
  const Time lost = process.now;
  Time last = lost;
  while (process.now < lost + Machine::kGrace + 5s) {
    process.run(1ms);
    if (!process.did(Act::kConnect)) continue;
    attempts.push_back(process.now - last);
    last = process.now;
    process.welcome();  // it accepts and hangs up
    process.lose();
  }
  CHECK(attempts.front() < 5ms);
  Time after = lost;
  for (const Time pause : attempts) {
    if ((after += pause) < lost + Machine::kGrace) CHECK(pause <= Machine::kOftenAttempt + 2ms);
  }
  for (std::size_t i = 1; i < attempts.size(); ++i) CHECK(attempts[i] >= attempts[i - 1] - 2ms);
  CHECK(attempts.back() > 900ms);
  CHECK(attempts.back() < 1100ms);
  process.run(11s);
  process.welcome();
  process.look();  // its work is running: a lease is requested for it
  REQUIRE(process.done.front().running);
  process.seen.lease = {.grant = 7, .held = 1};
  process.look();
  REQUIRE(process.machine.phase() == Phase::kHolding);
  process.lose();
  process.run(510ms);
  CHECK(process.did(Act::kConnect));
}

TEST_CASE("a rotad that welcomes and answers nothing is left") {
  Process process;
  process.lose();
  process.run(600ms);
  REQUIRE(process.did(Act::kConnect));
  process.step(event::Connected{});
  process.step(event::Gpus{.any = true, .answered = false, .served = 0});
  process.run(Machine::kAnswer + 100ms);
  CHECK(process.did(Act::kHangUp));
  process.step(event::Lost{.silent = true});
  process.run(100ms);
  CHECK(process.machine.gate_open());
}

TEST_CASE("after a loss another rotad is looked for at once, and then ever less often") {
  Process process;
  process.lose();
  process.look();
  CHECK(process.did(Act::kConnect));
  process.step(event::NotConnected{});
  process.run(Machine::kFirstAttempt - 10ms);
  CHECK_FALSE(process.did(Act::kConnect));
  process.run(20ms);
  CHECK(process.did(Act::kConnect));
  // One that hangs up as soon as it has said welcome is not asked again and again.
  process.step(event::Connected{});
  process.lose();
  process.run(2 * Machine::kFirstAttempt - 10ms);
  CHECK_FALSE(process.did(Act::kConnect));
}

TEST_CASE("a program whose GPU rotad gets later goes on while it asks, and takes turns from then on") {
  Process process;
  process.step(event::Gpus{.any = true, .answered = true, .served = 0});
  process.look();
  REQUIRE(process.machine.phase() == Phase::kUnserved);
  REQUIRE(process.machine.gate_open());
  process.seen.inside = 1;
  process.step(event::Gpus{.any = true, .answered = true, .served = 1});
  CHECK(process.did(Act::kWant));
  CHECK(process.machine.gate_open());
  process.seen.inside = 0;
  process.seen.looked = process.seen.done = true;
  process.run(1s);
  CHECK_FALSE(process.machine.gate_open());
  process.seen.standing = 1;
  process.seen.lease = {.grant = 3, .held = 1};
  process.run(10ms);
  CHECK(process.machine.gate_open());
  CHECK(process.machine.grant() == 3);
}

TEST_CASE("with ROTA_WAIT=1 nothing runs before a rotad has served the program, whichever rotads come and go") {
  Process process;
  const event::Gpus refused{.any = true, .answered = false, .served = 0, .waits = true};
  process.step(refused);
  process.seen.standing = 1;
  process.run(20s);
  CHECK_FALSE(process.machine.gate_open());
  CHECK_FALSE(process.did(Act::kHangUp));
  process.lose();
  process.run(20s);
  CHECK_FALSE(process.machine.gate_open());
  process.step(event::Connected{});
  process.step(refused);
  process.run(20s);
  CHECK_FALSE(process.machine.gate_open());
  process.step(event::Gpus{.any = true, .answered = true, .served = 1});
  process.look();
  process.seen.lease = {.grant = 1, .held = 1};
  process.run(10ms);
  CHECK(process.machine.gate_open());
}

TEST_CASE("a drain is given up only when the GPU makes no progress while calls wait at the gate") {
  Process process;
  process.hold();
  process.press();
  SECTION("the GPU passes marks, with a thread inside all the time") {
    process.seen.inside = 1;
    for (int i = 0; i < 100; ++i) {
      ++process.seen.reached;
      process.run(500ms);
      REQUIRE(process.machine.phase() == Phase::kDraining);
    }
    CHECK_FALSE(process.machine.gate_open());
  }
  SECTION("a thread inside compiles: the GPU is idle") {
    process.seen.inside = 1;
    process.seen.done = true;
    process.run(20s);
    CHECK_FALSE(process.machine.gate_open());
    process.seen.inside = 0;
    ++process.seen.calls;
    process.run(10ms);
    CHECK(process.did(Act::kGiveBack));
  }
  SECTION("a thread inside does not come back for very long, with an idle GPU: better late than stuck") {
    process.seen.inside = 1;
    process.seen.done = true;
    process.run(40s);
    CHECK(process.said(Note::kHeldBack));
  }
  SECTION("nothing moves") {
    process.run(900ms);
    CHECK_FALSE(process.machine.gate_open());
    process.run(200ms);
    CHECK(process.machine.gate_open());
    CHECK(process.machine.phase() == Phase::kHolding);
    CHECK(process.said(Note::kHeldBack));
  }
  SECTION("no progress, and no thread waits at the gate: a long kernel") {
    process.seen.standing = 0;
    process.run(100s);
    CHECK_FALSE(process.machine.gate_open());
    process.seen.done = true;
    process.run(10ms);
    CHECK(process.did(Act::kGiveBack));
  }
}

TEST_CASE("only a mark made after the gate was empty proves that the work has finished") {
  Process process;
  process.hold();
  process.press();
  process.seen.done = true;
  SECTION("somebody is inside") {
    process.seen.inside = 1;
    process.run(5s);
    CHECK_FALSE(process.did(Act::kGiveBack));
  }
  SECTION("something captures") {
    process.mark = Marked::kCapturing;
    process.seen.standing = 0;
    process.run(5s);
    CHECK_FALSE(process.did(Act::kGiveBack));
    process.mark = Marked::kYes;
    process.run(5ms);
    CHECK(process.did(Act::kGiveBack));
  }
  SECTION("the driver refuses to say") {
    process.mark = Marked::kUnknown;
    process.seen.standing = 0;
    process.run(5s);
    CHECK_FALSE(process.did(Act::kGiveBack));
  }
}

TEST_CASE(
    "a program that could not be drained several times runs concurrently with the others for a time, and is tried "
    "again") {
  Process process;
  process.hold();
  process.press();
  process.run_until(Phase::kBeside);
  CHECK(process.said(Note::kBeside));
  CHECK(process.did(Act::kGiveBack));
  CHECK(process.machine.gate_open());
  process.seen.lease = {};
  // Retried less and less often.
  std::vector<Time> tries;
  Time last = process.now;
  while (tries.size() < 8) {
    process.run(10ms);
    if (!process.said(Note::kTriesAgain)) continue;
    tries.push_back(process.now - last);
    last = process.now;
  }
  CHECK(tries[1] > 25s);
  CHECK(tries[3] > tries[1]);
  CHECK(tries.back() > 9min);
  CHECK(tries.back() < 11min);
  // Once it can be drained, it takes turns like any other process.
  process.seen.done = true;
  process.run(1s);
  CHECK_FALSE(process.machine.gate_open());
  process.look();
  CHECK(process.machine.phase() == Phase::kWaiting);
}

TEST_CASE("a want that is queued when a process turns out undrainable is withdrawn, and a late grant goes back") {
  Process process;
  process.hold();
  process.lose();
  process.run(600ms);
  process.welcome();
  process.seen.looked = true;
  process.seen.standing = 1;
  process.look();
  REQUIRE(process.machine.phase() == Phase::kWaiting);
  process.run_until(Phase::kBeside);
  bool withdrawn = false;
  for (const Action& action : process.done) {
    if (action.act == Act::kWant) withdrawn = action.gpus == 0;
  }
  CHECK(withdrawn);
  process.seen.lease = {.grant = 9, .held = 1};
  process.look();
  CHECK(process.did(Act::kGiveBack));
  CHECK(process.machine.gate_open());
}

TEST_CASE("a page that shows no grant for an instant is being written: only a second look means revoked") {
  Process process;
  process.hold();
  process.seen.lease.grant = 0;
  process.look();
  CHECK(process.machine.gate_open());
  process.seen.lease.grant = 2;
  process.now += 500us;
  process.look();
  CHECK(process.machine.gate_open());
  process.seen.lease.grant = 0;
  process.look();
  process.run(3ms);
  CHECK_FALSE(process.machine.gate_open());
  CHECK(process.said(Note::kRevoked));
}

TEST_CASE("a process that was stopped while its grant came and went asks again") {
  Process process;
  process.seen.standing = 1;
  process.look();
  REQUIRE(process.did(Act::kWant));
  // rotad grants a lease, gets no answer and revokes it; the page shows what it showed before.
  process.now += 1min;
  process.look();
  CHECK(process.machine.phase() == Phase::kWaiting);
  CHECK(process.did(Act::kWant));
  // Not at each check.
  process.run(500ms);
  CHECK_FALSE(process.did(Act::kWant));
  process.seen.lease = {.grant = 2, .held = 1};
  process.look();
  CHECK(process.machine.gate_open());
}

TEST_CASE("a thread that its own work in flight holds up is about to call: its process is not idle") {
  Process process;
  process.hold();
  process.seen.lease.waiters = 1;
  process.seen.lease.drain_at = process.now + 10s;
  process.seen.looked = process.seen.done = true;
  process.seen.about_to_call = 1;
  process.run(100ms);
  CHECK_FALSE(process.did(Act::kGiveBack));
  process.seen.about_to_call = 0;
  SECTION("it has made another call, and the GPU has finished") {
    ++process.seen.calls;
  }
  SECTION("it has called nothing after all") {}
  process.run(100ms);
  CHECK(process.did(Act::kGiveBack));
}
