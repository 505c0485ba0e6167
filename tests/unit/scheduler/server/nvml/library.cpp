// An NVML whose answers are in the file that TEST_NVML_FILE names, which is read again for each question. Its lines:
//   driver VERSION | init ERROR | gpu UUID TOTAL FREE USED | process PID BYTES | processes ERROR | graphics PID BYTES
//   | ended PID BYTES | once process PID BYTES | hangs | slow MS
// with all in bytes, and -1 bytes for those of a process that the driver does not know. One that has ended is listed
// once, as is one with `once`, instead of the same process's other line; what hangs does until the file says otherwise,
// and what is slow takes so long over each answer. Each nvmlInit is a letter in the file with .begun at its end, if
// that exists. OLDER is built without what later releases brought.
#include <fcntl.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

int device_file = -1;

struct Machine {
  std::string driver = "580.159.04";
  int init = 0;
  int processes_error = 0;
  struct Gpu {
    std::string uuid;
    std::uint64_t total = 0, free = 0, used = 0;
  };
  std::vector<Gpu> gpus;
  struct Process {
    long pid;
    std::int64_t bytes;
  };
  std::vector<Process> processes;
  std::vector<Process> graphics;
  std::vector<Process> ended;
  std::vector<Process> once;
  bool hangs = false;
  int slow_ms = 0;
};

Machine read_machine() {
  Machine machine;
  const char* path = std::getenv("TEST_NVML_FILE");
  std::ifstream file(path != nullptr ? path : "");
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string kind;
    words >> kind;
    if (kind == "once") {
      words >> kind;
      kind = "once " + kind;
    }
    if (kind == "driver") words >> machine.driver;
    if (kind == "init") words >> machine.init;
    if (kind == "processes") words >> machine.processes_error;
    if (kind == "gpu") {
      auto& gpu = machine.gpus.emplace_back();
      words >> gpu.uuid >> gpu.total >> gpu.free >> gpu.used;
    }
    if (kind == "hangs") machine.hangs = true;
    if (kind == "slow") words >> machine.slow_ms;
    for (const auto& [name, list] : {std::pair("process", &machine.processes), std::pair("graphics", &machine.graphics),
                                     std::pair("ended", &machine.ended), std::pair("once process", &machine.once)}) {
      if (kind != name) continue;
      auto& process = list->emplace_back();
      words >> process.pid >> process.bytes;
    }
  }
  return machine;
}

const Machine::Gpu* find(const Machine& machine, const void* device) {
  const auto index = reinterpret_cast<std::uintptr_t>(device) - 4096;
  return index < machine.gpus.size() ? &machine.gpus[index] : nullptr;
}

constexpr int kInvalidArgument = 2;
constexpr int kInsufficientSize = 7;

template <int kWords>
int list(bool graphics, unsigned* count, std::uint64_t* words) {
  const Machine machine = read_machine();
  if (machine.processes_error != 0) return machine.processes_error;
  std::vector<Machine::Process> processes = graphics ? machine.graphics : machine.processes;
  static std::set<long> listed;
  for (const Machine::Process& process : machine.ended) {
    if (!graphics && listed.insert(process.pid).second) processes.push_back(process);
  }
  const unsigned room = *count;
  static std::set<std::pair<long, std::int64_t>> done;
  if (!graphics && room >= processes.size()) {
    for (const Machine::Process& first : machine.once) {
      if (!done.emplace(first.pid, first.bytes).second) continue;
      for (Machine::Process& process : processes) {
        if (process.pid == first.pid) process.bytes = first.bytes;
      }
    }
  }
  *count = static_cast<unsigned>(processes.size());
  if (room < *count) return kInsufficientSize;
  for (const Machine::Process& process : processes) {
    words[0] = static_cast<std::uint32_t>(process.pid);
    words[1] = static_cast<std::uint64_t>(process.bytes);
    words += kWords;
  }
  return 0;
}

}  // namespace

