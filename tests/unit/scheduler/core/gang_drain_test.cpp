// How a gang comes to rest: by itself, and with members whose kernels wait for each other's.
#include "scheduler/core/gang_drain.h"

#include <catch2/catch.hpp>
#include <deque>
#include <random>
#include <vector>

#include "scheduler/protocol/pages.h"

namespace rota::test {
namespace {

using namespace std::chrono_literals;
using protocol::kGangMayEnd;
using protocol::kGangRests;
using protocol::kGangStands;
using scheduler::GangDrain;
using scheduler::Time;
using Words = std::vector<GangDrain::Word>;

TEST_CASE("a gang drains once all of its members may end their turn, or must") {
  GangDrain drain;
  drain.begin_turn();
  CHECK_FALSE(drain.look(Words{{0, kGangMayEnd}, {0, 0}}, false, 1s));
  CHECK(drain.step() == 0);
  SECTION("they may") {
    CHECK(drain.look(Words{{0, kGangMayEnd}, {0, kGangMayEnd}}, false, 2s));
  }
  SECTION("they must") {
    CHECK(drain.look(Words{{0, kGangMayEnd}, {0, 0}}, true, 2s));
  }
  CHECK(drain.step() == 1);
  CHECK_FALSE(drain.ended());
}

TEST_CASE("what a member said of an earlier step or turn says nothing of this one") {
  GangDrain drain;
  drain.begin_turn();
  REQUIRE(drain.look(Words{{0, 0}}, true, 1s));
  REQUIRE(drain.look(Words{{1, kGangRests}}, true, 1s));
  REQUIRE(drain.ended());
  drain.begin_turn();
  CHECK(drain.step() == 0);
  CHECK_FALSE(drain.look(Words{{1, kGangRests | kGangMayEnd}}, false, 2s));
  REQUIRE(drain.look(Words{{1, kGangRests}}, true, 2s));
  CHECK(drain.step() == 2);
  CHECK_FALSE(drain.look(Words{{1, kGangRests}}, true, 3s));
  CHECK(drain.look(Words{{2, kGangRests}}, true, 3s));
  CHECK(drain.ended());
}

TEST_CASE("while some do not rest, the others may make one call at a time, and no faster than steps are long") {
  GangDrain drain;
  drain.begin_turn();
  REQUIRE(drain.look(Words{{0, 0}, {0, 0}}, true, 1s));
  CHECK_FALSE(drain.look(Words{{1, 0}, {1, kGangRests}}, true, 2s));  // nothing waits to be called
  CHECK_FALSE(drain.next());
  CHECK_FALSE(drain.look(Words{{1, 0}, {1, kGangRests | kGangStands}}, true, 1s + GangDrain::kStep / 2));
  CHECK(drain.next() == 1s + GangDrain::kStep);
  CHECK(drain.look(Words{{1, 0}, {1, kGangRests | kGangStands}}, true, 1s + GangDrain::kStep));
  CHECK(drain.step() == 2);
  Time now = 2s;
  for (int i = 0; i < 2 * GangDrain::kManySteps; ++i, now += 1s) {
    REQUIRE(drain.look(Words{{drain.step(), 0}, {drain.step(), kGangRests | kGangStands}}, true, now));
  }
  now -= 1s;
  CHECK_FALSE(
      drain.look(Words{{drain.step(), 0}, {drain.step(), kGangRests | kGangStands}}, true, now + GangDrain::kStep));
}

// Ranks that make calls in the same order: some launch a collective kernel, which ends once all ranks have launched it,
// others work of their own. Each rank's work runs in order.
struct Ranks {
  struct Rank {
    std::size_t calls = 0;  // made so far
    std::deque<std::size_t> flight;
    Time busy_until{0};
    bool gate_open = true;
    std::uint32_t said = 0;  // of which step it has said that it rests
    bool wants = true;       // a call waits
  };
  std::vector<Rank> ranks;
  std::mt19937 random;
  Time now{1s};

  Ranks(std::size_t number, unsigned seed) : ranks(number), random(seed) {}

  static bool is_collective(std::size_t call) { return call % 3 == 0; }
  unsigned any(unsigned most) { return std::uniform_int_distribution<unsigned>(0, most)(random); }
  void call(Rank& rank) { rank.flight.push_back(rank.calls++); }
  void work() {
    for (bool progress = true; progress;) {
      progress = false;
      for (Rank& rank : ranks) {
        if (rank.flight.empty() || rank.busy_until > now) continue;
        const std::size_t call = rank.flight.front();
        bool over = true;
        if (is_collective(call)) {
          for (const Rank& other : ranks) over = over && other.calls > call;
        } else {
          rank.busy_until = now + std::chrono::microseconds(any(400));
        }
        if (!over) continue;
        rank.flight.pop_front();
        progress = true;
      }
    }
  }
  Words words(const GangDrain& drain) {
    Words all;
    for (Rank& rank : ranks) {
      const bool rests = rank.flight.empty() && rank.busy_until <= now;
      rank.wants = rank.wants || any(5) == 0;
      if (rests && drain.step() != 0) rank.said = drain.step();
      const bool said = rank.said == drain.step() && drain.step() != 0;
      all.push_back({drain.step(), (said ? kGangRests : 0) | (rank.wants ? kGangStands : 0)});
    }
    return all;
  }
};

TEST_CASE("a gang whose ranks have run ahead of each other always comes to rest, with no kernel left that waits") {
  for (unsigned seed = 1; seed <= 300; ++seed) {
    INFO("seed " << seed);
    Ranks machine(2 + seed % 7, seed);
    GangDrain drain;
    drain.begin_turn();
    for (Ranks::Rank& rank : machine.ranks) {
      for (unsigned i = machine.any(40); i != 0; --i) machine.call(rank);
    }
    std::uint32_t step = 0;
    for (int looks = 0; !drain.ended(); ++looks) {
      REQUIRE(looks < 20000);
      machine.now += 50us;
      machine.work();
      drain.look(machine.words(drain), true, machine.now);
      if (drain.step() == step || drain.ended()) continue;
      // Those that have said that they rest, and where a call waits, make one.
      for (Ranks::Rank& rank : machine.ranks) {
        if (step != 0 && rank.said == step && rank.wants) {
          machine.call(rank);
          rank.wants = machine.any(3) != 0;
        }
      }
      step = drain.step();
    }
    for (const Ranks::Rank& rank : machine.ranks) CHECK(rank.flight.empty());
  }
}

}  // namespace
}  // namespace rota::test
