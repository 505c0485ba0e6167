// The runtime API's rows. See rows.h.
#pragma once

#include "runtime/trace/rows.h"

namespace rota::names::runtime_rows {
#define ROTA_FUNCTIONS "generated/runtime_trace_functions.inc"
#define ROTA_TYPES "generated/runtime_trace_types.inc"
#include "runtime/trace/rows.inc"
#undef ROTA_FUNCTIONS
#undef ROTA_TYPES
}  // namespace rota::names::runtime_rows
