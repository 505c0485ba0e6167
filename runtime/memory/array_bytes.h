// How much device memory an array takes.
#pragma once

#include <cstdint>

#include "generated/driver_types.h"

namespace rota::memory {

// Device bytes of an array, all levels of a mipmapped one; 0 for what takes no memory by itself (sparse, deferred),
// and where 64 bits cannot hold it: the driver refuses that.
std::uint64_t array_bytes(std::uint64_t width, std::uint64_t height, std::uint64_t depth, unsigned channels,
                          api::CUarray_format format, unsigned flags, unsigned levels);

}  // namespace rota::memory
