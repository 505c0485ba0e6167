// Kernels that are looked up by name, or enumerated: a process with collective kernels is a member of a gang
// (runtime/client/gang_evidence.h). Handles of the same kernel that come later (cuKernelGetFunction) say nothing new.
#include <algorithm>

#include "generated/driver_gates.h"
#include "generated/driver_real.h"
#include "runtime/core/runtime.h"
#include "runtime/hooks/overrides.h"

namespace rota::overrides {

api::CUresult cuModuleGetFunction(api::CUfunction* hfunc, api::CUmodule hmod, const char* name) {
  const api::CUresult result = gates::cuModuleGetFunction(hfunc, hmod, name);
  if (result == api::CUDA_SUCCESS) runtime().monitor.kernel_found(name);
  return result;
}

api::CUresult cuLibraryGetKernel(api::CUkernel* pKernel, api::CUlibrary library, const char* name) {
  const api::CUresult result = real::cuLibraryGetKernel(pKernel, library, name);
  if (result == api::CUDA_SUCCESS) runtime().monitor.kernel_found(name);
  return result;
}

namespace {

// The driver has written as many handles as `count` says, `capacity` at most.
template <typename Handle, typename Count, typename Name>
api::CUresult enumerated(api::CUresult result, const Handle* handles, unsigned int capacity, Count&& count,
                         Name&& name_of) {
  unsigned int there = 0;
  if (result != api::CUDA_SUCCESS || handles == nullptr || count(&there) != api::CUDA_SUCCESS) return result;
  for (unsigned int index = 0; index < std::min(capacity, there); ++index) {
    const char* name = nullptr;
    if (name_of(&name, handles[index]) == api::CUDA_SUCCESS && name != nullptr) runtime().monitor.kernel_found(name);
  }
  return result;
}

}  // namespace

api::CUresult cuModuleEnumerateFunctions(api::CUfunction* functions, unsigned int numFunctions, api::CUmodule mod) {
  return enumerated(
      real::cuModuleEnumerateFunctions(functions, numFunctions, mod), functions, numFunctions,
      [&](unsigned int* count) { return real::cuModuleGetFunctionCount(count, mod); }, real::cuFuncGetName);
}

api::CUresult cuLibraryEnumerateKernels(api::CUkernel* kernels, unsigned int numKernels, api::CUlibrary lib) {
  return enumerated(
      real::cuLibraryEnumerateKernels(kernels, numKernels, lib), kernels, numKernels,
      [&](unsigned int* count) { return real::cuLibraryGetKernelCount(count, lib); }, real::cuKernelGetName);
}

}  // namespace rota::overrides
