// Contexts: created ones, the threads' stacks, waiting for a context, limits and configuration.
#include <algorithm>

#include "tools/simgpu/driver/driver.h"

using namespace rota::sim;  // NOLINT: the exported functions are all in the global namespace

namespace {

CUresult create(CUcontext* out, unsigned flags, CUdevice device, unsigned api_version) {
  ROTA_SIM_READY();
  if (out == nullptr || (flags & ~unsigned{CU_CTX_FLAGS_MASK}) != 0) return CUDA_ERROR_INVALID_VALUE;
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
  auto& stack = Driver::stack();
  if (!stack.empty() && stack.back() == handle) stack.pop_back();
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
  std::vector<StreamPointer> streams;
  {
    std::lock_guard lock(context->mutex);
    streams = context->all_streams();
  }
  for (const StreamPointer& stream : streams) {
    if (TaskPointer last = stream->last()) last->wait();
  }
  return static_cast<CUresult>(context->sticky.load());
}

}  // namespace

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
  *id = context->id;
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
  if ((flags & ~unsigned{CU_CTX_FLAGS_MASK}) != 0) return CUDA_ERROR_INVALID_VALUE;
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
  if (least != nullptr) *least = 0;
  if (greatest != nullptr) *greatest = -5;
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

ROTA_SIM_EXPORT(cuCtxGetLimit)(size_t* value, CUlimit limit) {
  ROTA_SIM_CONTEXT(context);
  if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(context->mutex);
  if (auto set = context->limits.find(limit); set != context->limits.end()) {
    *value = set->second;
    return CUDA_SUCCESS;
  }
  switch (limit) {
    case CU_LIMIT_STACK_SIZE:
      *value = 1024;
      return CUDA_SUCCESS;
    case CU_LIMIT_PRINTF_FIFO_SIZE:
      *value = 7 << 20;
      return CUDA_SUCCESS;
    case CU_LIMIT_MALLOC_HEAP_SIZE:
      *value = 8 << 20;
      return CUDA_SUCCESS;
    case CU_LIMIT_MAX_L2_FETCH_GRANULARITY:
      *value = 64;
      return CUDA_SUCCESS;
    case CU_LIMIT_PERSISTING_L2_CACHE_SIZE:
      *value = 0;
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_UNSUPPORTED_LIMIT;
  }
}

ROTA_SIM_EXPORT(cuCtxSetLimit)(CUlimit limit, size_t value) {
  size_t now = 0;
  if (CUresult result = cuCtxGetLimit_simulated(&now, limit); result != CUDA_SUCCESS) return result;
  ROTA_SIM_CONTEXT(context);
  std::lock_guard lock(context->mutex);
  context->limits[limit] = value;
  return CUDA_SUCCESS;
}

ROTA_SIM_EXPORT(cuCtxResetPersistingL2Cache)() {
  ROTA_SIM_CONTEXT(context);
  return CUDA_SUCCESS;  // the cache is not modelled, so there is nothing to reset
}
