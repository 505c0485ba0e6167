#include <catch2/catch.hpp>

#include <utility>
#include <vector>

#include "runtime/account/timeline.h"

namespace {

using namespace rota::account;
using namespace std::chrono_literals;

constexpr std::int64_t kStep = Timeline::kFirstStepNs;

struct Drawn {
  std::unique_ptr<Header> header = std::make_unique<Header>();
  Timeline timeline;

  Drawn() { Timeline::begin(*header); }
  const Step& at(std::size_t index) const { return header->timeline[index]; }
  template <std::atomic<std::uint32_t> Step::* kField>
  std::uint64_t sum() const {
    std::uint64_t all = 0;
    for (const Step& step : header->timeline) all += (step.*kField).load();
    return all;
  }
};

}  // namespace

TEST_CASE("every change of the memory in use has its time") {
  Drawn drawn;
  drawn.timeline.used(*drawn.header, 7, 100);
  drawn.timeline.used(*drawn.header, 8, 100);  // no change
  drawn.timeline.used(*drawn.header, 9, 40);
  drawn.timeline.used(*drawn.header, 8, 70);  // of a thread that was overtaken
  REQUIRE(drawn.header->level_count == 3);
  const auto is = [&](std::size_t index, std::uint64_t since, std::uint64_t bytes) {
    const Level& level = drawn.header->levels[index];
    return level.since_ns == since && level.most_bytes == bytes && level.least_bytes == bytes;
  };
  CHECK(is(0, 7, 100));
  CHECK(is(1, 9, 40));
  CHECK(is(2, 9, 70));
}

TEST_CASE("when there are too many changes, those are merged that matter least, and the bounds hold") {
  constexpr std::uint64_t kLarge = 1 << 30;
  constexpr std::uint64_t kSmall = 1 << 10;
  // Large memory comes and goes a hundred times, small memory a hundred times within each.
  Drawn drawn;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> truth;  // since, bytes
  const auto use = [&](std::uint64_t time, std::uint64_t bytes) {
    drawn.timeline.used(*drawn.header, static_cast<std::int64_t>(time), bytes);
    truth.emplace_back(time, bytes);
  };
  std::uint64_t time = 1;
  for (int i = 0; i < 100; ++i) {
    for (std::uint64_t j = 0; j < 100; ++j) use(time += 1000, kLarge + j % 2 * kSmall);
    use(time += 1000, 0);
    time += 1'000'000;
  }
  const std::size_t count = drawn.header->level_count;
  REQUIRE(count <= kLevels);
  CHECK(drawn.header->timeline_changes % 2 == 0);
  std::size_t level = 0;
  std::size_t none = 0;
  for (const auto& [since, bytes] : truth) {
    while (level + 1 < count && drawn.header->levels[level + 1].since_ns <= since) ++level;
    const Level& at = drawn.header->levels[level];
    REQUIRE(at.since_ns <= since);
    REQUIRE(at.least_bytes <= bytes);
    REQUIRE(at.most_bytes >= bytes);
    // The large steps are still there.
    CHECK(at.most_bytes - at.least_bytes <= kSmall);
    if (at.most_bytes == 0) ++none;
  }
  CHECK(none == 100);
}

TEST_CASE("the timeline of a run of any length fits: neighbours are merged, and nothing is lost") {
  Drawn drawn;
  drawn.timeline.waited(*drawn.header, 4 * kStep, std::chrono::nanoseconds(2 * kStep));
  const auto last = static_cast<std::int64_t>(kTimelineSteps) * kStep * 7;
  drawn.timeline.busy(*drawn.header, last, 1s);
  CHECK(drawn.header->timeline_step_ns == 8 * kStep);
  CHECK(drawn.header->timeline_changes == 6);  // three times, begun and ended
  CHECK(drawn.at(0).waited_us == 2 * kStep / 1000);
  CHECK(drawn.sum<&Step::busy_us>() >= 1'000'000);
  CHECK(drawn.sum<&Step::busy_us>() < 1'000'100);
}

TEST_CASE("a wait is spread over the steps that it covers") {
  Drawn drawn;
  drawn.timeline.waited(*drawn.header, 3 * kStep + kStep / 2, std::chrono::nanoseconds(2 * kStep));
  CHECK(drawn.at(0).waited_us == 0);
  CHECK(drawn.at(1).waited_us == kStep / 2000);
  CHECK(drawn.at(2).waited_us == kStep / 1000);
  CHECK(drawn.at(3).waited_us == kStep / 2000);
  // One that began before the process did, as far as the timeline knows, begins with it.
  drawn.timeline.waited(*drawn.header, kStep / 2, 1h);
  CHECK(drawn.at(0).waited_us == kStep / 2000);
}
