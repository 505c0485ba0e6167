// The driver's calls on a virtual clock.
#include "tools/simgpu/driver/entry/clock_hook.h"

#include "tools/simgpu/driver/driver.h"
#include "tools/simgpu/state/clock.h"

namespace rota::sim {

HostCall::HostCall() {
  Clock& clock = process_clock();
  if (clock.is_virtual() && driver().initialised()) clock.call(driver().profile().cost.call);
}

HostCall::~HostCall() {
  process_clock().returned();
}

}  // namespace rota::sim
