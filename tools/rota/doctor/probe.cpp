#include "tools/rota/doctor/probe.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <array>
#include <cstdint>
#include <cstring>

#include "generated/driver_types.h"
#include "runtime/preload/attachment.h"
#include "scheduler/base/uuid.h"
#include "tools/rota/doctor/child.h"

namespace rota::doctor {
namespace {

using Dlopen = void*(const char*, int);

// The C library's own dlopen: with rota in /etc/ld.so.preload a path to the driver would give the shim.
Dlopen* libc_dlopen() {
  void* libc = dlopen("libc.so.6", RTLD_NOW | RTLD_NOLOAD);
  // Before glibc 2.34 it is in libdl.
  void* found = libc != nullptr ? dlsym(libc, "dlopen") : nullptr;
  return found != nullptr ? reinterpret_cast<Dlopen*>(found) : &dlopen;
}

template <typename Function>
Function* find(void* library, const char* name) {
  return reinterpret_cast<Function*>(dlsym(library, name));
}

// All driver functions return a CUresult, an int here: this file compares numbers only.
using Init = int(unsigned);
using GetInt = int(int*);
using DeviceGet = int(int*, int);
using DeviceGetName = int(char*, int, int);
using DeviceTotalMem = int(std::size_t*, int);
using DeviceGetAttribute = int(int*, int, int);
using DeviceGetUuid = int(Uuid*, int);

nlohmann::json describe_gpu(void* driver, int index) {
  nlohmann::json gpu = {{"index", index}};
  int device = index;
  if (auto* get = find<DeviceGet>(driver, "cuDeviceGet")) get(&device, index);
  if (auto* get = find<DeviceGetName>(driver, "cuDeviceGetName")) {
    char name[256] = {};
    if (get(name, sizeof name - 1, device) == 0) gpu["name"] = name;
  }
  auto* get_uuid = find<DeviceGetUuid>(driver, "cuDeviceGetUuid_v2");  // of the MIG instance, where there is one
  if (get_uuid == nullptr) get_uuid = find<DeviceGetUuid>(driver, "cuDeviceGetUuid");
  Uuid uuid{};
  if (get_uuid != nullptr && get_uuid(&uuid, device) == 0) gpu["uuid"] = uuid_text(uuid);
  if (auto* get = find<DeviceTotalMem>(driver, "cuDeviceTotalMem_v2")) {
    std::size_t bytes = 0;
    if (get(&bytes, device) == 0) gpu["bytes"] = bytes;
  }
  constexpr std::pair<const char*, int> kAttributes[] = {
      {"major", api::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR},
      {"minor", api::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR},
      {"compute_mode", api::CU_DEVICE_ATTRIBUTE_COMPUTE_MODE},
      {"managed", api::CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY},
      {"concurrent_managed", api::CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS},
      {"pageable", api::CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS},
      {"virtual_memory", api::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED},
      {"memory_pools", api::CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED},
  };
  if (auto* get = find<DeviceGetAttribute>(driver, "cuDeviceGetAttribute")) {
    for (const auto& [name, attribute] : kAttributes) {
      int value = 0;
      if (get(&value, attribute, device) == 0) gpu[name] = value;
    }
  }
  return gpu;
}

// nvmlDevice_t is a pointer; results are nvmlReturn_t, 0 being success.
void ask_nvml(const std::string& path, Dlopen* open, const Reporter& reporter) {
  reporter.step("loading " + path);
  void* nvml = open(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (nvml == nullptr) return;
  auto* init = find<int()>(nvml, "nvmlInit_v2");
  auto* count = find<int(unsigned*)>(nvml, "nvmlDeviceGetCount_v2");
  auto* device_at = find<int(unsigned, void**)>(nvml, "nvmlDeviceGetHandleByIndex_v2");
  auto* uuid_of = find<int(void*, char*, unsigned)>(nvml, "nvmlDeviceGetUUID");
  auto* mig_of = find<int(void*, unsigned*, unsigned*)>(nvml, "nvmlDeviceGetMigMode");
  auto* version_of = find<int(char*, unsigned)>(nvml, "nvmlSystemGetDriverVersion");
  if (init == nullptr || count == nullptr || device_at == nullptr || uuid_of == nullptr) return;
  reporter.step("nvmlInit_v2");
  const int error = init();
  reporter.say({{"nvml", error}});
  if (error != 0) return;
  std::array<char, 128> text{};
  if (version_of != nullptr && version_of(text.data(), text.size() - 1) == 0) {
    reporter.say({{"nvml_driver_version", text.data()}});
  }
  unsigned gpus = 0;
  if (count(&gpus) != 0) return;
  nlohmann::json list = nlohmann::json::array();
  for (unsigned index = 0; index < gpus; ++index) {
    reporter.step(fmt::format("NVML's queries of GPU {}", index));
    void* device = nullptr;
    text = {};
    if (device_at(index, &device) != 0 || uuid_of(device, text.data(), text.size() - 1) != 0) continue;
    nlohmann::json gpu = {{"uuid", text.data()}, {"number", index}};
    unsigned now = 0;
    unsigned later = 0;
    if (mig_of != nullptr && mig_of(device, &now, &later) == 0) {
      gpu["mig_now"] = now;
      gpu["mig_later"] = later;
    }
    list.push_back(gpu);
  }
  reporter.say({{"nvml_gpus", list}});
}

void ask_driver(void* driver, const Reporter& reporter) {
  if (auto* get = find<GetInt>(driver, "cuDriverGetVersion")) {
    reporter.step("cuDriverGetVersion");
    int version = 0;
    if (get(&version) == 0) reporter.say({{"version", version}});
  }
  auto* init = find<Init>(driver, "cuInit");
  if (init == nullptr) return;
  reporter.step("cuInit");
  const int error = init(0);
  reporter.say({{"init", error}});
  if (error != 0) return;
  reporter.step("cuDeviceGetCount");
  int count = 0;
  auto* get_count = find<GetInt>(driver, "cuDeviceGetCount");
  if (get_count == nullptr || get_count(&count) != 0) return;
  reporter.say({{"count", count}});
  nlohmann::json gpus = nlohmann::json::array();
  for (int index = 0; index < count; ++index) {
    reporter.step(fmt::format("the queries of GPU {}", index));
    gpus.push_back(describe_gpu(driver, index));
  }
  reporter.say({{"gpus", gpus}});
}

bool same_file(const char* left, const std::string& right) {
  struct stat first;
  struct stat second;
  return stat(left, &first) == 0 && stat(right.c_str(), &second) == 0 && first.st_dev == second.st_dev &&
         first.st_ino == second.st_ino;
}

// Empty, or why the library cannot be used: the loader's words, or that it has no `function`.
std::string load(const std::string& path, int flags, const char* function) {
  void* library = dlopen(path.c_str(), flags | RTLD_LOCAL);
  if (library != nullptr && (function == nullptr || dlsym(library, function) != nullptr)) return {};
  const char* words = dlerror();
  return words != nullptr ? words : "the loader refuses it";
}

}  // namespace

int probe_driver(const std::string& driver, const std::string& nvml, int report) {
  const Reporter reporter(report);
  Dlopen* open = libc_dlopen();
  reporter.step("loading " + driver);
  void* library = open(driver.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* words = dlerror();
    reporter.say({{"load_error", words != nullptr ? words : "the loader refuses it"}});
  } else {
    ask_driver(library, reporter);
    if (!nvml.empty()) ask_nvml(nvml, open, reporter);
  }
  reporter.step("its exit");
  reporter.done();
  return 0;
}

int try_preload(const std::string& preload, const std::string& directory, int report) {
  const Reporter reporter(report);
  reporter.step("loading librota-core.so");
  reporter.say({{"core_error", load(directory + "/librota-core.so", RTLD_NOW, ROTA_CORE_ATTACH_NAME)}});
  reporter.step("loading librota-cudart.so");
  reporter.say({{"cudart_error", load(directory + "/librota-cudart.so", RTLD_LAZY, nullptr)}});
  reporter.step("loading librota-nvml.so");
  reporter.say({{"nvml_error", load(directory + "/librota-nvml.so", RTLD_NOW, "nvmlInit_v2")}});
  reporter.step("dlopen(\"libcuda.so.1\")");
  void* shim = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  auto* get_version = shim != nullptr ? find<GetInt>(shim, "cuDriverGetVersion") : nullptr;
  Dl_info place{};
  const bool ours = get_version != nullptr && dladdr(reinterpret_cast<void*>(get_version), &place) != 0 &&
                    same_file(place.dli_fname, preload);
  reporter.say({{"preloaded", ours}});
  if (ours) {
    reporter.step("the first CUDA call");
    int version = 0;
    const int result = get_version(&version);
    reporter.say({{"result", result}, {"version", version}});
  }
  reporter.step("its exit");
  reporter.done();
  return 0;
}

}  // namespace rota::doctor
