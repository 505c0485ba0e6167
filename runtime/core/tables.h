// The tables that a call runs along: slot → (tracer →) next::table → override, gate or real function.
#pragma once

#include "generated/driver_real.h"
#include "generated/driver_symbols.h"

namespace rota::next {

// What the tracer calls: the override, the gate or the real function of each symbol. Never null after attach.
extern void* table[kSymbolCount];

}  // namespace rota::next
