// Kernel launches in all their forms.
#include "tools/simgpu/driver/driver.h"

using namespace rota::sim;  // NOLINT: the exported functions are all in the global namespace

namespace {

struct Shape {
  unsigned grid[3];
  unsigned block[3];
  unsigned shared;
};

CUresult launch(CUfunction handle, const Shape& shape, CUstream stream_handle, void** parameters, void** extra,
                bool cooperative, Form form) {
  ROTA_SIM_CONTEXT(context);
  FunctionPointer function;
  ROTA_SIM_CHECK(function_for_launch(handle, context, &function));
  StreamPointer stream;
  ROTA_SIM_CHECK(driver().stream_of(stream_handle, form, context, &stream));
  LaunchRequest request{function, {}, {}, shape.shared};
  std::copy(shape.grid, shape.grid + 3, request.grid);
  std::copy(shape.block, shape.block + 3, request.block);
  if (cooperative) {
    // All blocks have to fit the device at the same time.
    uint64_t threads = uint64_t{shape.block[0]} * shape.block[1] * shape.block[2];
    uint64_t blocks = uint64_t{shape.grid[0]} * shape.grid[1] * shape.grid[2];
    if (threads == 0) return CUDA_ERROR_INVALID_VALUE;
    uint64_t fitting = profile::kThreadsPerMultiprocessor / threads * profile::kMultiprocessors;
    if (blocks > fitting) return CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE;
  }
  Operation operation;
  ROTA_SIM_CHECK(make_launch(request, parameters, extra, &operation));
  return driver().submit(stream, std::move(operation));
}

CUresult launch_configured(const CUlaunchConfig* config, CUfunction function, void** parameters, void** extra,
                           Form form) {
  if (config == nullptr || (config->numAttrs != 0 && config->attrs == nullptr)) return CUDA_ERROR_INVALID_VALUE;
  bool cooperative = false;
  for (unsigned index = 0; index < config->numAttrs; ++index) {
    const CUlaunchAttribute& attribute = config->attrs[index];
    switch (attribute.id) {
      case CU_LAUNCH_ATTRIBUTE_COOPERATIVE:
        cooperative = attribute.value.cooperative != 0;
        break;
      case CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION:
        if (attribute.value.clusterDim.x * attribute.value.clusterDim.y * attribute.value.clusterDim.z > 1) {
          return CUDA_ERROR_NOT_SUPPORTED;
        }
        break;
      case CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT:
      case CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT:
        return CUDA_ERROR_NOT_SUPPORTED;
      default:
        break;  // priorities, hints and permission to overlap: kernels of a stream run one after the other
    }
  }
  Shape shape{{config->gridDimX, config->gridDimY, config->gridDimZ},
              {config->blockDimX, config->blockDimY, config->blockDimZ},
              config->sharedMemBytes};
  return launch(function, shape, config->hStream, parameters, extra, cooperative, form);
}

}  // namespace

#define LAUNCH_PARAMETERS                                                                                     \
  CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y, \
      unsigned block_z, unsigned shared, CUstream stream, void **parameters
#define LAUNCH_SHAPE                                              \
  Shape {                                                         \
    {grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared \
  }

ROTA_SIM_EXPORT(cuLaunchKernel)(LAUNCH_PARAMETERS, void** extra) {
  return launch(function, LAUNCH_SHAPE, stream, parameters, extra, false, Form::kLegacy);
}
ROTA_SIM_EXPORT(cuLaunchKernel_ptsz)(LAUNCH_PARAMETERS, void** extra) {
  return launch(function, LAUNCH_SHAPE, stream, parameters, extra, false, Form::kPerThread);
}
ROTA_SIM_EXPORT(cuLaunchCooperativeKernel)(LAUNCH_PARAMETERS) {
  return launch(function, LAUNCH_SHAPE, stream, parameters, nullptr, true, Form::kLegacy);
}
ROTA_SIM_EXPORT(cuLaunchCooperativeKernel_ptsz)(LAUNCH_PARAMETERS) {
  return launch(function, LAUNCH_SHAPE, stream, parameters, nullptr, true, Form::kPerThread);
}
ROTA_SIM_EXPORT(cuLaunchKernelEx)
(const CUlaunchConfig* config, CUfunction function, void** parameters, void** extra) {
  return launch_configured(config, function, parameters, extra, Form::kLegacy);
}
ROTA_SIM_EXPORT(cuLaunchKernelEx_ptsz)
(const CUlaunchConfig* config, CUfunction function, void** parameters, void** extra) {
  return launch_configured(config, function, parameters, extra, Form::kPerThread);
}
