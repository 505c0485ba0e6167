// Legacy interprocess memory and events.
#include "tools/simgpu/driver/driver.h"
#include "tools/simgpu/driver/ipc/ipc.h"

using namespace rota::sim;  // NOLINT: the exported functions are all in the global namespace

namespace {

CUresult open_memory(CUdeviceptr* out, const CUipcMemHandle& handle, unsigned flags) {
  ROTA_SIM_CONTEXT(context);
  if (out == nullptr || flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) return CUDA_ERROR_INVALID_VALUE;
  ROTA_SIM_CHECK(driver().check_unsafe_call());
  uint64_t address = 0;
  ROTA_SIM_CHECK(driver().imported_memory.open(*context, handle, &address));
  *out = address;
  return CUDA_SUCCESS;
}

}  // namespace

ROTA_SIM_EXPORT(cuIpcGetMemHandle)(CUipcMemHandle* handle, CUdeviceptr address) {
  ROTA_SIM_CONTEXT(context);
  return handle == nullptr ? CUDA_ERROR_INVALID_VALUE : export_memory(address, handle);
}
ROTA_SIM_EXPORT(cuIpcOpenMemHandle_v2)(CUdeviceptr* out, CUipcMemHandle handle, unsigned flags) {
  return open_memory(out, handle, flags);
}
ROTA_SIM_EXPORT(cuIpcOpenMemHandle)(CUdeviceptr* out, CUipcMemHandle handle, unsigned flags) {
  return open_memory(out, handle, flags);
}
ROTA_SIM_EXPORT(cuIpcCloseMemHandle)(CUdeviceptr address) {
  ROTA_SIM_CONTEXT(context);
  ROTA_SIM_CHECK(driver().check_unsafe_call());
  return driver().imported_memory.close(address);
}

ROTA_SIM_EXPORT(cuIpcGetEventHandle)(CUipcEventHandle* handle, CUevent event) {
  ROTA_SIM_CONTEXT(context);
  if (handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
  EventPointer object = driver().events.find(event);
  return object ? export_event(*object, handle) : CUDA_ERROR_INVALID_HANDLE;
}
ROTA_SIM_EXPORT(cuIpcOpenEventHandle)(CUevent* out, CUipcEventHandle handle) {
  ROTA_SIM_CONTEXT(context);
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  auto shared = open_event(handle);
  if (!shared) return CUDA_ERROR_INVALID_VALUE;
  auto event = std::make_shared<Event>(CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS, context->handle());
  event->shared = std::move(shared);
  *out = driver().events.add(std::move(event));
  return CUDA_SUCCESS;
}
