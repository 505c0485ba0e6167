// What the user says about memory: ROTA_MEMORY, ROTA_MEMORY_SMALL, ROTA_GPU_MEM_LIMIT,
// ROTA_OVERSUBSCRIBE and ROTA_MOVE_OUT.
#pragma once

#include <cstdint>
#include <limits>

namespace rota::memory {

// How plain allocations (cuMemAlloc, cuMemAllocPitch) are served.
enum class Choice {
  kAutomatic,  // managed where a rotad serves this process, native otherwise
  kManaged,
  kNative,
  kSwap,  // native memory that rota moves (swap/swap.h); managed where a GPU has no virtual memory management
};

inline constexpr std::uint64_t kNoLimit = std::numeric_limits<std::uint64_t>::max();

struct Settings {
  Choice backend = Choice::kAutomatic;
  // Bytes of device memory that this process may have on each GPU, all routes of allocation together. 0: the limit
  // could not be read, which has been said.
  std::uint64_t limit_bytes = kNoLimit;
  // Whether this process may have more than a GPU's memory there, where that is Unified Memory.
  bool oversubscribe = false;
  // Whether this process, before it gives its turn to another one that needs the room, moves memory to the host itself.
  bool move_out = true;
  // Plain allocations of up to `small_bytes` stay the driver's where others are converted, all together up to
  // `small_total_bytes` on each GPU: flags and counters, which are worth no move and are what programs hand to
  // functions that refuse Unified Memory.
  std::uint64_t small_bytes = std::uint64_t{64} << 10;
  std::uint64_t small_total_bytes = std::uint64_t{32} << 20;
};

// Reads the environment; a bad value is named in one line and then ignored, but for a limit's.
Settings settings_from_environment();

}  // namespace rota::memory
