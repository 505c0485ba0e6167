// How a program's memory on a GPU is served.
#pragma once

#include <cstdint>

namespace rota::protocol {

// How a client's plain memory on one GPU is served, and why; part of its usage page.
enum class MemoryMode : std::uint8_t {
  kUnknown = 0,          // not set
  kUnified = 1,          // Unified Memory, which the driver evicts for others
  kNativeChosen = 2,     // the driver's own, as the user said (ROTA_MEMORY=native)
  kNativeNoManaged = 3,  // the driver's own, since this GPU has no managed memory (some vGPUs)
  kNativeNoPaging = 4,   // since it cannot page it by itself: no concurrent managed access (WSL, some vGPUs and MIG)
  kNativeShared = 5,     // since the program hands its memory to other processes
  kNativeRefused = 6,    // from now on, since a function that the program calls refuses such memory
  kSwap = 7,             // plain device memory, which the client moves to the host and back itself
  // Unified Memory although the user asked for swap memory, which has not been tested there: with MPS, on MIG
  // instances, in confidential virtual machines, where the GPU uses the host's page tables (Grace).
  kUnifiedMps = 8,
  kUnifiedMig = 9,
  kUnifiedConfidential = 10,
  kUnifiedCoherent = 11,
  // The driver's own, since a tool checks every access (compute-sanitizer, Nsight Compute) or, where the user asked for
  // swap memory, a debugger was there from the start.
  kNativeWatched = 12,
  kUnifiedLarger = 13,  // Unified Memory, since the program may have more memory than the GPU (--oversubscribe)
};
inline constexpr std::uint8_t kLastMemoryMode = 13;

// The kinds of GPUs on which swap memory has not been tested; null if this is no mode of such a GPU.
constexpr const char* untested_where(MemoryMode mode) {
  switch (mode) {
    case MemoryMode::kUnifiedMps:
      return "under MPS";
    case MemoryMode::kUnifiedMig:
      return "on MIG instances";
    case MemoryMode::kUnifiedConfidential:
      return "in confidential virtual machines";
    case MemoryMode::kUnifiedCoherent:
      return "where the GPU uses the host's page tables (Grace)";
    default:
      return nullptr;
  }
}

constexpr bool is_unified(MemoryMode mode) {
  return mode == MemoryMode::kUnified || mode == MemoryMode::kUnifiedLarger || untested_where(mode) != nullptr;
}
// Whether memory is evicted when others need the GPU's memory.
constexpr bool can_leave(MemoryMode mode) {
  return is_unified(mode) || mode == MemoryMode::kSwap;
}

}  // namespace rota::protocol
