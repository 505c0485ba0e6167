// The machine's GPUs and the processes on them according to NVML, under rota or not.
#pragma once

#include <optional>
#include <vector>

#include "tools/rota/status/request.h"

namespace rota::tool {

struct Machine {
  std::vector<MachineGpu> gpus;  // in nvidia-smi's order
  unsigned processes = 0;        // that use them, in all
};

// Nothing: NVML is not there, or does not answer within two seconds.
std::optional<Machine> ask_machine();

}  // namespace rota::tool
