// Included before everything else by nvcc of CUDA 13, for sources of CUDA 11 (samples.py): what has another form since,
// or none.
#pragma once

#if defined(__cplusplus)
#include <cuda.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>

#if CUDART_VERSION >= 13000

struct Properties11 : cudaDeviceProp {
  int clockRate, memoryClockRate, kernelExecTimeoutEnabled, computeMode, deviceOverlap, cooperativeMultiDeviceLaunch,
      singleToDoublePrecisionPerfRatio;
};

static inline cudaError_t properties11(Properties11* found, int device) {
  cudaDeviceGetAttribute(&found->clockRate, cudaDevAttrClockRate, device);
  cudaDeviceGetAttribute(&found->memoryClockRate, cudaDevAttrMemoryClockRate, device);
  cudaDeviceGetAttribute(&found->kernelExecTimeoutEnabled, cudaDevAttrKernelExecTimeout, device);
  cudaDeviceGetAttribute(&found->computeMode, cudaDevAttrComputeMode, device);
  cudaDeviceGetAttribute(&found->deviceOverlap, cudaDevAttrGpuOverlap, device);
  cudaDeviceGetAttribute(&found->singleToDoublePrecisionPerfRatio, cudaDevAttrSingleToDoublePrecisionPerfRatio, device);
  found->cooperativeMultiDeviceLaunch = 0;
  return cudaGetDeviceProperties(found, device);
}

static inline cudaMemLocation location11(int device) {
  cudaMemLocation location = {};
  location.type = device == cudaCpuDeviceId ? cudaMemLocationTypeHost : cudaMemLocationTypeDevice;
  location.id = device == cudaCpuDeviceId ? 0 : device;
  return location;
}

static inline cudaError_t cudaMemPrefetchAsync(const void* address, size_t bytes, int device, cudaStream_t stream = 0) {
  return cudaMemPrefetchAsync(address, bytes, location11(device), 0, stream);
}

static inline cudaError_t cudaMemAdvise(const void* address, size_t bytes, cudaMemoryAdvise advice, int device) {
  return cudaMemAdvise(address, bytes, advice, location11(device));
}

namespace thrust {
template <typename Argument, typename Result>
struct unary_function {
  using argument_type = Argument;
  using result_type = Result;
};
template <typename First, typename Second, typename Result>
struct binary_function {
  using first_argument_type = First;
  using second_argument_type = Second;
  using result_type = Result;
};
template <typename Value>
struct identity {
  __host__ __device__ Value operator()(Value value) const { return value; }
};
}  // namespace thrust

#if defined(__CUDACC__)
#include <cooperative_groups.h>

namespace cooperative_groups::experimental {
template <unsigned bytes, unsigned threads>
using block_tile_memory = cooperative_groups::block_tile_memory<threads>;
using cooperative_groups::this_thread_block;
using cooperative_groups::tiled_partition;
}  // namespace cooperative_groups::experimental
#endif

#define CUFFT_INCOMPLETE_PARAMETER_LIST static_cast<cufftResult>(10)
#define CUFFT_PARSE_ERROR static_cast<cufftResult>(12)
#define CUFFT_LICENSE_ERROR static_cast<cufftResult>(15)

#define CUDA_DRIVER_API  // Common/helper_cuda.h then knows the driver's errors, too

#define cudaDeviceProp Properties11
#define cudaGetDeviceProperties properties11
#undef cuCtxCreate
#define cuCtxCreate(context, flags, device) cuCtxCreate_v4(context, nullptr, flags, device)
#endif
#endif
