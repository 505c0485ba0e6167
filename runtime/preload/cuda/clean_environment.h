// Of a process that was started with a clean environment in a session with --system-preload (`rota run`, `rota ci`):
// gives it the variables that rota needs.
#pragma once

#include "runtime/preload/cuda/locate.h"

namespace rota::thin {

// Lines NAME=VALUE. It exists only in the mount namespace of such a session, where /etc/ld.so.preload names this
// library (tools/rota/run/everywhere.cpp).
#define ROTA_SESSION_FILE "/etc/rota-session"

// Before the program's own code runs: no other thread can be reading the environment. Does nothing where ROTA_SESSION
// is set, and in setuid programs.
ROTA_HIDDEN void restore_environment() noexcept;

}  // namespace rota::thin
