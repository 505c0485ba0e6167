// Allocations that wait for memory of others: who tries, who is refused, and when.
#include "scheduler/limits/room_queue.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <map>
#include <optional>
#include <random>
#include <string>

#include "tests/unit/scheduler/limits/room_machine.h"

namespace rota::scheduler {
namespace {

using room::kBegin;
using room::Machine;
using namespace std::chrono_literals;

TEST_CASE("a program that has the GPU exclusively is refused at once") {
  Machine machine;
  machine.has(1, 90);
  machine.await(1, 20);
  CHECK(machine.settle() == "1 refused");
}

TEST_CASE("memory that can be evicted obstructs only requests that Quota has refused because of it") {
  Machine machine;
  machine.queue.moves(1, 0, 60, machine.now);
  machine.await(2, 50);
  CHECK(machine.settle() == "2 refused");
  machine.queue.await({.client = 2,
                       .gpu = 0,
                       .number = 9,
                       .bytes = 50,
                       .since = machine.now,
                       .tried = machine.now,
                       .most = 100,
                       .movable_too = true});
  CHECK(machine.settle().empty());
  SECTION("it tries when some was freed") {
    machine.queue.moves(1, 0, 40, machine.now += 10ms);
    CHECK(machine.settle() == "2 again");
  }
  SECTION("it tries when its owner has ended") {
    machine.now += 10ms;
    machine.queue.leave(1, machine.now);
    CHECK(machine.settle() == "2 again");
  }
  SECTION("it is refused after all") {
    CHECK(machine.settle(RoomQueue::kPatience) == "2 again");
  }
}

TEST_CASE("a request waits for memory of others, and may try when they free some") {
  Machine machine;
  machine.has(1, 90);
  machine.has(2, 0);
  machine.await(2, 20);
  CHECK(machine.settle().empty());
  CHECK(machine.settle(1ms).empty());
  SECTION("when they free it") {
    machine.has(1, 10);
    CHECK(machine.settle() == "2 again");
  }
  SECTION("when they end") {
    machine.queue.leave(1, machine.now);
    CHECK(machine.settle() == "2 again");
  }
  SECTION("and now and then, since programs without rota say nothing") {
    CHECK(machine.settle(RoomQueue::kLooks) == "2 again");
  }
  SECTION("not before") {
    CHECK(machine.settle(RoomQueue::kLooks - 2ms).empty());
    CHECK(machine.queue.next_deadline() == machine.now + RoomQueue::kLooks);
  }
}

TEST_CASE("a program that may have been granted memory and not said so yet counts for a moment") {
  Machine machine;
  machine.queue.await(
      {.client = 1, .gpu = 0, .number = 1, .bytes = 20, .since = machine.now, .tried = machine.now, .others = true});
  CHECK(machine.settle().empty());
  SECTION("it says so") {
    machine.has(2, 90);
    CHECK(machine.settle(RoomQueue::kTries) == "1 again");
    machine.await(1, 20, kBegin);
    CHECK(machine.settle(RoomQueue::kComesBack - 2 * RoomQueue::kTries).empty());
  }
  SECTION("it does not") {
    machine.now += RoomQueue::kComesBack;
    CHECK(machine.settle() == "1 refused");
  }
}

TEST_CASE("what could never fit is refused at once") {
  Machine machine;
  machine.has(1, 50);
  machine.has(2, 30);
  machine.await(2, 71);
  CHECK(machine.settle() == "2 refused");
  machine.await(2, 101);
  CHECK(machine.settle() == "2 refused");
  machine.await(2, 70);
  CHECK(machine.settle().empty());
}

TEST_CASE("a request is tried once more at its end and then refused, and smaller ones of its program at once") {
  Machine machine;
  machine.queue.set_patience(10s);
  machine.has(1, 90);
  machine.has(2, 0);
  machine.await(2, 20);
  const Time since = machine.now;
  REQUIRE(machine.settle().empty());
  REQUIRE(machine.queue.next_deadline() <= since + 10s);
  CHECK(machine.settle(10s) == "2 again");
  machine.await(2, 20, since);
  CHECK(machine.settle() == "2 refused");
  machine.await(2, 15);
  CHECK(machine.settle(1ms) == "2 refused");
  SECTION("until something is freed: then they wait again") {
    machine.has(1, 85);
    machine.now += 1ms;
    machine.await(2, 18);
    CHECK(machine.settle(RoomQueue::kComesBack + RoomQueue::kLooks) == "2 again");
  }
}

TEST_CASE("with a patience of 0 nothing waits") {
  Machine machine;
  machine.queue.set_patience(0s);
  machine.has(1, 90);
  machine.await(2, 20);
  CHECK(machine.settle() == "2 refused");
}

TEST_CASE("the oldest waiting request goes first, and younger ones once it has its memory") {
  Machine machine;
  machine.has(1, 60);
  machine.has(2, 20);
  machine.has(3, 20);
  machine.await(3, 30);
  machine.await(2, 30);
  REQUIRE(machine.settle().empty());
  machine.now += 1ms;
  machine.queue.leave(1, machine.now);
  CHECK(machine.settle() == "2 again");
  machine.has(2, 50);
  CHECK(machine.settle(1ms).empty());  // 2 may still try
  CHECK(machine.settle(RoomQueue::kTries) == "3 again");
}

TEST_CASE("of programs that wait for each other the youngest is refused, one at a time") {
  Machine machine;
  for (const ClientId client : {1, 2, 3}) machine.has(client, 33);
  machine.await(2, 10);
  machine.await(1, 10);
  CHECK(machine.settle().empty());  // 3 may free something
  machine.await(3, 10);
  CHECK(machine.settle() == "3 refused");
  CHECK(machine.settle(1ms).empty());  // it runs on, and may
  machine.now += 1ms;
  machine.queue.leave(3, machine.now);
  CHECK(machine.settle() == "1 again");
}

TEST_CASE("a program with too little memory to help two that wait for each other does not keep them waiting") {
  const auto after = [](Bytes third, Bytes wanted) {
    Machine machine;
    machine.has(1, 40);
    machine.has(2, 40);
    machine.has(3, third);
    machine.await(1, wanted);
    CHECK(machine.settle().empty());
    machine.await(2, wanted);
    return machine.settle();
  };
  CHECK(after(1, 40) == "2 refused");
  CHECK(after(20, 40) == "2 refused");
  CHECK(after(20, 20).empty());  // that may be freed
}

TEST_CASE("a program without memory is not refused for the sake of others that wait for each other") {
  Machine machine;
  machine.has(1, 50);
  machine.has(2, 50);
  machine.has(3, 0);
  machine.await(3, 90);
  machine.await(1, 40);
  CHECK(machine.settle().empty());
  machine.await(2, 40);
  CHECK(machine.settle() == "2 refused");
  CHECK(machine.settle(1ms).empty());
}

TEST_CASE("a cycle over two GPUs is one") {
  Machine machine;
  machine.has(1, 60, 0, 0);
  machine.has(1, 60, 0, 1);
  machine.has(2, 40, 0, 0);
  machine.has(2, 40, 0, 1);
  machine.await(1, 10, {}, 0);
  CHECK(machine.settle().empty());
  machine.await(2, 10, {}, 1);
  CHECK(machine.settle() == "2 refused");
}

TEST_CASE("gangs of which not all members wait may free memory, and are refused only late") {
  Machine machine;
  machine.has(1, 60, 7, 0);
  machine.has(2, 60, 7, 1);
  machine.has(3, 40, 8, 0);
  machine.has(4, 40, 8, 1);
  machine.await(1, 10, {}, 0);
  machine.await(4, 10, {}, 1);
  const Time since = machine.now;
  CHECK(machine.settle().empty());
  SECTION("until the rest of their members wait, too") {
    machine.blocks(2, true);
    machine.blocks(3, true);
    CHECK(machine.settle(1ms) == "4 refused");
  }
  SECTION("until nine tenths of the patience are over") {
    const auto try_until = [&](Time end) {
      std::string said;
      while (said.find("refused") == std::string::npos && machine.now < end) {
        machine.now = std::max(machine.queue.next_deadline().value(), machine.now);
        said = machine.settle();
        if (said.find("1 again") != std::string::npos) machine.await(1, 10, since, 0);
        if (said.find("4 again") != std::string::npos) machine.await(4, 10, since, 1);
        if (said.find("again") != std::string::npos) said = machine.settle();
      }
      return said;
    };
    CHECK(try_until(since + RoomQueue::kPatience) == "4 refused");
    CHECK(machine.now >= since + RoomQueue::kPatience / 10 * 9);
    CHECK(machine.now < since + RoomQueue::kPatience);
  }
}

TEST_CASE("a program of which another thread runs may free memory") {
  Machine machine;
  machine.has(1, 50);
  machine.has(2, 50);
  machine.await(1, 20);
  machine.await(2, 20);
  machine.blocks(2, false);
  CHECK(machine.settle().empty());
  SECTION("and does") {
    machine.now += 1ms;
    machine.has(2, 20);
    CHECK(machine.settle() == "1 again");
  }
  SECTION("or waits, too") {
    machine.await(2, 30);
    CHECK(machine.settle(1ms) == "2 refused, 2 refused");
  }
  SECTION("it waits with a request that others can help") {
    machine.has(3, 40, 0, 1);
    machine.await(2, 80, {}, 1);
    CHECK(machine.settle(1ms).empty());
  }
}

TEST_CASE("a program with an answer runs on, so its other threads are in no deadlock") {
  Machine machine;
  machine.has(1, 50);
  machine.has(2, 40);
  machine.await(2, 20);
  machine.await(2, 30);
  machine.now += 1ms;
  machine.has(1, 30);
  REQUIRE(machine.settle() == "2 again, 2 again");
  machine.now += RoomQueue::kComesBack;
  machine.await(2, 30);
  machine.await(1, 40);
  machine.blocks(2, false);  // one of its threads has what it wanted
  CHECK(machine.settle().empty());
}

TEST_CASE("memory that a third program frees and takes again does not hide a deadlock that it cannot resolve") {
  Machine machine;
  machine.has(1, 40);
  machine.has(2, 40);
  machine.has(3, 10);
  machine.await(1, 30);
  const Time since = machine.now;
  CHECK(machine.settle().empty());
  machine.now += 500ms;
  machine.has(3, 5);
  CHECK(machine.settle() == "1 again");
  machine.await(1, 30, since);
  CHECK(machine.settle(1ms).empty());
  machine.has(3, 10);
  machine.await(2, 30);
  CHECK(machine.settle(1ms) == "2 refused");
}

TEST_CASE("memory that has just been freed and may be enough is tried before any request is refused") {
  Machine machine;
  machine.has(1, 40);
  machine.has(2, 40);
  machine.has(3, 20);
  machine.await(1, 20);
  CHECK(machine.settle().empty());
  machine.now += 1ms;
  machine.queue.leave(3, machine.now);
  machine.await(2, 20);
  CHECK(machine.settle() == "1 again");
}

TEST_CASE("a thread's request that waits already when another thread's proves futile has its own time") {
  Machine machine;
  machine.queue.set_patience(10s);
  machine.has(1, 90);
  machine.has(2, 0);
  machine.await(2, 20);
  const Time since = machine.now;
  machine.now += 5s;
  machine.await(2, 15);
  CHECK(machine.settle() == "2 again");
  machine.now = since + 10s;
  machine.await(2, 20, since);
  REQUIRE(machine.settle() == "2 again, 2 refused");
  machine.await(2, 15, since + 5s);
  CHECK(machine.settle(1ms).empty());
  machine.await(2, 10);
  CHECK(machine.settle(1ms) == "2 refused");
}

TEST_CASE("the oldest program is the one that began first, whatever its number") {
  Machine machine;
  machine.has(1, 50);
  machine.has(2, 50);
  machine.await(1, 20);
  machine.await(2, 20);
  machine.blocks(1, true, 20s);
  machine.blocks(2, true, 10s);
  CHECK(machine.settle() == "1 refused");
}

TEST_CASE("members of a gang do not wait for each other's memory") {
  Machine machine;
  machine.has(1, 60, 7);
  machine.has(2, 40, 7);
  machine.await(1, 10);
  CHECK(machine.settle() == "1 refused");
}

TEST_CASE("memory that a program frees itself does not make it wait again, and memory that others free does") {
  Machine machine;
  machine.queue.set_patience(10s);
  machine.has(1, 60);
  machine.has(2, 30);
  machine.await(2, 20);
  const Time since = machine.now;
  REQUIRE(machine.settle().empty());
  REQUIRE(machine.settle(RoomQueue::kLooks) == "2 again");
  machine.now = since + 10s;
  machine.await(2, 20, since);
  REQUIRE(machine.settle() == "2 refused");
  machine.now += 1s;
  machine.has(2, 0);
  machine.await(2, 50);
  CHECK(machine.settle(1ms) == "2 refused");
  machine.has(1, 55);
  machine.has(2, 10);
  machine.now += 1ms;
  machine.await(2, 50);
  CHECK(machine.settle().empty());
}

TEST_CASE("programs that allocate and free delay no request") {
  Machine machine;
  machine.has(1, 10);
  machine.has(2, 80);
  machine.await(3, 50);
  REQUIRE(machine.settle().empty());
  machine.now += 1ms;
  machine.has(1, 20);
  machine.queue.leave(2, machine.now);
  CHECK(machine.settle() == "3 again");
}

TEST_CASE("while the driver takes back what a program had, requests try often and are not refused") {
  Machine machine;
  machine.has(1, 90);
  machine.await(2, 20);
  const Time since = machine.now;
  machine.now += 1ms;
  machine.queue.leave(1, machine.now);
  CHECK(machine.settle() == "2 again");
  machine.now += 1ms;
  machine.await(2, 20, since);
  CHECK(machine.settle().empty());
  CHECK(machine.settle(RoomQueue::kTries) == "2 again");
  machine.await(2, 20, since);
  CHECK(machine.settle(RoomQueue::kComesBack) == "2 refused");  // nobody else has anything there
}

TEST_CASE("a client's many requests are bounded") {
  Machine machine;
  machine.has(1, 90);
  for (std::size_t i = 0; i <= RoomQueue::kMostOfClient; ++i) machine.await(2, 20);
  CHECK(machine.settle() == "2 refused");
}

// Programs of random sizes that grow, on one GPU: a program that is refused ends. The driver gives what there is.
TEST_CASE("if programs could run one after the other, at least one ends well, and every request is answered") {
  std::mt19937 random(20261129);  // NOLINT(bugprone-random-generator-seed): reproducible
  for (int round = 0; round < 300; ++round) {
    Machine machine;
    struct Program {
      Bytes has = 0;
      Bytes needs;
      bool ended = false;
      bool well = false;
      std::optional<Time> waits_since;
    };
    std::map<ClientId, Program> programs;
    const ClientId count = 2 + random() % 4;
    for (ClientId id = 1; id <= count; ++id) programs[id].needs = 50 + random() % 51;
    const auto used = [&] {
      Bytes sum = 0;
      for (const auto& [id, program] : programs) sum += program.has;
      return sum;
    };
    const auto end = [&](ClientId id, bool well) {
      programs[id].ended = true;
      programs[id].well = well;
      programs[id].has = 0;
      programs[id].waits_since.reset();
      machine.queue.leave(id, machine.now);
    };
    const auto step = [&](ClientId id) {
      Program& program = programs[id];
      const Bytes more = std::min<Bytes>(program.needs - program.has, 5);
      if (used() + more <= 100) {
        program.has += more;
        program.waits_since.reset();
        machine.has(id, program.has);
        if (program.has == program.needs) end(id, true);
      } else {
        const Time since = program.waits_since.value_or(machine.now);
        program.waits_since = since;
        machine.has(id, program.has);
        machine.await(id, more, since);
      }
    };
    const Time latest = machine.now + 600s;
    while (std::ranges::any_of(programs, [](const auto& each) { return !each.second.ended; })) {
      REQUIRE(machine.now < latest);
      machine.now += 10ms;
      for (auto& [id, program] : programs) {
        if (!program.ended && !program.waits_since && random() % 2 == 0) step(id);
      }
      for (const RoomQueue::Answer& answer : machine.queue.decide(machine.now)) {
        REQUIRE(programs[answer.client].waits_since);
        machine.now += 1us;
        answer.again ? step(answer.client) : end(answer.client, false);
      }
    }
    CHECK(std::ranges::any_of(programs, [](const auto& each) { return each.second.well; }));
  }
}

}  // namespace
}  // namespace rota::scheduler
