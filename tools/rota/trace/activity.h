// What ran on simulated GPUs while a program was traced: simgpu writes it next to the trace (ROTA_SIM_ACTIVITY,
// tools/simgpu/driver/stream/activity.h). A real driver reports only to profilers when a kernel ran.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace rota::tool {

struct KernelRun {
  std::uint32_t thread = 0;        // that launched it
  std::uint64_t launched_ns = 0;   // CLOCK_MONOTONIC
  std::uint64_t begin_ns = 0;      // the same
  std::uint64_t simulated_ns = 0;  // how long it took in modelled time
  std::uint64_t stream = 0;        // 0: the legacy default stream; 2: a thread's own
  std::string kernel;              // as C++ writes it
};

// By process, each in the order of its end. `path` as for open_traces(); invalid lines are ignored.
std::map<std::uint32_t, std::vector<KernelRun>> read_activity(const std::string& path);

}  // namespace rota::tool
