// What must be on a GPU at once in addition to what stays there: no client is granted memory if another client's swap
// memory could then never be restored.
#include <catch2/catch.hpp>
#include <map>
#include <random>
#include <set>

#include "scheduler/limits/quota.h"
#include "tests/unit/scheduler/limits/limits_beside_books.h"

namespace rota::scheduler {
namespace {

using namespace std::chrono_literals;
using Catch::Contains;
using Catch::Matches;

constexpr Bytes kGpu = 6400;  // so that a step is 100
constexpr Bytes kContext = 50;

// Clients of a GPU that report what they have as soon as they are asked, unless they are mute.
struct Rig {
  ClientId client(GpuIndex gpu = 0, Bytes total = kGpu) {
    const ClientId id = ++last;
    quota.join(id, {});
    quota.add_gpu(id, gpu, total, kContext);
    return id;
  }
  // Whether the client may have this much that stays, and this much swap memory, in total.
  bool granted(ClientId id, Bytes fixed, Bytes swapped) {
    const Quota::Answer* answer = ask(id, fixed, swapped);
    REQUIRE(answer != nullptr);
    if (!answer->granted) return false;
    CHECK(answer->reserved.fixed >= fixed);
    CHECK(answer->reserved.swapped >= swapped);
    return true;
  }
  const Quota::Answer* ask(ClientId id, Bytes fixed, Bytes swapped) {
    answers.clear();
    now += 1ms;  // all may be asked again
    wants[id] = {fixed + swapped, swapped, fixed, swapped};
    hear(quota.reserve(id, 0, ++number, wants[id], now));
    const auto answer = answers.find(id);
    return answer == answers.end() ? nullptr : &answer->second;
  }
  void hear(const Quota::Outcome& outcome) {
    for (const Quota::Answer& answer : outcome.answers) {
      answers[answer.client] = answer;
      answered[answer.client] = answer.number;
      if (answer.granted) has[answer.client] = wants[answer.client];
    }
    for (const ClientId id : outcome.tighten) {
      if (!mute.contains(id)) state(id);
    }
  }
  void state(ClientId id) { hear(quota.state(id, 0, has[id], answered[id], quota.round(), now)); }
  // According to what all clients have been granted.
  Bytes most_at_once() const {
    Bytes fixed = 0;
    Bytes most = 0;
    for (const auto& [id, unused] : has) {
      fixed += quota.reserved(id, 0).fixed;
      most = std::max(most, quota.reserved(id, 0).swapped);
    }
    return most == 0 ? 0 : fixed + most + has.size() * kContext;
  }

