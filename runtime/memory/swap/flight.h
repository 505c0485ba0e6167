// Copies of extents that are under way, and how their end is waited for. Several are in flight at a time, so that the
// driver's work on one extent (mapping, unmapping) is done while others are on the bus.
#pragma once

#include <cstddef>

#include "generated/driver_real.h"
#include "runtime/memory/swap/swap.h"

namespace rota::memory {

// With so many copies under way the engine is never idle (measured on an H100, extents of 128 MiB). Judgement.
inline constexpr std::size_t kInFlight = 6;

// A copy that nothing tells the end of is over when this returns: what it reads or writes may go. With the context
// current.
void wait_for_stream(const SwapBackend::Mover& mover);

// Until the event is reached, looked at under the context's lock each time. Any error: the context has gone, or its
// work has failed; in either case the copy is over.
api::CUresult wait_for(const SwapBackend::Mover& mover, api::CUevent event);

}  // namespace rota::memory
