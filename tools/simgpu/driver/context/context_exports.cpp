// Contexts: creation, the threads' stacks, synchronization, limits and configuration.
#include <algorithm>

#include "tools/simgpu/driver/driver.h"
#include "tools/simgpu/driver/entry/mutations.h"

using namespace rota::sim;  // NOLINT: the exported functions are all in the global namespace

namespace {

CUresult create(CUcontext* out, unsigned flags, CUdevice device, unsigned api_version) {
  ROTA_SIM_READY();
  if (out == nullptr || !valid_context_flags(flags)) return CUDA_ERROR_INVALID_VALUE;
  if (device < 0 || device >= driver().state().gpus()) return CUDA_ERROR_INVALID_DEVICE;
  ContextPointer context;
  ROTA_SIM_CHECK(driver().create_context(device, flags, false, api_version, &context));
  Driver::stack().push_back(context->handle());
  *out = context->handle();
  return CUDA_SUCCESS;
}

CUresult destroy(CUcontext handle) {
  ROTA_SIM_READY();
  ContextPointer context = driver().contexts.find(handle);
  if (!context || context->primary) return CUDA_ERROR_INVALID_CONTEXT;
  // If several threads get here with one context, the one that removes it from the registry destroys it.
  if (!driver().contexts.remove(handle)) return CUDA_ERROR_INVALID_CONTEXT;
  auto& stack = Driver::stack();
  bool current = !stack.empty() && stack.back() == handle;
  if (current && !mutated(Mutation::destroyed_contexts_stay_current)) stack.pop_back();
  driver().destroy_context(context);
  return CUDA_SUCCESS;
}

CUresult pop(CUcontext* out) {
  ROTA_SIM_READY();
  auto& stack = Driver::stack();
  if (stack.empty()) return CUDA_ERROR_INVALID_CONTEXT;
  if (out != nullptr) *out = stack.back();
  stack.pop_back();
  return CUDA_SUCCESS;
}

CUresult push(CUcontext handle) {
  ROTA_SIM_READY();
  if (!driver().contexts.find(handle)) return CUDA_ERROR_INVALID_CONTEXT;
  Driver::stack().push_back(handle);
  return CUDA_SUCCESS;
}

CUresult synchronize(const ContextPointer& context) {
  if (driver().captures.any()) {
    std::lock_guard lock(driver().captures.mutex);
    if (driver().captures.context_captures(context.get(), true)) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  if (!mutated(Mutation::synchronize_returns_at_once)) driver().wait_for(*context);
  driver().pools_synchronised();
  return static_cast<CUresult>(context->sticky.load());
}

}  // namespace

ROTA_SIM_EXPORT(cuCtxCreate)(CUcontext* out, unsigned flags, CUdevice device) {
  return create(out, flags, device, 3010);
}
ROTA_SIM_EXPORT(cuCtxCreate_v2)(CUcontext* out, unsigned flags, CUdevice device) {
  return create(out, flags, device, 3020);
}

ROTA_SIM_EXPORT(cuCtxCreate_v3)
(CUcontext* out, CUexecAffinityParam* affinity, int count, unsigned flags, CUdevice device) {
  if (count != 0 || affinity != nullptr) return CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY;  // only under MPS
  return create(out, flags, device, 3021);
}

ROTA_SIM_EXPORT(cuCtxCreate_v4)(CUcontext* out, CUctxCreateParams* parameters, unsigned flags, CUdevice device) {
  if (parameters != nullptr && (parameters->execAffinityParams != nullptr || parameters->cigParams != nullptr)) {
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  return create(out, flags, device, 3022);
}

ROTA_SIM_EXPORT(cuCtxDestroy_v2)(CUcontext context) {
  return destroy(context);
}
ROTA_SIM_EXPORT(cuCtxDestroy)(CUcontext context) {
  return destroy(context);
}
ROTA_SIM_EXPORT(cuCtxAttach)(CUcontext* out, unsigned flags) {
  ROTA_SIM_CONTEXT(context);
  if (out == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(context->mutex);
  ++context->attached;
  *out = context->handle();
  return CUDA_SUCCESS;
}

ROTA_SIM_EXPORT(cuCtxDetach)(CUcontext handle) {
  ROTA_SIM_CONTEXT(context);
  if (context->handle() != handle || context->primary) return CUDA_ERROR_INVALID_CONTEXT;
  {
    std::lock_guard lock(context->mutex);
    if (--context->attached > 0) return CUDA_SUCCESS;
  }
  return destroy(handle);
}

ROTA_SIM_EXPORT(cuCtxPushCurrent_v2)(CUcontext context) {
  return push(context);
}
ROTA_SIM_EXPORT(cuCtxPushCurrent)(CUcontext context) {
  return push(context);
}
ROTA_SIM_EXPORT(cuCtxPopCurrent_v2)(CUcontext* context) {
  return pop(context);
}
ROTA_SIM_EXPORT(cuCtxPopCurrent)(CUcontext* context) {
  return pop(context);
}

ROTA_SIM_EXPORT(cuCtxSetCurrent)(CUcontext context) {
  ROTA_SIM_READY();
  auto& stack = Driver::stack();
  if (context == nullptr) {
    if (!stack.empty()) stack.pop_back();
    return CUDA_SUCCESS;
  }
  if (!driver().contexts.find(context)) return CUDA_ERROR_INVALID_CONTEXT;
  if (stack.empty()) {
    stack.push_back(context);
  } else {
    stack.back() = context;
  }
  return CUDA_SUCCESS;
}

ROTA_SIM_EXPORT(cuCtxGetCurrent)(CUcontext* context) {
  ROTA_SIM_READY();
  if (context == nullptr) return CUDA_ERROR_INVALID_VALUE;
  auto& stack = Driver::stack();
  *context = stack.empty() ? nullptr : stack.back();
  return CUDA_SUCCESS;
}

ROTA_SIM_EXPORT(cuCtxGetDevice)(CUdevice* device) {
  ROTA_SIM_CONTEXT(context);
  if (device == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *device = context->gpu;
  return CUDA_SUCCESS;
}

ROTA_SIM_EXPORT(cuCtxGetDevice_v2)(CUdevice* device, CUcontext handle) {
  ROTA_SIM_READY();
  ContextPointer context;
  ROTA_SIM_CHECK(driver().context_of(handle, &context));
  if (device == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *device = context->gpu;
  return CUDA_SUCCESS;
}

ROTA_SIM_EXPORT(cuCtxGetId)(CUcontext handle, unsigned long long* id) {
  ROTA_SIM_READY();
  ContextPointer context;
  ROTA_SIM_CHECK(driver().context_of(handle, &context));
  if (id == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *id = mutated(Mutation::context_ids_are_alike) ? 1 : context->id;
  return CUDA_SUCCESS;
}

ROTA_SIM_EXPORT(cuCtxGetFlags)(unsigned* flags) {
  ROTA_SIM_CONTEXT(context);
  if (flags == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *flags = context->flags;
  return CUDA_SUCCESS;
}

ROTA_SIM_EXPORT(cuCtxSetFlags)(unsigned flags) {
  ROTA_SIM_CONTEXT(context);
  if (!valid_context_flags(flags)) return CUDA_ERROR_INVALID_VALUE;
  if (mutated(Mutation::context_flags_are_not_kept)) return CUDA_SUCCESS;
  context->flags = flags;
  return CUDA_SUCCESS;
}

ROTA_SIM_EXPORT(cuCtxGetApiVersion)(CUcontext handle, unsigned* version) {
  ROTA_SIM_READY();
  ContextPointer context;
  ROTA_SIM_CHECK(driver().context_of(handle, &context));
  if (version == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *version = context->api_version;
  return CUDA_SUCCESS;
}

ROTA_SIM_EXPORT(cuCtxSynchronize)() {
  ROTA_SIM_CONTEXT(context);
  return synchronize(context);
}

ROTA_SIM_EXPORT(cuCtxSynchronize_v2)(CUcontext handle) {
  ROTA_SIM_READY();
  ContextPointer context;
  ROTA_SIM_CHECK(driver().context_of(handle, &context));
  return synchronize(context);
}

ROTA_SIM_EXPORT(cuCtxGetStreamPriorityRange)(int* least, int* greatest) {
  ROTA_SIM_CONTEXT(context);
  if (least != nullptr) *least = kLeastStreamPriority;
  if (greatest != nullptr) *greatest = kGreatestStreamPriority;
  return CUDA_SUCCESS;
}

ROTA_SIM_EXPORT(cuCtxGetCacheConfig)(CUfunc_cache* config) {
  ROTA_SIM_CONTEXT(context);
  if (config == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(context->mutex);
  *config = context->cache_config;
  return CUDA_SUCCESS;
}

ROTA_SIM_EXPORT(cuCtxSetCacheConfig)(CUfunc_cache config) {
  ROTA_SIM_CONTEXT(context);
  if (config < CU_FUNC_CACHE_PREFER_NONE || config > CU_FUNC_CACHE_PREFER_EQUAL) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(context->mutex);
  context->cache_config = config;
  return CUDA_SUCCESS;
}

namespace {

struct Limit {
  size_t initial;
  size_t least;
  size_t most;      // larger values are reduced to this …
  size_t refused;   // … and refused from here on
  size_t unit = 1;  // values are rounded up to a multiple of this
};

// False: the device has no such limit.
bool limit_of(CUlimit which, Limit* limit) {
  const DeviceFigures& figures = driver().device_figures();
  switch (which) {
    case CU_LIMIT_STACK_SIZE:  // per thread: 512 KiB of local memory minus what the driver keeps
      *limit = {1024, 0, 524272, 524273, 16};
      return true;
    case CU_LIMIT_PRINTF_FIFO_SIZE:
      *limit = {size_t{7} << 20, 4096, SIZE_MAX, SIZE_MAX};
      return true;
    case CU_LIMIT_MALLOC_HEAP_SIZE:
      *limit = {size_t{8} << 20, 4096, SIZE_MAX, SIZE_MAX};
      return true;
    case CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH:
      *limit = {2, 0, 24, 25};
      return figures.compute_capability() < 90;
    case CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT:
      *limit = {2048, 1, SIZE_MAX, SIZE_MAX};
      return true;
    case CU_LIMIT_MAX_L2_FETCH_GRANULARITY:
      *limit = {64, 0, 128, SIZE_MAX};
      return true;
    case CU_LIMIT_PERSISTING_L2_CACHE_SIZE: {
      auto most = static_cast<size_t>(figures.attribute(CU_DEVICE_ATTRIBUTE_MAX_PERSISTING_L2_CACHE_SIZE));
      *limit = {0, 0, most, SIZE_MAX};
      return true;
    }
    default:
      return false;
  }
}

}  // namespace

ROTA_SIM_EXPORT(cuCtxGetLimit)(size_t* value, CUlimit which) {
  ROTA_SIM_CONTEXT(context);
  if (value == nullptr || which >= CU_LIMIT_MAX) return CUDA_ERROR_INVALID_VALUE;
  Limit limit{};
  if (!limit_of(which, &limit)) return CUDA_ERROR_UNSUPPORTED_LIMIT;
  std::lock_guard lock(context->mutex);
  auto set = context->limits.find(static_cast<int>(which));
  *value = set != context->limits.end() ? set->second : limit.initial;
  return CUDA_SUCCESS;
}

ROTA_SIM_EXPORT(cuCtxSetLimit)(CUlimit which, size_t value) {
  ROTA_SIM_CONTEXT(context);
  if (which >= CU_LIMIT_MAX) return CUDA_ERROR_INVALID_VALUE;
  Limit limit{};
  if (!limit_of(which, &limit)) return CUDA_ERROR_UNSUPPORTED_LIMIT;
  if (value >= limit.refused) return CUDA_ERROR_INVALID_VALUE;
  value = std::clamp(value, limit.least, limit.most);
  value = (value + limit.unit - 1) / limit.unit * limit.unit;
  if (mutated(Mutation::limits_are_not_kept)) return CUDA_SUCCESS;
  std::lock_guard lock(context->mutex);
  context->limits[static_cast<int>(which)] = value;
  return CUDA_SUCCESS;
}

ROTA_SIM_EXPORT(cuCtxGetSharedMemConfig)(CUsharedconfig* config) {
  ROTA_SIM_CONTEXT(context);
  if (config == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *config = CU_SHARED_MEM_CONFIG_FOUR_BYTE_BANK_SIZE;  // the banks of these devices cannot be configured
  return CUDA_SUCCESS;
}

ROTA_SIM_EXPORT(cuCtxSetSharedMemConfig)(CUsharedconfig config) {
  ROTA_SIM_CONTEXT(context);
  return config <= CU_SHARED_MEM_CONFIG_EIGHT_BYTE_BANK_SIZE ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

ROTA_SIM_EXPORT(cuCtxGetExecAffinity)(CUexecAffinityParam* affinity, CUexecAffinityType type) {
  ROTA_SIM_CONTEXT(context);
  if (affinity == nullptr || type >= CU_EXEC_AFFINITY_TYPE_MAX) return CUDA_ERROR_INVALID_VALUE;
  return CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY;  // only under MPS
}

ROTA_SIM_EXPORT(cuCtxResetPersistingL2Cache)() {
  ROTA_SIM_CONTEXT(context);
  return CUDA_SUCCESS;  // the cache is not modelled, so there is nothing to reset
}
