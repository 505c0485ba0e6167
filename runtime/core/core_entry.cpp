// What librota-core.so exports to the thin preloads (the rest is in core.map), and where the parts that only the whole
// core has come together.
#include "runtime/account/account.h"
#include "runtime/account/calls.h"
#include "runtime/core/attach.h"
#include "runtime/core/gpu_memory.h"
#include "runtime/core/log.h"
#include "runtime/core/runtime.h"
#include "runtime/gate/gate.h"
#include "runtime/trace/driver_tracers.h"
#include "runtime/trace/recorder.h"
#include "runtime/trace/trace.h"

namespace {

// The observers of how long threads wait at the gate.
bool accounts = false;
bool traces = false;

void stood(std::optional<std::chrono::nanoseconds> waited) {
  if (accounts) rota::account::waited(waited);
  if (traces && waited) rota::trace::note_wait(*waited);
}

rota::interpose::Accounting start_accounting(const RotaAttachment& attachment) {
  accounts = rota::account::begin(attachment.test);
  if (!accounts) return {};
  rota::gate::tell_of_waits(&stood);
  rota::account::tell_of_tests([](bool begins) {
    rota::client::Admission& admission = rota::runtime().admission;
    begins ? admission.next() : admission.done();
  });
  return {rota::account::counters, rota::account::targets};
}

void* const* start_tracing() {
  const bool tracing = rota::trace::start([](const char* line) { rota::log::error("{}", line); });
  if (!tracing) return nullptr;
  traces = true;
  rota::gate::tell_of_waits(&stood);
  return rota::tracers::table;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) int rota_core_attach(const RotaAttachment* attachment) {
  return rota::interpose::attach(*attachment, start_tracing, start_accounting);
}

extern "C" __attribute__((visibility("default"))) int rota_core_gpu_memory(std::uint32_t version, const char* uuid,
                                                                           RotaGpuMemory* memory) {
  return rota::interpose::gpu_memory(version, uuid, memory);
}

// Here, since the linker hides what comes from an archive (--exclude-libs).
extern "C" __attribute__((visibility("default"))) int rota_core_test(std::uint32_t version, std::uint32_t what,
                                                                     const char* name, RotaTestAccount* account) {
  return rota::account::mark_test(version, what, name, account);
}

// Before this process initializes CUDA: sets CUDA_VISIBLE_DEVICES if `rota ci --gpus-per-test` gives the process GPUs.
// `own`: GPUs of its own instead of those of the process that started it, which is no part of its test.
extern "C" __attribute__((visibility("default"))) void rota_core_choose_gpus(std::uint32_t own) {
  rota::runtime().admission.choose_gpus(own != 0);
}
