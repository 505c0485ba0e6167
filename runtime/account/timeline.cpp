#include "runtime/account/timeline.h"

#include <algorithm>
#include <cmath>

namespace rota::account {
namespace {

using std::memory_order_relaxed;
using std::memory_order_release;

// Halves the resolution. A reader that finds an odd number of changes before or after starts over, or, of a process
// that died here, knows that the timeline is torn.
void merge(Header& header) {
  header.timeline_changes.fetch_add(1, memory_order_release);
  for (std::size_t to = 0; to < kTimelineSteps; ++to) {
    Step& into = header.timeline[to];
    std::uint32_t waited = 0;
    std::uint32_t busy = 0;
    for (std::size_t from = 2 * to; from < std::min(2 * to + 2, kTimelineSteps); ++from) {
      const Step& step = header.timeline[from];
      waited += step.waited_us.load(memory_order_relaxed);
      busy += step.busy_us.load(memory_order_relaxed);
    }
    into.waited_us.store(waited, memory_order_relaxed);
    into.busy_us.store(busy, memory_order_relaxed);
  }
  header.timeline_step_ns.store(header.timeline_step_ns.load(memory_order_relaxed) * 2, memory_order_relaxed);
  header.timeline_changes.fetch_add(1, memory_order_release);
}

// A level as plain numbers.
struct Span {
  std::uint64_t since;
  std::uint64_t until;
  std::uint64_t most;
  std::uint64_t least;

  // The uncertainty in bytes, times its duration.
  double open() const { return static_cast<double>(most - least) * static_cast<double>(until - since); }
  Span with(const Span& next) const {
    return {since, next.until, std::max(most, next.most), std::min(least, next.least)};
  }
};

Span span_of(const Header& header, std::size_t index, std::uint64_t now) {
  const Level& level = header.levels[index];
  return {level.since_ns.load(memory_order_relaxed),
          index + 1 < kLevels ? header.levels[index + 1].since_ns.load(memory_order_relaxed) : now,
          level.most_bytes.load(memory_order_relaxed), level.least_bytes.load(memory_order_relaxed)};
}

// The certainty that merging this level with the next one loses, as a power of two.
constexpr int kCosts = 160;
int cost_of_merging(const Header& header, std::size_t index, std::uint64_t now) {
  const Span one = span_of(header, index, now);
  const Span other = span_of(header, index + 1, now);
  int power = 0;
  std::frexp(std::max(one.with(other).open() - one.open() - other.open(), 0.0), &power);
  return std::clamp(power, 0, kCosts - 1);
}

// All levels are in use: merges at least an eighth of them, those pairs of neighbours that cost least. Returns how many
// are left. Without memory of its own: the program may be out of it.
std::size_t make_room(Header& header, std::uint64_t now) {
  std::size_t pairs_by_cost[kCosts] = {};
  for (std::size_t i = 0; i + 1 < kLevels; i += 2) ++pairs_by_cost[cost_of_merging(header, i, now)];
  int most = 0;
  for (std::size_t merged = pairs_by_cost[0]; merged < kLevels / 8; merged += pairs_by_cost[most]) ++most;
  header.timeline_changes.fetch_add(1, memory_order_release);
  std::size_t count = 0;
  const auto keep = [&](const Span& span) {
    Level& into = header.levels[count++];
    into.since_ns.store(span.since, memory_order_relaxed);
    into.most_bytes.store(span.most, memory_order_relaxed);
    into.least_bytes.store(span.least, memory_order_relaxed);
  };
  // What is read lies beyond what is written.
  for (std::size_t i = 0; i + 1 < kLevels; i += 2) {
    const Span one = span_of(header, i, now);
    const Span other = span_of(header, i + 1, now);
    if (cost_of_merging(header, i, now) <= most) {
      keep(one.with(other));
    } else {
      keep(one);
      keep(other);
    }
  }
  header.level_count.store(count, memory_order_relaxed);
  header.timeline_changes.fetch_add(1, memory_order_release);
  return count;
}

std::size_t index_of(const Header& header, std::int64_t now_ns) {
  const auto since = static_cast<std::uint64_t>(std::max<std::int64_t>(now_ns - header.began_monotonic_ns, 0));
  return since / header.timeline_step_ns.load(memory_order_relaxed);
}

}  // namespace

Step& Timeline::at(Header& header, std::int64_t now_ns) {
  while (index_of(header, now_ns) >= kTimelineSteps) merge(header);
  return header.timeline[index_of(header, now_ns)];
}

void Timeline::used(Header& header, std::int64_t now_ns, std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  std::size_t count = header.level_count.load(memory_order_relaxed);
  auto now = static_cast<std::uint64_t>(now_ns);
  if (count != 0) {
    const Level& last = header.levels[count - 1];
    if (last.most_bytes.load(memory_order_relaxed) == bytes && last.least_bytes.load(memory_order_relaxed) == bytes) {
      return;
    }
    now = std::max(now, last.since_ns.load(memory_order_relaxed));  // another thread was faster
  }
  if (count == kLevels) count = make_room(header, now);
  Level& level = header.levels[count];
  level.since_ns.store(now, memory_order_relaxed);
  level.most_bytes.store(bytes, memory_order_relaxed);
  level.least_bytes.store(bytes, memory_order_relaxed);
  header.level_count.store(count + 1, memory_order_release);
}

// Over the steps that it covers.
void Timeline::spread(Header& header, std::int64_t now_ns, std::chrono::nanoseconds time,
                      std::atomic<std::uint32_t> Step::* field) {
  at(header, now_ns);  // merges what has to be
  const auto step_ns = static_cast<std::int64_t>(header.timeline_step_ns.load(memory_order_relaxed));
  std::int64_t end = now_ns - header.began_monotonic_ns;
  const std::int64_t begin = std::max<std::int64_t>(end - time.count(), 0);
  while (end > begin) {
    const std::int64_t index = (end - 1) / step_ns;
    const std::int64_t from = std::max(begin, index * step_ns);
    auto& word = header.timeline[static_cast<std::size_t>(index)].*field;
    // Rounded up: many short waits would otherwise vanish.
    word.store(word.load(memory_order_relaxed) + static_cast<std::uint32_t>((end - from + 999) / 1000),
               memory_order_relaxed);
    end = from;
  }
}

void Timeline::waited(Header& header, std::int64_t now_ns, std::chrono::nanoseconds time) {
  const std::lock_guard lock(mutex_);
  spread(header, now_ns, time, &Step::waited_us);
}

void Timeline::busy(Header& header, std::int64_t now_ns, std::chrono::nanoseconds time) {
  const std::lock_guard lock(mutex_);
  spread(header, now_ns, time, &Step::busy_us);
}

}  // namespace rota::account
