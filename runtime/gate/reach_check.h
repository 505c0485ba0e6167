// Checks whether a call reaches only the GPUs for which the gate let it through, with a driver that reports what it is
// about to do. Only simgpu does (tools/simgpu/reach_check.h); the tests that run on it set ROTA_CHECK_REACHED.
#pragma once

namespace rota::gate {

// If ROTA_CHECK_REACHED is set and the driver can be watched: from now on a call whose work is on a GPU that it was not
// counted for ends the process, after a line.
void check_reached_calls();
// Whether calls are checked: then their GPUs have to be known all the time.
bool checks_reached_calls();

}  // namespace rota::gate
