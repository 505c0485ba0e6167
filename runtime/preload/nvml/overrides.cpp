// NVML's queries about memory and processes, as a program with a limit sees them. The real library is always called
// first, and its errors are passed on; without a limit its results are, too.
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/preload/core_library.h"
#include "runtime/preload/gpu_memory.h"
#include "runtime/preload/nvml/library.h"
#include "runtime/preload/nvml/nvml.h"
#include "runtime/preload/object.h"
#include "runtime/preload/off.h"

namespace rota::nvml {
namespace {

// As NVML's header has it, for the longest that there is.
constexpr unsigned kUuidBytes = 96;

template <Symbol kSymbol, class... Arguments>
int call_real(Arguments... arguments) noexcept {
  return reinterpret_cast<int (*)(Arguments...)>(real_function(kSymbol))(arguments...);
}

// The core's function. If there is no sign of a limit, the core is not loaded just for this; a process may call CUDA
// later, so this is checked again.
RotaCoreGpuMemory* core_function() noexcept {
  static RotaCoreGpuMemory* known;
  static uint8_t unusable;
  if (auto* const function = __atomic_load_n(&known, __ATOMIC_ACQUIRE)) return function;
  if (__atomic_load_n(&unusable, __ATOMIC_RELAXED) != 0 || thin::is_off()) return nullptr;
  char path[thin::kPathBytes];
  if (!thin::path_beside_us("librota-core.so", path)) return nullptr;
  const char* const limit = secure_getenv(ROTA_LIMIT_VARIABLE);
  const bool limited = limit != nullptr && *limit != '\0';
  const char* why = "it has no " ROTA_CORE_GPU_MEMORY_NAME;
  void* const core = thin::open_core_library(path, RTLD_NOW | RTLD_LOCAL | (limited ? 0 : RTLD_NOLOAD), why);
  auto* const function =
      core != nullptr ? reinterpret_cast<RotaCoreGpuMemory*>(thin::foreign_symbol(core, ROTA_CORE_GPU_MEMORY_NAME))
                      : nullptr;
  if (function != nullptr) {
    __atomic_store_n(&known, function, __ATOMIC_RELEASE);
  } else if (core != nullptr || limited) {
    if (__atomic_exchange_n(&unusable, 1, __ATOMIC_RELAXED) == 0) {
      thin::say_core_unusable(path, why, "NVML shows the whole GPU");
    }
  }
  return function;
}

// Whether the GPU is split into MIG instances: the limit applies to what CUDA shows, which is the instances. (An
// instance is told by its UUID.)
bool is_split(Device device) noexcept {
  unsigned mode = 0, pending = 0;
  return call_real<k_nvmlDeviceGetMigMode>(device, &mode, &pending) == kSuccess && mode != 0;
}

// Whether this process sees other figures for the device than the driver's, and which.
bool is_limited(Device device, RotaGpuMemory& memory) noexcept {
  const int saved = errno;
  auto* const function = core_function();
  char uuid[kUuidBytes];
  // Without a limit, NVML is asked nothing but what the program asks.
  const bool limited = function != nullptr && function(kRotaGpuMemoryVersion, nullptr, nullptr) == 1 &&
                       !is_split(device) && call_real<k_nvmlDeviceGetUUID>(device, &uuid[0], kUuidBytes) == kSuccess &&
                       function(kRotaGpuMemoryVersion, uuid, &memory) == 1;
  errno = saved;
  return limited;
}

int memory_info(Device device, Memory* memory) noexcept {
  const int result = call_real<k_nvmlDeviceGetMemoryInfo>(device, memory);
  if (result != kSuccess || memory == nullptr) return result;
  RotaGpuMemory seen{memory->total, memory->free, 0};
  if (is_limited(device, seen)) *memory = {seen.total, seen.free, seen.total - seen.free};
  return result;
}

int memory_info_v2(Device device, MemoryV2* memory) noexcept {
  const int result = call_real<k_nvmlDeviceGetMemoryInfo_v2>(device, memory);
  if (result != kSuccess || memory == nullptr || memory->version != kMemoryV2) return result;
  RotaGpuMemory seen{memory->total, memory->free, 0};
  // What the driver reserves does not count towards a limit.
  if (is_limited(device, seen)) *memory = {memory->version, seen.total, 0, seen.free, seen.total - seen.free};
  return result;
}

// Among the processes in the driver's list, this one's memory is known better.
template <class Process>
void correct_own(Device device, Process* processes, uint32_t count) noexcept {
  const auto pid = static_cast<uint32_t>(getpid());
  for (uint32_t index = 0; index < count; ++index) {
    if (processes[index].pid != pid || processes[index].used_memory == kNotAvailable) continue;
    RotaGpuMemory seen{kNotAvailable, kNotAvailable, 0};
    if (!is_limited(device, seen)) return;
    processes[index].used_memory = seen.own;
  }
}

template <Symbol kSymbol, class Process>
int processes(Device device, uint32_t* count, Process* list) noexcept {
  const int result = call_real<kSymbol>(device, count, list);
  if (result == kSuccess && count != nullptr && list != nullptr) correct_own(device, list, *count);
  return result;
}

int process_details(Device device, ProcessDetailList* list) noexcept {
  const int result = call_real<k_nvmlDeviceGetRunningProcessDetailList>(device, list);
  if (result == kSuccess && list != nullptr && list->version == kProcessDetailListV1 && list->processes != nullptr) {
    correct_own(device, list->processes, list->count);
  }
  return result;
}

template <Symbol kSymbol, class Process>
void* process_list() noexcept {
  return reinterpret_cast<void*>(&processes<kSymbol, Process>);
}

}  // namespace

void* override_of(Symbol symbol) noexcept {
  switch (symbol) {
    case k_nvmlDeviceGetMemoryInfo:
      return reinterpret_cast<void*>(&memory_info);
    case k_nvmlDeviceGetMemoryInfo_v2:
      return reinterpret_cast<void*>(&memory_info_v2);
    case k_nvmlDeviceGetComputeRunningProcesses:
      return process_list<k_nvmlDeviceGetComputeRunningProcesses, ProcessInfoV1>();
    case k_nvmlDeviceGetComputeRunningProcesses_v2:
      return process_list<k_nvmlDeviceGetComputeRunningProcesses_v2, ProcessInfoV2>();
    case k_nvmlDeviceGetComputeRunningProcesses_v3:
      return process_list<k_nvmlDeviceGetComputeRunningProcesses_v3, ProcessInfoV2>();
    case k_nvmlDeviceGetGraphicsRunningProcesses:
      return process_list<k_nvmlDeviceGetGraphicsRunningProcesses, ProcessInfoV1>();
    case k_nvmlDeviceGetGraphicsRunningProcesses_v2:
      return process_list<k_nvmlDeviceGetGraphicsRunningProcesses_v2, ProcessInfoV2>();
    case k_nvmlDeviceGetGraphicsRunningProcesses_v3:
      return process_list<k_nvmlDeviceGetGraphicsRunningProcesses_v3, ProcessInfoV2>();
    case k_nvmlDeviceGetMPSComputeRunningProcesses:
      return process_list<k_nvmlDeviceGetMPSComputeRunningProcesses, ProcessInfoV1>();
    case k_nvmlDeviceGetMPSComputeRunningProcesses_v2:
      return process_list<k_nvmlDeviceGetMPSComputeRunningProcesses_v2, ProcessInfoV2>();
    case k_nvmlDeviceGetMPSComputeRunningProcesses_v3:
      return process_list<k_nvmlDeviceGetMPSComputeRunningProcesses_v3, ProcessInfoV2>();
    case k_nvmlDeviceGetRunningProcessDetailList:
      return reinterpret_cast<void*>(&process_details);
    default:
      return nullptr;
  }
}

}  // namespace rota::nvml
