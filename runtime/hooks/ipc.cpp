// Memory that is handed out: to another process by a legacy IPC handle, or to a device as a dma-buf.
#include "generated/driver_gates.h"
#include "runtime/core/runtime.h"
#include "runtime/hooks/overrides.h"

namespace rota::overrides {

using api::CUdeviceptr;
using api::CUresult;

CUresult cuIpcGetMemHandle(api::CUipcMemHandle* pHandle, CUdeviceptr dptr) {
  return runtime().memory.explained(gates::cuIpcGetMemHandle(pHandle, dptr), dptr, "cuIpcGetMemHandle");
}

CUresult cuMemGetHandleForAddressRange(void* handle, CUdeviceptr dptr, std::size_t size,
                                       api::CUmemRangeHandleType handleType, unsigned long long flags) {
  return runtime().memory.explained(gates::cuMemGetHandleForAddressRange(handle, dptr, size, handleType, flags), dptr,
                                    "cuMemGetHandleForAddressRange");
}

}  // namespace rota::overrides
