// Whether a call reaches the GPUs that it was let through for, by the word of a driver that says what it is about to
// do. Only simgpu does (tools/simgpu/reach_check.h); the tests that run on it set ROTA_CHECK_REACHED.
#pragma once

namespace rota::gate {

// If ROTA_CHECK_REACHED is set and the driver can be watched: from now on a call whose work is on a GPU that it was not
// counted for ends the process, after a line.
void check_reached_calls();
// Whether that is so: then calls have to be told apart by their GPUs all the time.
bool checks_reached_calls();

}  // namespace rota::gate
