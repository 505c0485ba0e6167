// Before simgpu begins a call's work, it reports the GPUs on which that work runs and has memory. Code that admits
// calls by their GPUs can be checked with this. It is a table of the driver (cuGetExportTable) with one function, under
// an id that only simgpu knows.
#pragma once

#include <cstdint>

#include "generated/driver_types.h"

namespace rota::sim {

inline constexpr api::CUuuid kReachCheckId{'r', 'o', 't', 'a', ' ', 's', 'i', 'm',
                                           ' ', 'r', 'e', 'a', 'c', 'h', ' ', '1'};

struct ReachCheck {
  std::uint64_t bytes;  // of this table
  // From now on `watch` is called with a bit for each GPU, by cuDeviceGet's numbers, on the thread that makes the call.
  void (*set)(void (*watch)(std::uint64_t devices));
};

}  // namespace rota::sim
