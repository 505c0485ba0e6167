// Which GPUs there are, and how much memory each has. cudaGetDeviceProperties takes its figure from here, and
// frameworks size their own pools by it: it is the limit where there is one, as it is for cuMemGetInfo.
#include <algorithm>
#include <cstdint>

#include "generated/driver_real.h"
#include "runtime/core/runtime.h"
#include "runtime/hooks/overrides.h"

namespace rota::overrides {

using api::CUresult;

namespace {

template <typename Number>
CUresult bounded(CUresult result, Number* bytes, api::CUdevice device) {
  if (result != api::CUDA_SUCCESS || bytes == nullptr) return result;
  *bytes = static_cast<Number>(std::min<std::uint64_t>(*bytes, runtime().memory.limit(device)));
  return result;
}

}  // namespace

// The driver reads CUDA_VISIBLE_DEVICES in the first one.
CUresult cuInit(unsigned int Flags) {
  runtime().admission.choose_gpus(false);
  return real::cuInit(Flags);
}

CUresult cuDeviceTotalMem_v2(std::size_t* bytes, api::CUdevice dev) {
  return bounded(real::cuDeviceTotalMem_v2(bytes, dev), bytes, dev);
}

CUresult cuDeviceTotalMem(unsigned int* bytes, api::CUdevice dev) {
  return bounded(real::cuDeviceTotalMem(bytes, dev), bytes, dev);
}

}  // namespace rota::overrides
