// The machine's handling of rotad itself: it is found, it is lost, and it says which GPUs it serves.
#include "runtime/turn/machine.h"

#include <algorithm>
#include <utility>

namespace rota::turn {

void Machine::on(const event::Connected&, Time now) {
  connected_ = true;
  next_attempt_.reset();
  gpus_.answered = false;
  served_ = 0;
  unanswered_since_ = now;
  seen_.lease = {};
  told_ = 0;
  look_at_ = now;
}

void Machine::on(const event::NotConnected&, Time now) {
  next_attempt_ = now + attempt_pause_;
  attempt_pause_ = std::min(attempt_pause_ * 2, kLastAttempt);
  look_at_ = now;
}

void Machine::on(const event::Lost&, Time now) {
  if (!connected_) return;
  // Work that runs continues: that of a holder, even one that was draining, and work that ran while its grant was
  // pending.
  runs_ = gate_open_ || phase_ == Phase::kHolding || phase_ == Phase::kDraining;
  connected_ = false;
  phase_ = Phase::kAlone;
  if (!lost_since_) lost_since_ = now;
  if (std::exchange(tried_at_once_, true)) {
    next_attempt_ = now + attempt_pause_;
    attempt_pause_ = std::min(attempt_pause_ * 2, kLastAttempt);
  } else {
    next_attempt_ = now;
  }
  grant_ = given_back_ = gang_ = 0;
  wanted_ = 0;
  runs_until_.reset();
  no_grant_since_.reset();
  watches_gpu_ = false;
  look_at_ = now;
}

void Machine::on(const event::Retire&, Time now) {
  retires_ = true;
  look_at_ = now;
}

void Machine::on(const event::Gpus& gpus, Time now) {
  gpus_ = gpus;
  served_ = gpus.served;
  if (gpus.answered) {
    unanswered_since_.reset();
  } else if (!unanswered_since_) {
    unanswered_since_ = now;
  }
  // A new GPU, which rotad may serve, has to be requested.
  if (phase_ == Phase::kUnserved && (served_ != 0 || !gpus.answered)) {
    phase_ = Phase::kResting;
    if (served_ != 0 && gate_open_) {  // rotad has got the GPU: the work that runs continues while it is requested
      runs_until_ = now + kReclaim;
      want(true, now);
    }
  }
  look_at_ = now;
}

}  // namespace rota::turn
