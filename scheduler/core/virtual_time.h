// Who has had how much of a GPU, for who is next: the virtual time of those that want it or have it.
//
// Each client's own, on each GPU, grows while it holds that GPU, by as much as its part: half of the time if two hold
// it. The GPU's is the mean of those that stand here, and so advances as fast as if all of them had the same. Who is
// below it has had less than its due, and comes first.
//
// Who goes takes along what it is owed, less the time that it is away, or owes; where nobody stands here, the GPU's
// time runs by itself, so that nothing is held against anybody for longer than it has been idle. Whoever has not been
// here before starts with the mean: many short programs one after the other get a share each, no more, and a long one
// its own between them.
#pragma once

#include <algorithm>
#include <cstdint>

#include "scheduler/core/settings.h"

namespace rota::scheduler {

// Of one client on one GPU.
struct Standing {
  enum class As {
    kAway,
    kWaits,
    kHolds,
    kBeside,  // it holds the GPU beside those that take turns, and is charged nothing
  };
  As as = As::kAway;
  bool known = false;  // it has stood here before
  Time served{};       // kAway, kBeside: when it went; kHolds: without the grant in force
  Time from{};         // kHolds: VirtualTime::service when it was granted
  Time owed{};         // kAway: how far it was behind those who stayed,
  Time left_at{};      // and when it went
};

class VirtualTime {
 public:
  // What is owed or owing beyond this is forgotten.
  static constexpr Time kMostOwed = std::chrono::seconds(10);

  // Everything below is of a time not before this.
  void advance(Time now) {
    const Time passed = std::max(now - at_, Time{});
    at_ = std::max(at_, now);
    if (holders_ != 0) {
      const Time each = passed / holders_;
      service_ += each;
      ahead_ += each * holders_;
      level();
    } else if (here_ == 0) {
      mean_ += passed;
    }
  }

  // `credit`: how far behind the mean one may be that comes back.
  void change(Standing& standing, Standing::As as, Time credit) {
    if (standing.as == as) return;
    const bool was_here = here(standing.as);
    if (!was_here && here(as)) {
      const Time owed = std::max(credit, standing.owed - (at_ - standing.left_at));
      const Time rounding(ahead_ > Time{} ? 1 : 0);
      standing.served =
          standing.known ? std::clamp(standing.served, mean_ - owed, mean_ + kMostOwed) : mean_ + rounding;
      standing.known = true;
    }
    if (standing.as == Standing::As::kHolds) {
      standing.served = served(standing, at_);
      --holders_;
    }
    if (as == Standing::As::kHolds) {
      standing.from = service_;
      ++holders_;
    }
    standing.as = as;
    if (was_here == here(as)) return;
    here_ += was_here ? -1 : 1;
    ahead_ += was_here ? mean_ - standing.served : standing.served - mean_;
    level();
    if (!was_here) return;
    standing.owed = std::clamp(mean_ - standing.served, Time{}, kMostOwed);
    standing.left_at = at_;
  }

  Time served(const Standing& standing, Time now) const {
    if (standing.as != Standing::As::kHolds) return standing.served;
    return standing.served + service_ + std::max(now - at_, Time{}) / holders_ - standing.from;
  }
  Time mean() const { return mean_; }
  std::int64_t holders() const { return holders_; }

 private:
  static bool here(Standing::As as) { return as == Standing::As::kWaits || as == Standing::As::kHolds; }
  void level() {
    if (here_ == 0) {
      ahead_ = {};
      return;
    }
    const Time step = ahead_ / here_;
    mean_ += step;
    ahead_ -= step * here_;
  }

  Time at_{};
  Time service_{};  // of whoever has held it from the beginning
  Time mean_{};
  Time ahead_{};  // the sum of what those who stand here are ahead of the mean: what division has left
  std::int64_t holders_ = 0;
  std::int64_t here_ = 0;
};

}  // namespace rota::scheduler
