// In front of each function of the driver, one that fails on demand.
#include "tests/unit/runtime/memory/on_simgpu/moving.h"

namespace rota::test {

namespace {

#define ROTA_UNDECLARED(name) using name##_fn = void;
#include "generated/driver_undeclared.inc"
#undef ROTA_UNDECLARED

bool fails(Symbol symbol) {
  before(symbol);
  if (counted != nullptr) ++(*counted)[symbol];
  const auto at = fails_at.find(symbol);
  if (at == fails_at.end() || at->second == 0) return false;
  return at->second == kAlways || --at->second == 0;
}

template <Symbol kSymbol, typename Function>
struct Failing {
  static void* before(void*) { return nullptr; }
};
template <Symbol kSymbol, typename... Arguments>
struct Failing<kSymbol, CUresult(Arguments...)> {
  static inline CUresult (*simulated)(Arguments...);
  static CUresult call(Arguments... arguments) { return fails(kSymbol) ? fails_with : simulated(arguments...); }
  static void* before(void* function) {
    simulated = reinterpret_cast<decltype(simulated)>(function);
    return reinterpret_cast<void*>(&call);
  }
};

}  // namespace

void* failing(Symbol symbol, void* simulated) {
  switch (symbol) {
#define ROTA_SYMBOL(name) \
  case Symbol::k_##name:  \
    return Failing<Symbol::k_##name, name##_fn>::before(simulated);
#include "generated/driver_symbols.inc"
#undef ROTA_SYMBOL
    default:
      return nullptr;
  }
}

}  // namespace rota::test
