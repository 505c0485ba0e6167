// A CUDA runtime for programs compiled with `nvcc -cudart shared`: enough to run them on the simulated driver. It finds
// the driver as NVIDIA's does and reaches it through the pointers it was handed only, so that an interposed
// libcuda.so.1 sees every call. Types are declared here by their layout: no CUDA headers are needed.
#pragma once

#include <cstddef>
#include <cstdint>

#include "generated/driver_functions.h"
#include "generated/driver_types.h"

namespace rota::sim::cudart {

using namespace rota::api;  // NOLINT(google-build-using-namespace): the names are CUDA's own

// cudaError_t has the driver's numbers, but for these, which have no counterpart there or another name.
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

// The driver, as found; entries that it lacks are null and answer kNotSupported through call().
struct Driver {
#define ROTA_CUDART_LOOKUP(member, name, version, flags) rota::api::member##_fn* member = nullptr;
#include "tools/simgpu/cudart/lookups.inc"
#undef ROTA_CUDART_LOOKUP
  rota::api::cuGetProcAddress_v2_fn* get_proc_address = nullptr;
  int status = kInitializationError;  // of the start: kSuccess, or why nothing works
};

// Finds and initialises the driver at the first call.
Driver& driver();

// The calling thread's state.
struct Thread {
  int last_error = kSuccess;
  int device = -1;  // chosen by cudaSetDevice or at the first use; -1: none yet
  // The primary context that the runtime made current here, and which of its lives it was: a reset begins a new one.
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

// Remembers an error for cudaGetLastError (not-ready is none) and returns it.
int done(int error);

// The device on which the calling thread works, or would work.
int current_device();
// The primary context of a device, retained once for the life of the process (or until cudaDeviceReset).
int primary_context(int device, CUcontext* context);
// The driver is up and this thread has a context: its device's primary one, unless it has set another.
int ensure_context();

// Calls a driver function after ensure_context(); the error is returned and not yet remembered.
template <class Function, class... Arguments>
int attempt(Function* Driver::* member, Arguments... arguments) {
  if (int error = ensure_context(); error != kSuccess) return error;
  Function* function = driver().*member;
  if (function == nullptr) return kNotSupported;
  return static_cast<int>(function(arguments...));
}
// The same, and remembers an error.
template <class Function, class... Arguments>
int call(Function* Driver::* member, Arguments... arguments) {
  return done(attempt(member, arguments...));
}
// The same without a context: for what concerns a device or nothing at all.
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

// The driver's handle of a host stub that __cudaRegisterFunction has told of, or of a cudaKernel_t given in its place.
int kernel_of(const void* host_function, CUkernel* kernel);
// The host stub of a kernel or of its function in the current context; what it was given where there is none.
const void* host_function_of(CUkernel kernel, CUfunction function);
// A kernel that did not come from a registration may be used where a host function is asked for, until its library
// goes.
void remember_kernel(CUkernel kernel, CUlibrary library);
void forget_library(CUlibrary library);

// A device variable that a program has registered: its address in the current context and its size.
int variable_of(const void* symbol, CUdeviceptr* where, size_t* bytes);

// The memory types of a copy's sides by its cudaMemcpyKind (0 host to host … 4 by the addresses); false for no kind.
bool memory_types(int kind, CUmemorytype* source, CUmemorytype* target);

}  // namespace rota::sim::cudart

#define ROTA_CUDART_EXPORT extern "C" __attribute__((visibility("default")))
