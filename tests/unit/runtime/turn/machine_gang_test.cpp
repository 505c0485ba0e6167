// The turn machine as a member of a gang.
#include <algorithm>
#include <catch2/catch.hpp>
#include <vector>

#include "scheduler/protocol/pages.h"
#include "tests/unit/runtime/turn/machine_process.h"

using namespace rota::test;
using rota::protocol::kGangMayEnd;
using rota::protocol::kGangRests;
using rota::protocol::kGangStands;

namespace {

constexpr std::uint64_t word(std::uint32_t step, std::uint32_t flags) {
  return std::uint64_t{step} << 32 | flags;
}

constexpr Lease kGranted{.grant = 7, .held = 1, .gang = 3};

struct Member : Process {
  std::uint64_t told = 0;
  // The last one's position among what was done; all of them are noted.
  std::vector<std::uint64_t> reports;

  void look() {
    Process::look();
    note();
  }
  void run(Time time) {
    look();  // what has changed wakes it
    const std::vector<Action> first = done;
    Process::run(time);
    note();
    done.insert(done.begin(), first.begin(), first.end());
  }
  void note() {
    for (const Action& action : done) {
      if (action.act != Act::kReport) continue;
      CHECK(action.word != told);
      told = action.word;
      reports.push_back(told);
    }
  }
  // Its threads wait at the gate, and the gang is granted.
  void hold() {
    seen.standing = 1;
    look();
    REQUIRE(did(Act::kWant));
    seen.lease = kGranted;
    look();
    look();
    seen.standing = 0;
    seen.looked = true;
    REQUIRE(machine.gate_open());
  }
  // Its work has finished, and the gang drains.
  void rest(std::uint32_t step = 1) {
    seen.lease.waiters = 1;
    seen.lease.step = step;
    seen.done = true;
    run(5ms);
    REQUIRE(machine.rests_in_gang());
  }
  std::size_t when(Act act) const {
    const auto found = std::find_if(done.begin(), done.end(), [act](const Action& each) { return each.act == act; });
    return static_cast<std::size_t>(found - done.begin());
  }
};

}  // namespace

TEST_CASE("a member keeps a grant that it has not asked for, and takes it once threads wait") {
  Member member;
  member.seen.lease = kGranted;
  member.run(3s);
  CHECK_FALSE(member.did(Act::kGiveBack));
  CHECK_FALSE(member.did(Act::kWant));
  CHECK_FALSE(member.machine.gate_open());
  CHECK(member.told == word(0, kGangRests | kGangMayEnd));
  SECTION("before the gang drains") {
    member.seen.standing = 1;
    member.look();
    CHECK_FALSE(member.did(Act::kWant));
    CHECK(member.machine.phase() == Phase::kHolding);
    CHECK(member.told == word(0, 0));  // before the gate opens
    CHECK_FALSE(member.machine.gate_open());
    member.look();
    CHECK(member.machine.gate_open());
  }
  SECTION("not while it drains, before the others need its calls") {
    member.seen.lease.step = 1;
    member.look();
    CHECK(member.told == word(1, kGangRests));
    member.seen.standing = 2;
    member.run(1s);
    CHECK(member.told == word(1, kGangRests | kGangStands));
    CHECK(member.machine.phase() == Phase::kResting);
    member.seen.lease.step = 2;
    member.look();
    CHECK(member.machine.phase() == Phase::kHolding);
    CHECK(member.did(Act::kBringBack));
    CHECK(member.told == word(2, 0));
    member.run(10ms);
    CHECK(member.told == word(2, kGangRests | kGangStands));
    CHECK_FALSE(member.machine.gate_open());
    CHECK_FALSE(member.did(Act::kOpen));
    CHECK_FALSE(member.did(Act::kAdmit));
    CHECK(member.machine.still());
    member.seen.lease.step = 3;
    member.look();
    CHECK(member.did(Act::kAdmit));
    CHECK_FALSE(member.machine.still());
    // Its first call in this turn.
    member.seen.standing = 0;
    member.seen.looked = true;
    member.seen.done = false;
    ++member.seen.calls;
    member.run(1s);
    CHECK(member.told == word(3, 0));
    member.seen.done = true;
    member.run(5ms);
    CHECK(member.told == word(3, kGangRests));
  }
  SECTION("and gives it back at the end") {
    member.seen.lease.step = 1;
    member.look();
    member.seen.lease.ends = true;
    member.look();
    CHECK(member.did(Act::kGiveBack));
    CHECK(member.machine.phase() == Phase::kResting);
  }
  SECTION("or if its GPUs are to become another task's") {
    member.step(event::Retire{});
    member.look();
    CHECK(member.did(Act::kGiveBack));
  }
}

