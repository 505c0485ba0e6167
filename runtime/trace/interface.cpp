// See interface.h.
#include "runtime/trace/interface.h"

#include "generated/trace_schema.h"
#include "runtime/core/log.h"
#include "runtime/trace/trace.h"

namespace rota::trace {
namespace {

const Interface kInterface = {
    kInterfaceVersion,
    sizeof(Interface),
    kRuntimeSchema,
    [] { return &this_thread(); },
    [](Thread* thread, std::uint32_t bytes) { return reserve_slowly(*thread, bytes); },
    [](Thread* thread, std::uint64_t ticks) { refresh(*thread, ticks); },
};

}  // namespace
}  // namespace rota::trace

const rota::trace::Interface* rota_core_trace(std::uint32_t version) {
  if (version != rota::trace::kInterfaceVersion) return nullptr;
  const bool tracing = rota::trace::start([](const char* line) { rota::log::error("{}", line); });
  return tracing ? &rota::trace::kInterface : nullptr;
}
