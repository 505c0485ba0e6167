#include "runtime/turn/flow.h"

#include <algorithm>

namespace rota::turn {

namespace {

// At least two calls: one runs and one is queued, however long they are.
constexpr double kLeastInFlight = 2;
// The weight of a new measurement in the estimate of how long a call keeps the stream busy.
constexpr double kNewest = 0.3;

}  // namespace

std::uint64_t Flow::calls_between_marks() const {
  if (per_call_ == 0) return 1;
  const auto calls = static_cast<std::uint64_t>(static_cast<double>(kBetweenMarks.count()) / per_call_);
  return std::clamp<std::uint64_t>(calls, 1, std::max<std::uint64_t>(most_ / 2, 1));
}

std::uint64_t Flow::free_until() const {
  return std::min(marked_ + calls_between_marks(), passed_ + most_);
}

Flow::Answer Flow::may_call(std::uint64_t calls) const {
  if (calls - passed_ >= most_ && in_use()) return Answer::kWait;
  return calls - marked_ >= calls_between_marks() && !marking_ ? Answer::kMark : Answer::kGo;
}

void Flow::marked(std::uint64_t calls, Time now) {
  marking_ = false;
  if (marks_.empty()) passed_at_ = now;
  marks_.push_back({calls, calls - std::min(calls, passed_), now});
  marked_ = std::max(marked_, calls);
}

void Flow::passed(Time now) {
  const Mark mark = marks_.front();
  marks_.pop_front();
  // The calls in flight in front of the mark took as long as the mark was under way.
  if (mark.in_flight != 0) {
    // The mark may have been made and passed since the monitor read the time.
    const Time took = std::max(now - mark.at, Time{1});
    const double each = static_cast<double>(took.count()) / static_cast<double>(mark.in_flight);
    per_call_ = per_call_ == 0 ? each : per_call_ + kNewest * (each - per_call_);
    const double most = static_cast<double>(kInFlight.count()) / std::max(per_call_, 1.0);
    most_ = static_cast<std::uint64_t>(std::clamp(most, kLeastInFlight, static_cast<double>(kMostInFlight)));
  }
  passed_ = std::max(passed_, mark.calls);
  passed_at_ = now;
}

bool Flow::stalls(std::uint64_t calls, Time now) {
  if (marks_.empty() || now - passed_at_ < kNothingPasses) return false;
  passed_at_ = now;
  most_ = std::min(calls - passed_ + most_, 4 * kMostInFlight);
  return true;
}

void Flow::lose_marks(std::uint64_t calls) {
  marks_.clear();
  passed_ = calls;
}

void Flow::forget(std::uint64_t calls) {
  lose_marks(calls);
  marked_ = calls;
}

void Flow::begin(std::uint64_t calls) {
  forget(calls);
  most_ = kFirstInFlight;
  per_call_ = 0;
}

}  // namespace rota::turn
