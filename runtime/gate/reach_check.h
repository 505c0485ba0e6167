// Checks that a call's work reaches only the GPUs for which the gate admitted it. This needs a driver that reports the
// GPUs before the work begins. Only simgpu does (tools/simgpu/reach_check.h); the integration tests set
// ROTA_CHECK_REACHED.
#pragma once

namespace rota::gate {

// If ROTA_CHECK_REACHED is set and the driver can be watched: from now on a call that reaches a GPU for which it was
// not admitted logs an error and aborts the process. Calls of exempt threads, and calls for which no GPU is noted, are
// not checked.
void check_reached_calls();
// Whether calls are checked. If so, the gates must note each call's GPU even while nothing else needs it.
bool checks_reached_calls();

}  // namespace rota::gate
