// The exported functions about libraries, kernels and functions (cuLibrary…, cuKernel…, cuFunc…).
#include <algorithm>

#include "tools/simgpu/driver/driver.h"
#include "tools/simgpu/driver/entry/mutations.h"
#include "tools/simgpu/driver/module/jit_options.h"

using namespace rota::sim;  // NOLINT: the exported functions are all in the global namespace

namespace {

CUfunction as_function(CUkernel kernel) {
  return reinterpret_cast<CUfunction>(kernel);
}
CUkernel as_kernel(const FunctionPointer& kernel) {
  return reinterpret_cast<CUkernel>(kernel->handle());
}

CUresult add_library(std::shared_ptr<const Image> image, CUlibrary* out) {
  auto library = std::make_shared<Library>();
  library->image = std::move(image);
  *out = driver().libraries.add(std::move(library));
  return CUDA_SUCCESS;
}

bool valid(const CUlibraryOption* options, unsigned count) {
  if (count != 0 && options == nullptr) return false;
  return std::all_of(options, options + count, [](CUlibraryOption option) {
    return static_cast<int>(option) >= 0 && option < CU_LIBRARY_NUM_OPTIONS;
  });
}

CUresult find_library(CUlibrary handle, LibraryPointer* library) {
  ROTA_SIM_READY();
  *library = driver().libraries.find(handle);
  return *library ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult find_function(CUfunction handle, FunctionPointer* function) {
  ROTA_SIM_READY();
  *function = driver().functions.find(handle);
  return *function ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

// The device for which a function's attributes are read or set. A kernel has no context, so the current one decides.
int device_of(const Function& function) {
  if (function.context != nullptr) return function.gpu;
  ContextPointer context;
  return driver().current(&context) == CUDA_SUCCESS ? context->gpu : 0;
}

// How many function attributes a driver of the simulated version knows.
int known_function_attributes() {
  int version = driver().options.driver_version;
  if (version >= 13040) return 18;
  if (version >= 13030) return 17;
  return version >= 11080 ? 16 : 10;
}

CUresult get_attribute(int* value, CUfunction_attribute which, const Function& function, int device) {
  if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (static_cast<int>(which) >= known_function_attributes()) return CUDA_ERROR_INVALID_VALUE;
  return function.attribute(which, device, value) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult set_attribute(Function& function, CUfunction_attribute which, int value, int device) {
  if (static_cast<int>(which) >= known_function_attributes()) return CUDA_ERROR_INVALID_VALUE;
  int low = 0;
  int high = 0;
  switch (which) {
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
      high = driver().device_figures().attribute(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN) -
             function.static_shared();
      break;
    case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
      low = CU_SHAREDMEM_CARVEOUT_DEFAULT;
      high = CU_SHAREDMEM_CARVEOUT_MAX_SHARED;
      break;
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH:
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT:
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH:
      high = 16;
      break;
    case CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED:
      high = 1;
      break;
    case CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE:
      high = CU_CLUSTER_SCHEDULING_POLICY_LOAD_BALANCING;
      break;
    default:
      return CUDA_ERROR_INVALID_VALUE;  // read-only
  }
  if (value < low || value > high) return CUDA_ERROR_INVALID_VALUE;
  if (mutated(Mutation::function_attributes_are_not_kept)) return CUDA_SUCCESS;
  function.settings[static_cast<size_t>(device)].set(which, value);
  return CUDA_SUCCESS;
}

CUresult parameter_info(CUfunction handle, size_t index, size_t* offset, size_t* size) {
  FunctionPointer function;
  ROTA_SIM_CHECK(find_function(handle, &function));
  if (offset == nullptr || index >= function->kernel->parameters) return CUDA_ERROR_INVALID_VALUE;
  *offset = function->kernel->parameter_offsets[index];
  if (size != nullptr) *size = function->kernel->parameter_sizes[index];
  return CUDA_SUCCESS;
}

CUresult parameter_count(CUfunction handle, size_t* count) {
  FunctionPointer function;
  ROTA_SIM_CHECK(find_function(handle, &function));
  if (count == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *count = function->kernel->parameters;
  return CUDA_SUCCESS;
}

CUresult name_of(const char** name, CUfunction handle) {
  ROTA_SIM_READY();
  if (name == nullptr || handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
  FunctionPointer function;
  ROTA_SIM_CHECK(find_function(handle, &function));
  *name = function->kernel->name;
  return CUDA_SUCCESS;
}

CUresult set_cache_config(CUfunction handle, CUfunc_cache config) {
  FunctionPointer function;
  ROTA_SIM_CHECK(find_function(handle, &function));
  return config <= CU_FUNC_CACHE_PREFER_EQUAL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;  // a hint
}

}  // namespace

ROTA_SIM_EXPORT(cuLibraryLoadData)
(CUlibrary* out, const void* code, CUjit_option* jit_options, void** jit_values, unsigned jit_count,
 CUlibraryOption* options, void**, unsigned count) {
  ROTA_SIM_READY();
  JitOptions jit{jit_options, jit_values, jit_count};
  if (out == nullptr || code == nullptr || !jit.valid() || !valid(options, count)) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<const Image> image;
  CUresult result = read_image(code, driver().kernels, driver().options.driver_version,
                               driver().device_figures().compute_capability(), &image);
  jit.report(result);
  return result == CUDA_SUCCESS ? add_library(std::move(image), out) : result;
}
ROTA_SIM_EXPORT(cuLibraryLoadFromFile)
(CUlibrary* out, const char* path, CUjit_option* jit_options, void** jit_values, unsigned jit_count,
 CUlibraryOption* options, void**, unsigned count) {
  ROTA_SIM_READY();
  JitOptions jit{jit_options, jit_values, jit_count};
  if (out == nullptr || path == nullptr || !jit.valid() || !valid(options, count)) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<const Image> image;
  ROTA_SIM_CHECK(read_image_file(path, driver().kernels, driver().options.driver_version,
                                 driver().device_figures().compute_capability(), &image));
  return add_library(std::move(image), out);
}

ROTA_SIM_EXPORT(cuLibraryUnload)(CUlibrary handle) {
  LibraryPointer library;
  ROTA_SIM_CHECK(find_library(handle, &library));
  std::vector<CUcontext> contexts;
  {
    std::lock_guard lock(library->mutex);
    for (const auto& [context, module] : library->modules) contexts.push_back(context);
  }
  // Work queued earlier may use the library's functions and variables.
  for (CUcontext of : contexts) {
    if (ContextPointer context = driver().contexts.find(of)) driver().wait_for(*context);
  }
  if (!driver().libraries.remove(handle)) return CUDA_ERROR_INVALID_HANDLE;
  end_library(*library);
  return CUDA_SUCCESS;
}

ROTA_SIM_EXPORT(cuLibraryGetKernel)(CUkernel* out, CUlibrary handle, const char* name) {
  LibraryPointer library;
  ROTA_SIM_CHECK(find_library(handle, &library));
  if (out == nullptr || name == nullptr) return CUDA_ERROR_INVALID_VALUE;
  FunctionPointer kernel;
  ROTA_SIM_CHECK(kernel_of_library(library, name, &kernel));
  *out = as_kernel(kernel);
  return CUDA_SUCCESS;
}

ROTA_SIM_EXPORT(cuLibraryGetKernelCount)(unsigned* count, CUlibrary handle) {
  LibraryPointer library;
  ROTA_SIM_CHECK(find_library(handle, &library));
  if (count == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *count = static_cast<unsigned>(library->image->kernels.size());
  return CUDA_SUCCESS;
}

ROTA_SIM_EXPORT(cuLibraryEnumerateKernels)(CUkernel* kernels, unsigned room, CUlibrary handle) {
  LibraryPointer library;
  ROTA_SIM_CHECK(find_library(handle, &library));
  if (kernels == nullptr) return CUDA_ERROR_INVALID_VALUE;
  size_t count = std::min<size_t>(room, library->image->kernels.size());
  for (size_t index = 0; index < count; ++index) {
    FunctionPointer kernel;
    ROTA_SIM_CHECK(kernel_of_library(library, library->image->kernels[index]->name, &kernel));
    kernels[index] = as_kernel(kernel);
  }
  return CUDA_SUCCESS;
}

ROTA_SIM_EXPORT(cuLibraryGetModule)(CUmodule* out, CUlibrary handle) {
  ROTA_SIM_CONTEXT(context);
  LibraryPointer library;
  ROTA_SIM_CHECK(find_library(handle, &library));
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  ModulePointer module;
  ROTA_SIM_CHECK(module_of_library(library, *context, &module));
  *out = module->handle();
  return CUDA_SUCCESS;
}

ROTA_SIM_EXPORT(cuLibraryGetGlobal)(CUdeviceptr* address, size_t* bytes, CUlibrary handle, const char* name) {
  ROTA_SIM_CONTEXT(context);
  LibraryPointer library;
  ROTA_SIM_CHECK(find_library(handle, &library));
  if (name == nullptr || (address == nullptr && bytes == nullptr)) return CUDA_ERROR_INVALID_VALUE;
  ModulePointer module;
  ROTA_SIM_CHECK(module_of_library(library, *context, &module));
  Variable variable;
  ROTA_SIM_CHECK(variable_of_module(module, *context, name, &variable));
  if (address != nullptr) *address = variable.address;
  if (bytes != nullptr) *bytes = variable.bytes;
  return CUDA_SUCCESS;
}

ROTA_SIM_EXPORT(cuLibraryGetManaged)(CUdeviceptr* address, size_t* bytes, CUlibrary handle, const char* name) {
  LibraryPointer library;
  ROTA_SIM_CHECK(find_library(handle, &library));
  if (name == nullptr || (address == nullptr && bytes == nullptr)) return CUDA_ERROR_INVALID_VALUE;
  ContextPointer context;
  if (driver().current(&context) != CUDA_SUCCESS) context = nullptr;
  Variable variable;
  ROTA_SIM_CHECK(managed_of_library(library, context.get(), name, &variable));
  if (address != nullptr) *address = variable.address;
  if (bytes != nullptr) *bytes = variable.bytes;
  return CUDA_SUCCESS;
}

ROTA_SIM_EXPORT(cuLibraryGetUnifiedFunction)(void** out, CUlibrary handle, const char* name) {
  LibraryPointer library;
  ROTA_SIM_CHECK(find_library(handle, &library));
  // There are no unified functions: the devices' attribute UNIFIED_FUNCTION_POINTERS is 0.
  return out == nullptr || name == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_NOT_FOUND;
}

ROTA_SIM_EXPORT(cuKernelGetFunction)(CUfunction* out, CUkernel kernel) {
  ROTA_SIM_CONTEXT(context);
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  FunctionPointer function;
  ROTA_SIM_CHECK(function_for_launch(as_function(kernel), context, &function));
  *out = function->handle();
  return CUDA_SUCCESS;
}
ROTA_SIM_EXPORT(cuKernelGetLibrary)(CUlibrary* out, CUkernel kernel) {
  FunctionPointer function;
  ROTA_SIM_CHECK(find_function(as_function(kernel), &function));
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  LibraryPointer library = function->library.lock();
  if (!library) return CUDA_ERROR_NOT_FOUND;
  *out = library->handle();
  return CUDA_SUCCESS;
}
ROTA_SIM_EXPORT(cuKernelGetName)(const char** name, CUkernel kernel) {
  return name_of(name, as_function(kernel));
}
ROTA_SIM_EXPORT(cuKernelGetAttribute)(int* value, CUfunction_attribute which, CUkernel kernel, CUdevice device) {
  FunctionPointer function;
  ROTA_SIM_CHECK(find_function(as_function(kernel), &function));
  if (!is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  return get_attribute(value, which, *function, device);
}
ROTA_SIM_EXPORT(cuKernelSetAttribute)(CUfunction_attribute which, int value, CUkernel kernel, CUdevice device) {
  FunctionPointer function;
  ROTA_SIM_CHECK(find_function(as_function(kernel), &function));
  if (!is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  return set_attribute(*function, which, value, device);
}
ROTA_SIM_EXPORT(cuKernelGetParamInfo)(CUkernel kernel, size_t index, size_t* offset, size_t* size) {
  return parameter_info(as_function(kernel), index, offset, size);
}
ROTA_SIM_EXPORT(cuKernelGetParamCount)(CUkernel kernel, size_t* count) {
  return parameter_count(as_function(kernel), count);
}
ROTA_SIM_EXPORT(cuKernelSetCacheConfig)(CUkernel kernel, CUfunc_cache config, CUdevice device) {
  ROTA_SIM_READY();
  if (!is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  return set_cache_config(as_function(kernel), config);
}

ROTA_SIM_EXPORT(cuFuncGetAttribute)(int* value, CUfunction_attribute which, CUfunction handle) {
  FunctionPointer function;
  ROTA_SIM_CHECK(find_function(handle, &function));
  return get_attribute(value, which, *function, device_of(*function));
}
ROTA_SIM_EXPORT(cuFuncSetAttribute)(CUfunction handle, CUfunction_attribute which, int value) {
  FunctionPointer function;
  ROTA_SIM_CHECK(find_function(handle, &function));
  return set_attribute(*function, which, value, device_of(*function));
}
ROTA_SIM_EXPORT(cuFuncGetParamInfo)(CUfunction function, size_t index, size_t* offset, size_t* size) {
  return parameter_info(function, index, offset, size);
}
ROTA_SIM_EXPORT(cuFuncGetParamCount)(CUfunction function, size_t* count) {
  return parameter_count(function, count);
}
ROTA_SIM_EXPORT(cuFuncGetName)(const char** name, CUfunction function) {
  return name_of(name, function);
}
ROTA_SIM_EXPORT(cuFuncGetModule)(CUmodule* out, CUfunction handle) {
  FunctionPointer function;
  ROTA_SIM_CHECK(find_function(handle, &function));
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (function->context == nullptr) {  // a kernel: the current context's module
    ROTA_SIM_CONTEXT(context);
    ROTA_SIM_CHECK(function_for_launch(handle, context, &function));
  }
  ModulePointer module = function->module.lock();
  if (!module) return CUDA_ERROR_NOT_FOUND;
  *out = module->handle();
  return CUDA_SUCCESS;
}
ROTA_SIM_EXPORT(cuFuncSetCacheConfig)(CUfunction function, CUfunc_cache config) {
  return set_cache_config(function, config);
}
ROTA_SIM_EXPORT(cuFuncSetSharedMemConfig)(CUfunction handle, CUsharedconfig config) {
  FunctionPointer function;
  ROTA_SIM_CHECK(find_function(handle, &function));
  // The banks of these devices cannot be configured.
  return config <= CU_SHARED_MEM_CONFIG_EIGHT_BYTE_BANK_SIZE ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
ROTA_SIM_EXPORT(cuFuncIsLoaded)(CUfunctionLoadingState* state, CUfunction handle) {
  FunctionPointer function;
  ROTA_SIM_CHECK(find_function(handle, &function));
  if (state == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *state = CU_FUNCTION_LOADING_STATE_LOADED;
  return CUDA_SUCCESS;
}
ROTA_SIM_EXPORT(cuFuncLoad)(CUfunction handle) {
  ROTA_SIM_CONTEXT(context);
  FunctionPointer function;
  return find_function(handle, &function);
}
