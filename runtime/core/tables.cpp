#include "runtime/core/tables.h"

namespace rota {

void* real::table[kSymbolCount];
void* next::table[kSymbolCount];

}  // namespace rota
