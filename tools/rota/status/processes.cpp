#include "tools/rota/status/processes.h"

#include <dlfcn.h>

#include <chrono>
#include <future>
#include <memory>
#include <thread>

namespace rota::tool {
namespace {

constexpr int kSuccess = 0;
constexpr int kInsufficientSize = 7;
constexpr auto kPatience = std::chrono::seconds(2);

std::optional<unsigned> count() {
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
  // Asked with room for none, it answers how many there are, whatever an entry looks like.
  int (*processes)(void*, unsigned*, void*) = nullptr;
  if (!find(initialise, "nvmlInit_v2") || !find(shutdown, "nvmlShutdown") || !find(devices, "nvmlDeviceGetCount_v2") ||
      !find(device, "nvmlDeviceGetHandleByIndex_v2") ||
      (!find(processes, "nvmlDeviceGetComputeRunningProcesses_v3") &&
       !find(processes, "nvmlDeviceGetComputeRunningProcesses_v2") &&
       !find(processes, "nvmlDeviceGetComputeRunningProcesses")) ||
      initialise() != kSuccess) {
    return std::nullopt;
  }
  unsigned all = 0;
  unsigned gpus = 0;
  if (devices(&gpus) != kSuccess) gpus = 0;
  for (unsigned index = 0; index < gpus; ++index) {
    void* handle = nullptr;
    unsigned here = 0;
    if (device(index, &handle) == kSuccess && processes(handle, &here, nullptr) == kInsufficientSize) all += here;
  }
  shutdown();
  return all;
}

}  // namespace

std::optional<unsigned> processes_on_gpus() {
  // On a failing GPU NVML may never return: its thread is left behind then.
  auto answer = std::make_shared<std::promise<std::optional<unsigned>>>();
  auto comes = answer->get_future();
  std::thread([answer] { answer->set_value(count()); }).detach();
  if (comes.wait_for(kPatience) != std::future_status::ready) return std::nullopt;
  return comes.get();
}

}  // namespace rota::tool
