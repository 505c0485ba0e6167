// simgpu tells, before it takes up a call's work, on which GPUs that work runs and has memory: whoever lets calls
// through by their GPUs can be checked so. A table of the driver (cuGetExportTable) with one function, under an id of
// simgpu's own, which no other driver knows.
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
