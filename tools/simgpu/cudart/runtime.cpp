// Finding the driver, contexts per thread, registration of the programs' kernels.
#include "tools/simgpu/cudart/runtime.h"

#include <dlfcn.h>

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace rota::sim::cudart {
namespace {

constexpr int kRuntimeVersion = 13000;

Driver find_driver() {
  Driver driver;
  void* library = dlopen("libcuda.so.1", RTLD_NOW);
  if (library == nullptr) {
    driver.status = kInsufficientDriver;
    return driver;
  }
  auto* get = reinterpret_cast<cuGetProcAddress_v2_fn*>(dlsym(library, "cuGetProcAddress_v2"));
  if (get == nullptr) {
    driver.status = kInsufficientDriver;
    return driver;
  }
  CUdriverProcAddressQueryResult status{};
  void* function = nullptr;
  get("", &function, 0, 0, &status);  // the probe with which NVIDIA's libcudart begins
  auto ask = [&](const char* name, int version, cuuint64_t flags) -> void* {
    void* found = nullptr;
    return get(name, &found, version, flags, &status) == CUDA_SUCCESS ? found : nullptr;
  };
  auto* init = reinterpret_cast<cuInit_fn*>(ask("cuInit", 2000, 0));
  ask("cuGetProcAddress", 11030, 0);
  // Everything after goes through the pointer that this one hands back.
  if (void* next = ask("cuGetProcAddress", 12000, 0)) get = reinterpret_cast<cuGetProcAddress_v2_fn*>(next);
  driver.get_proc_address = get;
#define LOOK_UP(member, name, version, flags) \
  driver.member = reinterpret_cast<rota::api::member##_fn*>(ask(name, version, flags));
  ROTA_CUDART_LOOKUPS(LOOK_UP)
#undef LOOK_UP
  if (init == nullptr) {
    driver.status = kInsufficientDriver;
    return driver;
  }
  driver.status = static_cast<int>(init(0));
  int version = 0;
  if (driver.status == kSuccess && driver.cuDriverGetVersion != nullptr && driver.cuDriverGetVersion(&version) == 0 &&
      version / 1000 < kRuntimeVersion / 1000) {
    driver.status = kInsufficientDriver;
  }
  return driver;
}

// A fat binary that a program registered, loaded at its first use.
struct Module {
  const void* image = nullptr;
  CUlibrary library = nullptr;
};
struct Kernel {
  Module* module = nullptr;
  std::string name;
  CUkernel kernel = nullptr;
};
struct Registrations {
  std::mutex mutex;
  std::map<Module*, std::unique_ptr<Module>> modules;
  std::map<const void*, Kernel> kernels;
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

}  // namespace

Driver& driver() {
  static auto* found = new Driver(find_driver());
  return *found;
}

Thread& thread() {
  thread_local Thread state;
  return state;
}

int done(int error) {
  if (error != kSuccess && error != kNotReady) thread().last_error = error;
  return error;
}

int ensure_context() {
  Driver& found = driver();
  if (found.status != kSuccess) return found.status;
  CUcontext current = nullptr;
  if (found.cuCtxGetCurrent == nullptr || found.cuCtxSetCurrent == nullptr ||
      found.cuDevicePrimaryCtxRetain == nullptr) {
    return kInsufficientDriver;
  }
  if (found.cuCtxGetCurrent(&current) == CUDA_SUCCESS && current != nullptr) return kSuccess;
  static std::mutex mutex;
  static std::map<int, CUcontext> primary;  // retained once per device, for the life of the process
  std::lock_guard lock(mutex);
  CUcontext& context = primary[thread().device];
  if (context != nullptr && found.cuCtxSetCurrent(context) == CUDA_SUCCESS) return kSuccess;
  CUresult result = found.cuDevicePrimaryCtxRetain(&context, thread().device);
  if (result == CUDA_SUCCESS) result = found.cuCtxSetCurrent(context);
  if (result != CUDA_SUCCESS) context = nullptr;
  return static_cast<int>(result);
}

int kernel_of(const void* host_function, CUkernel* kernel) {
  if (int error = ensure_context(); error != kSuccess) return error;
  Registrations& all = registrations();
  std::lock_guard lock(all.mutex);
  auto found = all.kernels.find(host_function);
  if (found == all.kernels.end()) {
    // CUDA takes a cudaKernel_t wherever it takes a host function.
    *kernel = reinterpret_cast<CUkernel>(const_cast<void*>(host_function));
    for (const auto& [stub, known] : all.kernels) {
      if (known.kernel == *kernel && *kernel != nullptr) return kSuccess;
    }
    return kInvalidDeviceFunction;
  }
  Kernel& entry = found->second;
  if (entry.kernel == nullptr) {
    Driver& api = driver();
    if (api.cuLibraryLoadData == nullptr || api.cuLibraryGetKernel == nullptr) return kNotSupported;
    Module& module = *entry.module;
    if (module.library == nullptr) {
      CUresult loaded = api.cuLibraryLoadData(&module.library, module.image, nullptr, nullptr, 0, nullptr, nullptr, 0);
      if (loaded != CUDA_SUCCESS) return static_cast<int>(loaded);
    }
    CUresult result = api.cuLibraryGetKernel(&entry.kernel, module.library, entry.name.c_str());
    if (result == CUDA_ERROR_NOT_FOUND) return kInvalidDeviceFunction;
    if (result != CUDA_SUCCESS) return static_cast<int>(result);
  }
  *kernel = entry.kernel;
  return kSuccess;
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
  for (auto entry = all.kernels.begin(); entry != all.kernels.end();) {
    entry = entry->second.module == module ? all.kernels.erase(entry) : std::next(entry);
  }
  all.modules.erase(module);  // the driver unloads what is left when the process ends
}

ROTA_CUDART_EXPORT char __cudaInitModule(void**) {
  return 1;
}

ROTA_CUDART_EXPORT void __cudaRegisterFunction(void** handle, const char* host_function, char*, const char* name, int,
                                               void*, void*, void*, void*, int*) {
  Registrations& all = registrations();
  std::lock_guard lock(all.mutex);
  all.kernels[host_function] = Kernel{reinterpret_cast<Module*>(handle), name, nullptr};
}

// Device variables have no storage here: cudaMemcpyToSymbol and its kin answer that they are not supported.
ROTA_CUDART_EXPORT void __cudaRegisterVar(void**, char*, char*, const char*, int, size_t, int, int) {}

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
