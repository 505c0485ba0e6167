// The machine's handling of work that the program times while it holds its GPUs.
#include "runtime/turn/machine.h"

namespace rota::turn {

using namespace std::chrono_literals;

// Until rotad is told that the measurement is over, no other process gets the GPU.
void Machine::ask_alone() {
  if (seen_.alone == asked_alone_ || !gate_open_) return;
  asked_alone_ = seen_.alone;
  actions_.push_back({.act = Act::kWant, .gpus = served_, .alone = asked_alone_});
}

// Asked before the lease would go back. Timing (timing.h) makes sure that measurements end soon.
bool Machine::measures(Time now) {
  held_by_measurement_ = seen_.measures;
  if (held_by_measurement_) look_at_ = now + 200us;
  return held_by_measurement_;
}

}  // namespace rota::turn
