// What the generated gates need from the runtime, implemented by the object that owns its parts.
#include "runtime/contract.h"

#include "runtime/core/runtime.h"

namespace rota::contract {

void mark_exporting(Symbol symbol) noexcept {
  runtime().monitor.shares(protocol::kSharesOwn);
  runtime().mark_unevictable("other processes can access memory that it exported",
                             kSymbolNames[static_cast<std::size_t>(symbol)], protocol::PinAll::kExported);
}

api::CUresult begin_capture(api::CUstream stream, bool per_thread, FunctionRef<api::CUresult()> call) {
  // A capture keeps memory where it is, so all memory must be in place when it begins. It must not wait for that under
  // the lock, which restoring memory needs.
  for (;;) {
    if (!gate::wait_in_place()) return gate::refusal.load();
    bool out = false;
    const api::CUresult result = runtime().contexts.begin_capture(stream, per_thread, [&] {
      const gate::HeldInPlace held;
      out = gate::out_of_place.load() != 0;
      if (out) return api::CUDA_ERROR_NOT_READY;
      runtime().monitor.capture_begins();
      return call();
    });
    if (!out || gate::may_not_wait()) return result;
  }
}

api::CUresult end_capture(api::CUstream stream, bool per_thread, FunctionRef<api::CUresult()> call) {
  return runtime().contexts.end_capture(stream, per_thread, call);
}

}  // namespace rota::contract
