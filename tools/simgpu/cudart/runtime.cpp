// Finding the driver; devices and contexts per thread.
#include "tools/simgpu/cudart/runtime.h"

#include <dlfcn.h>

#include <atomic>
#include <map>
#include <mutex>
#include <utility>
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
  get("", &function, 0, 0, &status);  // NVIDIA's libcudart starts with this probe
  auto ask = [&](const char* name, int version, cuuint64_t flags) -> void* {
    void* found = nullptr;
    return get(name, &found, version, flags, &status) == CUDA_SUCCESS ? found : nullptr;
  };
  auto* init = reinterpret_cast<cuInit_fn*>(ask("cuInit", 2000, 0));
  ask("cuGetProcAddress", 11030, 0);
  // All later look-ups go through the pointer that this one returns.
  if (void* next = ask("cuGetProcAddress", 12000, 0)) get = reinterpret_cast<cuGetProcAddress_v2_fn*>(next);
  driver.get_proc_address = get;
#define ROTA_CUDART_LOOKUP(member, name, version, flags) \
  driver.member = reinterpret_cast<rota::api::member##_fn*>(ask(name, version, flags));
#include "tools/simgpu/cudart/lookups.inc"
#undef ROTA_CUDART_LOOKUP
  if (init == nullptr || driver.cuCtxGetCurrent == nullptr || driver.cuCtxSetCurrent == nullptr ||
      driver.cuDevicePrimaryCtxRetain == nullptr) {
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

// Device state that all threads share. Never destroyed: programs use the runtime from static destructors.
struct Devices {
  std::mutex mutex;
  std::map<int, CUcontext> primary;
  std::atomic<unsigned> life{1};  // incremented by every device reset
  std::vector<int> valid;         // cudaSetValidDevices; empty: all
};
Devices& devices() {
  static auto* all = new Devices;
  return *all;
}

int make_current(int device) {
  Thread& state = thread();
  state.life = devices().life.load();
  if (int error = primary_context(device, &state.context); error != kSuccess) return error;
  state.device = device;
  return static_cast<int>(driver().cuCtxSetCurrent(state.context));
}

int count_devices(int* count) {
  *count = 0;
  Driver& api = driver();
  if (api.status != kSuccess) return api.status;
  if (api.cuDeviceGetCount == nullptr) return kNotSupported;
  if (CUresult result = api.cuDeviceGetCount(count); result != CUDA_SUCCESS) return static_cast<int>(result);
  return *count == 0 ? kNoDevice : kSuccess;
}

int check_device(int device) {
  int count = 0;
  if (int error = count_devices(&count); error != kSuccess) return error;
  return device >= 0 && device < count ? kSuccess : kInvalidDevice;
}

// cudaSetDeviceFlags: how to wait (one of four), mapped host memory, local memory, synchronous memory operations.
bool are_device_flags(unsigned flags) {
  unsigned waiting = flags & 7U;
  return (flags & ~0x9fU) == 0 && (waiting == 0 || waiting == 1 || waiting == 2 || waiting == 4);
}
constexpr unsigned kMapHost = 8;  // implied for the runtime; the others are passed to the driver

int set_flags(int device, unsigned flags) {
  if (!are_device_flags(flags)) return kInvalidValue;
  Driver& api = driver();
  if (api.cuDevicePrimaryCtxSetFlags_v2 == nullptr) return kNotSupported;
  return static_cast<int>(api.cuDevicePrimaryCtxSetFlags_v2(device, flags & ~kMapHost));
}

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

int current_device() {
  Driver& api = driver();
  CUdevice device = 0;
  CUcontext current = nullptr;
  if (api.status == kSuccess && api.cuCtxGetDevice != nullptr && api.cuCtxGetCurrent(&current) == CUDA_SUCCESS &&
      current != nullptr && api.cuCtxGetDevice(&device) == CUDA_SUCCESS) {
    return device;
  }
  if (thread().device >= 0) return thread().device;
  std::lock_guard lock(devices().mutex);
  return devices().valid.empty() ? 0 : devices().valid.front();
}

int primary_context(int device, CUcontext* context) {
  Driver& api = driver();
  if (api.status != kSuccess) return api.status;
  Devices& all = devices();
  std::lock_guard lock(all.mutex);
  CUcontext& kept = all.primary[device];
  if (kept == nullptr) {
    if (CUresult result = api.cuDevicePrimaryCtxRetain(&kept, device); result != CUDA_SUCCESS) {
      kept = nullptr;
      return static_cast<int>(result);
    }
  }
  *context = kept;
  return kSuccess;
}

int ensure_context() {
  Driver& api = driver();
  if (api.status != kSuccess) return api.status;
  CUcontext current = nullptr;
  CUresult result = api.cuCtxGetCurrent(&current);
  if (result == CUDA_SUCCESS && current != nullptr) {
    const Thread& state = thread();
    if (current != state.context || state.life == devices().life.load())
      return kSuccess;  // a context set by the program, or one that is alive
    return make_current(state.device);
  }
  // After a sticky error even this look-up may fail; the context exists.
  if (result != CUDA_SUCCESS && result != CUDA_ERROR_INVALID_CONTEXT && result != CUDA_ERROR_CONTEXT_IS_DESTROYED) {
    return static_cast<int>(result);
  }
  return make_current(current_device());
}

}  // namespace rota::sim::cudart

