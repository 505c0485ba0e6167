// Loads kernel libraries, checks launches and runs them.
#include "tools/simgpu/driver/kernels.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "tools/simgpu/driver/driver.h"

namespace rota::sim {
namespace {

// cuda.h's CU_LAUNCH_PARAM_BUFFER_POINTER, CU_LAUNCH_PARAM_BUFFER_SIZE and CU_LAUNCH_PARAM_END.
void* const kBufferPointer = reinterpret_cast<void*>(uintptr_t{1});
void* const kBufferSize = reinterpret_cast<void*>(uintptr_t{2});

// What a kernel runs with.
struct RunningLaunch : RotaSimLaunch {
  Context* context = nullptr;
  const Function* function = nullptr;
  int64_t owed = 0;  // modelled nanoseconds of the compute engine that the launch has not waited for yet
};

void* translate(RotaSimLaunch* launch, uint64_t address, uint64_t bytes) {
  auto* running = static_cast<RunningLaunch*>(launch);
  void* memory = driver().memory.storage(address, bytes);
  if (memory == nullptr) {
    int none = 0;
    running->context->sticky.compare_exchange_strong(none, CUDA_ERROR_ILLEGAL_ADDRESS);
  }
  return memory;
}

void touch(RotaSimLaunch* launch, uint64_t address, uint64_t bytes) {
  auto* running = static_cast<RunningLaunch*>(launch);
  driver().make_resident(address, bytes, Access::kKernel, &running->owed);
}

void busy(RotaSimLaunch* launch, uint64_t nanoseconds) {
  auto* running = static_cast<RunningLaunch*>(launch);
  driver().occupy(*running->context, EngineKind::kCompute, running->owed + static_cast<int64_t>(nanoseconds));
  running->owed = 0;
}

int cancelled(RotaSimLaunch* launch) {
  return static_cast<RunningLaunch*>(launch)->context->destroyed.load() ? 1 : 0;
}

void* variable(RotaSimLaunch* launch, const char* name, uint64_t bytes) {
  auto* running = static_cast<RunningLaunch*>(launch);
  void* memory = variable_storage(*running->function, *running->context, name, bytes);
  if (memory == nullptr) {
    int none = 0;
    running->context->sticky.compare_exchange_strong(none, CUDA_ERROR_ILLEGAL_ADDRESS);
  }
  return memory;
}

const RotaSimLaunchCalls kCalls{&translate, &touch, &busy, &cancelled, &variable};

void run_kernel(Context& context, const LaunchRequest& request, const std::vector<unsigned char>& parameters) {
  const RotaSimKernel& kernel = *request.function->kernel;
  RunningLaunch running;
  std::copy(request.grid, request.grid + 3, running.grid);
  std::copy(request.block, request.block + 3, running.block);
  running.shared_bytes = request.shared_bytes;
  running.parameters = parameters.data();
  running.calls = &kCalls;
  running.context = &context;
  running.function = request.function.get();
  running.owed = profile::kLaunch;
  // An approximation: which bytes a kernel uses is not known before it runs, so every managed allocation that a
  // pointer-sized parameter points into counts as used, from there to its end.
  for (uint32_t index = 0; index < kernel.parameters; ++index) {
    if (kernel.parameter_sizes[index] != sizeof(uint64_t)) continue;
    uint64_t value = 0;
    std::memcpy(&value, parameters.data() + kernel.parameter_offsets[index], sizeof value);
    if (value != 0) touch(&running, value, UINT64_MAX);
  }
  kernel.run(&running);
  driver().occupy(context, EngineKind::kCompute, running.owed);
  driver().state().count_kernel(context.gpu);
}

}  // namespace

CUresult make_launch(const LaunchRequest& request, void** parameters, void** extra, Operation* operation) {
  uint64_t threads = uint64_t{request.block[0]} * request.block[1] * request.block[2];
  bool empty = request.grid[0] == 0 || request.grid[1] == 0 || request.grid[2] == 0 || threads == 0;
  if (empty || threads > profile::kThreadsPerBlock || request.block[2] > 64) return CUDA_ERROR_INVALID_VALUE;
  if (request.grid[0] > 0x7fffffffU || request.grid[1] > 65535 || request.grid[2] > 65535) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  int shared_limit = request.function->max_dynamic_shared();
  if (request.shared_bytes > static_cast<unsigned>(shared_limit)) return CUDA_ERROR_INVALID_VALUE;
  const RotaSimKernel& kernel = *request.function->kernel;
  std::vector<unsigned char> bytes(std::max<size_t>(kernel.parameter_bytes, 1));
  if (parameters != nullptr && extra != nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (parameters != nullptr) {
    for (uint32_t index = 0; index < kernel.parameters; ++index) {
      if (parameters[index] == nullptr) return CUDA_ERROR_INVALID_VALUE;
      std::memcpy(bytes.data() + kernel.parameter_offsets[index], parameters[index], kernel.parameter_sizes[index]);
    }
  } else if (extra != nullptr) {
    const void* buffer = nullptr;
    size_t size = 0;
    for (void** item = extra; *item != nullptr; item += 2) {
      if (*item == kBufferPointer) {
        buffer = item[1];
      } else if (*item == kBufferSize) {
        size = *static_cast<size_t*>(item[1]);
      } else {
        return CUDA_ERROR_INVALID_VALUE;
      }
    }
    if (buffer == nullptr || size < kernel.parameter_bytes) return CUDA_ERROR_INVALID_VALUE;
    std::memcpy(bytes.data(), buffer, kernel.parameter_bytes);
  } else if (kernel.parameters != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  operation->type = CU_GRAPH_NODE_TYPE_KERNEL;
  operation->run = [request, bytes = std::move(bytes)](Context& context) { run_kernel(context, request, bytes); };
  return CUDA_SUCCESS;
}

}  // namespace rota::sim
