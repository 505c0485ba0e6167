#include "runtime/turn/pace.h"

#include <algorithm>

namespace rota::turn {

Pace::Wait Pace::wait(Time now) const {
  Time pause = std::min(look_at_ - now, rotad_.connected || rotad_.asked ? kLookAtSocket : kWithoutRotad);
  if (turn_ > now) pause = std::min(pause, turn_ - now);
  if (rotad_.connected && rotad_.unsent) pause = std::min(pause, kSendAgain);
  if (pause <= Time{0} || due_) return {};
  using How = Wait::How;
  if (draining_) return {.how = is_about(*draining_, now) ? How::kAwake : How::kSleep, .most = pause};
  if (is_about(turn_, now)) {
    return {.how = How::kForTurn, .most = pause, .devices = turn_on_, .until = turn_ + awake_};
  }
  return {.how = rotad_.connected && unanswered_ ? How::kForMessage : How::kForBell, .most = pause};
}

}  // namespace rota::turn
