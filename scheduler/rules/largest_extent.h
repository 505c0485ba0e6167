// The size of the extents in which swap memory moves, from which follows how much host memory a client needs in
// addition to its bytes.
#pragma once

#include <cstdint>

namespace rota::protocol {

// Swap memory moves in extents of at most this many bytes, except for larger ones that a program creates itself
// (cuMemCreate) where no limit on the host's memory applies. Two programs can change places if the host has memory for
// one more than what does not fit the GPU.
//
// The driver's calls for an extent take the same time whatever its size, and the first one that is evicted keeps both
// sides waiting. Measured on an H100 (driver 580.159.04, 2026-11-25), a switch with extents of 128 and of 256 MiB: 7.5
// GiB take 187 and 188 ms, 2 GiB 54 and 59; where memory goes back to the driver 213 and 212, 63 and 68. With 64 MiB:
// slower.
inline constexpr std::uint64_t kLargestExtent = std::uint64_t{128} << 20;

}  // namespace rota::protocol
