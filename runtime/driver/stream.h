// Which stream a call means. A handle alone does not say: NULL is the context's legacy stream, or in a per-thread form
// (_ptsz, _ptds) the calling thread's own, and two handles have a meaning of their own in every context.
#pragma once

#include <atomic>
#include <cstdint>

#include "generated/driver_types.h"

namespace rota::driver {

// cuda.h: CU_STREAM_LEGACY and CU_STREAM_PER_THREAD.
inline const api::CUstream kLegacyStream = reinterpret_cast<api::CUstream>(std::uintptr_t{1});
inline const api::CUstream kPerThreadStream = reinterpret_cast<api::CUstream>(std::uintptr_t{2});

// The stream that a call means, as a handle that is unambiguous in any form of any function.
inline api::CUstream meant(api::CUstream stream, bool per_thread) {
  if (stream != nullptr) return stream;
  return per_thread ? kPerThreadStream : kLegacyStream;
}

// Whether the handle means a stream of whichever context is current.
inline bool of_current_context(api::CUstream stream) {
  return stream == nullptr || stream == kLegacyStream || stream == kPerThreadStream;
}

// Changes before the handle of a stream or context may be reused. Never 0.
[[gnu::visibility("hidden")]] extern constinit std::atomic<std::uint64_t> handles_ended;

// Whether the stream is capturing: work submitted to it goes into a graph and not to the GPU. The legacy stream cannot
// capture.
bool captures(api::CUstream stream, bool per_thread);

// A number that no other stream of this process has or ever had; 0 where the driver does not say (before CUDA 12.0).
std::uint64_t number_of(api::CUstream stream, bool per_thread);

// The context of a stream, or null.
api::CUcontext context_of(api::CUstream stream, bool per_thread);

}  // namespace rota::driver
