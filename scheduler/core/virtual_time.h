// Who has had how much of a GPU, which decides who is next: the virtual time of the parties that want it or hold it. On
// a GPU a party is a session, all clients of one `rota run`, or a client that belongs to none. Within a session it is
// each of its clients, by a virtual time of the session's own.
//
// A party's time grows while its clients hold the GPU, by their part of it: half of the time if it is one of two
// holders, two thirds if two of three are its clients. The GPU's time is the mean of the parties that are here, and so
// advances as if all of them had the same. A party below the mean has had less than its due, and comes first.
//
// A party that goes takes along what it owes, or what it is owed, less the time for which it is away. While nobody is
// here the GPU's time runs by itself, so that a debt lasts no longer than the GPU has been idle. A party that is new
// starts at the mean: many short programs one after the other get one share, and a long one keeps its own.
#pragma once

#include <algorithm>
#include <cstdint>

#include "scheduler/core/settings.h"

namespace rota::scheduler {

// Of one party on one GPU.
struct Standing {
  // What one of its clients does there.
  enum class As {
    kAway,
    kWaits,
    kHolds,
    kBeside,  // it holds the GPU beside those that take turns, and is charged nothing
  };
  std::int64_t waiting = 0;  // of its clients
  std::int64_t holding = 0;
  bool known = false;  // it has been here before
  Time served{};       // up to `from`
  Time from{};         // VirtualTime::service when `served` was written, while it holds the GPU
  Time owed{};         // away: how far it was behind those who stayed,
  Time left_at{};      // and when it went
  bool here() const { return waiting + holding != 0; }
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

  // One of its clients does another thing now. `credit`: how far behind the mean a party may be that comes back.
  void change(Standing& standing, Standing::As before, Standing::As as, Time credit) {
    if (before == as) return;
    const bool was_here = standing.here();
    standing.served = served(standing, at_);
    standing.from = service_;
    count(standing, before, -1);
    count(standing, as, 1);
    const bool is_here = standing.here();
    if (was_here == is_here) return;
    if (is_here) {
      const Time owed = std::max(credit, standing.owed - (at_ - standing.left_at));
      const Time rounding(ahead_ > Time{} ? 1 : 0);
      standing.served =
          standing.known ? std::clamp(standing.served, mean_ - owed, mean_ + kMostOwed) : mean_ + rounding;
      standing.known = true;
    }
    here_ += is_here ? 1 : -1;
    ahead_ += is_here ? standing.served - mean_ : mean_ - standing.served;
    level();
    if (is_here) return;
    standing.owed = std::clamp(mean_ - standing.served, Time{}, kMostOwed);
    standing.left_at = at_;
  }

  Time served(const Standing& standing, Time now) const {
    if (standing.holding == 0) return standing.served;
    const Time each = service_ + std::max(now - at_, Time{}) / holders_ - standing.from;
    return standing.served + each * standing.holding;
  }
  // When a party that holds the GPU will have had as much of it as another, or had it; Time::max(): never, as things
  // are.
  Time even_at(const Standing& holder, const Standing& other, Time now) const {
    const Time ahead = served(holder, now) - served(other, now);
    const std::int64_t faster = holder.holding - other.holding;
    if (faster <= 0 && ahead < Time{}) return Time::max();
    return now - ahead * std::max<std::int64_t>(holders_, 1) / std::max<std::int64_t>(faster, 1);
  }
  Time mean() const { return mean_; }
  std::int64_t holders() const { return holders_; }

 private:
  void count(Standing& standing, Standing::As as, std::int64_t change) {
    if (as == Standing::As::kWaits) standing.waiting += change;
    if (as != Standing::As::kHolds) return;
    standing.holding += change;
    holders_ += change;
  }
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
  Time ahead_{};              // the sum by which parties that are here are ahead of the mean: what division has left
  std::int64_t holders_ = 0;  // clients
  std::int64_t here_ = 0;     // parties
};

}  // namespace rota::scheduler
