// Clients that swap and whose memory would not all be on the GPU if they had their turn, because of what stays there:
// they are passed over while others can use the GPU. And memory that stays only for now.
#include "tests/unit/scheduler/core/swap_machine.h"

namespace rota::scheduler {
namespace {

using namespace std::chrono_literals;

// One client runs at a time.
struct Machine : SwapMachine {
  explicit Machine(Mode mode = Mode::kExclusive) : SwapMachine(mode) {}
  std::vector<Decision> has(ClientId id, Bytes used, Bytes resident, Bytes fixed = 0, Bytes fixed_for_now = 0) {
    return core.step(event::Usage{id, 0, used * kMega, fixed * kMega, resident * kMega, 0, 0, 0, fixed_for_now * kMega},
                     now);
  }
  std::vector<Decision> refused(ClientId id, Bytes used, Bytes resident) {
    return still_refused(id, used, resident, used - resident, 0);
  }
  // A turn in which all of its memory is there.
  void turn(ClientId id, Bytes used) {
    want(id);
    REQUIRE(holds(id));
    has(id, used, used);
    now += 100ms;
    give_back(id);
  }
  // One in which only a part of it was, and then it waits for the next.
  void turn_in_vain(ClientId id, Bytes used, Bytes resident) {
    want(id);
    REQUIRE(holds(id));
    refused(id, used, resident);
    now += 600ms;
    has(id, used, resident);  // what it lacks it no longer says when it gives back
    give_back(id);
    want(id);
  }
  Bytes lacks(ClientId id) const { return core.use(id, 0, now).lacks / kMega; }
  Bytes lacks_for_now(ClientId id) const { return core.use(id, 0, now).lacks_for_now / kMega; }
};

// The second pins 500 MB of its memory after the first has grown to 600, and rests; the third uses the GPU.
struct InVain : Machine {
  explicit InVain(Mode mode = Mode::kExclusive) : Machine(mode) {
    join(1, 600);
    turn(1, 600);
    join(2, 500);
    turn(2, 500);
    has(1, 600, 480);
    has(2, 500, 500, 500);
    join(3, 100);
    turn(3, 100);
  }
};

}  // namespace

TEST_CASE("who could not have all its memory on the GPU is passed over while another can use it, and that is said") {
  InVain machine;
  machine.want(1);
  REQUIRE(machine.holds(1));  // nobody knows better yet
  machine.refused(1, 600, 470);
  machine.want(3);
  machine.now += 600ms;
  machine.has(1, 600, 470);
  machine.give_back(1);
  REQUIRE(machine.holds(3));
  const std::vector<Decision> decisions = machine.want(1);
  CHECK(machine.lacks(1) == 130);  // 600 + 500 + 30 for contexts
  const auto said = std::find_if(decisions.begin(), decisions.end(),
                                 [](const Decision& decision) { return decision.change == Change::kPassedOver; });
  REQUIRE(said != decisions.end());
  CHECK(said->client == 1);
  CHECK(said->gpu == 0);
  CHECK(said->bytes == 130 * kMega);
  // It sends nobody away, is not promised the next turn, and reserves the GPU against nobody.
  machine.wait(1s);
  CHECK(machine.core.client(3)->waiters == 0);
  CHECK_FALSE(machine.core.first_waiting(0));
  CHECK(machine.core.next_turn(1) == Time{});
  machine.want(2);
  CHECK(machine.core.client(3)->waiters != 0);
  CHECK(machine.core.first_waiting(0) == 2);
  machine.give_back(3);
  CHECK(machine.holds(2));
}

TEST_CASE("who is passed over is granted as soon as the sum allows") {
  InVain machine;
  machine.turn_in_vain(1, 600, 470);
  REQUIRE(machine.holds(1));  // nobody else wanted the GPU
  machine.want(3);
  machine.now += 600ms;
  machine.refused(1, 600, 470);
  machine.give_back(1);
  REQUIRE(machine.holds(3));
  machine.want(1);
  REQUIRE(machine.lacks(1) != 0);
  SECTION("what stayed can leave") {
    machine.has(2, 500, 500, 300);
  }
  SECTION("what stayed has been freed") {
    machine.has(2, 300, 300, 300);
  }
  SECTION("its owner has gone") {
    machine.core.step(event::Leave{2}, machine.now);
  }
  SECTION("it needs less itself") {
    machine.has(1, 460, 460);
  }
  CHECK(machine.lacks(1) == 0);
  CHECK(machine.core.first_waiting(0) == 1);
  CHECK(machine.core.client(3)->waiters != 0);
  machine.give_back(3);
  CHECK(machine.holds(1));
}

TEST_CASE("a turn in vain is tried again after ten seconds, or ten times as long as it took") {
  InVain machine;
  machine.want(1);
  machine.refused(1, 600, 470);
  machine.want(3);
  Time verdict = 10s;
  SECTION("short") {
    machine.now += 600ms;
  }
  SECTION("long") {
    machine.now += 3s;
    verdict = 30s;
  }
  machine.give_back(1);
  REQUIRE(machine.holds(3));
  machine.want(1);
  machine.wait(verdict - 1ms);
  CHECK(machine.core.client(3)->waiters == 0);
  machine.wait(2ms);
  CHECK(machine.lacks(1) == 0);
  CHECK(machine.core.client(3)->waiters != 0);
  machine.give_back(3);
  CHECK(machine.holds(1));
}

TEST_CASE("nobody is passed over whose turn would not be in vain by all that is known") {
  InVain machine;
  SECTION("who was refused for a moment, and had all of it in the end") {
    machine.has(2, 500, 500, 300);
    machine.want(1);
    machine.refused(1, 600, 470);
    machine.want(3);
    machine.has(1, 600, 600);
    machine.has(2, 500, 370, 370);
  }
  SECTION("who was refused what the books cannot explain") {
    machine.has(2, 500, 500, 300);
    machine.want(1);
    machine.refused(1, 600, 470);
    machine.want(3);
  }
  SECTION("who allocated while its turn was ending, and was refused nothing") {
    machine.want(1);
    machine.has(1, 600, 470);
    machine.want(3);
  }
  machine.now += 600ms;
  machine.give_back(1);
  REQUIRE(machine.holds(3));
  machine.want(1);
  CHECK(machine.lacks(1) == 0);
  CHECK(machine.core.client(3)->waiters != 0);
}

TEST_CASE("where nobody can have all its memory there, all take turns as before") {
  InVain machine;
  machine.join(4, 700);
  machine.want(1);
  machine.refused(1, 600, 470);
  machine.want(4);
  machine.now += 600ms;
  machine.give_back(1);
  REQUIRE(machine.holds(4));
  machine.want(1);
  CHECK(machine.lacks(1) != 0);  // the other may be luckier
  machine.refused(4, 700, 480);
  machine.now += 600ms;
  machine.give_back(4);
  CHECK(machine.holds(1));
  machine.want(4);
  CHECK(machine.lacks(4) == 0);
  CHECK(machine.core.client(1)->waiters != 0);
}

TEST_CASE(
    "a holder that cannot have all its memory there is nobody who can use the GPU, and says why it does not run") {
  InVain machine;
  machine.join(4, 700);
  machine.want(1);
  machine.refused(1, 600, 470);
  machine.want(4);
  machine.now += 600ms;
  machine.give_back(1);
  REQUIRE(machine.holds(4));
  machine.want(1);
  REQUIRE(machine.lacks(1) != 0);
  CHECK(machine.lacks(4) == 0);
  machine.refused(4, 700, 480);
  CHECK(machine.lacks(4) == 240);  // 700 + 500 + 40 for contexts
  CHECK(machine.lacks(1) == 0);    // so this one may try
  CHECK(machine.core.client(4)->waiters != 0);
  SECTION("all of it came after all") {
    machine.has(2, 500, 260, 260);
    machine.has(4, 700, 700);
    CHECK(machine.lacks(4) == 0);
  }
  SECTION("another can run") {
    machine.want(3);
    CHECK(machine.lacks(1) != 0);
    CHECK(machine.core.first_waiting(0) == 3);
  }
}

TEST_CASE("what does not fit only beside memory that is fixed for now is told apart") {
  InVain machine;
  machine.has(2, 500, 500, 500, 450);  // 50 MB of it stay for good
  machine.want(1);
  machine.refused(1, 600, 470);
  CHECK(machine.lacks(1) == 130);
  CHECK(machine.lacks_for_now(1) == 130);
  machine.want(3);
  machine.now += 600ms;
  machine.give_back(1);
  machine.want(1);
  CHECK(machine.lacks(1) == 130);
  CHECK(machine.lacks_for_now(1) == 130);
  machine.has(2, 500, 500, 500, 100);
  CHECK(machine.lacks(1) == 130);
  CHECK(machine.lacks_for_now(1) == 100);
  machine.has(2, 500, 500, 500);
  CHECK(machine.lacks_for_now(1) == 0);
}

TEST_CASE("a client in a hurry that is passed over hurts nobody, and one that leaves is forgotten") {
  InVain machine;
  machine.want(1);
  machine.refused(1, 600, 470);
  machine.want(3);
  machine.now += 600ms;
  machine.give_back(1);
  machine.want(1);
  REQUIRE(machine.lacks(1) != 0);
  machine.now += 2s;
  machine.core.step(event::Want{1, 1, false, true}, machine.now);
  CHECK(machine.core.client(3)->waiters == 0);
  machine.core.step(event::Leave{1}, machine.now);
  machine.wait(1min);
  CHECK(machine.holds(3));
  CHECK_FALSE(machine.core.next_deadline());
}

TEST_CASE("memory that is fixed for now is told apart, and is asked for as soon as it can leave") {
  Machine machine(Mode::kAutomatic);
  machine.join(1, 600);
  machine.want(1);
  machine.has(1, 600, 600);
  machine.join(2, 600);
  machine.want(2);
  REQUIRE_FALSE(machine.holds(2));
  machine.wait(61s);
  REQUIRE(machine.core.client(1)->overrun);
  REQUIRE(machine.holds(2));
  machine.has(1, 600, 600, 600, 590);
  CHECK(machine.core.later_gpus() == 1);
  CHECK(machine.core.movable_gpus() == 0);
  CHECK(machine.core.use(1, 0, machine.now).fixed == 600 * kMega);
  CHECK(machine.core.use(1, 0, machine.now).fixed_for_now == 590 * kMega);
  SECTION("then all of it counts as taken") {
    machine.join(3, 300);
    machine.want(3);
    CHECK_FALSE(machine.holds(3));
  }
  SECTION("its work has finished") {
    machine.has(1, 600, 600, 10);
    CHECK(machine.core.later_gpus() == 0);
    CHECK(machine.core.movable_gpus() == 1);
    CHECK(machine.core.bytes_to_clear(1, 0) == 220 * kMega);
  }
  SECTION("it has a turn again") {
    machine.want(1);
    machine.give_back(2);
    REQUIRE(machine.holds(1));
    CHECK(machine.core.later_gpus() == 0);
  }
  SECTION("it stays for good after all") {
    machine.has(1, 600, 600, 600);
    CHECK(machine.core.later_gpus() == 0);
    CHECK(machine.core.movable_gpus() == 0);
  }
  SECTION("its owner has gone") {
    machine.core.step(event::Leave{1}, machine.now);
    CHECK(machine.core.later_gpus() == 0);
  }
}

}  // namespace rota::scheduler
