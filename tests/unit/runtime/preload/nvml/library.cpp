// An NVML for the tests of librota-nvml.so. Its GPUs are what TEST_NVML_GPUS says, separated by commas: UUID, total and
// free bytes, as "GPU-...:1000:900". With TEST_NVML_SPLIT set, each is split into MIG instances; with TEST_NVML_TELL,
// questions for a UUID are reported on stderr.
//   TEST_OLDER  without the functions of later releases
//   TEST_NEWER  with a function, and versions of structs, that rota does not know
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

constexpr int kInvalidArgument = 2;
constexpr int kNotSupported = 3;
constexpr int kInsufficientSize = 7;
constexpr int kVersionMismatch = 25;

struct Gpu {
  std::string uuid;
  std::uint64_t total = 0, free = 0;
};

bool find_gpu(std::size_t index, Gpu& gpu) {
  const char* text = std::getenv("TEST_NVML_GPUS");
  std::string rest = text != nullptr ? text : "";
  while (!rest.empty()) {
    const std::string entry = rest.substr(0, rest.find(','));
    rest.erase(0, entry.size() + 1);
    if (index-- != 0) continue;
    const std::size_t first = entry.find(':'), second = entry.find(':', first + 1);
    gpu = {entry.substr(0, first), std::stoull(entry.substr(first + 1)), std::stoull(entry.substr(second + 1))};
    return true;
  }
  return false;
}

// A handle is a number from 4096 on.
bool at(void* device, Gpu& gpu) {
  return find_gpu(reinterpret_cast<std::uintptr_t>(device) - 4096, gpu);
}

// The version that such a struct begins with, or the next one.
[[maybe_unused]] bool is_version(std::uint64_t word, std::uint32_t version) {
  const auto said = static_cast<std::uint32_t>(word);
#if defined(TEST_NEWER)
  if (said == version + (1U << 24)) return true;
#endif
  return said == version;
}

// Entries of kWords 64-bit words, the first of which is a pid and the second a number of bytes: this process with 5000,
// another one with 6000, and this process where the driver does not know its memory.
template <int kWords>
int list_processes(void* device, unsigned* count, std::uint64_t* words) {
  Gpu gpu;
  if (!at(device, gpu) || count == nullptr) return kInvalidArgument;
  const unsigned room = *count;
  *count = 3;
  if (room < 3) return kInsufficientSize;
  if (words == nullptr) return kInvalidArgument;
  const std::uint64_t own = static_cast<std::uint64_t>(getpid());
  const std::uint64_t values[3][2] = {{own, 5000}, {own + 1, 6000}, {own, ~std::uint64_t{0}}};
  for (int i = 0; i < 3; ++i) {
    for (int word = 0; word < kWords; ++word) words[i * kWords + word] = word < 2 ? values[i][word] : 77;
  }
  return 0;
}

}  // namespace