using namespace rota::sim::cudart;  // NOLINT

ROTA_CUDART_EXPORT int cudaGetLastError() {
  int error = thread().last_error;
  thread().last_error = kSuccess;
  return error;
}
ROTA_CUDART_EXPORT int cudaPeekAtLastError() {
  return thread().last_error;
}

ROTA_CUDART_EXPORT int cudaRuntimeGetVersion(int* version) {
  if (version == nullptr) return done(kInvalidValue);
  *version = kRuntimeVersion;
  return kSuccess;
}
ROTA_CUDART_EXPORT int cudaDriverGetVersion(int* version) {
  if (version == nullptr) return done(kInvalidValue);
  *version = 0;  // documented: 0 if there is no driver
  if (driver().cuDriverGetVersion != nullptr) driver().cuDriverGetVersion(version);
  return kSuccess;
}

ROTA_CUDART_EXPORT int cudaGetDeviceCount(int* count) {
  if (count == nullptr) return done(kInvalidValue);
  return done(count_devices(count));
}
ROTA_CUDART_EXPORT int cudaGetDevice(int* device) {
  if (device == nullptr) return done(kInvalidValue);
  if (int error = driver().status; error != kSuccess) return done(error);
  *device = current_device();
  return kSuccess;
}
ROTA_CUDART_EXPORT int cudaSetDevice(int device) {
  if (int error = check_device(device); error != kSuccess) return done(error);
  return done(make_current(device));
}
ROTA_CUDART_EXPORT int cudaInitDevice(int device, unsigned device_flags, unsigned flags) {
  if (int error = check_device(device); error != kSuccess) return done(error);
  constexpr unsigned kFlagsAreValid = 1;
  if ((flags & ~kFlagsAreValid) != 0) return done(kInvalidValue);
  if ((flags & kFlagsAreValid) != 0) {
    if (int error = set_flags(device, device_flags); error != kSuccess) return done(error);
  }
  CUcontext context = nullptr;
  return done(primary_context(device, &context));
}
ROTA_CUDART_EXPORT int cudaSetValidDevices(const int* list, int length) {
  int count = 0;
  if (int error = count_devices(&count); error != kSuccess) return done(error);
  if (length < 0 || length > count || (length > 0 && list == nullptr)) return done(kInvalidValue);
  for (int i = 0; i < length; ++i) {
    if (list[i] < 0 || list[i] >= count) return done(kInvalidDevice);
  }
  std::lock_guard lock(devices().mutex);
  devices().valid.assign(list, list + length);
  return kSuccess;
}
ROTA_CUDART_EXPORT int cudaSetDeviceFlags(unsigned flags) {
  if (!are_device_flags(flags)) return done(kInvalidValue);
  if (int error = driver().status; error != kSuccess) return done(error);
  if (int error = set_flags(current_device(), flags); error != kSuccess) return done(error);
  return done(ensure_context());
}
ROTA_CUDART_EXPORT int cudaGetDeviceFlags(unsigned* flags) {
  if (flags == nullptr) return done(kInvalidValue);
  Driver& api = driver();
  if (api.status != kSuccess) return done(api.status);
  if (api.cuDevicePrimaryCtxGetState == nullptr) return done(kNotSupported);
  int active = 0;
  CUresult result = api.cuDevicePrimaryCtxGetState(current_device(), flags, &active);
  *flags |= kMapHost;
  return done(static_cast<int>(result));
}
ROTA_CUDART_EXPORT int cudaDeviceReset() {
  Driver& api = driver();
  if (api.status != kSuccess) return done(api.status);
  if (api.cuDevicePrimaryCtxReset == nullptr) return done(kNotSupported);
  int device = current_device();
  Devices& all = devices();
  CUcontext kept = nullptr;
  {
    std::lock_guard lock(all.mutex);
    std::swap(kept, all.primary[device]);
    ++all.life;
  }
  CUcontext current = nullptr;
  if (kept != nullptr && api.cuCtxGetCurrent(&current) == CUDA_SUCCESS && current == kept) {
    api.cuCtxSetCurrent(nullptr);
  }
  thread().device = device;
  CUresult result = api.cuDevicePrimaryCtxReset(device);
  return done(static_cast<int>(result));  // the next use retains it again
}
