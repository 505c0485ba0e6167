// The table behind runtime/overrides.inc.
#include "runtime/hooks/overrides.h"

#include <array>

namespace rota::overrides {
namespace {

std::array<void*, kSymbolCount> make_table() noexcept {
  std::array<void*, kSymbolCount> table{};
#define ROTA_OVERRIDE(name) \
  table[static_cast<std::size_t>(Symbol::k_##name)] = reinterpret_cast<void*>(&overrides::name);
#include "runtime/overrides.inc"
#undef ROTA_OVERRIDE
  return table;
}

}  // namespace

void* find(Symbol symbol) noexcept {
  static const std::array<void*, kSymbolCount> table = make_table();
  return table[static_cast<std::size_t>(symbol)];
}

}  // namespace rota::overrides