TEST_CASE("a member with waiting threads at the end of the gang's turn asks anew") {
  Member member;
  const bool asked = GENERATE(false, true);
  member.seen.standing = asked ? 1 : 0;
  member.look();
  member.seen.standing = 1;
  member.seen.lease = kGranted;
  member.seen.lease.step = 4;
  member.look();
  CHECK(member.told == word(4, kGangRests | kGangStands));
  member.run(5s);
  CHECK_FALSE(member.did(Act::kWant));
  CHECK_FALSE(member.machine.gate_open());
  member.seen.lease.ends = true;
  member.look();
  CHECK(member.when(Act::kGiveBack) < member.when(Act::kWant));
  CHECK(member.did(Act::kWant));
}

TEST_CASE("a member whose work of an earlier turn still runs is not idle") {
  Member member;
  member.hold();
  member.seen.lease.step = 1;
  member.seen.done = false;
  member.run(5ms);
  CHECK(member.told == word(1, 0));
  member.seen.lease = {};  // revoked
  member.run(5ms);
  REQUIRE(member.said(Note::kRevoked));
  REQUIRE(member.machine.phase() == Phase::kResting);
  member.seen.lease = {.grant = 8, .held = 1, .gang = 3, .step = 2};
  member.run(100ms);
  CHECK(member.told == word(2, 0));
  member.seen.done = true;
  member.run(100ms);
  CHECK(member.told == word(2, kGangRests));
  CHECK_FALSE(member.did(Act::kGiveBack));
}

TEST_CASE("one member by itself does not end the gang's turn") {
  Member member;
  member.hold();
  member.seen.lease.waiters = 1;
  member.seen.lease.drain_at = member.now + 1h;
  member.seen.sharer_waits = true;
  ++member.seen.calls;
  member.seen.done = false;
  member.run(2s);
  CHECK(member.machine.gate_open());
  CHECK(member.told == word(0, 0));
  member.seen.done = true;
  member.run(1s);
  CHECK(member.machine.gate_open());
  CHECK(member.told == word(0, kGangMayEnd));
  ++member.seen.calls;
  member.seen.done = false;
  member.run(10ms);
  CHECK(member.told == word(0, 0));
  CHECK_FALSE(member.did(Act::kGiveBack));
  SECTION("nor idle while it times its work") {
    member.seen.measures = member.seen.done = true;
    member.run(1s);
    CHECK(member.told == word(0, 0));
  }
  SECTION("it may end once its own time is over, busy or not") {
    member.seen.lease.drain_at = member.now;
    member.run(10ms);
    CHECK(member.told == word(0, kGangMayEnd));
    CHECK(member.machine.gate_open());
    member.seen.measures = true;
    member.run(10ms);
    CHECK(member.told == word(0, 0));
  }
  SECTION("nor because its GPUs are to become another task's, while others wait") {
    member.step(event::Retire{});
    member.seen.done = true;
    member.run(1s);
    CHECK(member.machine.gate_open());
    member.seen.lease.waiters = 0;  // then nothing else would end it
    member.run(1s);
    CHECK_FALSE(member.machine.gate_open());
    CHECK(member.did(Act::kGiveBack));
  }
  SECTION("but once the gang drains") {
    member.seen.measures = true;
    member.seen.lease.step = 1;
    member.look();
    CHECK_FALSE(member.machine.gate_open());
    CHECK(member.machine.phase() == Phase::kDraining);
  }
}

