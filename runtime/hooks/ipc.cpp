// Memory that is exported: to another process by a legacy IPC handle, or to a device as a dma-buf; and events.
#include "generated/driver_gates.h"
#include "generated/driver_real.h"
#include "runtime/core/runtime.h"
#include "runtime/hooks/overrides.h"

namespace rota::overrides {

using api::CUdeviceptr;
using api::CUresult;

CUresult cuIpcGetMemHandle(api::CUipcMemHandle* pHandle, CUdeviceptr dptr) {
  return runtime().memory.explained(gates::cuIpcGetMemHandle(pHandle, dptr), dptr, "cuIpcGetMemHandle");
}

// An event holds no memory. But a process that has opened one of another process may wait in its streams for that
// process's work, which may wait for an answer: both may have to run at the same time.
CUresult cuIpcGetEventHandle(api::CUipcEventHandle* pHandle, api::CUevent event) {
  const CUresult result = real::cuIpcGetEventHandle(pHandle, event);
  if (result == api::CUDA_SUCCESS) runtime().monitor.shares();
  return result;
}

CUresult cuIpcOpenEventHandle(api::CUevent* phEvent, api::CUipcEventHandle handle) {
  const CUresult result = real::cuIpcOpenEventHandle(phEvent, handle);
  if (result == api::CUDA_SUCCESS) runtime().monitor.shares();
  return result;
}

CUresult cuMemGetHandleForAddressRange(void* handle, CUdeviceptr dptr, std::size_t size,
                                       api::CUmemRangeHandleType handleType, unsigned long long flags) {
  return runtime().memory.explained(gates::cuMemGetHandleForAddressRange(handle, dptr, size, handleType, flags), dptr,
                                    "cuMemGetHandleForAddressRange");
}

}  // namespace rota::overrides
