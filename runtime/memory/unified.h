// The driver's calls for Unified Memory, in the form that this driver has: the first versions take a device ordinal,
// the second ones, since CUDA 12.2, a location.
#pragma once

#include <cstdint>

#include "generated/driver_types.h"

namespace rota::memory::unified {

// Prefetching less costs more than the fault that it saves. Bytes.
inline constexpr std::uint64_t kWorthMoving = std::uint64_t{64} << 10;

// Used instead of a GPU's ordinal.
inline constexpr int kHost = -1;  // CU_DEVICE_CPU

// Starts moving the memory to a GPU or to kHost, in the order of the stream, which belongs to the current context.
api::CUresult prefetch(api::CUdeviceptr address, std::uint64_t bytes, int to, api::CUstream stream);

// `device` is what the advice names. Waits for no work (measured).
api::CUresult advise(api::CUdeviceptr address, std::uint64_t bytes, api::CUmem_advise advice, int device);

}  // namespace rota::memory::unified