TEST_CASE("a member whose memory cannot be restored may end its turn once that is over, and goes on trying") {
  Member member;
  member.resident = member.seen.resident = false;
  member.seen.standing = 1;
  member.seen.lease = {.grant = 7, .held = 1, .waiters = 1, .drain_at = member.now + 20ms, .gang = 3};
  member.look();
  member.run(10ms);
  CHECK(member.told == word(0, 0));
  member.run(1s);
  CHECK(member.told == word(0, kGangMayEnd));
  CHECK(member.machine.phase() == Phase::kHolding);
  member.seen.lease.step = 1;
  member.run(10ms);
  CHECK(member.told == word(1, kGangRests));
  member.seen.lease.ends = true;
  member.run(10ms);
  CHECK(member.did(Act::kGiveBack));
}

TEST_CASE("a member that has drained waits for the others, and gives back at the end") {
  Member member;
  member.hold();
  member.seen.lease.waiters = 1;
  member.seen.lease.step = 1;
  member.seen.done = false;
  member.run(5ms);
  CHECK_FALSE(member.machine.gate_open());
  CHECK(member.told == word(1, 0));
  // However long it takes, even with calls that wait: rotad knows why.
  member.seen.standing = 1;
  member.run(5min);
  CHECK(member.machine.phase() == Phase::kDraining);
  CHECK_FALSE(member.did(Act::kOpen));
  CHECK(member.told == word(1, 0));
  member.seen.done = true;
  member.run(5ms);
  CHECK(member.told == word(1, kGangRests | kGangStands));
  CHECK(member.machine.rests_in_gang());
  member.run(1min);
  CHECK(member.done.empty());
  member.seen.standing = 0;
  member.look();
  CHECK(member.told == word(1, kGangRests));
  member.seen.lease.step = 2;
  member.look();
  CHECK(member.told == word(2, kGangRests));
  CHECK(member.done.size() == 1);
  CHECK(member.machine.grant() == 7);
  member.seen.lease.ends = true;
  member.look();
  CHECK(member.did(Act::kGiveBack));
  CHECK(member.machine.still());
  CHECK(member.machine.rests());
}

TEST_CASE("one call is let in for each step, after the member has said that it is no longer idle") {
  Member member;
  member.hold();
  member.rest();
  member.seen.standing = 2;
  member.look();
  CHECK(member.told == word(1, kGangRests | kGangStands));
  CHECK_FALSE(member.did(Act::kAdmit));
  member.seen.lease.step = 2;
  member.look();
  REQUIRE(member.did(Act::kAdmit));
  CHECK(member.told == word(2, 0));
  CHECK(member.when(Act::kReport) < member.when(Act::kAdmit));
  CHECK_FALSE(member.machine.still());
  member.seen.inside = 1;
  member.run(20ms);
  CHECK(member.told == word(2, 0));
  CHECK_FALSE(member.did(Act::kDismiss));
  // It has left, and its kernel runs.
  member.seen.inside = 0;
  member.seen.standing = 1;
  ++member.seen.calls;
  member.seen.done = false;
  member.run(1s);
  CHECK(member.told == word(2, 0));
  CHECK_FALSE(member.did(Act::kAdmit));
  // What was seen before a mark behind that call proves nothing.
  member.seen.done = true;
  member.run(5ms);
  CHECK(member.told == word(2, kGangRests | kGangStands));
  member.run(1s);
  CHECK(member.done.empty());
  member.seen.lease.step = 4;
  member.look();
  CHECK(member.did(Act::kAdmit));
}

TEST_CASE("a call that does not come is no longer let in") {
  Member member;
  member.hold();
  member.rest();
  member.seen.standing = 1;
  member.look();
  member.seen.lease.step = 2;
  member.look();
  REQUIRE(member.did(Act::kAdmit));
  member.seen.inside = 1;  // as long as it may come
  SECTION("since no thread waits any more") {
    member.seen.standing = 0;
    member.run(Machine::kAdmits - 1ms);
    CHECK_FALSE(member.did(Act::kDismiss));
    member.run(2ms);
    CHECK(member.did(Act::kDismiss));
  }
  SECTION("since the waiting threads cannot make it") {
    member.run(Machine::kAdmitsAtMost + 1ms);
    CHECK(member.did(Act::kDismiss));
  }
  SECTION("since the grant was revoked") {
    member.seen.lease = {};
    member.run(5ms);
    CHECK(member.did(Act::kDismiss));
    return;
  }
  SECTION("since rotad is gone") {
    member.lose();
    CHECK(member.did(Act::kDismiss));
    CHECK(member.when(Act::kDismiss) < member.when(Act::kOpen));
    return;
  }
  CHECK(member.told == word(2, 0));
  member.seen.inside = 0;
  member.run(5ms);
  CHECK((member.told & kGangRests) != 0);
  CHECK(member.told >> 32 == 2);
}

