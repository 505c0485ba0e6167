// How much of a GPU each *scheduling group* has had, which decides which is next: the virtual time of the groups that
// want it or hold it. On a GPU, a group is a trust domain (a user); within a domain, a session (all clients of one
// `rota run`) or a client that belongs to none; and within a session, a client. Each level has virtual times of its
// own.
//
// A group's time advances while its clients hold the GPU, by their fraction of it: by half if one of two holders is its
// client, by two thirds if two of three are. The group that has had least goes first.
//
// What a group has had when it comes is measured by two clocks. Neither ever falls back, whichever groups leave:
//
//   level  what the group had had that was let in last while nobody held the GPU: no group that could run has had less.
//          A group that comes back is at most its credit below, or what it was owed when it left, less the time for
//          which it was away. Both follow from what is granted: groups that only wait and leave again gain nothing.
//   start  where new groups begin. It advances with the GPU's use divided by the number of groups that are present, as
// a group does that gets exactly its share, so a long program keeps its share next to many short ones in succession. It
// is never below the level; by how much it is above (programs that have ended had had more than
//          their share) is forgotten in time.
//
// While no group is present both advance by themselves, so a debt lasts no longer than the GPU has been idle.
#pragma once

#include <algorithm>
#include <cstdint>

#include "scheduler/core/settings.h"

namespace rota::scheduler {

// The standing of one group on one GPU.
struct Standing {
  // What one of its clients is doing there.
  enum class As {
    kAway,
    kWaits,
    kHolds,
    kBeside,  // it holds the GPU concurrently with those that take turns, and is not charged
  };
  std::int64_t waiting = 0;  // number of its clients
  std::int64_t holding = 0;
  bool known = false;  // it has been present before
  Time served{};       // up to `from`
  Time from{};         // VirtualTime::service when `served` was written, while it holds the GPU
  Time came{};         // VirtualTime::level when it came,
  Time owed{};         // and while away: how far below that it was when it left,
  Time left_at{};      // and when that was
  bool here() const { return waiting + holding != 0; }
};

class VirtualTime {
 public:
  // Any debt or credit beyond this is forgotten.
  static constexpr Time kMostOwed = std::chrono::seconds(10);
  // How long the start remembers, in credits, which are a tenth of a turn or more. Judgement: the start runs slower by
  // less than a tenth while groups take turns, and what a group took in futile turns is forgotten as soon as a debt.
  static constexpr int kRemembers = 100;

  // How long groups that an earlier rotad knew have to come back before the clocks go on without them. A judgment: it
  // covers the second for which rotad grants nothing where it expects some.
  static constexpr Time kComeBack = std::chrono::milliseconds(1500);

  // All calls below are for a time not before this.
  void advance(Time now) {
    const Time passed = std::max(now - at_, Time{});
    at_ = std::max(at_, now);
    if (holders_ != 0) {
      const Time each = passed / holders_;
      service_ += each;
      ahead_ += each * holders_;
      average();
      if (here_ != 0) start_ += part(passed / here_);
    } else if (here_ == 0 && !awaits()) {
      mean_ += passed;
      level_ += passed;
      start_ += passed;
    }
    catch_up();
  }

  // One of its clients changes what it does. `credit`: how far below the level a returning group may be.
  void change(Standing& standing, Standing::As before, Standing::As as, Time credit) {
    if (before == as) return;
    credit_ = credit;
    const bool was_here = standing.here();
    const Time served = this->served(standing, at_);
    standing.served = was_here ? std::max(served, level_ - remembered()) : served;
    if (was_here) ahead_ += standing.served - served;
    standing.from = service_;
    count(standing, before, -1);
    count(standing, as, 1);
    const bool is_here = standing.here();
    if (was_here != is_here) {
      if (is_here) come(standing, credit);
      here_ += is_here ? 1 : -1;
      ahead_ += is_here ? standing.served - mean_ : mean_ - standing.served;
    }
    average();
    catch_up();
    if (was_here && !is_here) leave(standing);
  }
  // A group that waits is about to be let in, in its turn.
  void next(const Standing& standing) {
    if (holders_ != 0) return;  // it joins others: others that wait may have had less
    if (awaits()) return;       // others that have had less may still come
    level_ = std::max(level_, standing.served);
    catch_up();
  }
  // What a later rotad has to know of a group: how far above the level it is, and how far below it may come back.
  struct Earlier {
    Time ahead{};
    Time owed{};
  };
  Earlier earlier(const Standing& standing, Time now) const {
    const Time level = holders_ == 0 && here_ == 0 ? level_ + std::max(now - at_, Time{}) : level_;
    const Time ahead = std::clamp(served(standing, now) - level, -kMostOwed, kMostOwed);
    const Time owed = standing.here() ? -ahead : standing.owed - (now - standing.left_at);
    return {ahead, std::clamp(owed, Time{}, kMostOwed)};
  }
  // The same, told to that rotad; ignored for a group that it knows already. All groups that are told within kComeBack
  // are placed by the level that the first of them found.
  void resume(Standing& standing, const Earlier& earlier, Time now) {
    if (standing.known || standing.here()) return;
    advance(now);
    if (awaits_until_ == Time{}) {
      found_ = level_;
      awaits_until_ = at_ + kComeBack;
    }
    standing.known = true;
    standing.served = found_ + std::clamp(earlier.ahead, -kMostOwed, kMostOwed);
    standing.owed = std::clamp(earlier.owed, Time{}, kMostOwed);
    standing.left_at = at_;
  }
  // The group counts as having had this much more.
  void charge(Standing& standing, Time more) {
    standing.served += more;
    if (standing.here()) ahead_ += more;
    average();
  }

