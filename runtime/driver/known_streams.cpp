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

// The legacy stream never changes in the life of a context, unlike the calling thread's own stream.
KnownStream KnownStreams::legacy_of_current() {
  KnownStream found;
  found.context = current_context();
  if (found.context == nullptr) return found;
  Slot& slot = slot_of(reinterpret_cast<std::uintptr_t>(found.context));
  {
    const std::lock_guard lock(slot.mutex);
    if (slot.handle == kLegacyStream && slot.stream.context == found.context) return slot.stream;
  }
  found.number = number_of(kLegacyStream, false);
  found.device = device_of(found.context);
  if (found.number != 0 && found.device >= 0) {
    const std::lock_guard lock(slot.mutex);
    slot.handle = kLegacyStream;
    slot.stream = found;
  }
  return found;
}

KnownStream KnownStreams::identify(api::CUstream stream, bool per_thread) {
  if (meant(stream, per_thread) == kLegacyStream) return legacy_of_current();
  KnownStream found;
  found.number = number_of(stream, per_thread);
  if (of_current_context(stream)) {
    api::CUdevice device = 0;
    found.context = current_context();
    if (found.context != nullptr && real::cuCtxGetDevice(&device) == api::CUDA_SUCCESS) found.device = device;
    return found;
  }
  Slot& slot = slot_of(found.number);
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

void KnownStreams::forget_null_streams() {
  for (Slot& slot : *slots_) {
    const std::lock_guard lock(slot.mutex);
    if (slot.handle == kLegacyStream) slot.handle = nullptr;
  }
}

}  // namespace rota::driver
