#include <algorithm>
#include <cstdint>
#include <limits>

#include "tools/rota/ci/ctest.h"

namespace rota::ci {
namespace {

// In seconds. Start times are whole clock ticks, the log's durations are hundredths of a second, and ctest notices an
// end a little late.
constexpr double kTolerance = 0.15;
// Comparisons of one slot with another: less than a second's worth, and enough for dozens of tests with the same
// command.
constexpr std::uint64_t kMostSteps = 100'000'000;

class Solver {
 public:
  Solver(const std::vector<Group>& groups, const std::vector<std::vector<std::size_t>>& allowed,
         const std::vector<Slot>& slots)
      : groups_(groups),
        allowed_(allowed),
        slots_(slots),
        skips_(groups.size() > slots.size() ? groups.size() - slots.size() : 0),
        ends_(slots.size(), kNone),
        current_(groups.size()) {
    for (const Group& group : groups_) first_ = std::min(first_, group.begin_ns);
  }

  Assignment solve() {
    place(0);
    if (found_ > 0) return {best_, found_ == 1 && steps_ < kMostSteps};
    for (std::size_t group = 0; group < groups_.size(); ++group) place_at_first(group);
    return {current_, false};
  }

 private:
  static constexpr double kNone = -1;

  double begin_of(std::size_t group) const { return static_cast<double>(groups_[group].begin_ns - first_) / 1e9; }

  bool fits(std::size_t group, std::size_t slot) {
    ++steps_;
    if (ends_[slot] != kNone || std::ranges::find(allowed_[group], slots_[slot].test) == allowed_[group].end())
      return false;
    steps_ += slots_.size();
    const double end = begin_of(group) + slots_[slot].seconds;
    if (static_cast<double>(groups_[group].last_ns - first_) / 1e9 > end + kTolerance) return false;
    for (std::size_t other = 0; other < slots_.size(); ++other) {
      if (ends_[other] == kNone) continue;
      if (other < slot ? ends_[other] > end + kTolerance : end > ends_[other] + kTolerance) return false;
    }
    return true;
  }

  bool decided() const { return found_ > 1 || steps_ > kMostSteps; }

  void place(std::size_t group) {
    if (group == groups_.size()) {
      if (++found_ == 1) best_ = current_;
      return;
    }
    for (std::size_t slot = 0; slot < slots_.size() && !decided(); ++slot) {
      if (!fits(group, slot)) continue;
      ends_[slot] = begin_of(group) + slots_[slot].seconds;
      current_[group] = slot;
      place(group + 1);
      current_[group].reset();
      ends_[slot] = kNone;
    }
    if (skips_ > 0 && !decided()) {
      --skips_;
      place(group + 1);
      ++skips_;
    }
  }

  // Used if nothing fits or the search was given up: the result is still likely for most groups.
  void place_at_first(std::size_t group) {
    for (std::size_t slot = 0; slot < slots_.size(); ++slot) {
      if (!fits(group, slot)) continue;
      ends_[slot] = begin_of(group) + slots_[slot].seconds;
      current_[group] = slot;
      return;
    }
  }

  const std::vector<Group>& groups_;
  const std::vector<std::vector<std::size_t>>& allowed_;
  const std::vector<Slot>& slots_;
  std::size_t skips_;  // groups that may still go without a slot
  report::Realtime first_ = std::numeric_limits<report::Realtime>::max();
  std::vector<double> ends_;
  std::vector<std::optional<std::size_t>> current_, best_;
  int found_ = 0;
  std::uint64_t steps_ = 0;
};

}  // namespace

Assignment assign_slots(const std::vector<Group>& groups, const std::vector<std::vector<std::size_t>>& allowed,
                        const std::vector<Slot>& slots) {
  return Solver(groups, allowed, slots).solve();
}

}  // namespace rota::ci