  LimitsBesideBooks quota;
  Time now = 1s;
  ClientId last = 0;
  std::uint32_t number = 0;
  std::set<ClientId> mute;
  std::map<ClientId, Reservation> has;
  std::map<ClientId, Reservation> wants;
  std::map<ClientId, Quota::Answer> answers;
  std::map<ClientId, std::uint32_t> answered;
};

TEST_CASE("what a client pins of its swap memory counts as what stays, and no longer as what it has to bring back") {
  Rig rig;
  const ClientId one = rig.client();
  const ClientId other = rig.client();
  REQUIRE(rig.granted(one, 0, 4000));
  REQUIRE(rig.granted(other, 0, 1000));
  rig.hear(rig.quota.pin(one, 0, 3000, rig.now));
  CHECK(rig.quota.fixed_of_others(other, 0) == 3000);
  CHECK(rig.quota.fixed_of_others(one, 0) == 0);
  SECTION("others may have what is left next to it") {
    CHECK_FALSE(rig.granted(other, 0, 3400));
    CHECK_THAT(rig.ask(other, 0, 3400)->why, Contains("3 KiB cannot be evicted"));
    CHECK(rig.granted(other, 0, 3300));
  }
  SECTION("it may have as much as before") {
    CHECK_FALSE(rig.granted(one, 0, 6400));
    CHECK(rig.granted(one, 0, 6300));
  }
  SECTION("what no longer stays is no longer in the way") {
    rig.hear(rig.quota.pin(one, 0, 0, rig.now));
    CHECK(rig.quota.fixed_of_others(other, 0) == 0);
    CHECK(rig.granted(other, 0, 6300));
  }
  SECTION("it counts only as far as it has been granted") {
    rig.hear(rig.quota.pin(one, 0, 6400, rig.now));
    CHECK(rig.quota.fixed_of_others(other, 0) == rig.quota.reserved(one, 0).swapped);
  }
  SECTION("it ends with its client") {
    rig.hear(rig.quota.leave(one, rig.now));
    CHECK(rig.quota.fixed_of_others(other, 0) == 0);
  }
}

TEST_CASE(
    "next to swap memory that is all pinned no client is granted more than fits, since it will be evicted again") {
  Rig rig;
  const ClientId swaps = rig.client();
  const ClientId native = rig.client();
  REQUIRE(rig.granted(swaps, 0, 4000));
  rig.hear(rig.quota.pin(swaps, 0, 4000, rig.now));
  CHECK_FALSE(rig.granted(native, 3000, 0));
  CHECK(rig.granted(native, 2300, 0));
}

TEST_CASE("a client that is pinned as a whole gets no more than lets the others restore their memory") {
  Rig rig;
  const ClientId pinned = rig.client();
  const ClientId other = rig.client();
  REQUIRE(rig.granted(pinned, 0, 2000));
  REQUIRE(rig.granted(other, 0, 4000));
  rig.hear(rig.quota.pin(pinned, 0, protocol::kMaxGpuBytes, rig.now));
  CHECK_FALSE(rig.granted(pinned, 0, kGpu - 2 * kContext - 4000 + 1));
  CHECK(rig.granted(pinned, 0, kGpu - 2 * kContext - 4000));
  CHECK(rig.quota.fixed_of_others(other, 0) == kGpu - 2 * kContext - 4000);
  CHECK_FALSE(rig.granted(other, 0, 4001));
  SECTION("and as much as before once it can be evicted again") {
    rig.hear(rig.quota.pin(pinned, 0, 0, rig.now));
    CHECK(rig.granted(pinned, 0, kGpu - 2 * kContext));
  }
}

TEST_CASE("two clients that swap may have a GPU each, and no more than is left next to contexts and pinned memory") {
  Rig rig;
  const ClientId one = rig.client();
  const ClientId two = rig.client();
  CHECK_FALSE(rig.granted(one, 0, kGpu - 2 * kContext + 1));
  CHECK(rig.granted(one, 0, kGpu - 2 * kContext));
  CHECK(rig.granted(two, 0, kGpu - 2 * kContext));
  CHECK_FALSE(rig.granted(two, 1, kGpu - 2 * kContext));
}

TEST_CASE("pinned memory of one client is not available to another's swap memory") {
  Rig rig;
  const ClientId stays = rig.client();
  const ClientId swaps = rig.client();
  CHECK(rig.granted(stays, 4000, 0));
  CHECK_FALSE(rig.granted(swaps, 0, kGpu - 2 * kContext - 4000 + 1));
  CHECK_THAT(rig.answers.at(swaps).why, Contains("of 6 KiB, contexts take 100 bytes, 4 KiB cannot be evicted, and"));
  CHECK(rig.granted(swaps, 0, kGpu - 2 * kContext - 4000));
  CHECK(rig.quota.fixed_of_others(swaps, 0) == 4000);
  CHECK(rig.quota.fixed_of_others(stays, 0) == 0);
}

TEST_CASE("unmanaged memory is not available to swap memory, as long as it exists") {
  Rig rig;
  const ClientId one = rig.client();
  rig.hear(rig.quota.set_outside(0, 4000, rig.now));
  CHECK_FALSE(rig.granted(one, 0, kGpu - kContext - 4000 + 1));
  CHECK_THAT(rig.answers.at(one).why, Contains("4 KiB are used without rota, contexts take 50 bytes, 0 bytes cannot"));
  CHECK(rig.granted(one, 0, kGpu - kContext - 4000));
  rig.hear(rig.quota.set_outside(0, 0, rig.now));
  CHECK(rig.granted(one, 0, kGpu - kContext));
  // It may keep what it already has.
  rig.hear(rig.quota.set_outside(0, 4000, rig.now));
  CHECK(rig.granted(one, 0, kGpu - kContext));
}

TEST_CASE("a refusal with the longest numbers fits into its message") {
  constexpr Bytes kGiB = Bytes{1} << 30;
  LimitsBesideBooks quota;
  quota.join(1, {});
  quota.join(2, {});
  for (const ClientId client : {1, 2}) quota.add_gpu(client, 0, 2100 * kGiB, 0);
  for (const auto& [client, wanted] :
       {std::pair<ClientId, Reservation>{1, {1000 * kGiB, 0, 1000 * kGiB, 0}}, {2, {0, 0, 0, 1000 * kGiB}}}) {
    const auto outcome = quota.reserve(client, 0, 1, wanted, 1s);
    REQUIRE(outcome.answers.size() == 1);
    REQUIRE(outcome.answers[0].granted);
  }
  quota.add_gpu(1, 0, 1020 * kGiB, 1010 * kGiB);
  quota.set_outside(0, 1010 * kGiB, 1s);
  quota.reserve(2, 0, 2, {0, 0, 0, 2020 * kGiB}, 1s);
  const auto outcome = quota.tick(1h);
  REQUIRE(outcome.answers.size() == 1);
  const std::string why = outcome.answers[0].why;
  CHECK_THAT(why,
             Matches("of 1020.0 GiB, 1010.0 GiB are used without rota, contexts and a reserve "
                     "take 1011.0 GiB, "
                     "10\\d\\d.\\d GiB cannot be evicted, .*10\\d\\d.\\d GiB.*; 10\\d\\d.\\d GiB more were requested"));
  CHECK(why.size() < protocol::kTextLength);
}

TEST_CASE("no client takes memory that stays where another's swap memory could not be restored next to it") {
  Rig rig;
  const ClientId swaps = rig.client();
  const ClientId other = rig.client();
  CHECK(rig.granted(swaps, 0, 5000));
  CHECK_FALSE(rig.granted(other, kGpu - 2 * kContext - 5000 + 1, 0));
  CHECK(rig.granted(other, kGpu - 2 * kContext - 5000, 0));
  // Nor can the client itself, whose memory could not be restored either.
  CHECK_FALSE(rig.granted(swaps, 1, 5000));
  CHECK_FALSE(rig.granted(swaps, 0, 5001));
}

TEST_CASE("what has been freed of either kind is there for others") {
  Rig rig;
  const ClientId one = rig.client();
  const ClientId two = rig.client();
  CHECK(rig.granted(one, 1000, 5000));
  CHECK_FALSE(rig.granted(two, 1000, 0));
  rig.has[one].swapped = 100;
  CHECK(rig.granted(two, 1000, 4000));
  rig.has[one] = {};
  CHECK(rig.granted(two, 1000, 5200));
  rig.quota.leave(two, rig.now);
  CHECK(rig.granted(one, 0, kGpu - kContext));
}

TEST_CASE("where nobody swaps, what stays is the driver's to refuse") {
  Rig rig;
  const ClientId one = rig.client();
  const ClientId two = rig.client();
  CHECK(rig.granted(one, 2 * kGpu, 0));
  CHECK(rig.granted(two, 2 * kGpu, 0));
}

TEST_CASE("contexts that come later are refused to nobody, and then nothing more that stays is allowed") {
  Rig rig;
  const ClientId one = rig.client();
  const ClientId two = rig.client();
  CHECK(rig.granted(one, 0, 5000));
  CHECK(rig.granted(two, kGpu - 2 * kContext - 5000, 1000));
  rig.client();
  CHECK_FALSE(rig.granted(two, kGpu - 2 * kContext - 5000 + 1, 1000));
  // A client that obstructs nobody may continue.
  CHECK(rig.granted(two, kGpu - 2 * kContext - 5000, 1100));
}

TEST_CASE("swap memory leaves a little of a large GPU free, and more next to others' contexts") {
  constexpr Bytes kLarge = Bytes{16} << 30;
  constexpr Bytes kMargin = kLarge / 1024;
  constexpr Bytes kMapping = Bytes{8} << 20;
  Rig rig;
  const ClientId one = rig.client(0, kLarge);
  CHECK_FALSE(rig.granted(one, 0, kLarge - kContext - kMapping + 1));
  CHECK(rig.granted(one, 0, kLarge - kContext - kMapping));
  const ClientId two = rig.client(0, kLarge);
  CHECK_FALSE(rig.granted(two, 0, kLarge - 2 * kContext - kMargin + 1));
  CHECK(rig.granted(two, 0, kLarge - 2 * kContext - kMargin));
}

TEST_CASE("each GPU has its own memory that stays") {
  Rig rig;
  const ClientId one = rig.client();
  const ClientId elsewhere = rig.client(1);
  CHECK(rig.granted(one, 0, kGpu - kContext));
  rig.hear(rig.quota.reserve(elsewhere, 1, ++rig.number, {3000, 0, 3000, 0}, rig.now));
  CHECK(rig.answers.at(elsewhere).granted);
}

TEST_CASE("after a rotad that died nobody takes what the others have yet to say that they have") {
  Rig rig;
  rig.quota.hold_until(rig.now + 3s);
  const ClientId fresh = rig.client();
  CHECK(rig.ask(fresh, 0, 3000) == nullptr);
  const ClientId old = rig.client();
  rig.has[old] = {4000, 0, 4000, 0};
  rig.state(old);
  rig.now += 3s;
  rig.answers.clear();
  rig.hear(rig.quota.tick(rig.now));
  REQUIRE(rig.answers.contains(fresh));
  CHECK_FALSE(rig.answers.at(fresh).granted);
}

TEST_CASE("whatever clients ask for in whatever order, each can have its swap memory next to all that stays") {
  std::mt19937 random(5);
  const auto below = [&](Bytes n) { return random() % n; };
  Rig rig;
  for (int i = 0; i < 3; ++i) rig.has[rig.client()] = {};
  long granted = 0;
  long refused = 0;
  for (int step = 0; step < 20'000; ++step) {
    const ClientId id = 1 + static_cast<ClientId>(below(3));
    Reservation& has = rig.has[id];
    if (below(3) == 0) {
      has.fixed -= below(has.fixed + 1);
      has.swapped -= below(has.swapped + 1);
      has = {has.fixed + has.swapped, has.swapped, has.fixed, has.swapped};
      if (below(2) == 0) rig.state(id);
      continue;
    }
    const Bytes fixed = has.fixed + (below(2) == 0 ? below(1000) : 0);
    const Bytes swapped = has.swapped + (below(2) == 0 ? below(3000) : 0);
    const Reservation before = rig.quota.reserved(id, 0);
    if (fixed <= before.fixed && swapped <= before.swapped) {
      has = {fixed + swapped, swapped, fixed, swapped};
      continue;
    }
    if (rig.granted(id, fixed, swapped)) {
      ++granted;
    } else {
      ++refused;
      // According to what they use, since all have been asked.
      Bytes all_fixed = fixed - has.fixed;
      Bytes most = swapped;
      for (const auto& [other, use] : rig.has) {
        all_fixed += use.fixed;
        if (other != id) most = std::max(most, use.swapped);
      }
      REQUIRE(all_fixed + most + 3 * kContext > kGpu);
    }
    REQUIRE(rig.most_at_once() <= kGpu);
  }
  CHECK(granted > 1000);
  CHECK(refused > 1000);
}

}  // namespace
}  // namespace rota::scheduler
