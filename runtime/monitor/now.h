// The monitor's clock, which is rotad's as well.
#pragma once

#include <chrono>

#include "runtime/turn/machine.h"

namespace rota::monitor {

inline turn::Time now() {
  return std::chrono::steady_clock::now().time_since_epoch();  // CLOCK_MONOTONIC
}

}  // namespace rota::monitor
