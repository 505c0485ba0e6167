#include "runtime/monitor/memory_turns.h"

#include "runtime/monitor/monitor.h"

namespace rota::turn {

void MemoryTurns::wait_until_served_is_known(int device) {
  parts_.monitor.wait_until_served_is_known(device);
}

bool MemoryTurns::others_closed(int device) {
  return parts_.monitor.others_closed(device);
}

}  // namespace rota::turn
