// See driver_tracers.h.
#include "runtime/trace/driver_tracers.h"

#include "generated/driver_functions.h"
#include "runtime/trace/driver_rows.h"
#include "runtime/trace/tracer.h"

namespace rota::next {
extern void* table[kSymbolCount];
}

namespace rota::tracers {
namespace {

struct Driver {
  static constexpr std::uint32_t kApi = trace::kDriverApi;
  static constexpr const names::Rows& kRows = names::driver_rows::kRows;
  [[gnu::always_inline]] static void* next(std::uint32_t number) { return next::table[number]; }
};

}  // namespace

#define ROTA_TRACED(number, name, ...) reinterpret_cast<void*>(&trace::Tracer<Driver, number, api::name##_fn>::call),
#define ROTA_UNTRACED(number, name) nullptr,
void* const table[kSymbolCount] = {
#include "generated/driver_trace_functions.inc"
};

}  // namespace rota::tracers
