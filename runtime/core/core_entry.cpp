// What librota-core.so exports to the thin preloads (the rest is in core.map), and where the parts that only the whole
// core has come together.
#include "generated/driver_trace.h"
#include "runtime/core/attach.h"
#include "runtime/core/gpu_memory.h"
#include "runtime/core/log.h"
#include "runtime/trace/recorder.h"
#include "runtime/trace/trace.h"
#include "runtime/turn/gate.h"

namespace {

void* const* start_tracing() {
  const bool tracing = rota::trace::start([](const char* line) { rota::log::error("{}", line); });
  if (!tracing) return nullptr;
  rota::gate::tell_of_waits(&rota::trace::note_wait);
  return rota::tracers::table;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) int rota_core_attach(const RotaAttachment* attachment) {
  return rota::interpose::attach(*attachment, start_tracing);
}

extern "C" __attribute__((visibility("default"))) int rota_core_gpu_memory(std::uint32_t version, const char* uuid,
                                                                           RotaGpuMemory* memory) {
  return rota::interpose::gpu_memory(version, uuid, memory);
}
