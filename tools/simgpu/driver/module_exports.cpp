// Modules, libraries, kernels and functions, and what can be asked of them.
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "tools/simgpu/driver/driver.h"

using namespace rota::sim;  // NOLINT: the exported functions are all in the global namespace

namespace {

// What an image begins with; anything else is no image (as the driver says).
bool is_image(const void* image) {
  uint32_t magic = 0;
  std::memcpy(&magic, image, sizeof magic);
  constexpr uint32_t kFatbinWrapper = 0x466243b1;
  constexpr uint32_t kFatbin = 0xba55ed50;
  constexpr uint32_t kElf = 0x464c457f;  // 0x7f E L F
  if (magic == kFatbinWrapper || magic == kFatbin || magic == kElf) return true;
  return std::strstr(static_cast<const char*>(image), ".version") != nullptr;  // PTX, a text that ends in a zero byte
}

CUresult load(const void* image, CUcontext context, CUmodule* out) {
  if (out == nullptr || image == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!is_image(image)) return CUDA_ERROR_INVALID_IMAGE;
  auto module = std::make_shared<Module>();
  module->context = context;
  *out = driver().modules.add(std::move(module));
  return CUDA_SUCCESS;
}

CUresult load_file(const char* path, CUcontext context, CUmodule* out) {
  if (out == nullptr || path == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (access(path, R_OK) != 0) return CUDA_ERROR_FILE_NOT_FOUND;
  auto module = std::make_shared<Module>();
  module->context = context;
  *out = driver().modules.add(std::move(module));
  return CUDA_SUCCESS;
}

CUresult load_module(CUmodule* out, const void* image) {
  ROTA_SIM_CONTEXT(context);
  ROTA_SIM_CHECK(driver().check_unsafe_call());
  return load(image, context->handle(), out);
}

CUresult find_function(CUfunction* out, CUmodule handle, const char* name) {
  if (out == nullptr || name == nullptr) return CUDA_ERROR_INVALID_VALUE;
  auto module = driver().modules.find(handle);
  if (!module) return CUDA_ERROR_INVALID_HANDLE;
  const RotaSimKernel* kernel = driver().kernels.find(name);
  if (kernel == nullptr) return CUDA_ERROR_NOT_FOUND;
  std::lock_guard lock(module->mutex);
  auto& function = module->functions[name];
  if (!function) {
    function = std::make_shared<Function>();
    function->kernel = kernel;
    function->module = module.get();
    driver().functions.add(function);
  }
  *out = function->handle();
  return CUDA_SUCCESS;
}

CUresult unload(CUmodule handle) {
  ROTA_SIM_READY();
  auto module = driver().modules.remove(handle);
  if (!module) return CUDA_ERROR_INVALID_HANDLE;
  driver().functions.remove_if([&](const Function& function) { return function.module == module.get(); });
  return CUDA_SUCCESS;
}

CUfunction as_function(CUkernel kernel) {
  return reinterpret_cast<CUfunction>(kernel);
}
CUmodule as_module(CUlibrary library) {
  return reinterpret_cast<CUmodule>(library);
}

CUresult function_attribute(int* value, CUfunction_attribute attribute, CUfunction handle) {
  ROTA_SIM_READY();
  auto function = driver().functions.find(handle);
  if (!function) return CUDA_ERROR_INVALID_HANDLE;
  if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  switch (attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
      *value = profile::kThreadsPerBlock;
      break;
    case CU_FUNC_ATTRIBUTE_NUM_REGS:
      *value = 32;
      break;
    case CU_FUNC_ATTRIBUTE_PTX_VERSION:
    case CU_FUNC_ATTRIBUTE_BINARY_VERSION:
      *value = profile::kComputeMajor * 10 + profile::kComputeMinor;
      break;
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
      *value = std::max(function->max_dynamic_shared.load(), profile::kSharedPerBlock);
      break;
    case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
      *value = function->preferred_carveout;
      break;
    case CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES:
    case CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES:
    case CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES:
    case CU_FUNC_ATTRIBUTE_CACHE_MODE_CA:
    case CU_FUNC_ATTRIBUTE_CLUSTER_SIZE_MUST_BE_SET:
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH:
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT:
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH:
    case CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED:
      *value = 0;
      break;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

CUresult set_function_attribute(CUfunction handle, CUfunction_attribute attribute, int value) {
  ROTA_SIM_READY();
  auto function = driver().functions.find(handle);
  if (!function) return CUDA_ERROR_INVALID_HANDLE;
  switch (attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
      if (value < 0 || value > profile::kSharedPerBlockOptin) return CUDA_ERROR_INVALID_VALUE;
      function->max_dynamic_shared = value;
      return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
      if (value < -1 || value > 100) return CUDA_ERROR_INVALID_VALUE;
      function->preferred_carveout = value;
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult parameter_info(CUfunction handle, size_t index, size_t* offset, size_t* size) {
  ROTA_SIM_READY();
  auto function = driver().functions.find(handle);
  if (!function) return CUDA_ERROR_INVALID_HANDLE;
  if (offset == nullptr || index >= function->kernel->parameters) return CUDA_ERROR_INVALID_VALUE;
  *offset = function->kernel->parameter_offsets[index];
  if (size != nullptr) *size = function->kernel->parameter_sizes[index];
  return CUDA_SUCCESS;
}

CUresult name_of(const char** name, CUfunction handle) {
  ROTA_SIM_READY();
  auto function = driver().functions.find(handle);
  if (!function) return CUDA_ERROR_INVALID_HANDLE;
  if (name == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *name = function->kernel->name;
  return CUDA_SUCCESS;
}

// Blocks of a size that fit a multiprocessor, by threads and by shared memory.
CUresult active_blocks(int* blocks, CUfunction handle, int threads, size_t shared) {
  ROTA_SIM_CONTEXT(context);
  if (blocks == nullptr || threads <= 0) return CUDA_ERROR_INVALID_VALUE;
  if (!driver().functions.find(handle)) return CUDA_ERROR_INVALID_HANDLE;
  int warps = (threads + profile::kWarpSize - 1) / profile::kWarpSize;
  int fitting = profile::kThreadsPerMultiprocessor / (warps * profile::kWarpSize);
  fitting = std::min(fitting, profile::kBlocksPerMultiprocessor);
  if (threads > profile::kThreadsPerBlock) fitting = 0;
  constexpr size_t kReserved = 1024;  // of each block, as the device attribute says
  fitting = std::min(fitting, static_cast<int>(profile::kSharedPerMultiprocessor / (shared + kReserved)));
  *blocks = fitting;
  return CUDA_SUCCESS;
}

CUresult potential_block_size(int* grid, int* block, CUfunction handle, CUoccupancyB2DSize shared_of, size_t shared,
                              int limit) {
  if (grid == nullptr || block == nullptr) return CUDA_ERROR_INVALID_VALUE;
  int best_threads = 0;
  int top = limit > 0 ? std::min(limit, profile::kThreadsPerBlock) : profile::kThreadsPerBlock;
  for (int threads = top; threads > 0; threads -= threads % 32 == 0 ? 32 : threads % 32) {
    int blocks = 0;
    ROTA_SIM_CHECK(active_blocks(&blocks, handle, threads, shared_of != nullptr ? shared_of(threads) : shared));
    if (blocks * threads > best_threads) {
      best_threads = blocks * threads;
      *block = threads;
      *grid = blocks * profile::kMultiprocessors;
    }
  }
  return best_threads > 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

}  // namespace

ROTA_SIM_EXPORT(cuModuleLoadData)(CUmodule* out, const void* image) {
  return load_module(out, image);
}
ROTA_SIM_EXPORT(cuModuleLoadDataEx)(CUmodule* out, const void* image, unsigned, CUjit_option*, void**) {
  return load_module(out, image);
}
ROTA_SIM_EXPORT(cuModuleLoadFatBinary)(CUmodule* out, const void* image) {
  return load_module(out, image);
}
ROTA_SIM_EXPORT(cuModuleLoad)(CUmodule* out, const char* path) {
  ROTA_SIM_CONTEXT(context);
  ROTA_SIM_CHECK(driver().check_unsafe_call());
  return load_file(path, context->handle(), out);
}
ROTA_SIM_EXPORT(cuModuleUnload)(CUmodule module) {
  return unload(module);
}
ROTA_SIM_EXPORT(cuModuleGetFunction)(CUfunction* out, CUmodule module, const char* name) {
  ROTA_SIM_READY();
  return find_function(out, module, name);
}
ROTA_SIM_EXPORT(cuModuleGetGlobal_v2)(CUdeviceptr* address, size_t* bytes, CUmodule module, const char* name) {
  ROTA_SIM_READY();
  if (name == nullptr || (address == nullptr && bytes == nullptr)) return CUDA_ERROR_INVALID_VALUE;
  return driver().modules.find(module) ? CUDA_ERROR_NOT_FOUND : CUDA_ERROR_INVALID_HANDLE;  // no variables
}
ROTA_SIM_EXPORT(cuModuleGetLoadingMode)(CUmoduleLoadingMode* mode) {
  ROTA_SIM_READY();
  if (mode == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *mode = CU_MODULE_LAZY_LOADING;
  return CUDA_SUCCESS;
}

ROTA_SIM_EXPORT(cuLibraryLoadData)
(CUlibrary* out, const void* code, CUjit_option*, void**, unsigned, CUlibraryOption*, void**, unsigned) {
  ROTA_SIM_READY();
  return load(code, nullptr, reinterpret_cast<CUmodule*>(out));
}
ROTA_SIM_EXPORT(cuLibraryLoadFromFile)
(CUlibrary* out, const char* path, CUjit_option*, void**, unsigned, CUlibraryOption*, void**, unsigned) {
  ROTA_SIM_READY();
  return load_file(path, nullptr, reinterpret_cast<CUmodule*>(out));
}
ROTA_SIM_EXPORT(cuLibraryUnload)(CUlibrary library) {
  return unload(as_module(library));
}
ROTA_SIM_EXPORT(cuLibraryGetKernel)(CUkernel* out, CUlibrary library, const char* name) {
  ROTA_SIM_READY();
  return find_function(reinterpret_cast<CUfunction*>(out), as_module(library), name);
}
ROTA_SIM_EXPORT(cuLibraryGetModule)(CUmodule* out, CUlibrary library) {
  ROTA_SIM_CONTEXT(context);
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!driver().modules.find(as_module(library))) return CUDA_ERROR_INVALID_HANDLE;
  *out = as_module(library);
  return CUDA_SUCCESS;
}
ROTA_SIM_EXPORT(cuLibraryGetGlobal)(CUdeviceptr* address, size_t* bytes, CUlibrary library, const char* name) {
  return cuModuleGetGlobal_v2_simulated(address, bytes, as_module(library), name);
}
ROTA_SIM_EXPORT(cuKernelGetFunction)(CUfunction* out, CUkernel kernel) {
  ROTA_SIM_CONTEXT(context);
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!driver().functions.find(as_function(kernel))) return CUDA_ERROR_INVALID_HANDLE;
  *out = as_function(kernel);
  return CUDA_SUCCESS;
}
ROTA_SIM_EXPORT(cuKernelGetLibrary)(CUlibrary* out, CUkernel kernel) {
  ROTA_SIM_READY();
  auto function = driver().functions.find(as_function(kernel));
  if (!function) return CUDA_ERROR_INVALID_HANDLE;
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *out = reinterpret_cast<CUlibrary>(function->module);
  return CUDA_SUCCESS;
}
ROTA_SIM_EXPORT(cuKernelGetName)(const char** name, CUkernel kernel) {
  return name_of(name, as_function(kernel));
}
ROTA_SIM_EXPORT(cuKernelGetAttribute)(int* value, CUfunction_attribute attribute, CUkernel kernel, CUdevice) {
  return function_attribute(value, attribute, as_function(kernel));
}
ROTA_SIM_EXPORT(cuKernelSetAttribute)(CUfunction_attribute attribute, int value, CUkernel kernel, CUdevice) {
  return set_function_attribute(as_function(kernel), attribute, value);
}
ROTA_SIM_EXPORT(cuKernelGetParamInfo)(CUkernel kernel, size_t index, size_t* offset, size_t* size) {
  return parameter_info(as_function(kernel), index, offset, size);
}
ROTA_SIM_EXPORT(cuKernelSetCacheConfig)(CUkernel kernel, CUfunc_cache, CUdevice) {
  ROTA_SIM_READY();
  return driver().functions.find(as_function(kernel)) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

ROTA_SIM_EXPORT(cuFuncGetAttribute)(int* value, CUfunction_attribute attribute, CUfunction function) {
  return function_attribute(value, attribute, function);
}
ROTA_SIM_EXPORT(cuFuncSetAttribute)(CUfunction function, CUfunction_attribute attribute, int value) {
  return set_function_attribute(function, attribute, value);
}
ROTA_SIM_EXPORT(cuFuncGetParamInfo)(CUfunction function, size_t index, size_t* offset, size_t* size) {
  return parameter_info(function, index, offset, size);
}
ROTA_SIM_EXPORT(cuFuncGetName)(const char** name, CUfunction function) {
  return name_of(name, function);
}
ROTA_SIM_EXPORT(cuFuncGetModule)(CUmodule* out, CUfunction handle) {
  ROTA_SIM_READY();
  auto function = driver().functions.find(handle);
  if (!function) return CUDA_ERROR_INVALID_HANDLE;
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *out = function->module->handle();
  return CUDA_SUCCESS;
}
ROTA_SIM_EXPORT(cuFuncSetCacheConfig)(CUfunction function, CUfunc_cache) {
  ROTA_SIM_READY();
  return driver().functions.find(function) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}
ROTA_SIM_EXPORT(cuFuncIsLoaded)(CUfunctionLoadingState* state, CUfunction function) {
  ROTA_SIM_READY();
  if (state == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *state = CU_FUNCTION_LOADING_STATE_LOADED;
  return driver().functions.find(function) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}
ROTA_SIM_EXPORT(cuFuncLoad)(CUfunction function) {
  ROTA_SIM_CONTEXT(context);
  return driver().functions.find(function) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

ROTA_SIM_EXPORT(cuOccupancyMaxActiveBlocksPerMultiprocessor)
(int* blocks, CUfunction function, int threads, size_t shared) {
  return active_blocks(blocks, function, threads, shared);
}
ROTA_SIM_EXPORT(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags)
(int* blocks, CUfunction function, int threads, size_t shared, unsigned flags) {
  return flags > 1 ? CUDA_ERROR_INVALID_VALUE : active_blocks(blocks, function, threads, shared);
}
ROTA_SIM_EXPORT(cuOccupancyMaxPotentialBlockSize)
(int* grid, int* block, CUfunction function, CUoccupancyB2DSize shared_of, size_t shared, int limit) {
  return potential_block_size(grid, block, function, shared_of, shared, limit);
}
ROTA_SIM_EXPORT(cuOccupancyMaxPotentialBlockSizeWithFlags)
(int* grid, int* block, CUfunction function, CUoccupancyB2DSize shared_of, size_t shared, int limit, unsigned flags) {
  return flags > 1 ? CUDA_ERROR_INVALID_VALUE : potential_block_size(grid, block, function, shared_of, shared, limit);
}
ROTA_SIM_EXPORT(cuOccupancyAvailableDynamicSMemPerBlock)(size_t* bytes, CUfunction function, int blocks, int threads) {
  ROTA_SIM_READY();
  if (bytes == nullptr || blocks <= 0 || threads <= 0) return CUDA_ERROR_INVALID_VALUE;
  if (!driver().functions.find(function)) return CUDA_ERROR_INVALID_HANDLE;
  int share = profile::kSharedPerMultiprocessor / blocks - 1024;
  *bytes = static_cast<size_t>(std::clamp(share, 0, profile::kSharedPerBlockOptin));
  return CUDA_SUCCESS;
}
