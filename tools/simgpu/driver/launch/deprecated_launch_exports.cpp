// The deprecated launch functions: the function object keeps block shape, shared memory and arguments between calls.
#include <cstring>

#include "tools/simgpu/driver/driver.h"

using namespace rota::sim;  // NOLINT: the exported functions are all in the global namespace

namespace {

constexpr int kArgumentBytesAtMost = 4096;  // what a kernel's parameters may take in this form

// Calls f(the function's state) under its lock.
template <class Use>
CUresult with_state(CUfunction handle, Use use) {
  ROTA_SIM_CONTEXT(context);
  FunctionPointer function;
  ROTA_SIM_CHECK(function_for_launch(handle, context, &function));
  std::lock_guard lock(function->held.mutex);
  return use(function->held);
}

CUresult set_argument(CUfunction function, int offset, const void* from, size_t bytes) {
  return with_state(function, [=](HeldLaunch& held) {
    if (offset < 0 || from == nullptr || bytes > kArgumentBytesAtMost) return CUDA_ERROR_INVALID_VALUE;
    size_t end = static_cast<size_t>(offset) + bytes;
    if (end > kArgumentBytesAtMost) return CUDA_ERROR_INVALID_VALUE;
    if (held.arguments.size() < end) held.arguments.resize(end);
    if (bytes != 0) std::memcpy(held.arguments.data() + offset, from, bytes);
    return CUDA_SUCCESS;
  });
}

CUresult launch(CUfunction handle, int width, int height, CUstream stream_handle) {
  ROTA_SIM_CONTEXT(context);
  FunctionPointer function;
  StreamPointer stream;
  ROTA_SIM_CHECK(function_for_launch(handle, context, &function));
  ROTA_SIM_CHECK(driver().stream_of(stream_handle, Form::kLegacy, context, &stream));
  if (width <= 0 || height <= 0) return CUDA_ERROR_INVALID_VALUE;
  if (stream->context != context.get()) return CUDA_ERROR_INVALID_HANDLE;
  KernelParameters parameters;
  parameters.function = function;
  parameters.grid[0] = static_cast<unsigned>(width);
  parameters.grid[1] = static_cast<unsigned>(height);
  {
    std::lock_guard lock(function->held.mutex);
    std::copy(function->held.block, function->held.block + 3, parameters.block);
    parameters.shared_bytes = function->held.shared_bytes;
    parameters.bytes = function->held.arguments;
  }
  if (parameters.bytes.empty()) parameters.bytes.resize(1);
  Operation operation;
  ROTA_SIM_CHECK(make_launch(parameters, &operation));
  return driver().submit(stream, std::move(operation));
}

}  // namespace

ROTA_SIM_EXPORT(cuFuncSetBlockShape)(CUfunction function, int x, int y, int z) {
  return with_state(function, [=](HeldLaunch& held) {
    if (x <= 0 || y <= 0 || z <= 0) return CUDA_ERROR_INVALID_VALUE;
    int shape[] = {x, y, z};
    std::copy(shape, shape + 3, held.block);
    return CUDA_SUCCESS;
  });
}
ROTA_SIM_EXPORT(cuFuncSetSharedSize)(CUfunction function, unsigned bytes) {
  return with_state(function, [=](HeldLaunch& held) {
    held.shared_bytes = bytes;
    return CUDA_SUCCESS;
  });
}
ROTA_SIM_EXPORT(cuParamSetSize)(CUfunction function, unsigned bytes) {
  return with_state(function, [=](HeldLaunch& held) {
    if (bytes > kArgumentBytesAtMost) return CUDA_ERROR_INVALID_VALUE;
    held.arguments.resize(bytes);
    return CUDA_SUCCESS;
  });
}
ROTA_SIM_EXPORT(cuParamSeti)(CUfunction function, int offset, unsigned value) {
  return set_argument(function, offset, &value, sizeof value);
}
ROTA_SIM_EXPORT(cuParamSetf)(CUfunction function, int offset, float value) {
  return set_argument(function, offset, &value, sizeof value);
}
ROTA_SIM_EXPORT(cuParamSetv)(CUfunction function, int offset, void* from, unsigned bytes) {
  return set_argument(function, offset, from, bytes);
}
ROTA_SIM_EXPORT(cuLaunch)(CUfunction function) {
  return launch(function, 1, 1, nullptr);
}
ROTA_SIM_EXPORT(cuLaunchGrid)(CUfunction function, int width, int height) {
  return launch(function, width, height, nullptr);
}
ROTA_SIM_EXPORT(cuLaunchGridAsync)(CUfunction function, int width, int height, CUstream stream) {
  return launch(function, width, height, stream);
}
