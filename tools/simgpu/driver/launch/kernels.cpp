// Loads kernel libraries, checks launches and runs them.
#include "tools/simgpu/driver/launch/kernels.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "tools/simgpu/driver/context/peer.h"
#include "tools/simgpu/driver/driver.h"
#include "tools/simgpu/driver/entry/mutations.h"

namespace rota::sim {
namespace {

// What a kernel runs with.
struct RunningLaunch : RotaSimLaunch {
  Context* context = nullptr;
  const Function* function = nullptr;
  int64_t owed = 0;  // modelled nanoseconds of the compute engine that the launch has not waited for yet
  int64_t used = 0;  // … and that it has waited for
};

void* translate(RotaSimLaunch* launch, uint64_t address, uint64_t bytes) {
  auto* running = static_cast<RunningLaunch*>(launch);
  void* memory = driver().memory.storage(address, bytes, running->context->gpu);
  auto allocation = driver().memory.find(address);
  if (allocation && !accessible(*running->context, *allocation)) memory = nullptr;
  if (memory == nullptr && !mutated(Mutation::illegal_addresses_do_no_harm)) {
    running->context->fail(CUDA_ERROR_ILLEGAL_ADDRESS);
  }
  return memory;
}

void touch(RotaSimLaunch* launch, uint64_t address, uint64_t bytes) {
  auto* running = static_cast<RunningLaunch*>(launch);
  driver().make_resident(address, bytes, Access::kKernel, &running->owed, running->context->gpu);
}

void busy(RotaSimLaunch* launch, uint64_t nanoseconds) {
  auto* running = static_cast<RunningLaunch*>(launch);
  const int64_t wanted = running->owed + static_cast<int64_t>(nanoseconds);
  driver().occupy(*running->context, EngineKind::kCompute, wanted);
  running->used += wanted;
  running->owed = 0;
}

void stream(RotaSimLaunch* launch, uint64_t bytes) {
  busy(launch, static_cast<uint64_t>(nanoseconds_at(bytes, driver().profile().cost.device_bandwidth)));
}

int cancelled(RotaSimLaunch* launch) {
  // In a graph launch, the kernel can run for another context than the one that it was captured in.
  return is_destroyed(static_cast<RunningLaunch*>(launch)->context) || is_destroyed(running_context()) ? 1 : 0;
}

void* variable(RotaSimLaunch* launch, const char* name, uint64_t bytes) {
  auto* running = static_cast<RunningLaunch*>(launch);
  void* memory = variable_storage(*running->function, *running->context, name, bytes);
  if (memory == nullptr) running->context->fail(CUDA_ERROR_ILLEGAL_ADDRESS);
  return memory;
}

void fail(RotaSimLaunch* launch, const char* why) {
  auto* running = static_cast<RunningLaunch*>(launch);
  std::fprintf(stderr, "simgpu: kernel %s failed: %s\n", running->function->kernel->name, why);
  running->context->fail(CUDA_ERROR_LAUNCH_FAILED);
}

const RotaSimLaunchCalls kCalls{&translate, &touch, &busy, &cancelled, &variable, &stream, &fail};

void run_kernel(Context& context, const KernelParameters& launch) {
  const RotaSimKernel& kernel = *launch.function->kernel;
  KernelActivity activity;
  RunningLaunch running;
  std::copy(launch.grid, launch.grid + 3, running.grid);
  std::copy(launch.block, launch.block + 3, running.block);
  running.shared_bytes = launch.shared_bytes;
  running.parameters = launch.bytes.data();
  running.calls = &kCalls;
  running.context = &context;
  running.function = launch.function.get();
  running.owed = driver().profile().cost.launch;
  // An approximation: which bytes a kernel uses is not known before it runs, so every managed allocation that a
  // pointer-sized parameter points into counts as used, from there to its end.
  for (uint32_t index = 0; index < kernel.parameters; ++index) {
    if (kernel.parameter_sizes[index] != sizeof(uint64_t)) continue;
    uint64_t value = 0;
    std::memcpy(&value, launch.bytes.data() + kernel.parameter_offsets[index], sizeof value);
    if (value != 0) touch(&running, value, UINT64_MAX);
  }
  kernel.run(&running);
  driver().occupy(context, EngineKind::kCompute, running.owed);
  activity.ended(kernel.name, running.used + running.owed);
  driver().state().count_kernel(context.gpu);
}

int figure(CUdevice_attribute which) {
  return driver().device_figures().attribute(which);
}

CUresult check_shape(const KernelParameters& launch) {
  constexpr CUdevice_attribute kGrid[] = {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X, CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y,
                                          CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z};
  constexpr CUdevice_attribute kBlock[] = {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X, CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y,
                                           CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z};
  uint64_t threads = 1;
  for (size_t axis = 0; axis < 3; ++axis) {
    if (launch.grid[axis] == 0 || launch.block[axis] == 0) return CUDA_ERROR_INVALID_VALUE;
    if (launch.grid[axis] > static_cast<unsigned>(figure(kGrid[axis]))) return CUDA_ERROR_INVALID_VALUE;
    if (launch.block[axis] > static_cast<unsigned>(figure(kBlock[axis]))) return CUDA_ERROR_INVALID_VALUE;
    threads *= launch.block[axis];
  }
  if (threads > static_cast<uint64_t>(figure(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK))) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  // More threads than this kernel's launch bounds (measured) or its registers allow.
  int bounds = launch.function->kernel->needs.max_threads;
  if (bounds > 0 && threads > static_cast<uint64_t>(bounds)) return CUDA_ERROR_INVALID_VALUE;
  if (threads > static_cast<uint64_t>(launch.function->max_threads())) return CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES;
  if (launch.shared_bytes > static_cast<unsigned>(launch.function->max_dynamic_shared())) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

// All blocks of a cooperative launch have to fit the device at the same time.
CUresult check_cooperative(const KernelParameters& launch) {
  if (mutated(Mutation::cooperative_launches_may_be_too_large)) return CUDA_SUCCESS;
  uint64_t blocks = uint64_t{launch.grid[0]} * launch.grid[1] * launch.grid[2];
  auto threads = static_cast<int>(launch.block[0] * launch.block[1] * launch.block[2]);
  int fitting = fitting_blocks(*launch.function, threads, launch.shared_bytes);
  uint64_t limit = static_cast<uint64_t>(fitting) * static_cast<uint64_t>(driver().device_figures().multiprocessors());
  return blocks > limit ? CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE : CUDA_SUCCESS;
}

CUresult check_cluster(const KernelParameters& launch, const CUlaunchAttributeValue& value) {
  if (figure(CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH) == 0) return CUDA_ERROR_NOT_SUPPORTED;
  constexpr uint64_t kPortable = 8;
  constexpr uint64_t kNonPortable = 16;
  bool wide = launch.function->value(CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED) != 0;
  unsigned cluster[] = {value.clusterDim.x, value.clusterDim.y, value.clusterDim.z};
  uint64_t blocks = 1;
  for (size_t axis = 0; axis < 3; ++axis) {
    if (cluster[axis] == 0) return CUDA_ERROR_INVALID_VALUE;
    if (cluster[axis] > kNonPortable || launch.grid[axis] % cluster[axis] != 0) return CUDA_ERROR_INVALID_CLUSTER_SIZE;
    blocks *= cluster[axis];
  }
  return blocks > (wide ? kNonPortable : kPortable) ? CUDA_ERROR_INVALID_CLUSTER_SIZE : CUDA_SUCCESS;
}

// Hints and permissions are accepted without effect: a stream's kernels run one after the other.
CUresult check_attribute(const KernelParameters& launch, CUlaunchAttributeID id, const CUlaunchAttributeValue& value) {
  switch (static_cast<unsigned>(id)) {
    case CU_LAUNCH_ATTRIBUTE_COOPERATIVE:
      return value.cooperative != 0 ? check_cooperative(launch) : CUDA_SUCCESS;
    case CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION:
      return check_cluster(launch, value);
    case CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE:
      // Only graphs have nodes that kernels could update, and simgpu's kernels cannot.
      return value.deviceUpdatableKernelNode.deviceUpdatable != 0 ? CUDA_ERROR_NOT_SUPPORTED : CUDA_SUCCESS;
    case CU_LAUNCH_ATTRIBUTE_IGNORE:
    case CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW:
    case CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY:
    case CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE:
    case CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION:
    case CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT:
    case CU_LAUNCH_ATTRIBUTE_PRIORITY:
    case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP:
    case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN:
    case CU_LAUNCH_ATTRIBUTE_PREFERRED_CLUSTER_DIMENSION:
    case CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT:
    case CU_LAUNCH_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

// The buffer that `extra` names, at least as long as the parameters; null: there is none.
const void* packed_arguments(void** extra, size_t bytes) {
  const void* buffer = nullptr;
  size_t size = 0;
  for (void** item = extra; *item != nullptr; item += 2) {
    if (*item == kBufferPointer) {
      buffer = item[1];
    } else if (*item == kBufferSize && item[1] != nullptr) {
      size = *static_cast<size_t*>(item[1]);
    } else {
      return nullptr;
    }
  }
  return size < bytes ? nullptr : buffer;
}

}  // namespace

CUresult pack_arguments(void** arguments, void** extra, KernelParameters* launch) {
  const RotaSimKernel& kernel = *launch->function->kernel;
  launch->bytes.assign(std::max<size_t>(kernel.parameter_bytes, 1), 0);
  if (arguments != nullptr && extra != nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (arguments != nullptr) {
    for (uint32_t index = 0; index < kernel.parameters; ++index) {
      if (arguments[index] == nullptr) return CUDA_ERROR_INVALID_VALUE;
      std::memcpy(launch->bytes.data() + kernel.parameter_offsets[index], arguments[index],
                  kernel.parameter_sizes[index]);
    }
    return CUDA_SUCCESS;
  }
  if (extra != nullptr) {
    const void* buffer = packed_arguments(extra, kernel.parameter_bytes);
    if (buffer == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (!mutated(Mutation::packed_arguments_are_lost)) {
      std::memcpy(launch->bytes.data(), buffer, kernel.parameter_bytes);
    }
    launch->packed = true;
    return CUDA_SUCCESS;
  }
  return kernel.parameters != 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult make_launch(const KernelParameters& launch, Operation* operation) {
  if (!launch.function || launch.bytes.size() < launch.function->kernel->parameter_bytes) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (CUresult result = check_shape(launch); result != CUDA_SUCCESS) return result;
  for (const auto& [id, value] : launch.attributes) {
    if (CUresult result = check_attribute(launch, id, value); result != CUDA_SUCCESS) return result;
  }
  operation->type = CU_GRAPH_NODE_TYPE_KERNEL;
  operation->parameters = launch;
  operation->home = driver().contexts.find(launch.function->context);
  operation->run = [launch](Context& context) { run_kernel(context, launch); };
  return CUDA_SUCCESS;
}

}  // namespace rota::sim