TEST_CASE("the gate of a gang's member opens only right after it was seen that the gang does not drain") {
  Member member;
  member.resident = false;
  member.seen.standing = 1;
  member.look();
  member.seen.lease = kGranted;
  member.look();
  CHECK_FALSE(member.machine.gate_open());
  SECTION("its memory comes, and then the gang drains") {
    member.resident = true;
    member.now += 10s;
    member.look();
    CHECK(member.did(Act::kBringBack));
    CHECK_FALSE(member.machine.gate_open());
    member.seen.lease.step = 1;
    member.run(1s);
    CHECK_FALSE(member.did(Act::kOpen));
    CHECK(member.told == word(1, kGangRests | kGangStands));
  }
  SECTION("the gang drains, and its memory comes when it is to make a call") {
    member.seen.lease.waiters = 1;
    member.seen.lease.step = 1;
    member.run(1s);
    CHECK(member.told == word(1, kGangRests));  // it cannot make any
    CHECK(member.did(Act::kBringBack));
    member.seen.lease.step = 2;
    member.look();
    CHECK(member.told == word(2, kGangRests));
    member.resident = true;
    member.run(1s);
    CHECK(member.told == word(2, kGangRests | kGangStands));
    member.seen.lease.step = 3;
    member.look();
    CHECK(member.did(Act::kAdmit));
    CHECK_FALSE(member.machine.gate_open());
  }
  SECTION("its memory does not come") {
    member.seen.lease.waiters = 1;
    member.seen.lease.drain_at = member.now;
    member.run(5s);
    CHECK_FALSE(member.did(Act::kGiveBack));
  }
  SECTION("its memory comes in time") {
    member.resident = true;
    member.run(1s);
    CHECK(member.machine.gate_open());
  }
}

TEST_CASE("threads that wait for memory do not count as waiting calls") {
  Member member;
  member.hold();
  member.rest();
  member.seen.standing = member.seen.not_at_gate = 1;
  member.run(1s);
  CHECK(member.told == word(1, kGangRests));
}

TEST_CASE("a member that has touched another GPU gives its grant back by itself, and asks for both") {
  Member member;
  const bool holds = GENERATE(false, true);
  if (holds) member.hold();
  member.seen.lease = kGranted;
  member.look();
  member.seen.done = true;
  member.step(event::Gpus{.any = true, .answered = true, .served = 3});
  member.seen.standing = 1;
  member.run(10ms);
  CHECK(member.did(Act::kGiveBack));
  CHECK(member.did(Act::kWant));
  CHECK_FALSE(member.machine.gate_open());
}

TEST_CASE("a new rotad is told from the beginning") {
  Member member;
  member.hold();
  member.rest();
  CHECK(member.told == word(1, kGangRests));
  member.lose();
  member.told = 0;
  member.welcome();
  member.run(10ms);
  member.seen.lease = {.grant = 1, .held = 1, .waiters = 1, .gang = 1, .step = 1};
  member.run(10ms);
  CHECK(member.told == word(1, kGangRests));
}

TEST_CASE("a new grant of the gang begins a turn, also where the end of the last one went unnoticed") {
  Member member;
  member.hold();
  member.rest(5);
  member.seen.lease.grant = 9;
  member.seen.lease.step = 0;
  member.look();
  CHECK(member.told == word(0, 0));
  CHECK_FALSE(member.machine.gate_open());
  member.run(1ms);
  CHECK(member.machine.gate_open());
  CHECK(member.machine.grant() == 9);
}
