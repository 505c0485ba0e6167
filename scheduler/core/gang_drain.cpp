#include "scheduler/core/gang_drain.h"

#include <algorithm>

#include "scheduler/protocol/pages.h"

namespace rota::scheduler {

void GangDrain::begin_turn() {
  drains_ = ended_ = false;
  next_.reset();
}

bool GangDrain::look(std::span<const Word> members, bool must, Time now) {
  next_.reset();
  if (ended_) return false;
  const auto advance = [&] {
    if (++step_ == 0) ++step_;
    step_at_ = now;
  };
  if (!drains_) {
    const auto may_end = [](const Word& word) { return word.step == 0 && (word.flags & protocol::kGangMayEnd) != 0; };
    if (!must && !std::ranges::all_of(members, may_end)) return false;
    drains_ = true;
    began_ = now;
    steps_ = 0;
    advance();
    return true;
  }
  const auto rests = [&](const Word& word) { return word.step == step_ && (word.flags & protocol::kGangRests) != 0; };
  if (std::ranges::all_of(members, rests)) return ended_ = true;
  const bool calls_wait = std::ranges::any_of(
      members, [&](const Word& word) { return rests(word) && (word.flags & protocol::kGangStands) != 0; });
  if (!calls_wait) return false;
  const Time pause = std::min(kStep * std::max(1, steps_ / kManySteps), kLongestStep);
  if (now - step_at_ < pause) {
    next_ = step_at_ + pause;
    return false;
  }
  ++steps_;
  advance();
  return true;
}

}  // namespace rota::scheduler
