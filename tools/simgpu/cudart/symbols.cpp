// What nvcc's generated code registers: fat binaries, kernels and device variables, loaded into the driver at first
// use, as NVIDIA's runtime does by default.
#include <cstdio>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "tools/simgpu/cudart/runtime.h"

namespace rota::sim::cudart {
namespace {

struct Module {
  const void* image = nullptr;
  CUlibrary library = nullptr;
};
struct Kernel {
  Module* module = nullptr;
  std::string name;
  CUkernel kernel = nullptr;
};
struct Variable {
  Module* module = nullptr;
  std::string name;
  void** managed = nullptr;  // where the program keeps the address of a managed variable; null for others
};
struct Registrations {
  std::mutex mutex;
  std::map<Module*, std::unique_ptr<Module>> modules;
  std::map<const void*, Kernel> kernels;
  std::map<const void*, Variable> variables;
  std::map<CUkernel, CUlibrary> loaded;  // kernels of libraries that the program has loaded itself
};

// Never destroyed: programs unregister after static destructors have begun.
Registrations& registrations() {
  static auto* all = new Registrations;
  return *all;
}

struct FatbinWrapper {  // what nvcc hands to __cudaRegisterFatBinary
  int magic;
  int version;
  const void* data;
  void* prelinked;
};

// Called with the lock held; calling the driver is safe, since it knows nothing of this library.
int load(Registrations& all, Module& module) {
  Driver& api = driver();
  if (module.library != nullptr) return kSuccess;
  if (api.cuLibraryLoadData == nullptr) return kNotSupported;
  CUresult loaded = api.cuLibraryLoadData(&module.library, module.image, nullptr, nullptr, 0, nullptr, nullptr, 0);
  if (loaded != CUDA_SUCCESS) {
    module.library = nullptr;
    return static_cast<int>(loaded);
  }
  for (const auto& [symbol, variable] : all.variables) {
    if (variable.module != &module || variable.managed == nullptr || api.cuLibraryGetManaged == nullptr) continue;
    CUdeviceptr where = 0;
    size_t bytes = 0;
    if (api.cuLibraryGetManaged(&where, &bytes, module.library, variable.name.c_str()) != CUDA_SUCCESS) {
      // The program is about to dereference a null pointer: say why.
      std::fprintf(stderr, "simgpu: no library in ROTA_SIM_KERNELS has the managed variable %s\n",
                   variable.name.c_str());
      continue;
    }
    *variable.managed = reinterpret_cast<void*>(where);
  }
  return kSuccess;
}

int resolve(Registrations& all, Kernel& entry) {
  if (entry.kernel != nullptr) return kSuccess;
  Driver& api = driver();
  if (int error = load(all, *entry.module); error != kSuccess) return error;
  if (api.cuLibraryGetKernel == nullptr) return kNotSupported;
  CUresult result = api.cuLibraryGetKernel(&entry.kernel, entry.module->library, entry.name.c_str());
  if (result != CUDA_SUCCESS) entry.kernel = nullptr;
  return result == CUDA_ERROR_NOT_FOUND ? int{kInvalidDeviceFunction} : static_cast<int>(result);
}

}  // namespace

int kernel_of(const void* host_function, CUkernel* kernel) {
  if (int error = ensure_context(); error != kSuccess) return error;
  Registrations& all = registrations();
  std::lock_guard lock(all.mutex);
  auto found = all.kernels.find(host_function);
  if (found != all.kernels.end()) {
    if (int error = resolve(all, found->second); error != kSuccess) return error;
    *kernel = found->second.kernel;
    return kSuccess;
  }
  // CUDA accepts a cudaKernel_t wherever it accepts a host function. Anything else is an invalid handle (measured with
  // libcudart 13.0 on an H200).
  auto* handle = reinterpret_cast<CUkernel>(const_cast<void*>(host_function));
  if (handle == nullptr) return kInvalidDeviceFunction;
  bool known = all.loaded.count(handle) != 0;
  for (const auto& [stub, entry] : all.kernels) known = known || entry.kernel == handle;
  if (!known) return kInvalidResourceHandle;
  *kernel = handle;
  return kSuccess;
}

const void* host_function_of(CUkernel kernel, CUfunction function) {
  Registrations& all = registrations();
  std::lock_guard lock(all.mutex);
  for (const auto& [stub, entry] : all.kernels) {
    if (entry.kernel == nullptr) continue;
    if (entry.kernel == kernel || reinterpret_cast<CUfunction>(entry.kernel) == function) return stub;
    CUfunction own = nullptr;
    if (function != nullptr && driver().cuKernelGetFunction != nullptr &&
        driver().cuKernelGetFunction(&own, entry.kernel) == CUDA_SUCCESS && own == function) {
      return stub;
    }
  }
  return kernel != nullptr ? static_cast<const void*>(kernel) : static_cast<const void*>(function);
}

void remember_kernel(CUkernel kernel, CUlibrary library) {
  Registrations& all = registrations();
  std::lock_guard lock(all.mutex);
  all.loaded[kernel] = library;
}

void forget_library(CUlibrary library) {
  Registrations& all = registrations();
  std::lock_guard lock(all.mutex);
  std::erase_if(all.loaded, [&](const auto& entry) { return entry.second == library; });
}

int variable_of(const void* symbol, CUdeviceptr* where, size_t* bytes) {
  if (int error = ensure_context(); error != kSuccess) return error;
  Registrations& all = registrations();
  std::lock_guard lock(all.mutex);
  auto found = all.variables.find(symbol);
  if (found == all.variables.end()) {
    // A program identifies a managed variable by its address.
    for (auto entry = all.variables.begin(); entry != all.variables.end(); ++entry) {
      if (entry->second.managed != nullptr && symbol != nullptr && *entry->second.managed == symbol) found = entry;
    }
  }
  if (found == all.variables.end()) return kInvalidSymbol;
  Driver& api = driver();
  const Variable& variable = found->second;
  if (int error = load(all, *variable.module); error != kSuccess) return error;
  auto* get = variable.managed != nullptr ? api.cuLibraryGetManaged : api.cuLibraryGetGlobal;
  if (get == nullptr) return kNotSupported;
  CUresult result = get(where, bytes, variable.module->library, variable.name.c_str());
  return result == CUDA_ERROR_NOT_FOUND ? int{kInvalidSymbol} : static_cast<int>(result);
}

}  // namespace rota::sim::cudart

