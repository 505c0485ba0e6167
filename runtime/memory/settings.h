// What the user says about memory: ROTA_MEMORY and ROTA_GPU_MEM_LIMIT.
#pragma once

#include <cstdint>
#include <limits>

namespace rota::memory {

// How plain allocations (cuMemAlloc, cuMemAllocPitch) are served.
enum class Choice {
  kAutomatic,  // managed where a rotad serves this process, native otherwise
  kManaged,
  kNative,
};

inline constexpr std::uint64_t kNoLimit = std::numeric_limits<std::uint64_t>::max();

struct Settings {
  Choice backend = Choice::kAutomatic;
  // Bytes of device memory that this process may have on each GPU, all routes of allocation together.
  std::uint64_t limit_bytes = kNoLimit;
};

// Reads the environment; a bad value is named in one warning and then ignored.
Settings settings_from_environment();

}  // namespace rota::memory
