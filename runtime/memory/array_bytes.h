// How much device memory an array takes.
#pragma once

#include <cstdint>

#include "generated/driver_types.h"

namespace rota::memory {

// Device bytes of an array, with all levels of a mipmapped one; 0 for arrays that take no memory by themselves (sparse,
// deferred), and where 64 bits cannot hold the size: the driver refuses that.
std::uint64_t array_bytes(std::uint64_t width, std::uint64_t height, std::uint64_t depth, unsigned channels,
                          api::CUarray_format format, unsigned flags, unsigned levels);

}  // namespace rota::memory
