// Declares every function of overrides.inc with its driver signature, so that a definition of another type does not
// link, and the table that the attach step fills slots from.
#pragma once

#include "generated/driver_functions.h"
#include "generated/driver_symbols.h"

namespace rota::overrides {

#define ROTA_OVERRIDE(name) api::name##_fn name;
#include "runtime/overrides.inc"
#undef ROTA_OVERRIDE

// The override of a symbol, or null: indexed by Symbol.
void* find(Symbol symbol) noexcept;

}  // namespace rota::overrides
