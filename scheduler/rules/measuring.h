// How much of a GPU's time measurements may take from others (Want::alone). rotad enforces it in any case; clients
// observe it too, to avoid futile requests.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <deque>

namespace rota::protocol {

// How long one client may use a GPU exclusively, and how long others may take to yield it. A judgment: long compared to
// the kernels that are timed, short compared to what a person notices as a stall.
inline constexpr std::chrono::nanoseconds kLongestAlone = std::chrono::milliseconds(250);
// Of any ten seconds, one client's measurements take at most a fifth, and those of all of them half.
inline constexpr std::chrono::nanoseconds kAloneWindow = std::chrono::seconds(10);
inline constexpr std::chrono::nanoseconds kMostAlone = std::chrono::seconds(2);
inline constexpr std::chrono::nanoseconds kMostAloneOfAll = std::chrono::seconds(5);

// The measurements of the last ten seconds.
class TimeTaken {
 public:
  using Time = std::chrono::nanoseconds;
  // Even a short one costs others two hand-overs. So there are never more than about a hundred intervals.
  static constexpr Time kLeast = std::chrono::milliseconds(10);

  // Intervals do not overlap: each begins after the previous one has ended.
  void add(Time from, Time until) { spans_.push_back({from, std::max(until, from + kLeast)}); }
  // In the ten seconds up to `now`.
  Time lately(Time now) {
    while (!spans_.empty() && spans_.front().until <= now - kAloneWindow) spans_.pop_front();
    Time sum{};
    for (const Span& span : spans_) sum += span.until - std::max(span.from, now - kAloneWindow);
    return sum;
  }

 private:
  struct Span {
    Time from;
    Time until;
  };
  std::deque<Span> spans_;
};

}  // namespace rota::protocol
