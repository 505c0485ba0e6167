// What the monitor does now and then, whatever happens. Pure: each says whether it is due.
#pragma once

#include "runtime/turn/machine.h"

namespace rota::turn {

class Every {
 public:
  explicit Every(Time between) : between_(between) {}
  // Whether it is due; then not again for that time.
  bool due(Time now) { return due(now, between_); }
  bool due(Time now, Time between) {
    if (now < next_) return false;
    next_ = now + between;
    return true;
  }
  void at_once() { next_ = Time{0}; }

 private:
  Time between_;
  Time next_{0};
};

struct Chores {
  // Checks which devices and processes may access memory that is evicted. Reading the process's files takes some tens
  // of microseconds, more if many are mapped.
  Every look_outside{std::chrono::milliseconds(250)};
  // Asks the driver about frees in streams that are idle, for what `rota status` shows.
  Every sweep{std::chrono::milliseconds(250)};
  // Finds calls that their threads have left without returning. A judgment.
  Every undo{std::chrono::milliseconds(250)};
  // Counts the reclaimable host memory: the first interval where a limit applies, the second where only `rota status`
  // and the next rotad need the figure.
  static constexpr Time kBetweenCounts = std::chrono::milliseconds(10);
  static constexpr Time kBetweenUnlimitedCounts = std::chrono::milliseconds(200);
  Every count{kBetweenUnlimitedCounts};
};

}  // namespace rota::turn
