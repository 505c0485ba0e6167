// Lines about one thing that may repeat itself: each, as long as there are few. A loop must not fill a disk.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>
#include <utility>

namespace rota {

class PacedLines {
 public:
  // So many at once, and one more for each of these times. A judgment.
  static constexpr int kAtOnce = 10;
  static constexpr std::chrono::nanoseconds kEach = std::chrono::seconds(10);

  explicit PacedLines(std::chrono::nanoseconds each = kEach) : each_(each) {}
  // Nothing: this line is left out. Otherwise how many have been left out since the last that was written.
  std::optional<unsigned> next(std::chrono::nanoseconds now) {
    if (const auto more = (now - counted_at_) / each_; more > 0) {
      left_ = static_cast<int>(std::min<std::int64_t>(kAtOnce, left_ + more));
      counted_at_ += more * each_;
    }
    if (left_ == 0) {
      ++left_out_;
      return std::nullopt;
    }
    --left_;
    return std::exchange(left_out_, 0);
  }
  unsigned left_out() const { return left_out_; }

 private:
  std::chrono::nanoseconds each_;
  int left_ = kAtOnce;
  unsigned left_out_ = 0;
  std::chrono::nanoseconds counted_at_{};
};

}  // namespace rota
