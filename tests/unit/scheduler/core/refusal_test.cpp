// What follows when the driver refuses a holder memory: who makes room, and what memory must be outside.
#include <catch2/catch.hpp>

#include "tests/unit/scheduler/core/swap_machine.h"

namespace rota::scheduler {
namespace {

using namespace std::chrono_literals;

// Two clients with 400 each beside 300 of another program. Both hold the GPU, and the second is refused memory.
struct BesideBallast : SwapMachine {
  BesideBallast() {
    for (const ClientId id : {1, 2}) {
      join(id, 400);
      want(id);
    }
    has(1, 400, 400);
    fails();
  }
  void fails() { refused(2, 400, 250, 150, 30); }
};

TEST_CASE("memory that nobody has whom rotad knows is learned of when a refusal lasts, and not by the first") {
  BesideBallast machine;
  CHECK(machine.outside() == 0);
  machine.now += 50ms;
  machine.fails();
  CHECK(machine.outside() == 0);
  machine.now += 50ms;
  machine.fails();
  CHECK(machine.outside() == 300);  // 1 000 - 20 - 400 - 250 - 30
  // Two clients that do not fit beside it take turns.
  CHECK(machine.pressed(2));
  CHECK_FALSE(machine.pressed(1));
  machine.give_back(2);
  machine.want(2);
  CHECK_FALSE(machine.holds(2));
  machine.give_back(1);
  REQUIRE(machine.holds(2));
  CHECK(machine.clears(1) == 100 + 20);  // 400 + 250, 150 more for the promise; 20 + 300
}

TEST_CASE("of two that were granted together and do not fit, the one that has no memory to run with leaves at once") {
  BesideBallast machine;
  Settings settings = machine.core.settings();
  settings.quantum = 2s;
  machine.core.step(event::Configure{settings}, machine.now);
  machine.now += 100ms;
  machine.fails();
  REQUIRE(machine.pressed(2));
  CHECK(machine.state(2).drain_at <= machine.now);
  SECTION("once its memory is there it has the rest of its turn") {
    machine.has(2, 400, 400);
    REQUIRE(machine.pressed(2));
    CHECK(machine.state(2).drain_at == machine.state(2).held_since + 2s);
  }
  SECTION("what it has goes to the other, which is refused memory as well") {
    machine.refused(1, 400, 300, 100, 30);
    machine.give_back(2);
    CHECK(machine.clears(2) != 0);
    machine.want(2);
    CHECK(machine.holds(1));
    CHECK_FALSE(machine.holds(2));
    machine.has(1, 400, 400);
    CHECK(machine.state(1).drain_at == machine.state(1).held_since + 2s);
  }
}

TEST_CASE("of two whose next extents do not fit, though all that they have allocated does, one leaves") {
  SwapMachine machine;
  for (const ClientId id : {1, 2}) {
    machine.join(id, id == 1 ? 484 : 200);
    machine.want(id);
    machine.has(id, id == 1 ? 484 : 200, id == 1 ? 484 : 200);
  }
  REQUIRE(machine.holds(2));
  for (int times = 0; times < 4; ++times) {
    machine.refused(1, 484, 484, 150, 149);
    machine.refused(2, 200, 200, 150, 149);
    machine.now += 50ms;
  }
  CHECK(machine.pressed(2));
  CHECK_FALSE(machine.pressed(1));
}

TEST_CASE("while others clear, a refusal says nothing about memory outside") {
  SwapMachine machine;
  machine.rests(1, 600);
  machine.join(2, 500);
  machine.want(2);
  REQUIRE(machine.clears(1) == 120);
  for (int i = 0; i < 4; ++i) {
    machine.refused(2, 500, 300, 200, 0);
    machine.now += 100ms;
  }
  CHECK(machine.outside() == 0);
  machine.has(1, 600, 480);
  machine.refused(2, 500, 300, 200, 0);  // from before that
  CHECK(machine.outside() == 0);
}

TEST_CASE("memory outside is forgotten some time after it was last met, and a hand-over meets it") {
  BesideBallast machine;
  machine.now += 100ms;
  machine.fails();
  REQUIRE(machine.outside() == 300);
  SECTION("not met again") {
    machine.give_back(2);
    machine.wait(Clearing::kOutside - 1ms);
    CHECK(machine.outside() == 300);
    machine.wait(1ms);
    CHECK(machine.outside() == 0);
  }
  SECTION("met again") {
    machine.wait(Clearing::kOutside - 1ms);
    machine.refused(2, 400, 240, 160, 45);  // a little less, since figures are of different moments
    machine.wait(Clearing::kOutside - 1ms);
    CHECK(machine.outside() == 300);
  }
  SECTION("refused for other reasons") {
    machine.wait(Clearing::kOutside - 1ms);
    machine.refused(2, 400, 250, 150, 330);
    machine.wait(1ms);
    CHECK(machine.outside() == 0);
  }
}

TEST_CASE("a refusal counts with the figures of its moment, not with newer ones") {
  SwapMachine machine;
  machine.rests(1, 600);
  machine.join(2, 500);
  machine.want(2);
  REQUIRE(machine.clears(1) == 120);
  machine.refused(2, 500, 300, 200, 10);
  REQUIRE(machine.clears(1) == 200);
  SECTION("what has left since is there for the holder, whatever of it has come") {
    machine.has(1, 600, 450);
    machine.still_refused(2, 500, 420, 200, 10);
    CHECK(machine.clears(1) == 50);
    machine.has(1, 600, 400);
    machine.still_refused(2, 500, 470, 200, 10);
    CHECK(machine.clears(1) == 0);
    machine.now += 200ms;
    machine.still_refused(2, 500, 500, 200, 10);
    CHECK(machine.clears(1) == 0);
    // Seen as memory outside, it would keep the two from running together.
    CHECK(machine.outside() == 0);
  }
  SECTION("the next refusal may say the same once more") {
    machine.has(1, 600, 400);
    machine.still_refused(2, 500, 300, 200, 10);
    REQUIRE(machine.clears(1) == 0);
    machine.refused(2, 500, 300, 200, 10);  // others have taken what had left
    CHECK(machine.clears(1) == 200);
  }
  SECTION("a new turn begins without it") {
    machine.give_back(2);
    machine.want(2);
    REQUIRE(machine.holds(2));
    machine.has(1, 600, 100);
    machine.still_refused(2, 500, 300, 200, 10);
    CHECK(machine.clears(1) == 0);
    machine.refused(2, 500, 300, 200, 10);
    CHECK(machine.clears(1) == 100);
  }
}

TEST_CASE("refusals of different moments show different figures, of which the least is learned") {
  BesideBallast machine;
  machine.now += 50ms;
  machine.refused(2, 400, 250, 150, 80);  // memory that another hands over is nobody's for a moment
  machine.now += 50ms;
  machine.fails();
  CHECK(machine.outside() == 250);
}

}  // namespace
}  // namespace rota::scheduler
