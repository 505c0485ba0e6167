// How the runtime describes a launch.
#pragma once

#include "tools/simgpu/cudart/runtime.h"

namespace rota::sim::cudart {

struct LaunchConfig {  // cudaLaunchConfig_t
  Dim3 grid, block;
  size_t shared;
  CUstream stream;
  CUlaunchAttribute* attributes;
  unsigned count;
};

CUlaunchConfig to_driver(const LaunchConfig& config);

}  // namespace rota::sim::cudart
