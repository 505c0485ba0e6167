// Sets of GPUs, by the driver's ordinals.
#pragma once

#include <cstdint>

namespace rota {

// CUDA devices with higher ordinals are in no set, and their memory is not accounted for; no process sees that many.
inline constexpr int kMaxDevices = 64;
using Devices = std::uint64_t;
inline constexpr Devices kAllDevices = ~Devices{0};
// The empty set for an ordinal that no device has.
constexpr Devices bit_of(int device) {
  return device >= 0 && device < kMaxDevices ? Devices{1} << device : 0;
}

// Whether it is exactly one. Without std::popcount, which is a call where the compiler may not assume the instruction.
constexpr bool is_one(Devices devices) {
  return devices != 0 && (devices & (devices - 1)) == 0;
}

}  // namespace rota
