#include "runtime/turn/host_pauses.h"

#include <algorithm>

namespace rota::turn {

using namespace std::chrono_literals;

namespace {

constexpr int kLonger = 8;         // times the last one
constexpr int kBetweenLonger = 8;  // times the pause
constexpr Time kMostBetween = 1min;

}  // namespace

void HostPauses::exceeds(bool does, Time now) {
  if (!does) return exceeds_since_.reset();
  if (!exceeds_since_) exceeds_since_ = now;
}

bool HostPauses::lacks(bool does, Time now) {
  if (!does) {
    lacks_since_.reset();
    return false;
  }
  if (!lacks_since_) lacks_since_ = now;
  return now - *lacks_since_ >= kSayLacks;
}

HostPauses::Pause HostPauses::plan(Time now) const {
  const bool longer = presses(now) && now >= longer_at_;
  return {longer, longer ? std::max(longer_, kLonger * kShortPause) : kShortPause};
}

void HostPauses::over(const Pause& pause, Rest rest, Time waited, Time now) {
  if (rest == Rest::kProven) {  // next time about as long may be enough
    longer_ = std::min(2 * waited, kLongestPause);
    longer_at_ = between_ = Time{0};
  } else if (pause.longer && rest == Rest::kNotYet) {
    between_ = pause.most == kLongestPause ? std::clamp(2 * between_, kBetweenLonger * pause.most, kMostBetween)
                                           : std::max(kBetween, kBetweenLonger * pause.most);
    longer_ = std::min(kLonger * pause.most, kLongestPause);
    longer_at_ = now + between_;
  }
  // Calls that found the gate closed have woken the monitor: without time in between it would close the gate again at
  // once.
  next_ = now + kBetween;
}

}  // namespace rota::turn
