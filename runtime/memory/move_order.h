// The order in which converted memory is restored at the beginning of a turn and evicted at the end.
//
// rota does not track which range a launch uses, so it judges by age and size. Memory that was allocated in the last
// turn was certainly used in it, the newest last: that comes first. For older memory nothing is known; there the small
// ranges come first. All memory faults in units of the same size, but those of a small range are mostly empty, so a
// byte of capacity saves most there; and the driver itself moves the largest ranges best. So if time or capacity runs
// out, that happens in the middle of the largest of the old ranges.
//
// Memory is evicted in the opposite order: the largest old range first, in one go, and what was allocated in the last
// turn at the very end.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/memory/ledger.h"

namespace rota::memory {

// The ranges to restore, in order, up to `capacity` bytes; the last one may be cut short. `since`: Ledger::clock() when
// the turn began in which the memory was used last.
std::vector<Allocation> to_bring(std::vector<Allocation> ranges, std::uint64_t since, std::uint64_t capacity);

// The ranges to evict, in order, to free `bytes` bytes; the last one may be cut short.
std::vector<Allocation> to_move_out(std::vector<Allocation> ranges, std::uint64_t since, std::uint64_t bytes);

}  // namespace rota::memory
