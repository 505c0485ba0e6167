// Finds and creates functions and variables, and destroys them with their module or library.
#include "tools/simgpu/driver/module/modules.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "tools/simgpu/driver/driver.h"
#include "tools/simgpu/driver/entry/mutations.h"

namespace rota::sim {
namespace {

bool holds(const Image& image, const RotaSimKernel* kernel) {
  if (mutated(Mutation::images_hold_everything)) return true;
  return std::find(image.kernels.begin(), image.kernels.end(), kernel) != image.kernels.end();
}

// The image's kernel of that name, or null.
const RotaSimKernel* kernel_of_image(const Image& image, const std::string& name) {
  const RotaSimKernel* kernel = driver().kernels.find(name);
  if (kernel != nullptr) return holds(image, kernel) ? kernel : nullptr;
  const bool there = image.binary || image.unknown.contains(name);
  return there ? driver().kernels.unregistered(name, driver().options.skip_unregistered) : nullptr;
}

void fill(uint64_t address, const VariableDefinition& definition) {
  void* memory = driver().memory.storage(address, definition.bytes);
  if (memory == nullptr) return;
  // Managed memory is fresh, and may be much larger than the machine could fill.
  if (definition.kind != ROTA_SIM_MANAGED_VARIABLE) std::memset(memory, 0, definition.bytes);
  if (mutated(Mutation::variables_start_as_zero)) return;
  if (!definition.initial.empty()) std::memcpy(memory, definition.initial.data(), definition.initial.size());
}

CUresult allocate_managed(int gpu, uint64_t bytes, uint64_t* address) {
  Allocation allocation;
  allocation.bytes = bytes;
  allocation.kind = MemoryKind::kManaged;
  allocation.gpu = gpu;
  allocation.flags = CU_MEM_ATTACH_GLOBAL;
  allocation.managed_id = driver().state().add_managed(gpu, bytes);
  if (allocation.managed_id == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  if (!driver().memory.add_mapped(&allocation)) {
    driver().state().remove_managed(allocation.managed_id);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  *address = allocation.address;
  return CUDA_SUCCESS;
}

void free_variables(const std::map<std::string, Variable>& variables) {
  for (const auto& [name, variable] : variables) {
    driver().variable_addresses.remove(variable.address);
    if (auto removed = driver().memory.remove(variable.address)) driver().release(*removed);
  }
}

// For managed variables the context may be null: they belong to none.
CUresult make_variable(const VariableDefinition& definition, Context* context, Variable* made, int64_t* pushing_out) {
  // A variable without a size (an array declared without one) also has its own address.
  uint64_t bytes = std::max<uint64_t>(definition.bytes, 1);
  if (definition.kind == ROTA_SIM_MANAGED_VARIABLE) {
    int gpu = context != nullptr ? context->gpu : 0;
    ROTA_SIM_CHECK(allocate_managed(gpu, bytes, &made->address));
  } else {
    ROTA_SIM_CHECK(driver().allocate_device(*context, bytes, &made->address, pushing_out));
  }
  made->bytes = definition.bytes;
  driver().variable_addresses.add(made->address);
  fill(made->address, definition);
  return CUDA_SUCCESS;
}

// `Owner` is a module or a library.
template <class Owner>
CUresult find_variable(Owner& owner, std::map<std::string, Variable>& made, Context* context, const std::string& name,
                       Variable* variable) {
  auto definition = owner.image->variables.find(name);
  if (mutated(Mutation::variables_ignore_names)) definition = owner.image->variables.begin();
  if (definition == owner.image->variables.end()) return CUDA_ERROR_NOT_FOUND;
  int64_t pushing_out = 0;
  {
    std::lock_guard lock(owner.mutex);
    if (owner.ended) return CUDA_ERROR_INVALID_HANDLE;
    auto [entry, is_new] = made.try_emplace(name);
    if (is_new) {
      CUresult result = make_variable(definition->second, context, &entry->second, &pushing_out);
      if (result != CUDA_SUCCESS) {
        made.erase(entry);
        return result;
      }
    }
    *variable = entry->second;
  }
  if (context != nullptr) driver().push_out(*context, pushing_out);
  return CUDA_SUCCESS;
}

bool is_managed(const Image& image, const std::string& name) {
  auto definition = image.variables.find(name);
  return definition != image.variables.end() && definition->second.kind == ROTA_SIM_MANAGED_VARIABLE;
}

}  // namespace

void VariableAddresses::add(uint64_t address) {
  std::lock_guard lock(mutex_);
  addresses_.insert(address);
}
void VariableAddresses::remove(uint64_t address) {
  std::lock_guard lock(mutex_);
  addresses_.erase(address);
}
bool VariableAddresses::has(uint64_t address) const {
  std::lock_guard lock(mutex_);
  return addresses_.count(address) != 0;
}

bool Function::attribute(CUfunction_attribute which, int device, int* value) const {
  if (static_cast<int>(which) < 0 || which >= CU_FUNC_ATTRIBUTE_MAX) return false;
  const DeviceFigures& figures = driver().device_figures();
  const auto index = static_cast<size_t>(device);
  *value = settings[index].get(which);
  if (of && mutated(Mutation::function_attributes_do_not_override)) *value = FunctionSettings::kNotSet;
  if (*value == FunctionSettings::kNotSet && of) *value = of->settings[index].get(which);
  if (*value != FunctionSettings::kNotSet) return true;
  *value = 0;
  if (mutated(Mutation::function_attributes_are_zero)) return true;
  const RotaSimKernel::RotaSimKernelNeeds& needs = kernel->needs;
  int registers = needs.registers > 0 ? needs.registers : 32;
  int limit = figures.attribute(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK);
  switch (which) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK: {
      constexpr int kWarp = 32;
      int by_registers = figures.attribute(CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK) / registers / kWarp * kWarp;
      *value = std::min(limit, by_registers);
      if (needs.max_threads > 0) *value = std::min(*value, needs.max_threads);
      break;
    }
    case CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES:
      *value = needs.shared_bytes;
      break;
    case CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES:
      *value = needs.constant_bytes;
      break;
    case CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES:
      *value = needs.local_bytes;
      break;
    case CU_FUNC_ATTRIBUTE_NUM_REGS:
      *value = registers;
      break;
    case CU_FUNC_ATTRIBUTE_PTX_VERSION:
    case CU_FUNC_ATTRIBUTE_BINARY_VERSION:
      *value = figures.compute_capability();
      break;
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
      *value = std::max(0, figures.attribute(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK) - needs.shared_bytes);
      break;
    case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
      *value = CU_SHAREDMEM_CARVEOUT_DEFAULT;
      break;
    default:
      *value = 0;  // no clusters required, no policy, not built with the cache option
      break;
  }
  return true;
}

CUresult function_of_module(const ModulePointer& module, const std::string& name, FunctionPointer* function) {
  const RotaSimKernel* kernel = kernel_of_image(*module->image, name);
  if (kernel == nullptr) return CUDA_ERROR_NOT_FOUND;
  FunctionPointer of;
  if (LibraryPointer library = module->library.lock()) ROTA_SIM_CHECK(kernel_of_library(library, name, &of));
  std::lock_guard lock(module->mutex);
  if (module->ended) return CUDA_ERROR_INVALID_HANDLE;
  FunctionPointer& known = module->functions[name];
  if (!known) {
    known = std::make_shared<Function>();
    known->kernel = kernel;
    known->context = module->context;
    known->gpu = module->gpu;
    known->module = module;
    known->library = module->library;
    known->of = std::move(of);
    driver().functions.add(known);
  }
  *function = known;
  return CUDA_SUCCESS;
}

CUresult kernel_of_library(const LibraryPointer& library, const std::string& name, FunctionPointer* kernel) {
  const RotaSimKernel* registered = kernel_of_image(*library->image, name);
  if (registered == nullptr) return CUDA_ERROR_NOT_FOUND;
  std::lock_guard lock(library->mutex);
  if (library->ended) return CUDA_ERROR_INVALID_HANDLE;
  FunctionPointer& known = library->kernels[name];
  if (!known) {
    known = std::make_shared<Function>();
    known->kernel = registered;
    known->library = library;
    driver().functions.add(known);
  }
  *kernel = known;
  return CUDA_SUCCESS;
}

CUresult module_of_library(const LibraryPointer& library, Context& context, ModulePointer* module) {
  std::lock_guard lock(library->mutex);
  if (library->ended) return CUDA_ERROR_INVALID_HANDLE;
  ModulePointer& known = library->modules[mutated(Mutation::contexts_share_libraries) ? nullptr : context.handle()];
  if (!known) {
    known = std::make_shared<Module>();
    known->context = context.handle();
    known->gpu = context.gpu;
    known->library = library;
    known->of_library = true;
    known->image = library->image;
    driver().modules.add(known);
  }
  *module = known;
  return CUDA_SUCCESS;
}

CUresult function_for_launch(CUfunction handle, const ContextPointer& context, FunctionPointer* function) {
  FunctionPointer found = driver().functions.find(handle);
  if (!found) return CUDA_ERROR_INVALID_HANDLE;
  if (found->context != nullptr) {
    bool own = found->context == context->handle() || mutated(Mutation::functions_run_everywhere);
    if (!own) return CUDA_ERROR_INVALID_HANDLE;
    *function = std::move(found);
    return CUDA_SUCCESS;
  }
  LibraryPointer library = found->library.lock();
  if (!library) return CUDA_ERROR_INVALID_HANDLE;
  ModulePointer module;
  ROTA_SIM_CHECK(module_of_library(library, *context, &module));
  return function_of_module(module, found->kernel->name, function);
}

CUresult variable_of_module(const ModulePointer& module, Context& context, const std::string& name,
                            Variable* variable) {
  if (mutated(Mutation::modules_share_variables)) {
    static std::map<std::string, Variable> shared;
    return find_variable(*module, shared, &context, name, variable);
  }
  if (LibraryPointer library = module->library.lock(); library && is_managed(*module->image, name)) {
    return managed_of_library(library, &context, name, variable);
  }
  return find_variable(*module, module->variables, &context, name, variable);
}

CUresult managed_of_library(const LibraryPointer& library, Context* context, const std::string& name,
                            Variable* variable) {
  if (!is_managed(*library->image, name)) return CUDA_ERROR_NOT_FOUND;
  return find_variable(*library, library->managed, context, name, variable);
}

void* variable_storage(const Function& function, Context& context, const char* name, uint64_t bytes) {
  ModulePointer module = function.module.lock();
  Variable variable;
  if (!module || name == nullptr) return nullptr;
  if (variable_of_module(module, context, name, &variable) != CUDA_SUCCESS) return nullptr;
  return bytes <= variable.bytes ? driver().memory.storage(variable.address, variable.bytes) : nullptr;
}

void end_module(Module& module) {
  std::map<std::string, Variable> variables;
  {
    std::lock_guard lock(module.mutex);
    module.ended = true;
    module.functions.clear();
    variables.swap(module.variables);
  }
  driver().functions.remove_if([&module](const Function& function) { return function.module.lock().get() == &module; });
  if (!mutated(Mutation::unload_keeps_variables)) free_variables(variables);
}

void end_library(Library& library) {
  std::map<CUcontext, ModulePointer> modules;
  std::map<std::string, Variable> managed;
  {
    std::lock_guard lock(library.mutex);
    library.ended = true;
    library.kernels.clear();
    modules.swap(library.modules);
    managed.swap(library.managed);
  }
  driver().functions.remove_if(
      [&library](const Function& function) { return function.library.lock().get() == &library; });
  for (const auto& [context, module] : modules) {
    driver().modules.remove(module->handle());
    end_module(*module);
  }
  free_variables(managed);
}

void forget_modules(CUcontext context) {
  std::vector<ModulePointer> ending =
      driver().modules.remove_all([context](const Module& module) { return module.context == context; });
  for (const ModulePointer& module : ending) {
    if (LibraryPointer library = module->library.lock()) {
      std::lock_guard lock(library->mutex);
      library->modules.erase(context);
    }
    end_module(*module);
  }
}

}  // namespace rota::sim
