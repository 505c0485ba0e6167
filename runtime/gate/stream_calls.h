// What a metered call checks: the count of its stream's calls, and up to which count no call has to ask
// (runtime/monitor/meter.h). Any thread.
#pragma once

#include <atomic>
#include <cstdint>

#include "runtime/driver/context.h"
#include "runtime/driver/stream.h"
#include "runtime/gate/scope.h"

namespace rota::gate {

struct StreamCalls {
  std::atomic<std::uint64_t> calls{0};       // so far
  std::atomic<std::uint64_t> free_until{0};  // when this many have been made, the next one has to ask
  // Counts one more call, unless it has to ask.
  bool may_call() {
    if (calls.fetch_add(1, std::memory_order_relaxed) < free_until.load(std::memory_order_relaxed)) return true;
    calls.fetch_sub(1, std::memory_order_relaxed);
    return false;
  }
};

// The counts of the stream that the calling thread used last, if this call uses it, too. `current`: the current
// context, where the stream's handle is not enough; otherwise null.
inline StreamCalls* remembered(const driver::Call& call, api::CUcontext current) {
  if (self == nullptr) return nullptr;
  const Thread::Metered& last = self->metered;
  const bool same = last.stream != nullptr && last.handle == call.stream && last.per_thread == call.per_thread &&
                    last.context == current;
  return same ? last.stream : nullptr;
}

// They must outlive the thread.
inline void remember(const driver::Call& call, api::CUcontext current, StreamCalls& calls) {
  if (self != nullptr) self->metered = {&calls, call.stream, current, call.per_thread};
}

// A call between the two events of a pair that the program times: counted where that costs little, and always let
// through.
inline bool count(const driver::Call& call) {
  if (!call.has_stream) return true;
  const bool needs_context = driver::of_current_context(call.stream);
  StreamCalls* const last = remembered(call, needs_context ? driver::current_context() : nullptr);
  if (last != nullptr) last->calls.fetch_add(1, std::memory_order_relaxed);
  return true;
}

}  // namespace rota::gate
