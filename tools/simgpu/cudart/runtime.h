// A CUDA runtime for programs compiled with `nvcc -cudart shared`: enough to run them on the simulated driver. It finds
// the driver as NVIDIA's runtime does and calls it only through the pointers that it was given, so that an interposed
// libcuda.so.1 sees every call. Types are declared here by layout: no CUDA headers are needed.
#pragma once

#include <cstddef>
#include <cstdint>

#include "generated/driver_functions.h"
#include "generated/driver_types.h"

namespace rota::sim::cudart {

using namespace rota::api;  // NOLINT(google-build-using-namespace): the names are CUDA's own

// cudaError_t has the driver's numbers, except these, which have no counterpart there or a different name.
enum Error : int {
  kSuccess = 0,
  kInvalidValue = 1,
  kInitializationError = 3,
  kInvalidPitchValue = 12,
  kInvalidSymbol = 13,
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

// dim3.
struct Dim3 {
  unsigned x, y, z;
};

// The driver's functions. Entries for functions that it does not have are null, and call() returns kNotSupported for
// them.
struct Driver {
#define ROTA_CUDART_LOOKUP(member, name, version, flags) rota::api::member##_fn* member = nullptr;
#include "tools/simgpu/cudart/lookups.inc"
#undef ROTA_CUDART_LOOKUP
  rota::api::cuGetProcAddress_v2_fn* get_proc_address = nullptr;
  int status = kInitializationError;  // of the initialization: kSuccess, or why nothing works
};

// Finds and initialises the driver at the first call.
Driver& driver();

// The calling thread's state.
struct Thread {
  int last_error = kSuccess;
  int device = -1;  // chosen by cudaSetDevice or at the first use; -1: none yet
  // The primary context that the runtime made current here, and its generation: a reset begins a new one.
  CUcontext context = nullptr;
  unsigned life = 0;
  struct Configuration {
    Dim3 grid, block;
    size_t shared;
    CUstream stream;
  };
  Configuration pushed[8];
  int depth = 0;
};
Thread& thread();

// Records an error for cudaGetLastError (not-ready is not an error) and returns it.
int done(int error);

// The device that the calling thread uses, or would use.
int current_device();
// The primary context of a device, retained once for the life of the process (or until cudaDeviceReset).
int primary_context(int device, CUcontext* context);
// Makes sure that the driver is initialized and that this thread has a context: its device's primary one, unless the
// thread has set another.
int ensure_context();

// Calls a driver function after ensure_context(); returns the error without recording it.
template <class Function, class... Arguments>
int attempt(Function* Driver::* member, Arguments... arguments) {
  if (int error = ensure_context(); error != kSuccess) return error;
  Function* function = driver().*member;
  if (function == nullptr) return kNotSupported;
  return static_cast<int>(function(arguments...));
}
// The same, and records an error.
template <class Function, class... Arguments>
int call(Function* Driver::* member, Arguments... arguments) {
  return done(attempt(member, arguments...));
}
// The same without a context: for functions that concern a device, or neither.
template <class Function, class... Arguments>
int call_without_context(Function* Driver::* member, Arguments... arguments) {
  Driver& api = driver();
  if (api.status != kSuccess) return done(api.status);
  Function* function = api.*member;
  if (function == nullptr) return done(kNotSupported);
  return done(static_cast<int>(function(arguments...)));
}

inline CUdeviceptr address(const void* pointer) {
  return reinterpret_cast<CUdeviceptr>(pointer);
}

// The driver's handle for a host stub registered with __cudaRegisterFunction, or for a cudaKernel_t given in its place.
int kernel_of(const void* host_function, CUkernel* kernel);
// The host stub of a kernel or of its function in the current context; returns its argument if there is none.
const void* host_function_of(CUkernel kernel, CUfunction function);
// A kernel that does not come from a registration may be used in place of a host function until its library is
// unloaded.
void remember_kernel(CUkernel kernel, CUlibrary library);
void forget_library(CUlibrary library);

// A device variable that a program has registered: its address in the current context and its size.
int variable_of(const void* symbol, CUdeviceptr* where, size_t* bytes);

// The memory types of a copy's sides from its cudaMemcpyKind (0 host to host … 4 derived from the addresses); false if
// the kind is invalid.
bool memory_types(int kind, CUmemorytype* source, CUmemorytype* target);

}  // namespace rota::sim::cudart

#define ROTA_CUDART_EXPORT extern "C" __attribute__((visibility("default")))
