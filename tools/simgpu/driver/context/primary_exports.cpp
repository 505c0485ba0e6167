// Primary contexts: one per device and process, counted.
#include "tools/simgpu/driver/driver.h"
#include "tools/simgpu/driver/entry/mutations.h"

using namespace rota::sim;  // NOLINT: the exported functions are all in the global namespace

ROTA_SIM_EXPORT(cuDevicePrimaryCtxRetain)(CUcontext* context, CUdevice device) {
  ROTA_SIM_READY();
  if (context == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  Device& state = driver().devices[static_cast<size_t>(device)];
  std::lock_guard lock(state.mutex);
  if (!state.primary) {
    ROTA_SIM_CHECK(driver().create_context(device, state.primary_flags, true, 3020, &state.primary));
  }
  ++state.retained;
  *context = state.primary->handle();
  return CUDA_SUCCESS;
}

namespace {
CUresult release_primary(CUdevice device, bool reset) {
  ROTA_SIM_READY();
  if (!is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  Device& state = driver().devices[static_cast<size_t>(device)];
  ContextPointer ending;
  {
    std::lock_guard lock(state.mutex);
    if (!reset) {
      // A reset in between does not release any reference.
      if (state.retained == 0) return CUDA_ERROR_INVALID_CONTEXT;
      if (--state.retained != 0 && !mutated(Mutation::primary_contexts_are_not_counted)) return CUDA_SUCCESS;
      if (mutated(Mutation::released_contexts_stay)) return CUDA_SUCCESS;
    }
    if (reset && mutated(Mutation::reset_releases)) state.retained = 0;
    ending.swap(state.primary);
  }
  if (ending) driver().destroy_context(ending);
  return CUDA_SUCCESS;
}

CUresult set_primary_flags(CUdevice device, unsigned flags) {
  ROTA_SIM_READY();
  if (!is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  if (!valid_context_flags(flags)) return CUDA_ERROR_INVALID_VALUE;
  Device& state = driver().devices[static_cast<size_t>(device)];
  std::lock_guard lock(state.mutex);
  state.primary_flags = flags;
  if (state.primary) state.primary->flags = flags;
  return CUDA_SUCCESS;
}
}  // namespace

ROTA_SIM_EXPORT(cuDevicePrimaryCtxRelease_v2)(CUdevice device) {
  return release_primary(device, false);
}
ROTA_SIM_EXPORT(cuDevicePrimaryCtxRelease)(CUdevice device) {
  return release_primary(device, false);
}
ROTA_SIM_EXPORT(cuDevicePrimaryCtxReset_v2)(CUdevice device) {
  return release_primary(device, true);
}
ROTA_SIM_EXPORT(cuDevicePrimaryCtxReset)(CUdevice device) {
  return release_primary(device, true);
}
ROTA_SIM_EXPORT(cuDevicePrimaryCtxSetFlags_v2)(CUdevice device, unsigned flags) {
  return set_primary_flags(device, flags);
}
ROTA_SIM_EXPORT(cuDevicePrimaryCtxSetFlags)(CUdevice device, unsigned flags) {
  return set_primary_flags(device, flags);
}

ROTA_SIM_EXPORT(cuDevicePrimaryCtxGetState)(CUdevice device, unsigned* flags, int* active) {
  ROTA_SIM_READY();
  if (flags == nullptr || active == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  Device& state = driver().devices[static_cast<size_t>(device)];
  std::lock_guard lock(state.mutex);
  *flags = state.primary_flags;
  *active = state.primary ? 1 : 0;
  return CUDA_SUCCESS;
}
