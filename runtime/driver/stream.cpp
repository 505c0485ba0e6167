#include "runtime/driver/stream.h"

#include "generated/driver_real.h"
#include "runtime/driver/context.h"

namespace rota::driver {

constinit std::atomic<std::uint64_t> handles_ended{1};

bool captures(api::CUstream stream, bool per_thread) {
  const api::CUstream which = meant(stream, per_thread);
  if (which == kLegacyStream) return false;
  api::CUstreamCaptureStatus status{};
  return real::cuStreamIsCapturing(which, &status) == api::CUDA_SUCCESS && status != api::CU_STREAM_CAPTURE_STATUS_NONE;
}

std::uint64_t number_of(api::CUstream stream, bool per_thread) {
  unsigned long long number = 0;
  return real::cuStreamGetId(meant(stream, per_thread), &number) == api::CUDA_SUCCESS ? number : 0;
}

api::CUcontext context_of(api::CUstream stream, bool per_thread) {
  api::CUcontext context = nullptr;
  if (real::cuStreamGetCtx(meant(stream, per_thread), &context) == api::CUDA_SUCCESS && context != nullptr) {
    return context;
  }
  return of_current_context(stream) ? current_context() : nullptr;
}

}  // namespace rota::driver
