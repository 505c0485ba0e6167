// Launches of the runtime API.
#include "tools/simgpu/cudart/launch.h"

#include "tools/simgpu/cudart/forward.h"

namespace rota::sim::cudart {
namespace {

// A CUkernel may replace a CUfunction in launches.
CUfunction function(CUkernel kernel) {
  return reinterpret_cast<CUfunction>(kernel);
}

template <class Function>
int launch(Function* Driver::* member, CUkernel kernel, Dim3 grid, Dim3 block, void** arguments, size_t shared,
           CUstream stream) {
  void* none[1] = {nullptr};
  void** parameters = arguments != nullptr ? arguments : none;
  // Values that no device accepts are invalid, as with the driver (measured with libcudart 13.0 on an H200).
  if constexpr (std::is_same_v<Function, cuLaunchKernel_fn>) {
    return call(member, function(kernel), grid.x, grid.y, grid.z, block.x, block.y, block.z,
                static_cast<unsigned>(shared), stream, parameters, static_cast<void**>(nullptr));
  } else {
    return call(member, function(kernel), grid.x, grid.y, grid.z, block.x, block.y, block.z,
                static_cast<unsigned>(shared), stream, parameters);
  }
}

template <class Function>
int launch_stub(Function* Driver::* member, const void* stub, Dim3 grid, Dim3 block, void** arguments, size_t shared,
                CUstream stream) {
  CUkernel kernel = nullptr;
  if (int error = kernel_of(stub, &kernel); error != kSuccess) return done(error);
  return launch(member, kernel, grid, block, arguments, shared, stream);
}

template <class Function>
int launch_configured(Function* Driver::* member, const LaunchConfig* config, const void* stub, void** arguments) {
  if (config == nullptr) return done(kInvalidValue);
  CUkernel kernel = nullptr;
  if (int error = kernel_of(stub, &kernel); error != kSuccess) return done(error);
  CUlaunchConfig converted = to_driver(*config);
  const CUlaunchConfig* pointer = &converted;
  return call(member, pointer, function(kernel), arguments, static_cast<void**>(nullptr));
}

}  // namespace

CUlaunchConfig to_driver(const LaunchConfig& config) {
  CUlaunchConfig converted{};
  converted.gridDimX = config.grid.x;
  converted.gridDimY = config.grid.y;
  converted.gridDimZ = config.grid.z;
  converted.blockDimX = config.block.x;
  converted.blockDimY = config.block.y;
  converted.blockDimZ = config.block.z;
  converted.sharedMemBytes = static_cast<unsigned>(config.shared);
  converted.hStream = config.stream;
  converted.attrs = config.attributes;  // same layout
  converted.numAttrs = config.count;
  return converted;
}

}  // namespace rota::sim::cudart

using namespace rota::sim::cudart;  // NOLINT

#define ROTA_LAUNCHES(ptsz)                                                                                           \
  ROTA_CUDART_EXPORT int __cudaLaunchKernel##ptsz(CUkernel kernel, Dim3 grid, Dim3 block, void** arguments,           \
                                                  size_t shared, CUstream stream) {                                   \
    return launch(&Driver::cuLaunchKernel##ptsz, kernel, grid, block, arguments, shared, stream);                     \
  }                                                                                                                   \
  ROTA_CUDART_EXPORT int cudaLaunchKernel##ptsz(const void* stub, Dim3 grid, Dim3 block, void** arguments,            \
                                                size_t shared, CUstream stream) {                                     \
    return launch_stub(&Driver::cuLaunchKernel##ptsz, stub, grid, block, arguments, shared, stream);                  \
  }                                                                                                                   \
  ROTA_CUDART_EXPORT int cudaLaunchCooperativeKernel##ptsz(const void* stub, Dim3 grid, Dim3 block, void** arguments, \
                                                           size_t shared, CUstream stream) {                          \
    return launch_stub(&Driver::cuLaunchCooperativeKernel##ptsz, stub, grid, block, arguments, shared, stream);       \
  }                                                                                                                   \
  ROTA_CUDART_EXPORT int cudaLaunchKernelExC##ptsz(const LaunchConfig* config, const void* stub, void** arguments) {  \
    return launch_configured(&Driver::cuLaunchKernelEx##ptsz, config, stub, arguments);                               \
  }
ROTA_LAUNCHES()
ROTA_LAUNCHES(_ptsz)
