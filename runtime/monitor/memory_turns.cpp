#include "runtime/monitor/memory_turns.h"

#include "runtime/monitor/monitor.h"

namespace rota::monitor {

// Not inside the gate, nor during a capture, since an allocation that a capture forbids must fail with the driver's
// error. rotad is asked in those cases, too.
void MemoryTurns::wait_for_promise(int device) {
  if (gate::may_not_wait() || parts_.contexts.captures() != 0) return parts_.bell.ring();
  // Allocations do not check each time which frees streams have passed.
  if (parts_.memory.sweep_deferred() && parts_.budget.covered(device)) return;
  parts_.usage.changed(device);  // from its next grant on the memory that waits counts
  if (parts_.budget.covered(device)) return;
  const gate::ToldWait wait;
  parts_.budget.wait_for_promise(device, [&] { return parts_.out_of_memory.needs_room(device); });
}

void MemoryTurns::wait_until_served_is_known(int device) {
  parts_.monitor.wait_until_served_is_known(device);
}

bool MemoryTurns::others_closed(int device) {
  return parts_.monitor.others_closed(device);
}

}  // namespace rota::monitor
