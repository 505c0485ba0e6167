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
  try_later(now);
  look_at_ = now;
}

void Machine::try_later(Time now) {
  next_attempt_ = now + attempt_pause_ - spread(attempt_pause_ / 4);
  const bool soon = lost_since_ && now - *lost_since_ < kGrace;
  attempt_pause_ = std::min(attempt_pause_ * 2, soon ? kOftenAttempt : kLastAttempt);
}

// A pseudo-random time up to this one.
Time Machine::spread(Time most) {
  if (seed_ == 0) return Time{};
  constexpr std::uint32_t kSteps = 1024;
  seed_ = seed_ * 1664525 + 1013904223;  // Numerical Recipes' generator
  seed_ += seed_ == 0 ? 1 : 0;
  return most * (seed_ >> 16 & (kSteps - 1)) / kSteps;
}

void Machine::on(const event::Lost& lost, Time now) {
  if (!connected_) return;
  // Work that runs continues: that of a holder, even one that was draining, and work that ran while its grant was
  // pending.
  runs_ = gate_open_ || phase_ == Phase::kHolding || phase_ == Phase::kDraining;
  connected_ = false;
  phase_ = Phase::kAlone;
  // A rotad that ends again at once is not back.
  if (!lost_since_ || (back_since_ && now - *back_since_ >= kGrace / 2)) lost_since_ = now;
  back_since_.reset();
  silent_ = lost.silent;
  if (std::exchange(tried_at_once_, true)) {
    try_later(now);
  } else {
    next_attempt_ = now + spread(kSpread);
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
    if (served_ != 0 && gate_open_) {  // rotad has got the GPU: the work that runs continues while the GPU is requested
      runs_until_ = now + kReclaim;
      want(true, now);
    }
  }
  look_at_ = now;
}

}  // namespace rota::turn
