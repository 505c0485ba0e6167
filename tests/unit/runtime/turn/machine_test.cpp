// The turn machine by itself: phases, drains that fail, a rotad that comes and goes. Time is a parameter.
#include "runtime/turn/machine.h"

#include <catch2/catch.hpp>

using namespace rota::turn;
using namespace std::chrono_literals;

namespace {

// One process with one GPU, which rotad serves as its first.
struct Process {
  Machine machine;
  Time now = 1000s;
  event::Look seen;
  std::vector<Action> done;  // by the last call
  Marked mark = Marked::kYes;
  bool resident = true;  // what an attempt to bring memory back comes to
  bool some = false;     // whether at least some of it has come

  Process() { step(event::Gpus{.any = true, .answered = true, .served = 1}); }

  void step(const Event& event) {
    done.clear();
    apply(event);
  }
  void apply(const Event& event) {
    const std::vector<Action> actions = machine.step(event, now);
    for (const Action& action : actions) {
      done.push_back(action);
      if (action.act == Act::kMark) apply(event::MarkMade{mark});
      if (action.act == Act::kBringBack) {
        seen.resident = resident;
        apply(event::Brought{.resident = resident, .some = some});
      }
    }
  }
  void look() { step(seen); }
  // Looks whenever the machine wants to, for so long.
  void run(Time time) {
    std::vector<Action> all;
    for (const Time until = now + time; now < until;) {
      now = std::min(until, std::max(machine.look_at(), now + 20us));
      look();
      all.insert(all.end(), done.begin(), done.end());
    }
    done = all;
  }
  void run_until(Phase phase) {
    for (const Time until = now + 1h; machine.phase() != phase && now < until;) run(1ms);
    REQUIRE(machine.phase() == phase);
  }
  bool did(Act act) const {
    return std::any_of(done.begin(), done.end(), [&](const Action& action) { return action.act == act; });
  }
  bool said(Note note) const {
    return std::any_of(done.begin(), done.end(),
                       [&](const Action& action) { return action.act == Act::kSay && action.note == note; });
  }
  void hold(std::uint32_t grant = 1) {
    seen.standing = 1;
    look();
    REQUIRE(did(Act::kWant));
    seen.lease = {.grant = grant, .held = 1};
    look();
    seen.standing = 0;
    REQUIRE(machine.gate_open());
  }
  // Somebody waits, and the turn is over; the GPU is at work and calls stand at the gate.
  void press() {
    run(10ms);
    seen.lease.waiters = 1;
    seen.lease.drain_at = now;
    seen.looked = true;
    seen.done = false;
    seen.standing = 1;
    look();
    REQUIRE(machine.phase() == Phase::kDraining);
    REQUIRE_FALSE(machine.gate_open());
  }
  void lose() {
    seen.lease = {};
    step(event::Lost{});
  }
  void welcome() {
    step(event::Connected{});
    step(event::Gpus{.any = true, .answered = true, .served = 1});
  }
};

}  // namespace

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
  process.run(5s);  // tried again and again
  CHECK_FALSE(process.machine.gate_open());
  // Nor does the loss of rotad open it, whatever the grace.
  process.lose();
  process.run(5s);
  CHECK_FALSE(process.machine.gate_open());
}

TEST_CASE("grace runs from the first loss to the next grant, not anew at every loss") {
  Process process;
  process.seen.standing = 1;
  process.look();
  REQUIRE(process.did(Act::kWant));
  const Time first_loss = process.now;
  process.lose();
  while (!process.machine.gate_open() && process.now < first_loss + 10s) {
    process.run(10ms);
    if (!process.did(Act::kConnect)) continue;
    process.welcome();
    process.run(50ms);
    process.lose();
  }
  CHECK(process.machine.gate_open());
  CHECK(process.now - first_loss <= Machine::kGrace + 100ms);
}

