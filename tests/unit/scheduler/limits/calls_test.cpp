// Calls to all clients of an account to give back what they do not need: one call for all who ask meanwhile, and not
// too often.
#include <catch2/catch.hpp>
#include <set>

#include "scheduler/limits/quota.h"
#include "tests/unit/scheduler/limits/limits_beside_books.h"

namespace rota::scheduler {
namespace {

using namespace std::chrono_literals;

constexpr Bytes kGpu = 6400;  // so that a step is 100
constexpr Time kStart = 1s;
const Quota::Membership kSession{"session 1", "session 1", {.device = 1000}};

}  // namespace

TEST_CASE(
    "a client that asks while others are being asked to free memory shares the next round, and no client is asked too "
    "often") {
  constexpr int kMembers = 100;
  LimitsBesideBooks quota;
  for (ClientId id = 1; id <= kMembers; ++id) {
    quota.join(id, {kSession});
    quota.add_gpu(id, 0, kGpu, 0);
    REQUIRE(quota.reserve(id, 0, 1, {10, 0, 10, 0}, kStart).answers.size() == 1);
    quota.state(id, 0, {10, 0, 10, 0}, 1, 0, kStart);  // and not what it was granted beyond that
  }
  const auto answers_of = [&](const std::set<ClientId>& asked, Time now) {
    Quota::Outcome all;
    for (const ClientId id : asked) {
      const std::uint32_t answered = id == 1 ? 2 : 1;
      const Quota::Outcome one = quota.state(id, 0, {10, 0, 10, 0}, answered, quota.round(), now);
      all.answers.insert(all.answers.end(), one.answers.begin(), one.answers.end());
    }
    return all.answers;
  };
  const Quota::Outcome first = quota.reserve(1, 0, 2, {11, 0, 11, 0}, kStart);
  CHECK(first.tighten.size() == kMembers - 1);
  CHECK(answers_of(first.tighten, kStart).size() == 1);
  // Ten others ask right behind it.
  Time now = kStart + 10us;
  for (ClientId id = 2; id <= 11; ++id) {
    const Quota::Outcome more = quota.reserve(id, 0, 2, {11, 0, 11, 0}, now);
    CHECK(more.tighten.empty());
    CHECK(more.answers.empty());
  }
  REQUIRE(quota.next_deadline() == kStart + Quota::kBetweenCalls * (kMembers - 1));
  now = *quota.next_deadline();
  const std::uint32_t before = quota.round();
  const Quota::Outcome together = quota.tick(now);
  CHECK(together.answers.empty());
  CHECK(together.tighten.size() == kMembers);  // the first of them, too, for the others
  CHECK(quota.round() == before + 1);
  SECTION("all are answered once everybody has answered") {
    const std::vector<Quota::Answer> answers = answers_of(together.tighten, now);
    CHECK(answers.size() == 10);
    for (const Quota::Answer& answer : answers) CHECK_FALSE(answer.granted);
  }
  SECTION("or when that takes too long") {
    CHECK(quota.next_deadline() == now + Quota::kPatience);
    CHECK(quota.tick(now + Quota::kPatience).answers.size() == 10);
  }
  SECTION(
      "memory that one of those asked gives back is granted to whom it suffices, in the order in which they asked") {
    const Quota::Outcome outcome = quota.state(50, 0, {7, 0, 7, 0}, 1, quota.round(), now);
    CHECK(outcome.answers.size() == 3);
    for (const Quota::Answer& answer : outcome.answers) {
      CHECK(answer.granted);
      CHECK(answer.client <= 4);
    }
  }
  SECTION("a client that ends is not waited for") {
    std::size_t answered = 0;
    for (ClientId id = 12; id <= kMembers; ++id) answered += quota.leave(id, now).answers.size();
    CHECK(answered == 10);
  }
}

TEST_CASE("a client that may not make others wait is answered at once") {
  LimitsBesideBooks quota;
  for (const ClientId id : {1U, 2U}) {
    quota.join(id, {kSession});
    quota.add_gpu(id, 0, kGpu, 0);
  }
  REQUIRE(quota.reserve(1, 0, 1, {1000, 0}, kStart).answers.at(0).granted);
  const Quota::Outcome outcome = quota.reserve(2, 0, 1, {1, 0}, kStart, Time{});
  CHECK(outcome.tighten.empty());
  REQUIRE(outcome.answers.size() == 1);
  CHECK_FALSE(outcome.answers[0].granted);
  CHECK_FALSE(quota.asks(2, 0));
}

TEST_CASE("a client that takes all of a GPU asks for few of its allocations") {
  LimitsBesideBooks quota;
  quota.join(1, {{"session 1", "session 1", {}}});
  quota.add_gpu(1, 0, kGpu, 0);
  Bytes has = kGpu - 1000;
  std::uint32_t asks = 0;
  const auto may_have = [&](Bytes bytes) {
    if (bytes <= quota.reserved(1, 0).swapped) return true;
    const Reservation wanted{.device = bytes, .movable = bytes, .swapped = bytes};
    return quota.reserve(1, 0, ++asks, wanted, kStart, Time{}).answers.at(0).granted;
  };
  while (may_have(has + 10)) has += 10;
  CHECK(has == kGpu);
  CHECK(asks < 35);
}

}  // namespace rota::scheduler
