// A small CUDA runtime for programs compiled with `nvcc -cudart shared`: enough to run them on the simulated driver.
// It finds the driver as NVIDIA's does and reaches it through the pointers it was handed only, so that an interposed
// libcuda.so.1 sees every call. Types are declared here by their layout: no CUDA headers are needed.
#pragma once

#include <cstddef>
#include <cstdint>

#include "generated/driver_functions.h"
#include "generated/driver_types.h"

namespace rota::sim::cudart {

using namespace rota::api;  // NOLINT(google-build-using-namespace): the names are CUDA's own

// cudaError_t has the driver's numbers, but for these, which have no counterpart there.
enum Error : int {
  kSuccess = 0,
  kInvalidValue = 1,
  kInitializationError = 3,
  kInvalidConfiguration = 9,
  kInvalidMemcpyDirection = 21,
  kInsufficientDriver = 35,
  kMissingConfiguration = 52,
  kInvalidDeviceFunction = 98,
  kNoDevice = 100,
  kInvalidDevice = 101,
  kInvalidResourceHandle = 400,
  kNotReady = 600,
  kNotSupported = 801,
};

struct Dim3 {
  unsigned x, y, z;
};

// (member, symbol asked for, CUDA version, flags), in the order in which NVIDIA's libcudart 13.0 asks
// (tests/data/cudart-13.0-lookups.txt): the subset that is used here.
#define ROTA_CUDART_LOOKUPS(USE)                                            \
  USE(cuDeviceGet, "cuDeviceGet", 2000, 0)                                  \
  USE(cuDeviceGetCount, "cuDeviceGetCount", 2000, 0)                        \
  USE(cuDeviceGetName, "cuDeviceGetName", 2000, 0)                          \
  USE(cuDeviceTotalMem_v2, "cuDeviceTotalMem", 3020, 0)                     \
  USE(cuDeviceGetAttribute, "cuDeviceGetAttribute", 2000, 0)                \
  USE(cuDriverGetVersion, "cuDriverGetVersion", 2020, 0)                    \
  USE(cuDeviceGetUuid, "cuDeviceGetUuid", 9020, 0)                          \
  USE(cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", 7000, 0)        \
  USE(cuDevicePrimaryCtxReset, "cuDevicePrimaryCtxReset", 7000, 0)          \
  USE(cuCtxSetCurrent, "cuCtxSetCurrent", 4000, 0)                          \
  USE(cuCtxGetCurrent, "cuCtxGetCurrent", 4000, 0)                          \
  USE(cuCtxGetDevice, "cuCtxGetDevice", 2000, 0)                            \
  USE(cuCtxSynchronize, "cuCtxSynchronize", 2000, 0)                        \
  USE(cuLibraryLoadData, "cuLibraryLoadData", 12000, 0)                     \
  USE(cuLibraryUnload, "cuLibraryUnload", 12000, 0)                         \
  USE(cuLibraryGetKernel, "cuLibraryGetKernel", 12000, 0)                   \
  USE(cuKernelSetAttribute, "cuKernelSetAttribute", 12000, 0)               \
  USE(cuMemGetInfo_v2, "cuMemGetInfo", 3020, 0)                             \
  USE(cuMemAllocManaged, "cuMemAllocManaged", 6000, 0)                      \
  USE(cuMemAlloc_v2, "cuMemAlloc", 3020, 0)                                 \
  USE(cuMemAllocPitch_v2, "cuMemAllocPitch", 3020, 0)                       \
  USE(cuMemFree_v2, "cuMemFree", 3020, 0)                                   \
  USE(cuMemFreeHost, "cuMemFreeHost", 2000, 0)                              \
  USE(cuMemHostAlloc, "cuMemHostAlloc", 2020, 0)                            \
  USE(cuMemHostRegister_v2, "cuMemHostRegister", 6050, 0)                   \
  USE(cuMemHostUnregister, "cuMemHostUnregister", 4000, 0)                  \
  USE(cuPointerGetAttributes, "cuPointerGetAttributes", 7000, 0)            \
  USE(cuMemAllocAsync, "cuMemAllocAsync", 11020, 0)                         \
  USE(cuMemAllocAsync_ptsz, "cuMemAllocAsync", 11020, 2)                    \
  USE(cuMemFreeAsync, "cuMemFreeAsync", 11020, 0)                           \
  USE(cuMemFreeAsync_ptsz, "cuMemFreeAsync", 11020, 2)                      \
  USE(cuMemcpy, "cuMemcpy", 4000, 0)                                        \
  USE(cuMemcpy_ptds, "cuMemcpy", 7000, 2)                                   \
  USE(cuMemcpyAsync, "cuMemcpyAsync", 4000, 0)                              \
  USE(cuMemcpyAsync_ptsz, "cuMemcpyAsync", 7000, 2)                         \
  USE(cuMemsetD8_v2, "cuMemsetD8", 3020, 0)                                 \
  USE(cuMemsetD8_v2_ptds, "cuMemsetD8", 7000, 2)                            \
  USE(cuMemsetD8Async, "cuMemsetD8Async", 3020, 0)                          \
  USE(cuMemsetD8Async_ptsz, "cuMemsetD8Async", 7000, 2)                     \
  USE(cuLaunchKernel, "cuLaunchKernel", 4000, 0)                            \
  USE(cuLaunchKernel_ptsz, "cuLaunchKernel", 7000, 2)                       \
  USE(cuLaunchHostFunc, "cuLaunchHostFunc", 10000, 0)                       \
  USE(cuLaunchHostFunc_ptsz, "cuLaunchHostFunc", 10000, 2)                  \
  USE(cuLaunchKernelEx, "cuLaunchKernelEx", 11060, 0)                       \
  USE(cuLaunchKernelEx_ptsz, "cuLaunchKernelEx", 11060, 2)                  \
  USE(cuEventCreate, "cuEventCreate", 2000, 0)                              \
  USE(cuEventRecord, "cuEventRecord", 2000, 0)                              \
  USE(cuEventRecord_ptsz, "cuEventRecord", 7000, 2)                         \
  USE(cuEventQuery, "cuEventQuery", 2000, 0)                                \
  USE(cuEventSynchronize, "cuEventSynchronize", 2000, 0)                    \
  USE(cuEventDestroy_v2, "cuEventDestroy", 4000, 0)                         \
  USE(cuEventElapsedTime_v2, "cuEventElapsedTime", 12080, 0)                \
  USE(cuStreamCreate, "cuStreamCreate", 2000, 0)                            \
  USE(cuStreamCreateWithPriority, "cuStreamCreateWithPriority", 5050, 0)    \
  USE(cuStreamDestroy_v2, "cuStreamDestroy", 4000, 0)                       \
  USE(cuStreamWaitEvent, "cuStreamWaitEvent", 3020, 0)                      \
  USE(cuStreamWaitEvent_ptsz, "cuStreamWaitEvent", 7000, 2)                 \
  USE(cuStreamSynchronize, "cuStreamSynchronize", 2000, 0)                  \
  USE(cuStreamSynchronize_ptsz, "cuStreamSynchronize", 7000, 2)             \
  USE(cuStreamQuery, "cuStreamQuery", 2000, 0)                              \
  USE(cuStreamQuery_ptsz, "cuStreamQuery", 7000, 2)                         \
  USE(cuMemAdvise_v2, "cuMemAdvise", 12020, 0)                              \
  USE(cuMemPrefetchAsync_v2, "cuMemPrefetchAsync", 12020, 0)                \
  USE(cuMemPrefetchAsync_v2_ptsz, "cuMemPrefetchAsync", 12020, 2)           \
  USE(cuGraphInstantiateWithFlags, "cuGraphInstantiateWithFlags", 11040, 0) \
  USE(cuGraphLaunch, "cuGraphLaunch", 10000, 0)                             \
  USE(cuGraphLaunch_ptsz, "cuGraphLaunch", 10000, 2)                        \
  USE(cuGraphExecDestroy, "cuGraphExecDestroy", 10000, 0)                   \
  USE(cuGraphDestroy, "cuGraphDestroy", 10000, 0)                           \
  USE(cuStreamBeginCapture_v2, "cuStreamBeginCapture", 10010, 0)            \
  USE(cuStreamEndCapture, "cuStreamEndCapture", 10000, 0)                   \
  USE(cuStreamIsCapturing, "cuStreamIsCapturing", 10000, 0)                 \
  USE(cuThreadExchangeStreamCaptureMode, "cuThreadExchangeStreamCaptureMode", 10010, 0)

// The driver, as found; entries that it lacks are null and answer kNotSupported through call().
struct Driver {
#define ROTA_CUDART_MEMBER(member, name, version, flags) rota::api::member##_fn* member = nullptr;
  ROTA_CUDART_LOOKUPS(ROTA_CUDART_MEMBER)
#undef ROTA_CUDART_MEMBER
  rota::api::cuGetProcAddress_v2_fn* get_proc_address = nullptr;
  int status = kInitializationError;  // of the start: kSuccess, or why nothing works
};

// Finds and initialises the driver at the first call.
Driver& driver();

// The calling thread's state.
struct Thread {
  int last_error = kSuccess;
  int device = 0;
  struct Configuration {
    Dim3 grid, block;
    size_t shared;
    CUstream stream;
  };
  Configuration pushed[8];
  int depth = 0;
};
Thread& thread();

// Remembers an error for cudaGetLastError (not-ready is none) and returns it.
int done(int error);

// The driver is up and this thread has a context: its device's primary one, unless it has set another.
int ensure_context();

// Calls a driver function after ensure_context().
template <class Function, class... Arguments>
int call(Function* Driver::* member, Arguments... arguments) {
  if (int error = ensure_context(); error != kSuccess) return done(error);
  Function* function = driver().*member;
  if (function == nullptr) return done(kNotSupported);
  return done(static_cast<int>(function(arguments...)));
}

// The driver's handle of a host stub that __cudaRegisterFunction has told of.
int kernel_of(const void* host_function, CUkernel* kernel);

}  // namespace rota::sim::cudart

#define ROTA_CUDART_EXPORT extern "C" __attribute__((visibility("default")))
