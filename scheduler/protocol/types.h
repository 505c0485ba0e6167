// What messages, pages and snapshots have in common: versions, bounds, and how GPUs are named.
#pragma once

#include <cstddef>
#include <cstdint>

#include "scheduler/base/uuid.h"

namespace rota::protocol {

inline constexpr std::uint32_t kMagic = 0x41544f52;  // "ROTA"
inline constexpr std::uint16_t kOldestVersion = 9;
inline constexpr std::uint16_t kVersion = 9;  // the newest
inline constexpr std::size_t kMaxMessageBytes = 1024;
// GPUs that one rotad manages at most: a set of GPUs is one 64-bit mask, bit i being the GPU with index i.
inline constexpr std::size_t kMaxGpus = 64;
// More memory than any GPU has.
inline constexpr std::uint64_t kMaxGpuBytes = std::uint64_t{1} << 48;
inline constexpr std::size_t kNameLength = 64;          // bytes, NUL included
inline constexpr std::size_t kTextLength = 192;         // bytes, NUL included
inline constexpr std::size_t kVersionLength = 24;       // bytes, NUL included
inline constexpr std::size_t kSessionLength = 64;       // bytes, NUL included
inline constexpr std::size_t kContainerLength = 16;     // bytes, NUL included
inline constexpr std::size_t kSocketPathLength = 4096;  // bytes, NUL included, as any path's (base/unix_address.h)
// No limit, of an amount in bytes.
inline constexpr std::uint64_t kUnlimited = UINT64_MAX;

using rota::Uuid;

enum class Mode : std::uint32_t {
  kAutomatic = 0,   // together when their memory fits, in turns when it does not
  kExclusive = 1,   // always in turns
  kConcurrent = 2,  // always together
};

}  // namespace rota::protocol
