// What is assumed for a context until it is measured: it counts toward limits as if it had been measured, unless
// nothing can measure it; and nobody is told that this memory is free.
#include <catch2/catch.hpp>
#include <chrono>
#include <optional>
#include <set>

#include "scheduler/limits/quota.h"
#include "tests/unit/scheduler/limits/limits_beside_books.h"

namespace rota::scheduler {
namespace {

constexpr Bytes kGpu = 6400;  // so that a step is 100
constexpr Time kNow = std::chrono::seconds(1);
constexpr ClientId kOne = 1;
constexpr ClientId kTwo = 2;

// Two clients of a session that may have 1000.
struct SessionOfTwo : LimitsBesideBooks {
  SessionOfTwo() {
    for (const ClientId id : {kOne, kTwo}) {
      join(id, {{"session", "session abc", {.device = 1000}, {}}});
      add_gpu(id, 0, kGpu, 0);
    }
  }
};

// The answer to a client if the others do not report what they do not need.
bool granted(Quota& quota, ClientId client, Bytes device) {
  static std::uint32_t number = 0;
  Quota::Outcome outcome = quota.reserve(client, 0, ++number, {device}, kNow);
  if (outcome.answers.empty()) outcome = quota.tick(kNow + Quota::kPatience);
  REQUIRE(outcome.answers.size() == 1);
  return outcome.answers.front().granted;
}

}  // namespace

TEST_CASE("a context that will be measured counts with its assumed size until it is, or until it cannot be") {
  SessionOfTwo quota;
  quota.add_gpu(kOne, 0, kGpu, 400, true);
  CHECK(quota.left(kTwo, 0) == 600);
  CHECK_FALSE(granted(quota, kTwo, 601));
  CHECK_FALSE(granted(quota, kOne, 601));
  quota.measured(kOne, 0, 500, kNow);
  CHECK(quota.left(kTwo, 0) == 500);
  CHECK_FALSE(granted(quota, kTwo, 501));
  quota.add_gpu(kTwo, 0, kGpu, 300, true);
  CHECK_FALSE(granted(quota, kOne, 201));
  quota.not_measured(kTwo, 0, kNow);
  CHECK(quota.left(kOne, 0) == 200);
  CHECK(granted(quota, kOne, 500));
}

TEST_CASE("what was measured earlier refuses nobody before it has been measured again") {
  using namespace std::chrono_literals;
  SessionOfTwo quota;
  quota.measured(kOne, 0, 800, kNow);
  // Decided at once: more than the limit in any case, or enough room in addition to the contexts.
  CHECK(quota.reserve(kOne, 0, 1, {1001}, kNow).measure.empty());
  CHECK(granted(quota, kOne, 200));
  Quota::Outcome asked = quota.reserve(kOne, 0, 2, {700}, kNow);
  CHECK(asked.answers.empty());
  CHECK(asked.measure == std::set<GpuIndex>{0});
  SECTION("a context that has ended is no longer in the way") {
    CHECK(quota.read(0, kNow + 1ms, kNow + 2ms).measure == std::set<GpuIndex>{0});
    const Quota::Outcome outcome = quota.measured(kOne, 0, 300, kNow + 3ms);
    REQUIRE(outcome.answers.size() == 1);
    CHECK(outcome.answers.front().granted);
  }
  SECTION("one that is still there is, after two readings that have begun since") {
    CHECK(quota.read(0, kNow - 1ms, kNow + 1ms).answers.empty());
    CHECK(quota.read(0, kNow + 1ms, kNow + 2ms).answers.empty());
    const Quota::Outcome outcome = quota.read(0, kNow + 3ms, kNow + 4ms);
    REQUIRE(outcome.answers.size() == 1);
    CHECK_FALSE(outcome.answers.front().granted);
    CHECK(outcome.measure.empty());
  }
  SECTION("where no reading is to come it is refused at once, and otherwise in time") {
    const Quota::Outcome outcome =
        GENERATE(false, true) ? quota.read(0, std::nullopt, kNow + 1ms) : quota.tick(kNow + Quota::kPatience);
    REQUIRE(outcome.answers.size() == 1);
    CHECK_FALSE(outcome.answers.front().granted);
  }
}

TEST_CASE("a request that an assumed context was in the way of is granted once nothing can measure it") {
  SessionOfTwo quota;
  quota.add_gpu(kTwo, 0, kGpu, 400, true);
  CHECK(granted(quota, kTwo, 100));
  CHECK(quota.reserve(kOne, 0, 99, {800}, kNow).answers.empty());
  const Quota::Outcome outcome = quota.not_measured(kTwo, 0, kNow);
  REQUIRE(outcome.answers.size() == 1);
  CHECK(outcome.answers.front().granted);
}

}  // namespace rota::scheduler
