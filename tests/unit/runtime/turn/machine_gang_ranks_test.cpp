// Several machines that are members of one gang, with kernels that wait for each other, and a rotad that is one rule.
#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <cstdint>
#include <random>
#include <vector>

#include "scheduler/protocol/pages.h"
#include "tests/unit/runtime/turn/machine_process.h"

using namespace rota::test;
using rota::protocol::kGangRests;
using rota::protocol::kGangStands;

namespace {

// A program of a gang: its thread makes its calls one after the other, and each call is a kernel. Kernel k of one waits
// on the GPU until kernel k of all others has been submitted.
struct Rank : Process {
  std::uint64_t told = 0;  // its last report
  int to_make = 0;         // calls
  int made = 0;            // submitted
  int finished = 0;        // kernels
  int marked = -1;         // how many had been submitted at the last mark
  std::uint64_t left = 0;  // calls that have returned
  bool inside = false;
  bool waits = false;   // that call returns only once its kernel has finished
  bool let_in = false;  // by an admission
  Time enters{0};
  Time leaves{0};
  bool gave_back = false;
  bool violated = false;

  void apply_all(const std::vector<Action>& actions) {
    for (const Action& action : actions) {
      switch (action.act) {
        case Act::kAdmit:
          violated |= (told & kGangRests) != 0;
          let_in = true;
          break;
        case Act::kOpen:
          violated |= (told & kGangRests) != 0;
          break;
        case Act::kClose:
        case Act::kDismiss:
          let_in = false;
          break;
        case Act::kReport:
          told = action.word;
          break;
        case Act::kMark:
          marked = made;
          break;
        case Act::kGiveBack:
          gave_back = true;
          break;
        default:
          break;
      }
    }
  }
  void look_around() {
    seen.calls = left;
    seen.inside = (inside || let_in) ? 1 : 0;
    seen.standing = !inside && made < to_make && !machine.gate_open() ? 1 : 0;
    seen.looked = machine.watches_gpu();
    seen.done = finished >= marked;
    seen.reached = static_cast<std::uint64_t>(finished);
    Process::look();
    apply_all(done);
  }
  void call(std::mt19937& random) {
    const auto some = [&] { return Time(static_cast<long>(random() % 300'000)); };
    if (inside) {
      if (waits ? finished < made : now < leaves) return;
      inside = false;
      ++left;
      if (!waits) ++made;
      enters = now + some();
      return;
    }
    if (made >= to_make || now < enters || !(machine.gate_open() || let_in)) return;
    if (!machine.gate_open()) let_in = false;
    inside = true;
    leaves = now + some();
    waits = random() % 4 == 0;
    if (waits) ++made;
  }
};

// rotad's rule, in one place.
struct Gang {
  std::array<Rank, 3> ranks;
  std::mt19937 random;
  Time now = 1000s;
  std::uint32_t step = 0;
  bool ends = false;

  explicit Gang(unsigned seed) : random(seed) {}

  void rule() {
    if (step == 0 || ends) return;
    const auto rests = [&](const Rank& rank) { return rank.told >> 32 == step && (rank.told & kGangRests) != 0; };
    const auto stands = [&](const Rank& rank) { return rests(rank) && (rank.told & kGangStands) != 0; };
    if (std::all_of(ranks.begin(), ranks.end(), rests)) {
      ends = true;
    } else if (std::any_of(ranks.begin(), ranks.end(), stands)) {
      ++step;
    }
  }
  void tick() {
    now += 20us;
    // A kernel finishes once the same one of all has been submitted.
    int begun = INT32_MAX;
    for (const Rank& rank : ranks) begun = std::min(begun, rank.made);
    for (Rank& rank : ranks) {
      rank.now = now;
      rank.call(random);
      if (rank.finished < begun) ++rank.finished;
      // Whoever rests has nothing on the GPU and nobody inside.
      if ((rank.told & kGangRests) != 0) rank.violated |= rank.inside || rank.finished < rank.made;
      rank.seen.lease.step = step;
      rank.seen.lease.ends = ends;
      if (rank.gave_back) continue;
      if (now >= rank.machine.look_at() || random() % 8 == 0) rank.look_around();
      rank.violated |= rank.gave_back && !rank.seen.lease.ends;
      rule();
    }
  }
  template <typename Until>
  bool run_until(Time most, const Until& until) {
    for (const Time end = now + most; now < end; tick()) {
      if (until()) return true;
    }
    return until();
  }
};

}  // namespace

TEST_CASE("members whose kernels wait for each other's calls all come to rest, and none gives back before") {
  for (unsigned seed = 0; seed < 200; ++seed) {
    INFO("seed " << seed);
    Gang gang(seed);
    // They make the same calls; when the gang drains, some have made more of them than others.
    for (Rank& rank : gang.ranks) {
      rank.to_make = 20 + static_cast<int>(seed % 3);
      rank.now = gang.now;
      rank.seen.lease = {.grant = 7, .held = 1, .waiters = 1, .gang = 3};
      rank.enters = gang.now + Time(static_cast<long>(gang.random() % 20'000'000));
    }
    gang.run_until(Time(static_cast<long>(gang.random() % 25'000'000)), [] { return false; });
    for (const Rank& rank : gang.ranks) CHECK_FALSE(rank.gave_back);
    gang.step = 1;
    REQUIRE(gang.run_until(5s, [&] { return gang.ends; }));
    for (const Rank& rank : gang.ranks) {
      CHECK(rank.finished == rank.made);
      CHECK(rank.made == gang.ranks[0].made);
    }
    REQUIRE(gang.run_until(1s, [&] {
      return std::all_of(gang.ranks.begin(), gang.ranks.end(), [](const Rank& rank) { return rank.gave_back; });
    }));
    for (const Rank& rank : gang.ranks) {
      CHECK(rank.machine.still());
      CHECK_FALSE(rank.violated);
    }
  }
}