#define PATTERN(name)                                                                                           \
  EXPORT int name(long a, double b, const char* c, long d, double e, long f, long g, long h, long i) {          \
    const bool complete = a == 1 && b == 2.5 && std::strcmp(c, "three") == 0 && d == 4 && e == 5.5 && f == 6 && \
                          g == 7 && h == 8 && i == 9;                                                           \
    return complete ? static_cast<int>(std::strlen(#name)) * 1000 + #name[sizeof #name - 2] : -1;               \
  }
#include "patterns.inc"

EXPORT const char* nvmlErrorString(int result) {
  return result == 4242 ? "the library's own words" : "?";
}

EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) {
  Gpu gpu;
  if (!find_gpu(index, gpu)) return kInvalidArgument;
  *device = reinterpret_cast<void*>(std::uintptr_t{4096} + index);
  return 0;
}

EXPORT int nvmlDeviceGetUUID(void* device, char* text, unsigned bytes) {
  Gpu gpu;
  if (std::getenv("TEST_NVML_TELL") != nullptr) std::fputs("NVML was asked for a UUID\n", stderr);
  if (!at(device, gpu)) return kInvalidArgument;
  if (bytes <= gpu.uuid.size()) return kInsufficientSize;
  std::memcpy(text, gpu.uuid.c_str(), gpu.uuid.size() + 1);
  return 0;
}

#if !defined(TEST_OLDER)
EXPORT int nvmlDeviceGetMemoryInfo_v2(void* device, std::uint64_t* memory) {
  Gpu gpu;
  if (!at(device, gpu) || memory == nullptr) return kInvalidArgument;
  if (!is_version(memory[0], 0x02000028)) return kVersionMismatch;
  memory[1] = gpu.total;
  memory[2] = 10;
  memory[3] = gpu.free;
  memory[4] = gpu.total - gpu.free - 10;
  return 0;
}
#endif

EXPORT int nvmlDeviceGetMemoryInfo(void* device, std::uint64_t* memory) {
  Gpu gpu;
  if (!at(device, gpu) || memory == nullptr) return kInvalidArgument;
#if !defined(TEST_OLDER)
  // By its own newer function, which is the preload's where there is one: the library is not bound to its own symbols.
  std::uint64_t newer[5] = {0x02000028};
  if (const int result = nvmlDeviceGetMemoryInfo_v2(device, newer); result != 0) return result;
  gpu.total = newer[1];
  gpu.free = newer[3];
#endif
  memory[0] = gpu.total;
  memory[1] = gpu.free;
  memory[2] = gpu.total - gpu.free;
  return 0;
}

EXPORT int nvmlDeviceGetComputeRunningProcesses(void* device, unsigned* count, std::uint64_t* list) {
  return list_processes<2>(device, count, list);
}
EXPORT int nvmlDeviceGetGraphicsRunningProcesses(void* device, unsigned* count, std::uint64_t* list) {
  return list_processes<2>(device, count, list);
}
EXPORT int nvmlDeviceGetMPSComputeRunningProcesses(void* device, unsigned* count, std::uint64_t* list) {
  return list_processes<2>(device, count, list);
}

#if !defined(TEST_OLDER)
EXPORT int nvmlDeviceIsMigDeviceHandle(void* device, unsigned* instance) {
  Gpu gpu;
  if (!at(device, gpu)) return kInvalidArgument;
  *instance = gpu.uuid.rfind("MIG-", 0) == 0 ? 1 : 0;
  return 0;
}

EXPORT int nvmlDeviceGetMigMode(void* device, unsigned* mode, unsigned* pending) {
  Gpu gpu;
  if (!at(device, gpu)) return kInvalidArgument;
  if (std::getenv("TEST_NVML_SPLIT") == nullptr) return kNotSupported;
  *mode = *pending = 1;
  return 0;
}

EXPORT int nvmlDeviceGetComputeRunningProcesses_v2(void* device, unsigned* count, std::uint64_t* list) {
  return list_processes<3>(device, count, list);
}
EXPORT int nvmlDeviceGetComputeRunningProcesses_v3(void* device, unsigned* count, std::uint64_t* list) {
  return list_processes<3>(device, count, list);
}
EXPORT int nvmlDeviceGetGraphicsRunningProcesses_v2(void* device, unsigned* count, std::uint64_t* list) {
  return list_processes<3>(device, count, list);
}
EXPORT int nvmlDeviceGetGraphicsRunningProcesses_v3(void* device, unsigned* count, std::uint64_t* list) {
  return list_processes<3>(device, count, list);
}
EXPORT int nvmlDeviceGetMPSComputeRunningProcesses_v2(void* device, unsigned* count, std::uint64_t* list) {
  return list_processes<3>(device, count, list);
}
EXPORT int nvmlDeviceGetMPSComputeRunningProcesses_v3(void* device, unsigned* count, std::uint64_t* list) {
  return list_processes<3>(device, count, list);
}

EXPORT int nvmlDeviceGetRunningProcessDetailList(void* device, std::uint64_t* list) {
  if (list == nullptr) return kInvalidArgument;
  if (!is_version(list[0], 0x01000018)) return kVersionMismatch;
  unsigned count = static_cast<std::uint32_t>(list[1]);
  const int result = list_processes<4>(device, &count, reinterpret_cast<std::uint64_t*>(list[2]));
  list[1] = count;
  return result;
}
#endif

#if defined(TEST_NEWER)
EXPORT int nvmlDeviceFromTheFuture(int value) {
  return value + 1;
}
#endif
