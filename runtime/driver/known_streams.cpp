#include "runtime/driver/known_streams.h"

#include "generated/driver_real.h"
#include "runtime/driver/context.h"
#include "runtime/driver/stream.h"

namespace rota::driver {

namespace {

int device_of(api::CUcontext context) {
  const CurrentContext current(context);
  api::CUdevice device = 0;
  return current && real::cuCtxGetDevice(&device) == api::CUDA_SUCCESS ? device : -1;
}

}  // namespace

KnownStream KnownStreams::identify(api::CUstream stream, bool per_thread) {
  KnownStream found;
  found.number = number_of(stream, per_thread);
  if (of_current_context(stream)) {
    api::CUdevice device = 0;
    found.context = current_context();
    if (found.context != nullptr && real::cuCtxGetDevice(&device) == api::CUDA_SUCCESS) found.device = device;
    return found;
  }
  Slot& slot = (*slots_)[(found.number * 0x9e3779b97f4a7c15u) >> 58];  // 64 of them
  if (found.number != 0) {
    const std::lock_guard lock(slot.mutex);
    if (slot.handle == stream && slot.stream.number == found.number) return slot.stream;
  }
  found.context = context_of(stream, per_thread);
  if (found.context != nullptr) found.device = device_of(found.context);
  if (found.number != 0 && found.device >= 0) {
    const std::lock_guard lock(slot.mutex);
    slot.handle = stream;
    slot.stream = found;
  }
  return found;
}

void KnownStreams::forget(api::CUcontext context) {
  for (Slot& slot : *slots_) {
    const std::lock_guard lock(slot.mutex);
    if (slot.stream.context == context) slot.handle = nullptr;
  }
}

}  // namespace rota::driver
