// Tracers of the driver API: record, call what next::table holds, record.
#pragma once

#include "generated/driver_symbols.h"

namespace rota::tracers {

// By Symbol; null where no header declares the symbol.
extern void* const table[kSymbolCount];

}  // namespace rota::tracers
