// A library of kernels whose kernel throws.
#include <stdexcept>

#include "tools/simgpu/kernel.h"

namespace {
void throws(rota::sim::Launch&) {
  throw std::runtime_error("no such luck");
}
}  // namespace

ROTA_SIM_KERNELS_BEGIN
ROTA_SIM_KERNEL("_Z6throwsv", throws)
ROTA_SIM_KERNELS_END
