// What the test programs share: the driver API, looked up as by a CUDA program of the driver's age (dlopen
// "libcuda.so.1", then cuGetProcAddress if it exists), options, and errors as one line and exit code 1. Needs no CUDA
// headers.
#pragma once

#include <dlfcn.h>

#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "generated/driver_functions.h"
#include "generated/driver_types.h"

namespace program {

using namespace rota::api;  // NOLINT(google-build-using-namespace): the names are CUDA's own

[[noreturn]] inline void fail(const char* format, ...) __attribute__((format(printf, 1, 2)));
inline void fail(const char* format, ...) {
  std::va_list arguments;
  va_start(arguments, format);
  std::fprintf(stderr, "failed: ");
  std::vfprintf(stderr, format, arguments);
  std::fputc('\n', stderr);
  va_end(arguments);
  std::exit(1);  // NOLINT(concurrency-mt-unsafe)
}

// The driver functions that the programs use, under their exact exported names; calling one that the driver lacks fails
// the program.
#define PROGRAM_FUNCTIONS(USE)                                                       \
  USE(cuInit, "cuInit", 2000, 0)                                                     \
  USE(cuDeviceGet, "cuDeviceGet", 2000, 0)                                           \
  USE(cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", 7000, 0)                 \
  USE(cuDevicePrimaryCtxRelease_v2, "cuDevicePrimaryCtxRelease", 11000, 0)           \
  USE(cuCtxGetCurrent, "cuCtxGetCurrent", 4000, 0)                                   \
  USE(cuCtxSetCurrent, "cuCtxSetCurrent", 4000, 0)                                   \
  USE(cuCtxSynchronize, "cuCtxSynchronize", 2000, 0)                                 \
  USE(cuMemAlloc_v2, "cuMemAlloc", 3020, 0)                                          \
  USE(cuMemAllocManaged, "cuMemAllocManaged", 6000, 0)                               \
  USE(cuMemAllocAsync, "cuMemAllocAsync", 11020, 0)                                  \
  USE(cuMemFreeAsync, "cuMemFreeAsync", 11020, 0)                                    \
  USE(cuDeviceGetDefaultMemPool, "cuDeviceGetDefaultMemPool", 11020, 0)              \
  USE(cuMemPoolSetAttribute, "cuMemPoolSetAttribute", 11020, 0)                      \
  USE(cuMemFree_v2, "cuMemFree", 3020, 0)                                            \
  USE(cuMemGetInfo_v2, "cuMemGetInfo", 3020, 0)                                      \
  USE(cuMemCreate, "cuMemCreate", 10020, 0)                                          \
  USE(cuMemRelease, "cuMemRelease", 10020, 0)                                        \
  USE(cuMemAddressReserve, "cuMemAddressReserve", 10020, 0)                          \
  USE(cuMemAddressFree, "cuMemAddressFree", 10020, 0)                                \
  USE(cuMemMap, "cuMemMap", 10020, 0)                                                \
  USE(cuMemUnmap, "cuMemUnmap", 10020, 0)                                            \
  USE(cuMemSetAccess, "cuMemSetAccess", 10020, 0)                                    \
  USE(cuMemRetainAllocationHandle, "cuMemRetainAllocationHandle", 11000, 0)          \
  USE(cuMemHostAlloc, "cuMemHostAlloc", 2020, 0)                                     \
  USE(cuMemFreeHost, "cuMemFreeHost", 2000, 0)                                       \
  USE(cuMemcpyHtoD_v2, "cuMemcpyHtoD", 3020, 0)                                      \
  USE(cuMemcpyDtoH_v2, "cuMemcpyDtoH", 3020, 0)                                      \
  USE(cuMemcpyHtoDAsync_v2, "cuMemcpyHtoDAsync", 3020, 0)                            \
  USE(cuMemcpyDtoHAsync_v2, "cuMemcpyDtoHAsync", 3020, 0)                            \
  USE(cuMemsetD32_v2, "cuMemsetD32", 3020, 0)                                        \
  USE(cuMemsetD32Async, "cuMemsetD32Async", 3020, 0)                                 \
  USE(cuModuleLoadData, "cuModuleLoadData", 2000, 0)                                 \
  USE(cuModuleGetFunction, "cuModuleGetFunction", 2000, 0)                           \
  USE(cuLaunchKernel, "cuLaunchKernel", 4000, 0)                                     \
  USE(cuLaunchKernel_ptsz, "cuLaunchKernel", 7000, 2)                                \
  USE(cuStreamCreate, "cuStreamCreate", 2000, 0)                                     \
  USE(cuStreamDestroy_v2, "cuStreamDestroy", 4000, 0)                                \
  USE(cuStreamSynchronize, "cuStreamSynchronize", 2000, 0)                           \
  USE(cuEventCreate, "cuEventCreate", 2000, 0)                                       \
  USE(cuEventRecord, "cuEventRecord", 2000, 0)                                       \
  USE(cuEventSynchronize, "cuEventSynchronize", 2000, 0)                             \
  USE(cuEventElapsedTime, "cuEventElapsedTime", 2000, 0)                             \
  USE(cuEventDestroy_v2, "cuEventDestroy", 4000, 0)                                  \
  USE(cuStreamBeginCapture_v2, "cuStreamBeginCapture", 10010, 0)                     \
  USE(cuStreamEndCapture, "cuStreamEndCapture", 10000, 0)                            \
  USE(cuOccupancyMaxPotentialBlockSize, "cuOccupancyMaxPotentialBlockSize", 6050, 0) \
  USE(cuGraphInstantiate_v2, "cuGraphInstantiate", 11000, 0)                         \
  USE(cuGraphLaunch, "cuGraphLaunch", 10000, 0)                                      \
  USE(cuGraphExecDestroy, "cuGraphExecDestroy", 10000, 0)                            \
  USE(cuGraphDestroy, "cuGraphDestroy", 10000, 0)                                    \
  USE(cuGetErrorName, "cuGetErrorName", 6000, 0)

struct Driver {
#define PROGRAM_MEMBER(symbol, base, version, flags) rota::api::symbol##_fn* symbol = nullptr;
  PROGRAM_FUNCTIONS(PROGRAM_MEMBER)
#undef PROGRAM_MEMBER
  cuGraphInstantiateWithFlags_fn* cuGraphInstantiateWithFlags = nullptr;  // CUDA 11.4 and later

  // Any function of the driver, or null, looked up in the way of the driver's age.
  void* find(const char* symbol, const char* base, int version, cuuint64_t flags) const;

 private:
  friend Driver& cuda();
  void load();
  void* library_ = nullptr;
  cuGetProcAddress_v2_fn* get_ = nullptr;
  cuGetProcAddress_fn* get_without_status_ = nullptr;
};

// Loads the driver; fails the program if there is none.
Driver& cuda();

// Fails the program with the name of the call and of the error.
void check(CUresult result, const char* what);
#define CHECK(call) ::program::check(::program::cuda().call, #call)

// Instantiates a graph with the newest function that the driver has.
CUresult instantiate(CUgraphExec* executable, CUgraph graph);
// cuInit, device, its primary context made current. The device is --device N, or 0.
void start(int device = 0);
// A kernel of kernels.cu by its mangled name. Loads the PTX next to the executable if nvcc has built it.
CUfunction kernel(const char* name);

// Options of the form --name value; unknown options fail the program.
class Options {
 public:
  Options(int argc, char** argv, const char* usage);
  double number(const char* name, double otherwise);
  uint64_t bytes(const char* name, uint64_t otherwise);  // suffixes K, M, G; percent: of the GPU's total memory
  bool flag(const char* name);
  std::string text(const char* name, const char* otherwise);
  void end();  // fails the program if an option was not consumed

 private:
  const char* value(const char* name, bool takes_value);
  int argc_;
  char** argv_;
  const char* usage_;
  std::string used_;
};

double seconds();  // of a monotonic clock

bool stdin_closed();  // at end of file, or never open

}  // namespace program
