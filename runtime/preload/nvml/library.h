// What the files of librota-nvml.so share. It is loaded by every process of a session, so the rules of thin.h hold.
#pragma once

#include <stdint.h>

#include "runtime/preload/cuda/thin.h"

namespace rota::nvml {

enum Symbol : uint32_t {
#define ROTA_SYMBOL(name) k_##name,
#include "runtime/preload/nvml/symbols.inc"
#undef ROTA_SYMBOL
  kSymbols
};

// The real library's function, or one that returns an error. Constant once the first call has been resolved, which is
// before any override is reached.
ROTA_HIDDEN void* real_function(Symbol symbol) noexcept;

// The hand-written function in front of the real one, or null: overrides.cpp has the list.
ROTA_HIDDEN void* override_of(Symbol symbol) noexcept;

}  // namespace rota::nvml
