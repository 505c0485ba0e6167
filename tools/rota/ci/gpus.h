// The GPUs that a command sees, for `rota ci --gpus-per-test`.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "scheduler/base/result.h"

namespace rota::ci {

struct VisibleGpu {
  std::string uuid;  // as in accounts, also that of a MIG instance: "GPU-…"
  std::string name;  // for CUDA_VISIBLE_DEVICES, whatever CUDA_DEVICE_ORDER says
  std::uint64_t bytes = 0;
};

// What the driver shows with this CUDA_VISIBLE_DEVICES, without names. Nothing: the variable is not set.
using ShowGpus = std::function<Result<std::vector<VisibleGpu>>(const std::optional<std::string>& visible)>;

// For errors: the option that says how many, and who sees them.
struct WhoSees {
  std::string option = "--gpus-per-test";
  std::string whose = "command";
};

// The GPUs for tests that see `each` of them, given the command's CUDA_VISIBLE_DEVICES. A process sees at most one MIG
// instance, even if the variable names several; each of these can be given to a test.
Result<std::vector<VisibleGpu>> find_gpus(const std::optional<std::string>& visible, std::size_t each,
                                          const ShowGpus& show, const WhoSees& who = {});

// The same for this process's environment; loads the driver in a child.
Result<std::vector<VisibleGpu>> gpus_for_tests(std::size_t each, const WhoSees& who = {});

// Why GPUs are not chosen among so many, and what to do; empty: there are at most `most`, among which rotad chooses.
std::string too_many_text(std::size_t seen, std::size_t most, const WhoSees& who);

}  // namespace rota::ci
