// Kernels that can be launched (host functions from ROTA_SIM_KERNELS), and the modules and functions that name them.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "tools/simgpu/driver/api.h"
#include "tools/simgpu/driver/graph.h"
#include "tools/simgpu/kernel.h"

namespace rota::sim {

struct Module;

// A kernel as one module or library knows it.
struct Function {
  const RotaSimKernel* kernel = nullptr;
  Module* module = nullptr;
  std::atomic<int> max_dynamic_shared{0};
  std::atomic<int> preferred_carveout{-1};
  CUfunction handle() { return reinterpret_cast<CUfunction>(this); }
};

// A module of a context, or a library (context null). What it was loaded from is not read beyond its first bytes:
// which kernels exist is what ROTA_SIM_KERNELS says.
struct Module {
  CUcontext context = nullptr;
  std::mutex mutex;
  std::map<std::string, std::shared_ptr<Function>> functions;
  CUmodule handle() { return reinterpret_cast<CUmodule>(this); }
};

class Kernels {
 public:
  // Loads the libraries; one line on stderr for each that cannot be loaded, the others are used.
  void load(const std::vector<std::string>& libraries);
  const RotaSimKernel* find(const std::string& name) const;

 private:
  std::map<std::string, const RotaSimKernel*> by_name_;
};

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