TEST_CASE("reconnecting backs off to a bound, and begins anew with a grant") {
  Process process;
  process.lose();
  std::vector<Time> attempts;
  Time last = process.now;
  while (attempts.size() < 8) {
    process.run(1ms);
    if (!process.did(Act::kConnect)) continue;
    attempts.push_back(process.now - last);
    last = process.now;
    process.welcome();  // it accepts and hangs up
    process.lose();
  }
  CHECK(attempts.front() < 600ms);
  for (std::size_t i = 1; i < attempts.size(); ++i) CHECK(attempts[i] >= attempts[i - 1] - 2ms);
  CHECK(attempts.back() > 9s);
  CHECK(attempts.back() < 11s);
  process.run(11s);
  process.welcome();
  process.look();  // its work runs: it is asked for
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
  process.run(6s);
  CHECK(process.machine.gate_open());
  CHECK(process.did(Act::kHangUp));
}

TEST_CASE("a drain is given up only when the GPU gets nowhere while calls stand at the gate") {
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
  SECTION("nothing moves, and nobody stands at the gate: a long kernel") {
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

TEST_CASE("what could not be drained so many times runs beside the others for a time, and is tried again") {
  Process process;
  process.hold();
  process.press();
  process.run_until(Phase::kBeside);
  CHECK(process.said(Note::kBeside));
  CHECK(process.did(Act::kGiveBack));
  CHECK(process.machine.gate_open());
  process.seen.lease = {};
  // Tried again, less and less often.
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
  // And once it can be drained it takes turns like any other.
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
  // rotad grants, waits in vain and revokes; the page shows what it showed before.
  process.now += 1min;
  process.look();
  CHECK(process.machine.phase() == Phase::kWaiting);
  CHECK(process.did(Act::kWant));
  // Not with each look.
  process.run(500ms);
  CHECK_FALSE(process.did(Act::kWant));
  process.seen.lease = {.grant = 2, .held = 1};
  process.look();
  CHECK(process.machine.gate_open());
}

TEST_CASE("whoever may run without a lease gets its memory back first, and then runs") {
  Process process;
  process.seen.resident = false;
  process.resident = false;
  process.seen.standing = 1;
  SECTION("rotad has gone and the grace is over") {
    process.lose();
    process.run(2s);
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

TEST_CASE("memory that is in the next one's way is moved out once the work has finished, before the lease goes back") {
  Process process;
  process.hold();
  process.press();
  process.seen.lease.in_the_way = 1;
  process.run(100ms);
  CHECK_FALSE(process.did(Act::kMoveOut));  // its work still runs
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

TEST_CASE("nothing is moved out where nothing is in the way, or the work could not be drained") {
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
  // rotad has seen the give-back, and somebody lacks room.
  process.seen.lease = {.in_the_way = 1};
  process.look();
  REQUIRE(process.did(Act::kMoveOut));
  CHECK(process.done.at(0).gpus == 1);
  process.seen.lease = {};
  process.seen.resident = false;
  process.look();
  CHECK_FALSE(process.did(Act::kMoveOut));
  // While it waits, too; and its own turn brings all of it back before the gate opens.
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

TEST_CASE("what a holder was told to clear is not moved again before rotad has its give-back") {
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

// Granted, and its memory does not come.
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
  for (int i = 0; i < 1000; ++i) {  // whatever rings
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
    // And is used, although its time is over: as long as it took, within bounds.
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

TEST_CASE("a holder that comes to need more than there is room for drains when its turn is over") {
  Process process;
  process.hold();
  process.resident = process.seen.resident = false;
  process.look();
  REQUIRE(process.done.size() >= 2);
  CHECK(process.done.at(0).act == Act::kClose);  // before anything is brought
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

TEST_CASE("a lost rotad opens no gate before memory has been looked at: some may have been allocated since") {
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

TEST_CASE("whose memory is out when rotad goes brings it back by itself, once the grace is over") {
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
