// Occupancy: how many blocks and clusters of a function fit, given threads, registers and shared memory, computed as in
// CUDA's occupancy calculator.
#include <algorithm>

#include "tools/simgpu/driver/driver.h"
#include "tools/simgpu/driver/entry/mutations.h"
#include "tools/simgpu/state/clock.h"

using namespace rota::sim;  // NOLINT: the exported functions are all in the global namespace

namespace {

constexpr int kWarp = 32;
constexpr int kWarpSchedulers = 4;   // parts of a multiprocessor that share its registers evenly
constexpr int kRegisterUnit = 256;   // allocation unit of a warp's registers
constexpr size_t kSharedUnit = 128;  // bytes; allocation unit of a block's shared memory

struct Fit {
  const Function& function;
  int figure(CUdevice_attribute which) const { return driver().device_figures().attribute(which); }

  // How many blocks with this many threads and dynamic shared bytes a multiprocessor holds at a time; 0: not even one.
  int blocks(int threads, size_t shared) const {
    if (threads > function.max_threads()) return 0;
    if (shared > static_cast<size_t>(function.max_dynamic_shared())) return 0;
    int warps = (threads + kWarp - 1) / kWarp;
    int fitting = figure(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR) / (warps * kWarp);
    fitting = std::min(fitting, figure(CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR));
    int registers = function.value(CU_FUNC_ATTRIBUTE_NUM_REGS) * kWarp;
    registers = static_cast<int>(round_up(static_cast<size_t>(registers), kRegisterUnit));
    int share = figure(CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR) / kWarpSchedulers;
    int warps_by_registers = share / registers * kWarpSchedulers;
    fitting = std::min(fitting, warps_by_registers / static_cast<int>(round_up(warps, kWarpSchedulers)));
    if (mutated(Mutation::occupancy_ignores_shared_memory)) return fitting;
    size_t total = static_cast<size_t>(figure(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR));
    size_t each = round_up(static_cast<size_t>(function.static_shared()) + shared + reserved(), kSharedUnit);
    return each == 0 ? fitting : std::min(fitting, static_cast<int>(total / each));
  }
  size_t reserved() const { return static_cast<size_t>(figure(CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK)); }
  int largest_cluster() const {
    constexpr int kPortable = 8;
    constexpr int kNonPortable = 16;
    return function.value(CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED) != 0 ? kNonPortable : kPortable;
  }
  // The function's own value; 0: none.
  int required_cluster() const {
    return function.value(CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH) *
           function.value(CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT) *
           function.value(CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH);
  }
};

CUresult find(CUfunction handle, FunctionPointer* function) {
  ROTA_SIM_CONTEXT(context);
  return function_for_launch(handle, context, function);
}

CUresult active_blocks(int* blocks, CUfunction handle, int threads, size_t shared, unsigned flags) {
  FunctionPointer function;
  ROTA_SIM_CHECK(find(handle, &function));
  if (blocks == nullptr || threads <= 0 || flags > CU_OCCUPANCY_DISABLE_CACHING_OVERRIDE) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  *blocks = Fit{*function}.blocks(threads, shared);
  return CUDA_SUCCESS;
}

CUresult potential_block_size(int* grid, int* block, CUfunction handle, CUoccupancyB2DSize shared_of, size_t shared,
                              int limit, unsigned flags) {
  FunctionPointer function;
  ROTA_SIM_CHECK(find(handle, &function));
  if (grid == nullptr || block == nullptr || limit < 0 || flags > CU_OCCUPANCY_DISABLE_CACHING_OVERRIDE) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  Fit fit{*function};
  int best = 0;
  if (mutated(Mutation::occupancy_ignores_limits)) limit = 0;
  int top = limit > 0 ? std::min(limit, function->max_threads()) : function->max_threads();
  for (int threads = top; threads > 0; threads -= threads % kWarp == 0 ? kWarp : threads % kWarp) {
    size_t dynamic = shared;
    if (shared_of != nullptr) {
      ProgramCode others_may_go_on;
      dynamic = shared_of(threads);
    }
    int blocks = fit.blocks(threads, dynamic);
    if (blocks * threads <= best) continue;
    best = blocks * threads;
    *block = threads;
    *grid = blocks * driver().device_figures().multiprocessors();
  }
  return best > 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

// Blocks per multiprocessor for this launch configuration; -1: the launch is invalid.
int configured_blocks(const Fit& fit, const CUlaunchConfig& config) {
  uint64_t threads = uint64_t{config.blockDimX} * config.blockDimY * config.blockDimZ;
  if (threads == 0 || threads > static_cast<uint64_t>(fit.function.max_threads())) return -1;
  if (config.numAttrs != 0 && config.attrs == nullptr) return -1;
  return fit.blocks(static_cast<int>(threads), config.sharedMemBytes);
}

}  // namespace

int rota::sim::fitting_blocks(const Function& function, int threads, size_t shared) {
  return Fit{function}.blocks(threads, shared);
}

ROTA_SIM_EXPORT(cuOccupancyMaxActiveBlocksPerMultiprocessor)
(int* blocks, CUfunction function, int threads, size_t shared) {
  return active_blocks(blocks, function, threads, shared, CU_OCCUPANCY_DEFAULT);
}
ROTA_SIM_EXPORT(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags)
(int* blocks, CUfunction function, int threads, size_t shared, unsigned flags) {
  return active_blocks(blocks, function, threads, shared, flags);
}
ROTA_SIM_EXPORT(cuOccupancyMaxPotentialBlockSize)
(int* grid, int* block, CUfunction function, CUoccupancyB2DSize shared_of, size_t shared, int limit) {
  return potential_block_size(grid, block, function, shared_of, shared, limit, CU_OCCUPANCY_DEFAULT);
}
ROTA_SIM_EXPORT(cuOccupancyMaxPotentialBlockSizeWithFlags)
(int* grid, int* block, CUfunction function, CUoccupancyB2DSize shared_of, size_t shared, int limit, unsigned flags) {
  return potential_block_size(grid, block, function, shared_of, shared, limit, flags);
}

ROTA_SIM_EXPORT(cuOccupancyAvailableDynamicSMemPerBlock)(size_t* bytes, CUfunction handle, int blocks, int threads) {
  FunctionPointer function;
  ROTA_SIM_CHECK(find(handle, &function));
  if (bytes == nullptr || blocks <= 0 || threads <= 0) return CUDA_ERROR_INVALID_VALUE;
  Fit fit{*function};
  if (fit.blocks(threads, 0) < blocks) return CUDA_ERROR_INVALID_VALUE;
  size_t total = static_cast<size_t>(fit.figure(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR));
  size_t share = total / static_cast<size_t>(blocks) / kSharedUnit * kSharedUnit;
  size_t taken = fit.reserved() + static_cast<size_t>(function->static_shared());
  *bytes = share > taken ? std::min(share - taken, static_cast<size_t>(function->max_dynamic_shared())) : 0;
  return CUDA_SUCCESS;
}

ROTA_SIM_EXPORT(cuOccupancyMaxPotentialClusterSize)(int* size, CUfunction handle, const CUlaunchConfig* config) {
  FunctionPointer function;
  ROTA_SIM_CHECK(find(handle, &function));
  if (size == nullptr || config == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Fit fit{*function};
  if (fit.figure(CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH) == 0) return CUDA_ERROR_NOT_SUPPORTED;
  if (configured_blocks(fit, *config) < 1) return CUDA_ERROR_INVALID_VALUE;
  *size = fit.required_cluster() != 0 ? fit.required_cluster() : fit.largest_cluster();
  return CUDA_SUCCESS;
}

ROTA_SIM_EXPORT(cuOccupancyMaxActiveClusters)(int* clusters, CUfunction handle, const CUlaunchConfig* config) {
  FunctionPointer function;
  ROTA_SIM_CHECK(find(handle, &function));
  if (clusters == nullptr || config == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Fit fit{*function};
  if (fit.figure(CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH) == 0) return CUDA_ERROR_NOT_SUPPORTED;
  int blocks = configured_blocks(fit, *config);
  if (blocks < 0) return CUDA_ERROR_INVALID_VALUE;
  uint64_t size = 0;
  for (unsigned index = 0; index < config->numAttrs; ++index) {
    const CUlaunchAttribute& attribute = config->attrs[index];
    if (attribute.id != CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION) continue;
    size = uint64_t{attribute.value.clusterDim.x} * attribute.value.clusterDim.y * attribute.value.clusterDim.z;
  }
  auto required = static_cast<uint64_t>(fit.required_cluster());
  if (size == 0) size = required;
  if (size == 0 || size > static_cast<uint64_t>(fit.largest_cluster()) || (required != 0 && size != required)) {
    return CUDA_ERROR_INVALID_CLUSTER_SIZE;
  }
  *clusters = blocks * driver().device_figures().multiprocessors() / static_cast<int>(size);
  return CUDA_SUCCESS;
}
