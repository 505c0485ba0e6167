// Which GPUs this process has to have at the same time: those that one call has reached together, and those where work
// of one uses memory of another. A pure machine; the monitor forms its tasks accordingly.
#pragma once

#include <vector>

#include "runtime/core/devices.h"
#include "runtime/turn/machine.h"

namespace rota::turn {

class Couplings {
 public:
  // GPUs that were needed together stay coupled for this long after the last time. A judgment: longer than the time
  // between two exchanges between a program's GPUs, and short compared with its life.
  static constexpr Time kLasts = std::chrono::seconds(2);
  static constexpr Time kLastsAfterDrain = std::chrono::minutes(10);

  // When tasks of single GPUs give them back so that they can become one task.
  enum class When {
    kAnyway,  // at the end of their turns: a call needs all of these GPUs, and can run while separate tasks hold them
    kAtOnce,  // at once: memory of one has to move, and work of another may use it
  };
  // These GPUs are needed at the same time, as of now. Returns whether that is new.
  bool ask(Devices devices, When when, Time now) { return ask_until(devices, when, now + kLasts, now); }
  // The same for a longer time: work of one seems to have waited for a call of another.
  bool ask_after_drain(Devices devices, Time now) {
    return ask_until(devices, When::kAnyway, now + kLastsAfterDrain, now);
  }
  // These GPUs are at rest, all at the same time: the work is over that was submitted when they were asked for. Before
  // that no coupling ends, however long ago it was asked for.
  void at_rest(Devices devices);
  // The set of GPUs that must be one task with these. `when` kAtOnce: counts only couplings of that kind.
  Devices with(Devices devices, Time now, When when = When::kAnyway) const;

 private:
  struct Coupling {
    Devices devices;
    Time until;
    Time at_once_until;
    bool in_use = true;  // its GPUs have not been at rest since it was last asked for
    bool over(Time now) const { return !in_use && until < now; }
  };
  bool ask_until(Devices devices, When when, Time until, Time now);

  std::vector<Coupling> all_;
};

}  // namespace rota::turn
