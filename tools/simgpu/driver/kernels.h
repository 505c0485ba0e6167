// Launches of kernels (host functions from ROTA_SIM_KERNELS).
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "tools/simgpu/driver/api.h"
#include "tools/simgpu/driver/graph.h"
#include "tools/simgpu/driver/modules.h"
#include "tools/simgpu/kernel.h"

namespace rota::sim {

// A launch, checked and with its parameters copied: what a stream or a graph runs.
struct LaunchRequest {
  std::shared_ptr<Function> function;
  unsigned grid[3];
  unsigned block[3];
  unsigned shared_bytes;
};

// Checks the shape and copies the parameters (kernelParams or the extra buffer) into an operation.
CUresult make_launch(const LaunchRequest& request, void** parameters, void** extra, Operation* operation);

}  // namespace rota::sim