EXPORT int nvmlInit_v2() {
  const int result = read_machine().init;
  if (const char* path = std::getenv("TEST_NVML_FILE"); path != nullptr) {
    const int begun = open((std::string(path) + ".begun").c_str(), O_WRONLY | O_APPEND | O_CLOEXEC);
    if (begun >= 0 && write(begun, "i", 1) == 1) close(begun);
  }
  // Keeps a file open, as the driver's NVML keeps the device files.
  if (const char* path = std::getenv("TEST_NVML_FILE"); result == 0 && path != nullptr && device_file < 0) {
    device_file = open((std::string(path) + ".device").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  }
  return result;
}
EXPORT int nvmlShutdown() {
  if (device_file >= 0) close(std::exchange(device_file, -1));
  return 0;
}
EXPORT int nvmlSystemGetDriverVersion(char* text, unsigned bytes) {
  std::strncpy(text, read_machine().driver.c_str(), bytes);
  return 0;
}
EXPORT int nvmlDeviceGetHandleByUUID(const char* uuid, void** device) {
  const Machine machine = read_machine();
  for (std::size_t index = 0; index < machine.gpus.size(); ++index) {
    if (machine.gpus[index].uuid != uuid) continue;
    *device = reinterpret_cast<void*>(4096 + index);
    return 0;
  }
  return kInvalidArgument;
}
EXPORT int nvmlDeviceGetCount_v2(unsigned* count) {
  *count = static_cast<unsigned>(read_machine().gpus.size());
  return 0;
}
EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) {
  *device = reinterpret_cast<void*>(4096 + std::uintptr_t{index});
  return find(read_machine(), *device) != nullptr ? 0 : kInvalidArgument;
}
EXPORT int nvmlDeviceGetUUID(void* device, char* text, unsigned bytes) {
  const Machine machine = read_machine();
  const Machine::Gpu* const gpu = find(machine, device);
  if (gpu == nullptr) return kInvalidArgument;
  std::strncpy(text, gpu->uuid.c_str(), bytes);
  return 0;
}
EXPORT int nvmlDeviceGetMemoryInfo(void* device, std::uint64_t* memory) {
  while (read_machine().hangs) usleep(10'000);
  const Machine machine = read_machine();
  usleep(static_cast<useconds_t>(machine.slow_ms) * 1000);
  const Machine::Gpu* gpu = find(machine, device);
  if (gpu == nullptr) return kInvalidArgument;
  memory[0] = gpu->total;
  memory[1] = gpu->free;
  memory[2] = gpu->used;
  return 0;
}
EXPORT int nvmlDeviceGetComputeRunningProcesses(void*, unsigned* count, std::uint64_t* words) {
  return list<2>(false, count, words);
}
EXPORT int nvmlDeviceGetGraphicsRunningProcesses(void*, unsigned* count, std::uint64_t* words) {
  return list<2>(true, count, words);
}
#if !defined(OLDER)
EXPORT int nvmlDeviceGetMemoryInfo_v2(void* device, std::uint64_t* memory) {
  while (read_machine().hangs) usleep(10'000);
  const Machine machine = read_machine();
  usleep(static_cast<useconds_t>(machine.slow_ms) * 1000);
  const Machine::Gpu* gpu = find(machine, device);
  if (gpu == nullptr || static_cast<std::uint32_t>(memory[0]) != 0x02000028) return kInvalidArgument;
  memory[1] = gpu->total;
  memory[2] = gpu->total - gpu->free - gpu->used;
  memory[3] = gpu->free;
  memory[4] = gpu->used;
  return 0;
}
EXPORT int nvmlDeviceGetComputeRunningProcesses_v2(void*, unsigned* count, std::uint64_t* words) {
  return list<3>(false, count, words);
}
EXPORT int nvmlDeviceGetGraphicsRunningProcesses_v2(void*, unsigned* count, std::uint64_t* words) {
  return list<3>(true, count, words);
}
// Writes longer entries, as some drivers of branch 535 do, if the driver's version is one of these.
EXPORT int nvmlDeviceGetComputeRunningProcesses_v3(void*, unsigned* count, std::uint64_t* words) {
  return read_machine().driver.starts_with("535.") ? list<4>(false, count, words) : list<3>(false, count, words);
}
EXPORT int nvmlDeviceGetGraphicsRunningProcesses_v3(void*, unsigned* count, std::uint64_t* words) {
  return read_machine().driver.starts_with("535.") ? list<4>(true, count, words) : list<3>(true, count, words);
}
#endif
