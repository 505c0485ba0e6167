// Identifies the stream that a call uses: with its context, if the handle does not determine it, and with the thread of
// a per-thread stream.
#pragma once

#include <tuple>

#include "runtime/core/own_tid.h"
#include "runtime/driver/stream.h"

namespace rota::driver {

using StreamKey = std::tuple<api::CUstream, api::CUcontext, pid_t>;

// `current`: the current context. Ignored where of_current_context() is false.
inline StreamKey key_of(api::CUstream handle, bool per_thread, api::CUcontext current) {
  const api::CUstream stream = meant(handle, per_thread);
  if (!of_current_context(stream)) return {stream, nullptr, 0};
  return {stream, current, stream == kPerThreadStream ? own_tid() : 0};
}

}  // namespace rota::driver
