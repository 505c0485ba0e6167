// The user's settings for memory: ROTA_MEMORY, ROTA_MEMORY_SMALL, ROTA_GPU_MEM_LIMIT, ROTA_OVERSUBSCRIBE and
// ROTA_MOVE_OUT.
#pragma once

#include <cstdint>
#include <limits>

namespace rota::memory {

// How plain allocations (cuMemAlloc, cuMemAllocPitch) are served.
enum class Choice {
  kAuto,  // as kSwap where a rotad serves this process (managed with `oversubscribe`), native otherwise
  kManaged,
  kNative,
  kSwap,  // native memory that rota moves (swap/swap.h); managed where a GPU has no virtual memory management
};

inline constexpr std::uint64_t kNoLimit = std::numeric_limits<std::uint64_t>::max();

struct Settings {
  Choice backend = Choice::kAuto;
  // Bytes of device memory that this process may have on each GPU, all routes of allocation together. 0: the limit
  // could not be read, which has been logged.
  std::uint64_t limit_bytes = kNoLimit;
  // Whether this process may have more than a GPU's memory there, where that is Unified Memory.
  bool oversubscribe = false;
  // Whether this process moves memory to the host itself before it gives its turn to another one that needs the memory.
  bool move_out = true;
  // Plain allocations of up to `small_bytes` stay native where others are converted, all together up to
  // `small_total_bytes` on each GPU: flags and counters, which are not worth moving and which programs pass to
  // functions that refuse Unified Memory.
  std::uint64_t small_bytes = std::uint64_t{64} << 10;
  std::uint64_t small_total_bytes = std::uint64_t{32} << 20;
};

// Reads the environment; a bad value is logged and then ignored, except for a limit.
Settings settings_from_environment();

}  // namespace rota::memory
