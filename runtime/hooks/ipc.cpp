// Memory that another process opens by a legacy IPC handle.
#include "generated/driver_real.h"
#include "runtime/core/runtime.h"
#include "runtime/hooks/overrides.h"

namespace rota::overrides {

using api::CUdeviceptr;
using api::CUresult;

CUresult cuIpcGetMemHandle(api::CUipcMemHandle* pHandle, CUdeviceptr dptr) {
  return runtime().memory.ipc_handle(pHandle, dptr);
}

}  // namespace rota::overrides
