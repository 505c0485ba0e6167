// Swap memory: whose memory leaves a GPU to make room for the holders, and how much.
#include <catch2/catch.hpp>

#include "tests/unit/scheduler/core/swap_machine.h"

namespace rota::scheduler {
namespace {

using namespace std::chrono_literals;

TEST_CASE("nothing moves when a lease goes back, and not while the next holder has room") {
  SwapMachine machine;
  machine.rests(1, 400);
  CHECK(machine.clears(1) == 0);
  machine.join(2, 500);
  machine.want(2);
  CHECK(machine.holds(2));
  CHECK(machine.clears(1) == 0);
}

TEST_CASE("exactly what a holder lacks is asked of who rests, and a decision says so") {
  SwapMachine machine;
  machine.rests(1, 600);
  machine.join(2, 500);
  const std::vector<Decision> decisions = machine.want(2);
  CHECK(machine.clears(1) == 120);  // 600 + 500 + 2 contexts
  const auto told = std::find_if(decisions.begin(), decisions.end(),
                                 [](const Decision& decision) { return decision.change == Change::kClear; });
  REQUIRE(told != decisions.end());
  CHECK(told->client == 1);
  CHECK(told->grant == 0);
  CHECK(told->gpu == 0);
  CHECK(told->bytes == 120 * kMega);
  // While it leaves, the rest is asked for; once everything fits, nothing more.
  machine.has(1, 600, 550);
  CHECK(machine.clears(1) == 70);
  CHECK(machine.core.resident_bytes(1, 0) == 550 * kMega);
  const std::vector<Decision> done = machine.has(1, 600, 480);
  CHECK(machine.clears(1) == 0);
  CHECK(std::any_of(done.begin(), done.end(),
                    [](const Decision& decision) { return decision.change == Change::kClear && decision.bytes == 0; }));
  CHECK(machine.has(1, 600, 480).empty());
}

TEST_CASE("on a large GPU a little more is asked for than is missing by the books, and nothing while all fits") {
  SwapMachine machine;
  machine.total = 80000;
  machine.rests(1, 50000);
  SECTION("if anything is missing") {
    machine.join(2, 30000);
    machine.want(2);
    CHECK(machine.clears(1) == 20 + 78);  // 2 contexts
    machine.has(1, 50000, 49979);
  }
  SECTION("otherwise nothing") {
    machine.join(2, 29980);
    machine.want(2);
  }
  CHECK(machine.clears(1) == 0);
}

TEST_CASE("a holder that shares memory or events is told when somebody waits for it who does, too") {
  SwapMachine machine(Mode::kExclusive);
  machine.join(1, 600);
  machine.join(2, 500);
  const auto shares = [&](ClientId id) {
    machine.core.step(event::Activity{.client = id, .shares = true}, machine.now);
  };
  const auto anybody = [](ClientId) { return true; };
  machine.want(1);
  SECTION("both do") {
    shares(1);
    shares(2);
    CHECK_FALSE(machine.core.sharer_waits(1, anybody));
    machine.want(2);
    CHECK(machine.core.sharer_waits(1, anybody));
    CHECK_FALSE(machine.core.sharer_waits(2, anybody));
    CHECK_FALSE(machine.core.sharer_waits(1, [](ClientId id) { return id != 2; }));
    machine.give_back(1);
    CHECK_FALSE(machine.core.sharer_waits(1, anybody));
    CHECK_FALSE(machine.core.sharer_waits(2, anybody));
  }
  SECTION("only the holder does") {
    shares(1);
    machine.want(2);
    CHECK_FALSE(machine.core.sharer_waits(1, anybody));
  }
  SECTION("only the one that waits does") {
    shares(2);
    machine.want(2);
    CHECK_FALSE(machine.core.sharer_waits(1, anybody));
  }
}

TEST_CASE("where others have memory that can leave the holder is told, also of one that does not clear it") {
  SwapMachine machine;
  machine.rests(1, 600);
  CHECK(machine.core.movable_gpus() == 1);
  machine.join(2, 500);
  machine.want(2);
  REQUIRE(machine.clears(1) == 120);
  machine.wait(Clearing::kProgress);
  CHECK(machine.core.clearing_gpus() == 0);
  CHECK(machine.core.movable_gpus() == 1);
  SECTION("until all of it has gone") {
    machine.has(1, 600, 0);
  }
  SECTION("or cannot leave any more") {
    machine.has(1, 600, 600, 600);
  }
  SECTION("or is the holder's") {
    machine.give_back(2);
    machine.want(1);
  }
  SECTION("or its owner has gone") {
    machine.core.step(event::Leave{1}, machine.now);
  }
  CHECK(machine.core.movable_gpus() == 0);
}

TEST_CASE("what was asked for and has not gone is told anew when what it is a part of has changed") {
  SwapMachine machine;
  machine.rests(1, 600);
  machine.join(2, 500);
  machine.want(2);
  REQUIRE(machine.clears(1) == 120);
  // As much has left as the holder now needs.
  machine.has(1, 600, 585);
  const std::vector<Decision> decisions = machine.core.step(event::Ask{2, 0, 515 * kMega}, machine.now);
  CHECK(machine.clears(1) >= 120);
  CHECK(std::any_of(decisions.begin(), decisions.end(),
                    [](const Decision& decision) { return decision.change == Change::kClear; }));
}

TEST_CASE("room comes from who wants nothing, longest idle first, and from no more than it takes") {
  SwapMachine machine;
  machine.rests(1, 300);
  machine.rests(2, 300);
  machine.rests(3, 300);
  machine.want(1);
  machine.now += 1ms;
  machine.give_back(1);  // now the most recently used
  machine.join(4, 500);
  machine.want(4);  // 900 + 500 + 40: exceeds the GPU by 440
  REQUIRE(machine.holds(4));
  CHECK(machine.clears(2) == 300);
  CHECK(machine.clears(3) == 140);
  CHECK(machine.clears(1) == 0);
}

TEST_CASE("who waits is asked after who does not, and from the back of the queue: its turn is furthest") {
  SwapMachine machine(Mode::kExclusive);
  for (const ClientId id : {1, 2, 3, 4}) machine.rests(id, 200);
  machine.join(5, 150);  // fills the GPU with its context
  machine.want(5);
  for (const ClientId id : {2, 3, 1}) machine.want(id);
  const auto ask = [&](Bytes bytes) { machine.core.step(event::Ask{5, 0, bytes * kMega}, machine.now); };
  ask(250);
  const Bytes promised = machine.core.promised_bytes(5, 0) / kMega;
  CHECK(machine.clears(4) == promised - 150);
  CHECK(machine.clears(1) == 0);
  ask(600);
  CHECK(machine.clears(4) == 200);
  CHECK(machine.clears(1) == 200);
  CHECK(machine.clears(3) == machine.core.promised_bytes(5, 0) / kMega - 150 - 400);
  CHECK(machine.clears(2) == 0);
}

TEST_CASE("what somebody has been asked for stays with it, though others would come first by now") {
  SwapMachine machine(Mode::kExclusive);
  for (const ClientId id : {1, 2}) machine.rests(id, 400);
  machine.join(3, 250);  // 800 + 250 + 30: exceeds the GPU by 80
  machine.want(3);
  REQUIRE(machine.clears(1) == 80);
  machine.want(1);  // the other rests: it would come first
  CHECK(machine.clears(1) == 80);
  CHECK(machine.clears(2) == 0);
  // What is needed beyond that follows the order.
  machine.core.step(event::Ask{3, 0, 300 * kMega}, machine.now);
  CHECK(machine.clears(1) == 80);
  CHECK(machine.clears(2) == machine.core.promised_bytes(3, 0) / kMega - 250);
}

TEST_CASE("nobody who holds is asked, nor for what is fixed; what is fixed is no room") {
  SwapMachine machine;
  machine.rests(1, 600);
  machine.has(1, 600, 600, 500);
  machine.join(2, 450);
  machine.want(2);
  REQUIRE(machine.holds(2));  // alone it may be as large as it likes
  CHECK(machine.clears(1) == 70);
  machine.has(1, 600, 600, 590);
  CHECK(machine.clears(1) == 10);
  machine.has(1, 600, 600, 600);
  CHECK(machine.clears(1) == 0);
  machine.has(1, 600, 600, 0);
  CHECK(machine.clears(1) == 70);
  machine.give_back(2);
  CHECK(machine.clears(1) == 0);
  machine.want(1);
  CHECK(machine.holds(1));
  CHECK(machine.clears(1) == 0);
}

TEST_CASE("from a client whose memory does not go others' is asked for, until its memory changes") {
  SwapMachine machine;
  machine.rests(1, 300);
  machine.rests(2, 300);
  machine.join(3, 500);
  machine.want(3);  // 600 + 500 + 30: exceeds the GPU by 130
  REQUIRE(machine.clears(1) == 130);
  machine.now += 300ms;
  machine.has(1, 300, 290);  // it makes progress
  REQUIRE(machine.clears(1) == 120);
  machine.wait(Clearing::kProgress - 50ms);
  REQUIRE(machine.clears(1) == 120);
  const std::vector<Decision> decisions = machine.wait(100ms);
  CHECK(machine.clears(1) == 0);
  CHECK(machine.clears(2) == 120);
  CHECK(decisions.size() == 2);
  machine.has(1, 300, 280);  // it moves after all; the other continues what it has begun
  CHECK(machine.clears(1) == 0);
  CHECK(machine.clears(2) == 110);
  machine.has(2, 300, 290);
  machine.wait(Clearing::kProgress + 100ms);
  CHECK(machine.clears(2) == 0);
  CHECK(machine.clears(1) == 100);
}

TEST_CASE(
    "a stopped client does not keep a waiting one from its memory, though turns are shorter than the verdict takes") {
  SwapMachine machine(Mode::kExclusive);
  machine.rests(1, 450);  // and is stopped
  machine.rests(2, 450);
  machine.join(3, 450);  // exceeds the GPU by 380
  bool other_asked = false;
  for (int turn = 0; turn < 50 && !other_asked; ++turn) {
    machine.want(3);
    machine.wait(1ms);
    REQUIRE(machine.holds(3));
    machine.has(3, 450, 70);
    machine.want(2);
    // Its quantum is over and nothing has arrived for half a second (turn::Machine::kNothingComes): it gives the
    // lease back unused.
    machine.wait(600ms);
    other_asked = machine.clears(2) != 0;
    machine.give_back(3);
    machine.want(3);
    machine.wait(100ms);  // the other's turn
    REQUIRE(machine.holds(2));
    machine.give_back(2);
  }
  CHECK(other_asked);
}

TEST_CASE("a verdict on a client that does not clear expires, and ends with its next turn") {
  SwapMachine machine;
  machine.rests(1, 500);
  machine.join(2, 600);
  machine.want(2);
  REQUIRE(machine.clears(1) == 120);
  machine.wait(Clearing::kProgress);
  REQUIRE(machine.clears(1) == 0);
  SECTION("time") {
    machine.wait(Clearing::kVerdict - 1ms);
    CHECK(machine.clears(1) == 0);
    machine.wait(1ms);
    CHECK(machine.clears(1) == 120);
    machine.wait(Clearing::kProgress);
    CHECK(machine.clears(1) == 0);
  }
  SECTION("a turn") {
    machine.give_back(2);
    machine.want(1);
    REQUIRE(machine.holds(1));
    machine.give_back(1);
    machine.want(2);
    CHECK(machine.clears(1) == 120);
  }
}

TEST_CASE("what is not cleared counts as taken: two that do not fit beside it take turns") {
  SwapMachine machine;
  machine.rests(1, 400);  // and is stopped
  machine.join(2, 400);
  machine.join(3, 400);
  machine.want(2);
  machine.want(3);
  REQUIRE(machine.holds(2));
  REQUIRE(machine.holds(3));  // 800 + 30 fit, once the first has cleared
  REQUIRE(machine.clears(1) == 230);
  machine.wait(Clearing::kProgress);
  CHECK_FALSE(machine.pressed(2));
  CHECK(machine.pressed(3));
  machine.give_back(3);
  machine.want(3);
  CHECK_FALSE(machine.holds(3));
  CHECK(machine.pressed(2));
  machine.wait(Clearing::kVerdict + 1s);  // nobody lacks room: the client is not asked
  CHECK_FALSE(machine.holds(3));
  CHECK(machine.clears(1) == 0);
  // It runs again: its memory may leave again.
  machine.has(1, 400, 390);
  CHECK(machine.holds(3));
  CHECK(machine.clears(1) == 220);
}

TEST_CASE("whose grant was revoked is not asked, for a while: it did not give back either") {
  SwapMachine machine;
  machine.join(1, 600);
  machine.want(1);
  machine.has(1, 600, 600);
  machine.rests(2, 300);
  machine.has(2, 300, 0);
  machine.has(2, 600, 0);
  machine.want(2);
  REQUIRE_FALSE(machine.holds(2));
  machine.wait(61s);
  REQUIRE(machine.holds(2));
  REQUIRE(machine.state(1).overrun);
  CHECK(machine.clears(1) == 0);
  // It is once some of it has left.
  machine.has(1, 600, 590);
  CHECK(machine.clears(1) == 210);  // 600 + 590 + 20
}

TEST_CASE("a holder is not revoked while memory that it lacked arrives") {
  SwapMachine machine(Mode::kExclusive);
  machine.rests(1, 600);
  machine.join(2, 600);
  machine.want(2);
  machine.want(1);
  machine.wait(100ms);
  REQUIRE(machine.pressed(2));
  const Time first = machine.core.give_back_by(2);
  machine.wait(50s);
  machine.has(2, 600, 10);  // less than a step
  CHECK(machine.core.give_back_by(2) == first);
  SECTION("it arrives") {
    const std::vector<Decision> decisions = machine.has(2, 600, 100);
    CHECK(machine.core.give_back_by(2) == machine.now + 1min);
    // Which its page says.
    CHECK(std::ranges::any_of(
        decisions, [](const Decision& each) { return each.change == Change::kPressure && each.client == 2; }));
    machine.wait(30s);
    machine.has(2, 600, 600);
    CHECK(machine.core.give_back_by(2) == machine.now + 1min);
    SECTION("what it allocates later does not") {
      machine.wait(30s);
      machine.has(2, 700, 700);
      CHECK(machine.core.give_back_by(2) == machine.now + 30s);
    }
    SECTION("nor what leaves and comes again") {
      machine.wait(30s);
      machine.has(2, 600, 500);
      machine.has(2, 600, 600);
      CHECK(machine.core.give_back_by(2) == machine.now + 30s);
    }
  }
  SECTION("none arrives") {
    machine.wait(11s);
    CHECK_FALSE(machine.holds(2));
    CHECK(machine.state(2).overrun);
  }
}

TEST_CASE("what the driver refuses a holder is asked for, less what has gone since it was refused") {
  SwapMachine machine;
  machine.rests(1, 300);
  machine.rests(2, 300);
  machine.join(3, 300);
  machine.want(3);  // 900 + 30 fit by these books
  REQUIRE(machine.clears(1) == 0);
  machine.refused(3, 300, 200, 100, 0);
  CHECK(machine.clears(1) == 100);
  machine.has(1, 300, 240);
  CHECK(machine.clears(1) == 40);  // not another 100: this was refused before any had left
  machine.has(1, 300, 200);
  CHECK(machine.clears(1) == 0);
  // Refused again after those 100 have left.
  machine.refused(3, 300, 280, 20, 0);
  CHECK(machine.clears(1) == 20);
  machine.refused(3, 300, 300, 0, 0);
  CHECK(machine.clears(1) == 0);
}

TEST_CASE("a refusal counts only while its holder holds the GPU") {
  SwapMachine machine;
  machine.rests(1, 300);
  machine.refused(1, 300, 300, 100, 0);
  machine.rests(2, 300);
  CHECK(machine.clears(1) == 0);
  machine.want(2);
  machine.refused(2, 300, 200, 100, 0);
  CHECK(machine.clears(1) == 100);
  machine.give_back(2);
  CHECK(machine.clears(1) == 0);
}

TEST_CASE("a holder that swaps is asked for nothing before it gives back, whoever waits") {
  SwapMachine machine;
  machine.join(1, 600);
  machine.want(1);
  machine.has(1, 600, 600);
  machine.join(2, 500);
  machine.want(2);
  REQUIRE(machine.pressed(1));
  CHECK(machine.clears(1) == 0);
  machine.give_back(1);
  CHECK(machine.holds(2));
  CHECK(machine.clears(1) == 120);
}

TEST_CASE("a holder of Unified Memory clears what is missing, less what those who swap will be asked for") {
  SwapMachine machine;
  machine.rests(1, 200);  // swaps
  machine.join(2, 500);
  machine.want(2);
  machine.has(2, 500, 0);  // does not
  machine.join(3, 600);
  SECTION("what swaps stays: more of the holder's goes") {
    machine.want(3);
    REQUIRE(machine.pressed(2));
    CHECK(machine.clears(2) == 500 + 600 + 200 + 30 - 1000);
    CHECK(machine.clears(1) == 0);
  }
  SECTION("what swaps goes where all of the holder's is not enough") {
    machine.has(3, 900, 0);
    machine.want(3);
    REQUIRE(machine.pressed(2));
    CHECK(machine.clears(2) == 500);
    machine.give_back(2);
    CHECK(machine.clears(1) == 900 + 200 + 30 - 1000);
  }
}

TEST_CASE("a client that leaves asks and is asked for nothing") {
  SwapMachine machine;
  machine.rests(1, 300);
  machine.rests(2, 300);
  machine.join(3, 500);
  machine.want(3);
  REQUIRE(machine.clears(1) == 130);
  machine.core.step(event::Leave{1}, machine.now);
  CHECK(machine.clears(1) == 0);
  CHECK(machine.clears(2) == 0);
  machine.join(4, 400);
  machine.has(4, 400, 400);
  CHECK(machine.clears(2) + machine.clears(4) == 300 + 400 + 500 + 30 - 1000);
  machine.core.step(event::Leave{3}, machine.now);
  CHECK(machine.clears(2) == 0);
  CHECK(machine.clears(4) == 0);
  CHECK_FALSE(machine.core.next_deadline());
}

}  // namespace
}  // namespace rota::scheduler
