// A client that has just been answered may report for a moment that all of its threads wait, although one continues;
// and a process that has just ended may have children that have its memory still.
#include <catch2/catch.hpp>

#include "tests/unit/scheduler/limits/room_machine.h"

namespace rota::scheduler {
namespace {

using room::Machine;
using namespace std::chrono_literals;

TEST_CASE(
    "a client that has just been refused is in no certain deadlock, whatever its page says, until it has read that") {
  Machine machine;
  machine.has(1, 45);
  machine.has(2, 45);
  machine.await(2, 95);  // more than it can ever have
  machine.await(2, 20);
  REQUIRE(machine.settle() == "2 refused");
  machine.await(1, 20);
  machine.blocks(2, true);  // it has not read the answer
  CHECK(machine.settle().empty());
  CHECK(machine.queue.next_deadline() <= machine.now + RoomQueue::kAnswerTakes);
  SECTION("it runs on, and frees memory") {
    machine.blocks(2, false);
    CHECK(machine.settle(RoomQueue::kAnswerTakes).empty());
    machine.has(2, 25);
    CHECK(machine.settle(1ms) == "1 again");
  }
  SECTION("it has no other thread") {
    CHECK(machine.settle(RoomQueue::kAnswerTakes) == "2 refused");
  }
}

TEST_CASE("a client that was told to try and waits again has read that") {
  Machine machine;
  machine.has(1, 45);
  machine.has(2, 40);
  machine.await(1, 30);
  const Time since = machine.now;
  CHECK(machine.settle().empty());
  machine.now += 500ms;
  machine.has(2, 35);
  REQUIRE(machine.settle() == "1 again");
  machine.await(1, 30, since);
  machine.await(2, 40);
  CHECK(machine.settle(RoomQueue::kComesBack) == "2 refused");
}

TEST_CASE("what a process had that has ended is awaited for a moment by requests of before, the oldest first") {
  Machine machine;
  machine.has(1, 90);
  machine.await(2, 80);
  machine.await(3, 80);
  const Time since = machine.now;
  machine.now += 1ms;
  machine.queue.leave(1, machine.now, true);
  CHECK(machine.settle() == "2 again");
  machine.now += 1ms;
  machine.await(2, 80, since);  // a child still has it
  machine.await(4, 80);
  CHECK(machine.settle().empty());
  CHECK(machine.settle(RoomQueue::kTries) == "2 again");
  machine.has(2, 80);
  CHECK(machine.settle(RoomQueue::kTries).empty());
}

TEST_CASE("what a process had that has ended is not awaited by requests that come later") {
  Machine machine;
  machine.has(1, 90);
  machine.now += 1ms;
  machine.queue.leave(1, machine.now, true);
  machine.now += 1ms;
  machine.await(2, 80);
  CHECK(machine.settle() == "2 refused");
}

}  // namespace
}  // namespace rota::scheduler
