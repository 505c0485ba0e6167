// Modules and their contents.
#include <algorithm>
#include <cstring>

#include "tools/simgpu/driver/driver.h"
#include "tools/simgpu/driver/entry/mutations.h"
#include "tools/simgpu/driver/module/jit_options.h"

using namespace rota::sim;  // NOLINT: the exported functions are all in the global namespace

namespace {

CUresult add_module(Context& context, std::shared_ptr<const Image> image, CUmodule* out) {
  auto module = std::make_shared<Module>();
  module->context = context.handle();
  module->gpu = context.gpu;
  module->image = std::move(image);
  *out = driver().modules.add(std::move(module));
  return CUDA_SUCCESS;
}

CUresult load(CUmodule* out, const void* code, const JitOptions& options) {
  ROTA_SIM_CONTEXT(context);
  if (out == nullptr || code == nullptr || !options.valid()) return CUDA_ERROR_INVALID_VALUE;
  ROTA_SIM_CHECK(driver().check_unsafe_call());
  std::shared_ptr<const Image> image;
  CUresult result = read_image(code, driver().kernels, driver().options.driver_version,
                               driver().device_figures().compute_capability(), &image);
  options.report(result);
  return result == CUDA_SUCCESS ? add_module(*context, std::move(image), out) : result;
}

CUresult find_module(CUmodule handle, ModulePointer* module) {
  ROTA_SIM_READY();
  *module = driver().modules.find(handle);
  return *module ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

// CUDA 12 removed texture and surface references: no image has any.
CUresult find_reference(const void* out, CUmodule handle, const char* name) {
  ModulePointer module;
  ROTA_SIM_CHECK(find_module(handle, &module));
  return out == nullptr || name == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_NOT_FOUND;
}

}  // namespace

ROTA_SIM_EXPORT(cuModuleLoad)(CUmodule* out, const char* path) {
  ROTA_SIM_CONTEXT(context);
  if (out == nullptr || path == nullptr) return CUDA_ERROR_INVALID_VALUE;
  ROTA_SIM_CHECK(driver().check_unsafe_call());
  std::shared_ptr<const Image> image;
  ROTA_SIM_CHECK(read_image_file(path, driver().kernels, driver().options.driver_version,
                                 driver().device_figures().compute_capability(), &image));
  return add_module(*context, std::move(image), out);
}
ROTA_SIM_EXPORT(cuModuleLoadData)(CUmodule* out, const void* code) {
  return load(out, code, {});
}
ROTA_SIM_EXPORT(cuModuleLoadDataEx)
(CUmodule* out, const void* code, unsigned count, CUjit_option* options, void** values) {
  return load(out, code, {options, values, count});
}
ROTA_SIM_EXPORT(cuModuleLoadFatBinary)(CUmodule* out, const void* code) {
  return load(out, code, {});
}

ROTA_SIM_EXPORT(cuModuleUnload)(CUmodule handle) {
  ModulePointer module;
  ROTA_SIM_CHECK(find_module(handle, &module));
  if (module->of_library && !mutated(Mutation::library_modules_can_be_unloaded)) return CUDA_ERROR_NOT_PERMITTED;
  // Work queued earlier may use its functions and variables.
  if (ContextPointer context = driver().contexts.find(module->context)) driver().wait_for(*context);
  if (!driver().modules.remove(handle)) return CUDA_ERROR_INVALID_HANDLE;
  end_module(*module);
  return CUDA_SUCCESS;
}

ROTA_SIM_EXPORT(cuModuleGetFunction)(CUfunction* out, CUmodule handle, const char* name) {
  ModulePointer module;
  ROTA_SIM_CHECK(find_module(handle, &module));
  if (out == nullptr || name == nullptr) return CUDA_ERROR_INVALID_VALUE;
  FunctionPointer function;
  ROTA_SIM_CHECK(function_of_module(module, name, &function));
  *out = function->handle();
  return CUDA_SUCCESS;
}

ROTA_SIM_EXPORT(cuModuleGetFunctionCount)(unsigned* count, CUmodule handle) {
  ModulePointer module;
  ROTA_SIM_CHECK(find_module(handle, &module));
  if (count == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *count = static_cast<unsigned>(module->image->kernels.size());
  return CUDA_SUCCESS;
}

ROTA_SIM_EXPORT(cuModuleEnumerateFunctions)(CUfunction* functions, unsigned room, CUmodule handle) {
  ModulePointer module;
  ROTA_SIM_CHECK(find_module(handle, &module));
  if (functions == nullptr) return CUDA_ERROR_INVALID_VALUE;
  size_t count = std::min<size_t>(room, module->image->kernels.size());
  for (size_t index = 0; index < count; ++index) {
    FunctionPointer function;
    ROTA_SIM_CHECK(function_of_module(module, module->image->kernels[index]->name, &function));
    functions[index] = function->handle();
  }
  return CUDA_SUCCESS;
}

namespace {
CUresult get_global(uint64_t* address, size_t* bytes, CUmodule handle, const char* name) {
  ModulePointer module;
  ROTA_SIM_CHECK(find_module(handle, &module));
  if (name == nullptr || (address == nullptr && bytes == nullptr)) return CUDA_ERROR_INVALID_VALUE;
  ContextPointer context = driver().contexts.find(module->context);
  if (!context) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  Variable variable;
  ROTA_SIM_CHECK(variable_of_module(module, *context, name, &variable));
  if (address != nullptr) *address = variable.address;
  if (bytes != nullptr) *bytes = variable.bytes;
  return CUDA_SUCCESS;
}
}  // namespace

ROTA_SIM_EXPORT(cuModuleGetGlobal_v2)(CUdeviceptr* address, size_t* bytes, CUmodule handle, const char* name) {
  uint64_t found = 0;
  ROTA_SIM_CHECK(get_global(address != nullptr ? &found : nullptr, bytes, handle, name));
  if (address != nullptr) *address = found;
  return CUDA_SUCCESS;
}

ROTA_SIM_EXPORT(cuModuleGetTexRef)(CUtexref* out, CUmodule handle, const char* name) {
  return find_reference(out, handle, name);
}
ROTA_SIM_EXPORT(cuModuleGetSurfRef)(CUsurfref* out, CUmodule handle, const char* name) {
  return find_reference(out, handle, name);
}

ROTA_SIM_EXPORT(cuModuleGetLoadingMode)(CUmoduleLoadingMode* mode) {
  ROTA_SIM_READY();
  if (mode == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *mode = driver().eager_loading() ? CU_MODULE_EAGER_LOADING : CU_MODULE_LAZY_LOADING;
  return CUDA_SUCCESS;
}
