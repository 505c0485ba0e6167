// How much of a GPU each party has had, which decides which is next: the virtual time of the parties that want it or
// hold it. On a GPU, a party is a session (all clients of one `rota run`) or a client that belongs to none. Within a
// session each client is a party, with a virtual time of the session's own.
//
// A party's time advances while its clients hold the GPU, by their fraction of it: by half if one of two holders is its
// client, by two thirds if two of three are. The GPU's time is the mean of the parties that are present, so it advances
// as if all of them had had the same. A party below the mean has had less than its share, and goes first.
//
// A party that leaves keeps what it owes, or is owed, less the time for which it is away. While no party is present,
// the GPU's time advances by itself, so that a debt lasts no longer than the GPU has been idle. A new party starts at
// the mean: many short programs in succession get one share, and a long one keeps its own.
#pragma once

#include <algorithm>
#include <cstdint>

#include "scheduler/core/settings.h"

namespace rota::scheduler {

// The standing of one party on one GPU.
struct Standing {
  // What one of its clients is doing there.
  enum class As {
    kAway,
    kWaits,
    kHolds,
    kBeside,  // it holds the GPU beside those that take turns, and is not charged
  };
  std::int64_t waiting = 0;  // number of its clients
  std::int64_t holding = 0;
  bool known = false;  // it has been present before
  Time served{};       // up to `from`
  Time from{};         // VirtualTime::service when `served` was written, while it holds the GPU
  Time owed{};         // while away: how far behind the others it was when it left,
  Time left_at{};      // and when that was
  bool here() const { return waiting + holding != 0; }
};

class VirtualTime {
 public:
  // Any debt or credit beyond this is forgotten.
  static constexpr Time kMostOwed = std::chrono::seconds(10);

  // All calls below are for a time not before this.
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

  // One of its clients changes what it does. `credit`: how far behind the mean a returning party may be.
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
  // When a party that holds the GPU will have had as much of it as another, or when it did; Time::max(): never, as
  // things stand.
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
  Time service_{};  // of a client that has held it from the beginning
  Time mean_{};
  Time ahead_{};              // how far the present parties are ahead of the mean in sum: the remainder of the division
  std::int64_t holders_ = 0;  // clients
  std::int64_t here_ = 0;     // parties
};

}  // namespace rota::scheduler
