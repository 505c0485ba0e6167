// A libnvidia-ml.so.1 that reports on the simulated machine (ROTA_SIM_STATE) what NVIDIA's reports on a real one: how
// much of each GPU's memory is in use and by which process, from the state that simgpu's drivers share. A process's
// bytes are its contexts and plain memory; managed memory counts only for the GPU. Functions that are not defined here
// do not exist.
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "tools/simgpu/state/options.h"
#include "tools/simgpu/state/shared_state.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

using rota::sim::ObservedGpu;

// nvmlReturn_t
constexpr int kSuccess = 0;
constexpr int kInvalidArgument = 2;
constexpr int kNotFound = 6;
constexpr int kInsufficientSize = 7;
constexpr int kVersionMismatch = 25;

std::vector<ObservedGpu> machine() {
  auto gpus = rota::sim::SharedState::observe(rota::sim::Options::from_environment().state_path);
  return gpus ? std::move(*gpus) : std::vector<ObservedGpu>();
}

std::string uuid_of(const ObservedGpu& gpu) {
  std::string text = "GPU-";
  for (int i = 0; i < 16; ++i) {
    char digits[3];
    std::snprintf(digits, sizeof digits, "%02x", gpu.uuid[i]);
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += digits;
  }
  return text;
}

// A handle is a number from 4096 on.
void* handle_of(std::size_t index) {
  return reinterpret_cast<void*>(4096 + index);
}
std::optional<ObservedGpu> gpu_of(const void* device) {
  const std::vector<ObservedGpu> gpus = machine();
  const std::uintptr_t index = reinterpret_cast<std::uintptr_t>(device) - 4096;
  return index < gpus.size() ? std::optional(gpus[index]) : std::nullopt;
}

// Entries of this many 64-bit words: the first is a pid, the second a number of bytes.
template <int kWords>
int list_processes(const void* device, unsigned* count, std::uint64_t* words) {
  const auto gpu = gpu_of(device);
  if (!gpu || count == nullptr) return kInvalidArgument;
  const unsigned room = *count;
  *count = static_cast<unsigned>(gpu->processes.size());
  if (*count == 0) return kSuccess;
  if (room < *count) return kInsufficientSize;
  if (words == nullptr) return kInvalidArgument;
  for (const ObservedGpu::Process& process : gpu->processes) {
    std::memset(words, 0xff, kWords * sizeof *words);  // no MIG instance
    words[0] = static_cast<std::uint32_t>(process.pid);
    words[1] = process.plain;
    words += kWords;
  }
  return kSuccess;
}

}  // namespace

EXPORT int nvmlInit_v2() {
  return kSuccess;
}

EXPORT int nvmlInitWithFlags(unsigned) {
  return kSuccess;
}

EXPORT int nvmlShutdown() {
  return kSuccess;
}

EXPORT const char* nvmlErrorString(int result) {
  return result == kSuccess ? "Success" : "Error";
}

EXPORT int nvmlSystemGetDriverVersion(char* text, unsigned bytes) {
  constexpr char kVersion[] = "580.159.04";
  if (text == nullptr) return kInvalidArgument;
  if (bytes < sizeof kVersion) return kInsufficientSize;
  std::memcpy(text, kVersion, sizeof kVersion);
  return kSuccess;
}

EXPORT int nvmlDeviceGetCount_v2(unsigned* count) {
  if (count == nullptr) return kInvalidArgument;
  *count = static_cast<unsigned>(machine().size());
  return kSuccess;
}

EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) {
  if (device == nullptr || index >= machine().size()) return kInvalidArgument;
  *device = handle_of(index);
  return kSuccess;
}

EXPORT int nvmlDeviceGetHandleByUUID(const char* uuid, void** device) {
  if (uuid == nullptr || device == nullptr) return kInvalidArgument;
  const std::vector<ObservedGpu> gpus = machine();
  for (std::size_t index = 0; index < gpus.size(); ++index) {
    if (uuid_of(gpus[index]) != uuid) continue;
    *device = handle_of(index);
    return kSuccess;
  }
  return kNotFound;
}

EXPORT int nvmlDeviceGetIndex(const void* device, unsigned* index) {
  if (!gpu_of(device) || index == nullptr) return kInvalidArgument;
  *index = static_cast<unsigned>(reinterpret_cast<std::uintptr_t>(device) - 4096);
  return kSuccess;
}

EXPORT int nvmlDeviceGetUUID(void* device, char* text, unsigned bytes) {
  const auto gpu = gpu_of(device);
  if (!gpu || text == nullptr) return kInvalidArgument;
  const std::string uuid = uuid_of(*gpu);
  if (bytes <= uuid.size()) return kInsufficientSize;
  std::memcpy(text, uuid.c_str(), uuid.size() + 1);
  return kSuccess;
}

EXPORT int nvmlDeviceGetMemoryInfo(void* device, std::uint64_t* memory) {
  const auto gpu = gpu_of(device);
  if (!gpu || memory == nullptr) return kInvalidArgument;
  memory[0] = gpu->capacity;
  memory[2] = gpu->plain + gpu->managed_resident;
  memory[1] = memory[0] - memory[2];
  return kSuccess;
}

// nvmlMemory_v2_t: version, total, reserved, free, used.
EXPORT int nvmlDeviceGetMemoryInfo_v2(void* device, std::uint64_t* memory) {
  if (memory == nullptr) return kInvalidArgument;
  if (static_cast<std::uint32_t>(memory[0]) != 0x02000028) return kVersionMismatch;
  std::uint64_t older[3];
  if (const int result = nvmlDeviceGetMemoryInfo(device, older); result != kSuccess) return result;
  memory[1] = older[0];
  memory[2] = 0;
  memory[3] = older[1];
  memory[4] = older[2];
  return kSuccess;
}

EXPORT int nvmlDeviceGetComputeRunningProcesses(void* device, unsigned* count, std::uint64_t* list) {
  return list_processes<2>(device, count, list);
}
EXPORT int nvmlDeviceGetComputeRunningProcesses_v2(void* device, unsigned* count, std::uint64_t* list) {
  return list_processes<3>(device, count, list);
}
EXPORT int nvmlDeviceGetComputeRunningProcesses_v3(void* device, unsigned* count, std::uint64_t* list) {
  return list_processes<3>(device, count, list);
}
