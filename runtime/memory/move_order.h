// In what order converted memory comes to its GPU at the beginning of a turn, and leaves it at the end of one.
//
// Nothing is looked up while the program launches, so which range was used last is judged by age and size. Certainly
// used in the last turn is what was allocated in it, the newest last of all: that comes first. Of what is older nobody
// knows; there the small ranges come first. All of it faults in pieces of the same size, but a small range in pieces
// that are hardly filled, so that a byte of room saves most there; and the largest ranges are what the driver moves
// best by itself. So if time or room runs out, it is in the middle of the largest of the old ranges.
//
// What leaves, leaves in the opposite order: the largest old range first, in one go, and what the turn just past has
// allocated at the very end.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/memory/ledger.h"

namespace rota::memory {

// The ranges to bring, in order, up to `room` bytes; the last one may be cut short. `since`: Ledger::clock() when the
// turn began in which the memory was used last.
std::vector<Allocation> to_bring(std::vector<Allocation> ranges, std::uint64_t since, std::uint64_t room);

// The ranges to move out, in order, for `bytes` bytes of room; the last one may be cut short.
std::vector<Allocation> to_move_out(std::vector<Allocation> ranges, std::uint64_t since, std::uint64_t bytes);

}  // namespace rota::memory
