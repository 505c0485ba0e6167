// Memory that is handed out: to another process by a legacy IPC handle, or to a device as a dma-buf.
#include "generated/driver_gates.h"
#include "runtime/core/runtime.h"
#include "runtime/hooks/overrides.h"

namespace rota::overrides {

using api::CUdeviceptr;
using api::CUresult;

CUresult cuIpcGetMemHandle(api::CUipcMemHandle* pHandle, CUdeviceptr dptr) {
  return runtime().memory.ipc_handle(pHandle, dptr);
}

CUresult cuMemGetHandleForAddressRange(void* handle, CUdeviceptr dptr, std::size_t size,
                                       api::CUmemRangeHandleType handleType, unsigned long long flags) {
  const CUresult result = gates::cuMemGetHandleForAddressRange(handle, dptr, size, handleType, flags);
  if (result != api::CUDA_SUCCESS) runtime().memory.explain_refusal(dptr, "cuMemGetHandleForAddressRange");
  return result;
}

}  // namespace rota::overrides
