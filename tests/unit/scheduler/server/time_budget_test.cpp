// How much of rotad's time one user's messages may take if there are other users.
#include "scheduler/server/time_budget.h"

#include <catch2/catch.hpp>

namespace rota::test {
namespace {

using namespace std::chrono_literals;
using server::TimeBudget;

const TimeBudget::Clock::time_point kStart = TimeBudget::Clock::time_point(1h);

TEST_CASE("a user whose messages take more than a part of the time waits, and others do not") {
  TimeBudget budget;
  budget.enter("flood", kStart);
  budget.enter("other", kStart);
  budget.spend("flood", TimeBudget::kAtOnce, kStart);
  CHECK(budget.next("flood", kStart) <= kStart);
  budget.spend("flood", 2ms, kStart);
  const auto next = budget.next("flood", kStart);
  CHECK(next == kStart + 2ms * TimeBudget::kPart);
  CHECK(budget.next("flood", next) <= next);
  CHECK(budget.next("other", kStart) <= kStart);
  // In the long run it gets its share.
  auto now = kStart;
  std::chrono::nanoseconds spent{};
  while (now < kStart + 10s) {
    now = std::max(now, budget.next("flood", now));
    budget.spend("flood", 1ms, now);
    spent += 1ms;
    now += 1ms;
  }
  CHECK(spent <= 10000ms / TimeBudget::kPart + 10ms);
  CHECK(spent >= 10000ms / TimeBudget::kPart - 10ms);
}

TEST_CASE("a user who is alone waits for nobody") {
  TimeBudget budget;
  budget.enter("alone", kStart);
  budget.spend("alone", 10s, kStart);
  CHECK(budget.next("alone", kStart) <= kStart);
  budget.enter("other", kStart);
  CHECK(budget.next("alone", kStart) > kStart);
  budget.leave("other");
  CHECK(budget.next("alone", kStart) <= kStart);
}

TEST_CASE("what was spent is not forgotten with the last connection, and is forgotten with time") {
  TimeBudget budget;
  budget.enter("other", kStart);
  for (int i = 0; i < 10; ++i) {
    budget.enter("flood", kStart);
    budget.spend("flood", 1ms, kStart);
    budget.leave("flood");
  }
  budget.enter("flood", kStart);
  CHECK(budget.next("flood", kStart) > kStart);
  budget.leave("flood");
  budget.enter("flood", kStart + 1s);
  CHECK(budget.next("flood", kStart + 1s) <= kStart + 1s);
}

}  // namespace
}  // namespace rota::test
