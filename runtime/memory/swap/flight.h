// Copies of extents that are under way, and the wait for their end. Several are in flight at a time, so that the
// driver's work on one extent (mapping, unmapping) is done while others are on the bus.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

#include "generated/driver_real.h"
#include "runtime/memory/move.h"

namespace rota::memory {

// With this many copies under way the engine is never idle (measured on an H100, extents of 128 and 256 MiB).
// Judgement.
inline constexpr std::size_t kInFlight = 6;

// Waits for a copy without an event: once this returns the copy is over, and its memory may be released. With the
// context current.
void wait_for_stream(const Move& move);

// Waits until the event is reached, querying it under the context's lock. An error: the context's work has failed, and
// the copy is over. Nothing: the context has ended, and the copy with it.
Answer wait_for(const Move& move, api::CUevent event);

// Whether wait_for() would return at once.
bool is_over(const Move& move, api::CUevent event);

// When the first copy of a move was submitted, and when the last was seen to have ended (CLOCK_MONOTONIC).
class CopyTimes {
 public:
  void starts();
  void ended();
  // A debug line, unless nothing was copied. `way`: "in" or "out".
  void say(const char* way, int device, std::uint64_t bytes) const;

 private:
  std::chrono::nanoseconds first_{0};
  std::chrono::nanoseconds last_{0};
};

}  // namespace rota::memory