using namespace rota::sim::cudart;  // NOLINT

ROTA_CUDART_EXPORT void** __cudaRegisterFatBinary(void* wrapper) {
  auto module = std::make_unique<Module>();
  module->image = static_cast<const FatbinWrapper*>(wrapper)->data;
  Registrations& all = registrations();
  std::lock_guard lock(all.mutex);
  Module* handle = module.get();
  all.modules.emplace(handle, std::move(module));
  return reinterpret_cast<void**>(handle);
}

ROTA_CUDART_EXPORT void __cudaRegisterFatBinaryEnd(void**) {}

ROTA_CUDART_EXPORT void __cudaUnregisterFatBinary(void** handle) {
  Registrations& all = registrations();
  std::lock_guard lock(all.mutex);
  auto* module = reinterpret_cast<Module*>(handle);
  std::erase_if(all.kernels, [&](const auto& entry) { return entry.second.module == module; });
  std::erase_if(all.variables, [&](const auto& entry) { return entry.second.module == module; });
  all.modules.erase(module);  // the driver unloads what is left when the process ends
}

// Called before a program's host code first touches a managed variable of the module.
ROTA_CUDART_EXPORT char __cudaInitModule(void** handle) {
  if (ensure_context() == kSuccess) {
    Registrations& all = registrations();
    std::lock_guard lock(all.mutex);
    if (auto found = all.modules.find(reinterpret_cast<Module*>(handle)); found != all.modules.end()) {
      load(all, *found->second);
    }
  }
  return 1;
}

ROTA_CUDART_EXPORT void __cudaRegisterFunction(void** handle, const char* host_function, char*, const char* name, int,
                                               void*, void*, void*, void*, int*) {
  Registrations& all = registrations();
  std::lock_guard lock(all.mutex);
  all.kernels[host_function] = Kernel{reinterpret_cast<Module*>(handle), name, nullptr};
}

ROTA_CUDART_EXPORT void __cudaRegisterVar(void** handle, char* host_variable, char*, const char* name, int, size_t, int,
                                          int) {
  Registrations& all = registrations();
  std::lock_guard lock(all.mutex);
  all.variables[host_variable] = Variable{reinterpret_cast<Module*>(handle), name, nullptr};
}

ROTA_CUDART_EXPORT void __cudaRegisterManagedVar(void** handle, void** host_pointer, char*, const char* name, int,
                                                 size_t, int, int) {
  Registrations& all = registrations();
  std::lock_guard lock(all.mutex);
  all.variables[host_pointer] = Variable{reinterpret_cast<Module*>(handle), name, host_pointer};
}

ROTA_CUDART_EXPORT unsigned __cudaPushCallConfiguration(Dim3 grid, Dim3 block, size_t shared, CUstream stream) {
  Thread& state = thread();
  if (state.depth >= 8) return kMissingConfiguration;
  state.pushed[state.depth++] = {grid, block, shared, stream};
  return 0;
}

ROTA_CUDART_EXPORT int __cudaPopCallConfiguration(Dim3* grid, Dim3* block, size_t* shared, void* stream) {
  Thread& state = thread();
  if (state.depth == 0) return done(kMissingConfiguration);
  const Thread::Configuration& top = state.pushed[--state.depth];
  *grid = top.grid;
  *block = top.block;
  *shared = top.shared;
  *static_cast<CUstream*>(stream) = top.stream;
  return kSuccess;
}

ROTA_CUDART_EXPORT int __cudaGetKernel(CUkernel* kernel, const void* host_function) {
  return done(kernel_of(host_function, kernel));
}

ROTA_CUDART_EXPORT int cudaGetKernel(CUkernel* kernel, const void* host_function) {
  if (kernel == nullptr) return done(kInvalidValue);
  return done(kernel_of(host_function, kernel));
}
ROTA_CUDART_EXPORT int cudaGetFuncBySymbol(CUfunction* function, const void* host_function) {
  if (function == nullptr) return done(kInvalidValue);
  CUkernel kernel = nullptr;
  if (int error = kernel_of(host_function, &kernel); error != kSuccess) return done(error);
  return call(&Driver::cuKernelGetFunction, function, kernel);
}
ROTA_CUDART_EXPORT int cudaGetSymbolAddress(void** out, const void* symbol) {
  if (out == nullptr) return done(kInvalidValue);
  CUdeviceptr where = 0;
  size_t bytes = 0;
  if (int error = variable_of(symbol, &where, &bytes); error != kSuccess) return done(error);
  *out = reinterpret_cast<void*>(where);
  return kSuccess;
}
ROTA_CUDART_EXPORT int cudaGetSymbolSize(size_t* out, const void* symbol) {
  if (out == nullptr) return done(kInvalidValue);
  CUdeviceptr where = 0;
  return done(variable_of(symbol, &where, out));
}