  Time served(const Standing& standing, Time now) const {
    if (standing.holding == 0) return standing.served;
    const Time each = service_ + std::max(now - at_, Time{}) / holders_ - standing.from;
    return standing.served + each * standing.holding;
  }
  // When a group that holds the GPU will have had as much of it as another, or when it did; Time::max(): never, as
  // things are.
  Time even_at(const Standing& holder, const Standing& other, Time now) const {
    const Time ahead = served(holder, now) - served(other, now);
    const std::int64_t faster = holder.holding - other.holding;
    if (faster <= 0 && ahead < Time{}) return Time::max();
    return now - ahead * std::max<std::int64_t>(holders_, 1) / std::max<std::int64_t>(faster, 1);
  }
  // Whether nothing would change if a group that is away were forgotten: a new one would be in no better place.
  bool may_forget(const Standing& standing) const { return !standing.here() && standing.served <= start_; }
  Time level() const { return level_; }
  Time start() const { return start_; }
  // Of the groups that are present.
  Time mean() const { return mean_; }
  std::int64_t holders() const { return holders_; }

 private:
  void come(Standing& standing, Time credit) {
    const Time owed = std::max(credit, standing.owed - (at_ - standing.left_at));
    standing.served = standing.known ? std::clamp(standing.served, level_ - owed, level_ + kMostOwed) : start_;
    standing.known = true;
    standing.came = level_;
  }
  // What it is owed is what it has missed since it came: one that comes and leaves again and again is owed no more.
  void leave(Standing& standing) const {
    standing.owed = std::clamp(level_ - std::max(standing.served, standing.came), Time{}, kMostOwed);
    standing.left_at = at_;
  }
  void count(Standing& standing, Standing::As as, std::int64_t change) {
    if (as == Standing::As::kWaits) standing.waiting += change;
    if (as != Standing::As::kHolds) return;
    standing.holding += change;
    holders_ += change;
  }
  void average() {
    if (here_ == 0) {
      ahead_ = {};
      return;
    }
    const Time step = ahead_ / here_;
    mean_ += step;
    ahead_ -= step * here_;
  }
  // Nobody has had less than the only one that is present, unless others are still to come.
  void catch_up() {
    if (here_ == 1 && !awaits()) level_ = std::max(level_, mean_);
    start_ = std::max(start_, level_);
  }
  bool awaits() const { return at_ < awaits_until_; }
  Time remembered() const { return std::max(kMostOwed, credit_ * kRemembers); }
  // Of what the start advances: the less, the further it is above the level.
  Time part(Time of) const {
    constexpr std::int64_t kAll = 1024;
    const Time most = remembered();
    const std::int64_t forgotten = std::min(start_ - level_, most) * kAll / most;
    return of - (of / kAll * forgotten + of % kAll * forgotten / kAll);  // of * forgotten exceeds 64 bits in 100 days
  }

  Time at_{};
  Time service_{};  // of a client that has held it from the beginning
  Time level_{};
  Time start_{};
  Time mean_{};
  Time ahead_{};              // how far the present groups are ahead of the mean in sum: the remainder of the division
  Time credit_{};             // as last given
  Time found_{};              // the level when the first group of an earlier rotad was told
  Time awaits_until_{};       // others of them may come until then; 0: there were none
  std::int64_t holders_ = 0;  // clients
  std::int64_t here_ = 0;     // groups
};

}  // namespace rota::scheduler
