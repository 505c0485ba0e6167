// Counting wrappers of the driver API: each counts its call, calls what `targets` holds, and notes what came of it.
#pragma once

#include "generated/driver_symbols.h"
#include "runtime/account/groups.h"

namespace rota::account {

// By Symbol; null where no header declares the symbol.
extern void* const counters[kSymbolCount];
// What each wrapper calls. Filled before any of them is called.
extern void* targets[kSymbolCount];

Group group_of(Symbol function) noexcept;

}  // namespace rota::account
