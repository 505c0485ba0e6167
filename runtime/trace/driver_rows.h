// The driver API's rows. See rows.h.
#pragma once

#include "runtime/trace/rows.h"

namespace rota::names::driver_rows {
#define ROTA_FUNCTIONS "generated/driver_trace_functions.inc"
#define ROTA_TYPES "generated/driver_trace_types.inc"
#include "runtime/trace/rows.inc"
#undef ROTA_FUNCTIONS
#undef ROTA_TYPES
}  // namespace rota::names::driver_rows
