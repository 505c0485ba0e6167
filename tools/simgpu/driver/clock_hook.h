// What a call of the driver costs the program's thread on a virtual clock.
#pragma once

#include "generated/driver_symbols.h"

namespace rota::sim {

// On entering an exported function, before it does anything. Nothing on the real clock or before cuInit.
void clock_host_call(Symbol symbol);

}  // namespace rota::sim
