// Runs simgpu-driver, which writes copies of libcuda.so.1 that pose as drivers of one CUDA version.
#pragma once

#include <string>
#include <vector>

#include "tests/unit/tools/simgpu/process.h"

namespace simgpu_test {

struct PoseResult {
  int status = -1;
  std::string error;  // what the tool wrote to stderr
};
PoseResult run_pose(std::vector<std::string> arguments);

// The path of a copy that poses as "12.4"; "" if the tool fails.
std::string pose(const TemporaryFolder& folder, const std::string& version);
// The same for a version number such as 12040.
std::string pose(const TemporaryFolder& folder, int version);

}  // namespace simgpu_test
