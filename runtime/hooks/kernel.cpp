// Kernels that are looked up by name: whoever has collective ones is a member of a gang (runtime/turn/gang_evidence.h).
// Libraries and cudart find theirs through these two. Those that are enumerated are not looked at, nor are handles of
// the same kernel that come later (cuKernelGetFunction).
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

}  // namespace rota::overrides
