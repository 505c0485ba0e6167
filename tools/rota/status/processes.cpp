#include "tools/rota/status/processes.h"

#include <dlfcn.h>

#include <array>
#include <chrono>
#include <future>
#include <memory>
#include <thread>

#include "scheduler/base/uuid.h"
#include "scheduler/server/nvml.h"

namespace rota::tool {
namespace {

constexpr int kSuccess = 0;
constexpr int kInsufficientSize = 7;
constexpr auto kPatience = std::chrono::seconds(2);

struct Memory {
  unsigned long long total;
  unsigned long long free;
  unsigned long long used;
};

struct Utilization {
  unsigned gpu;
  unsigned memory;
};

// As rotad does it, which knows the forms that drivers answer in.
void name_processes(const server::Nvml& nvml, Machine& machine) {
  for (MachineGpu& gpu : machine.gpus) {
    const std::optional<Uuid> uuid = parse_uuid(gpu.uuid);
    const auto reading = uuid ? nvml.read(*uuid) : std::nullopt;
    if (reading && reading->processes) gpu.processes = *reading->processes;
  }
}

std::optional<Machine> ask() {
  // Never closed: it may have started threads.
  void* const library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return std::nullopt;
  const auto find = [&]<class Function>(Function*& function, const char* name) {
    function = reinterpret_cast<Function*>(dlsym(library, name));
    return function != nullptr;
  };
  int (*initialise)() = nullptr;
  int (*shutdown)() = nullptr;
  int (*devices)(unsigned*) = nullptr;
  int (*device)(unsigned, void**) = nullptr;
  // Asked with space for none, it answers how many there are, whatever the layout of an entry.
  int (*processes)(void*, unsigned*, void*) = nullptr;
  int (*text_of_uuid)(void*, char*, unsigned) = nullptr;
  int (*text_of_name)(void*, char*, unsigned) = nullptr;
  int (*memory)(void*, Memory*) = nullptr;
  int (*utilization)(void*, Utilization*) = nullptr;
  // It begins NVML for what follows as well, unless rota's own library stands in front.
  const auto nvml = server::Nvml::open();
  find(text_of_uuid, "nvmlDeviceGetUUID");
  find(text_of_name, "nvmlDeviceGetName");
  find(memory, "nvmlDeviceGetMemoryInfo");
  find(utilization, "nvmlDeviceGetUtilizationRates");
  if (!find(initialise, "nvmlInit_v2") || !find(shutdown, "nvmlShutdown") || !find(devices, "nvmlDeviceGetCount_v2") ||
      !find(device, "nvmlDeviceGetHandleByIndex_v2") ||
      (!find(processes, "nvmlDeviceGetComputeRunningProcesses_v3") &&
       !find(processes, "nvmlDeviceGetComputeRunningProcesses_v2") &&
       !find(processes, "nvmlDeviceGetComputeRunningProcesses")) ||
      (!nvml && initialise() != kSuccess)) {
    return std::nullopt;
  }
  Machine machine;
  unsigned gpus = 0;
  if (devices(&gpus) != kSuccess) gpus = 0;
  for (unsigned index = 0; index < gpus; ++index) {
    void* handle = nullptr;
    if (device(index, &handle) != kSuccess) continue;
    unsigned here = 0;
    if (processes(handle, &here, nullptr) == kInsufficientSize) machine.processes += here;
    std::array<char, 96> text{};
    if (text_of_uuid == nullptr || text_of_uuid(handle, text.data(), text.size()) != kSuccess) continue;
    MachineGpu& gpu = machine.gpus.emplace_back();
    gpu.number = index;
    gpu.uuid = text.data();
    text = {};
    if (text_of_name != nullptr && text_of_name(handle, text.data(), text.size()) == kSuccess) gpu.name = text.data();
    Memory bytes{};
    if (memory != nullptr && memory(handle, &bytes) == kSuccess) {
      gpu.total_bytes = bytes.total;
      gpu.used_bytes = bytes.used;
    }
    Utilization busy{};
    if (utilization != nullptr && utilization(handle, &busy) == kSuccess) gpu.busy_percent = busy.gpu;
  }
  if (nvml) {
    name_processes(**nvml, machine);
  } else {
    shutdown();
  }
  return machine;
}

}  // namespace

std::optional<Machine> ask_machine() {
  // On a failing GPU NVML may never return: its thread is left behind then.
  auto answer = std::make_shared<std::promise<std::optional<Machine>>>();
  auto comes = answer->get_future();
  std::thread([answer] { answer->set_value(ask()); }).detach();
  if (comes.wait_for(kPatience) != std::future_status::ready) return std::nullopt;
  return comes.get();
}

}  // namespace rota::tool
