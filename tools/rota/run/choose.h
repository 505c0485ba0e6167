// `rota run --gpus N`: the GPUs with most free memory, of those that the program could use.
#pragma once

#include <optional>
#include <string>

#include "scheduler/base/result.h"
#include "tools/rota/run/daemon.h"

namespace rota::tool {

// What --gpus says.
struct GpusWanted {
  std::optional<unsigned> count;  // nothing: as rotad's configuration has it
  bool all = false;               // whatever the configuration says
};

// The new value of CUDA_VISIBLE_DEVICES, UUIDs; empty: it stays as it is. rotad reserves the GPUs for `session`. If no
// rotad does, they are chosen by what NVML says, and a line tells so. The error says why there are not as many as
// wanted.
Result<std::string> choose_gpus(const GpusWanted& wanted, const Daemon& daemon, const std::string& session);

}  // namespace rota::tool
