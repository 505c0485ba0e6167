// A program that asks NVML, for the processor that rota is built for: nvml_test.py's own programs are this machine's
// Python.
//   nvml_probe call NAME…   calls each function twice with the arguments that library.cpp wants; prints name and
//   results nvml_probe memory       what the first GPU's memory is by both forms of the question, and this process's
//   part of it
#include <dlfcn.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstring>

namespace {

void* nvml;

template <typename Function>
Function* symbol(const char* name) {
  void* found = dlsym(nvml, name);
  if (found == nullptr) std::fprintf(stderr, "nvml_probe: no %s\n", name);
  return reinterpret_cast<Function*>(found);
}

int call(int count, char** names) {
  for (int index = 0; index < count; ++index) {
    using Function = int(long, double, const char*, long, double, long, long, long, long);
    auto* const function = symbol<Function>(names[index]);
    if (function == nullptr) return 3;
    const int first = function(1, 2.5, "three", 4, 5.5, 6, 7, 8, 9);
    std::printf("%s %d %d\n", names[index], first, function(1, 2.5, "three", 4, 5.5, 6, 7, 8, 9));
  }
  return 0;
}

int memory() {
  void* device = nullptr;
  std::uint64_t first[3] = {}, second[5] = {0x02000028}, processes[9] = {};
  unsigned processes_count = 3;
  if (symbol<int(unsigned, void**)>("nvmlDeviceGetHandleByIndex_v2")(0, &device) != 0 ||
      symbol<int(void*, void*)>("nvmlDeviceGetMemoryInfo")(device, first) != 0 ||
      symbol<int(void*, void*)>("nvmlDeviceGetMemoryInfo_v2")(device, second) != 0 ||
      symbol<int(void*, void*, void*)>("nvmlDeviceGetComputeRunningProcesses_v3")(device, &processes_count,
                                                                                  processes) != 0) {
    return 3;
  }
  for (const std::uint64_t word : first) std::printf("%llu ", static_cast<unsigned long long>(word));
  for (int i = 1; i < 5; ++i) std::printf("%llu ", static_cast<unsigned long long>(second[i]));
  std::printf("%llu\n", static_cast<unsigned long long>(processes[1]));
  return 0;
}

}  // namespace

int main(int count, char** words) {
  nvml = dlopen("libnvidia-ml.so.1", RTLD_NOW);
  if (nvml == nullptr || count < 2) return 3;
  return std::strcmp(words[1], "call") == 0 ? call(count - 2, words + 2) : memory();
}
