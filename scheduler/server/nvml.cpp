#include "scheduler/server/nvml.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <link.h>
#include <signal.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <set>
#include <utility>
#include <vector>

#include "scheduler/base/uuid.h"

namespace rota::server {

// The part of NVML's interface that is called here. nvmlReturn_t: 0 is success.
namespace nvml {

constexpr int kSuccess = 0;
constexpr int kInsufficientSize = 7;
using Device = void*;
// For a process whose memory the driver does not know.
constexpr std::uint64_t kNotAvailable = ~std::uint64_t{0};

struct MemoryV1 {
  std::uint64_t total, free, used;
};
struct MemoryV2 {
  std::uint32_t version;
  std::uint64_t total, reserved, free, used;
};
constexpr std::uint32_t kMemoryV2 = sizeof(MemoryV2) | 2U << 24;
// For the function without a suffix.
struct ProcessV1 {
  std::uint32_t pid;
  std::uint64_t bytes;
};
// For _v2 and _v3.
struct ProcessV2 {
  std::uint32_t pid;
  std::uint64_t bytes;
  std::uint32_t gpu_instance, compute_instance;
};
static_assert(sizeof(MemoryV1) == 24 && kMemoryV2 == 0x02000028 && sizeof(ProcessV1) == 16 && sizeof(ProcessV2) == 24);

}  // namespace nvml

using namespace nvml;

namespace {

// Whether the object that contains this address has the note that all of rota's preloads have.
struct ShimSearch {
  std::uintptr_t address;
  bool found;
};
bool is_ours(const void* address) {
  ShimSearch search{reinterpret_cast<std::uintptr_t>(address), false};
  dl_iterate_phdr(
      [](dl_phdr_info* object, std::size_t, void* data) {
        auto& looked_for = *static_cast<ShimSearch*>(data);
        bool holds = false;
        bool noted = false;
        for (int i = 0; i < object->dlpi_phnum; ++i) {
          const ElfW(Phdr)& segment = object->dlpi_phdr[i];
          const std::uintptr_t begin = object->dlpi_addr + segment.p_vaddr;
          if (segment.p_type == PT_LOAD) {
            holds = holds || (looked_for.address >= begin && looked_for.address - begin < segment.p_memsz);
          }
          if (segment.p_type != PT_NOTE) continue;
          for (std::size_t at = 0; at + sizeof(ElfW(Nhdr)) <= segment.p_memsz;) {
            ElfW(Nhdr) note;
            std::memcpy(&note, reinterpret_cast<const char*>(begin) + at, sizeof note);
            const std::size_t name = at + sizeof note;
            if (note.n_namesz == 5 && name + 5 <= segment.p_memsz &&
                std::memcmp(reinterpret_cast<const char*>(begin) + name, "rota", 5) == 0) {
              noted = true;
            }
            at = name + ((std::size_t{note.n_namesz} + 3) & ~std::size_t{3}) +
                 ((std::size_t{note.n_descsz} + 3) & ~std::size_t{3});
          }
        }
        if (!holds) return 0;
        looked_for.found = noted;
        return 1;
      },
      &search);
  return search.found;
}

// The library that is at the same path now. Another driver may have been installed since the library was loaded; the
// loader would still return the old library for that name, which does not work with the new driver.
void* as_installed(void* loaded) {
  link_map* map = nullptr;
  if (dlinfo(loaded, RTLD_DI_LINKMAP, static_cast<void*>(&map)) != 0 || map->l_name[0] != '/') return loaded;
  char file[PATH_MAX];
  if (realpath(map->l_name, file) == nullptr) return loaded;
  void* const now = dlopen(file, RTLD_NOW | RTLD_LOCAL);
  return now == nullptr ? loaded : now;
}

// Some drivers of this branch write longer entries for _v3 than all others.
constexpr const char* kLongEntries = "535.";

}  // namespace

struct Nvml::Functions {
  int (*shutdown)() = nullptr;
  int (*by_uuid)(const char*, Device*) = nullptr;
  int (*number)(Device, unsigned*) = nullptr;
  int (*count)(unsigned*) = nullptr;
  int (*by_number)(unsigned, Device*) = nullptr;
  int (*uuid)(Device, char*, unsigned) = nullptr;
  int (*whole)(Device, Device*) = nullptr;  // the GPU of a MIG instance
  int (*memory)(Device, MemoryV1*) = nullptr;
  int (*memory_v2)(Device, MemoryV2*) = nullptr;
  // Lists one kind of process: by `later` if NVML has it, otherwise by `first`.
  struct List {
    int (*first)(Device, unsigned*, ProcessV1*) = nullptr;
    int (*later)(Device, unsigned*, ProcessV2*) = nullptr;  // _v2 or _v3
  };
  List compute;
  List graphics;
};

Result<std::unique_ptr<Nvml>> Nvml::open(const std::string& library) {
  // Never closed: it may have started threads.
  void* handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return Error{fmt::format("no NVML: {}", dlerror())};
  handle = as_installed(handle);
  const auto find = [&]<class Function>(Function*& function, const char* name) {
    function = reinterpret_cast<Function*>(dlsym(handle, name));
    return function != nullptr;
  };
  auto functions = std::make_unique<Functions>();
  int (*initialise)() = nullptr;
  if (!find(initialise, "nvmlInit_v2") || !find(functions->shutdown, "nvmlShutdown") ||
      !find(functions->by_uuid, "nvmlDeviceGetHandleByUUID") || !find(functions->memory, "nvmlDeviceGetMemoryInfo")) {
    return Error{fmt::format("{} is not NVML, or is too old", library)};
  }
  if (is_ours(reinterpret_cast<const void*>(initialise))) {
    return Error{"rota's own library stands in front of NVML in rotad: start rotad without LD_PRELOAD"};
  }
  if (const int error = initialise(); error != kSuccess)
    return Error{fmt::format("cannot start NVML: error {}", error)};
  find(functions->memory_v2, "nvmlDeviceGetMemoryInfo_v2");
  find(functions->number, "nvmlDeviceGetIndex");
  find(functions->count, "nvmlDeviceGetCount_v2");
  find(functions->by_number, "nvmlDeviceGetHandleByIndex_v2");
  find(functions->uuid, "nvmlDeviceGetUUID");
  find(functions->whole, "nvmlDeviceGetDeviceHandleFromMigDeviceHandle");
  char driver[80] = "";
  int (*driver_version)(char*, unsigned) = nullptr;
  if (find(driver_version, "nvmlSystemGetDriverVersion")) driver_version(driver, sizeof driver);
  const bool long_entries = std::strncmp(driver, kLongEntries, std::strlen(kLongEntries)) == 0;
  const auto find_list = [&](Functions::List& list, const std::string& name) {
    find(list.first, name.c_str());
    if (long_entries || !find(list.later, (name + "_v3").c_str())) find(list.later, (name + "_v2").c_str());
  };
  find_list(functions->compute, "nvmlDeviceGetComputeRunningProcesses");
  find_list(functions->graphics, "nvmlDeviceGetGraphicsRunningProcesses");
  return std::unique_ptr<Nvml>(new Nvml(std::move(functions)));
}

Nvml::Nvml(std::unique_ptr<Functions> functions) : functions_(std::move(functions)) {}

Nvml::~Nvml() {
  functions_->shutdown();
}

std::vector<Uuid> Nvml::gpus() const {
  std::vector<Uuid> all;
  unsigned count = 0;
  if (functions_->count == nullptr || functions_->by_number == nullptr || functions_->uuid == nullptr ||
      functions_->count(&count) != kSuccess) {
    return all;
  }
  for (unsigned number = 0; number < count; ++number) {
    Device device = nullptr;
    char text[96] = "";
    // A GPU that has failed keeps its number, and answers nothing.
    if (functions_->by_number(number, &device) != kSuccess || functions_->uuid(device, text, sizeof text) != kSuccess) {
      continue;
    }
    if (const auto uuid = parse_uuid(text)) all.push_back(*uuid);
  }
  return all;
}

std::optional<GpuReading> Nvml::read(const Uuid& uuid) const {
  Device device = nullptr;
  const std::string gpu = uuid_text(uuid);
  // A client names a MIG instance by the instance's own UUID.
  if (functions_->by_uuid(gpu.c_str(), &device) != kSuccess &&
      functions_->by_uuid(("MIG" + gpu.substr(gpu.find('-'))).c_str(), &device) != kSuccess) {
    return std::nullopt;
  }
  GpuReading reading;
  reading.uuid = uuid;
  MemoryV2 newer{.version = kMemoryV2, .total = 0, .reserved = 0, .free = 0, .used = 0};
  MemoryV1 memory{};
  if (functions_->memory_v2 != nullptr && functions_->memory_v2(device, &newer) == kSuccess) {
    // What the driver reserves belongs to no process.
    reading.total = newer.total - std::min(newer.total, newer.reserved);
    reading.free = newer.free;
    reading.used = newer.used;
  } else if (functions_->memory(device, &memory) == kSuccess) {
    reading.total = memory.total;
    reading.free = memory.free;
    reading.used = memory.used;
  } else {
    return std::nullopt;
  }
  read_processes(device, reading);
  Device whole = device;
  if (functions_->whole != nullptr && functions_->whole(device, &whole) != kSuccess) whole = device;
  unsigned number = 0;
  if (functions_->number != nullptr && functions_->number(whole, &number) == kSuccess) reading.number = number;
  return reading;
}

void Nvml::read_processes(void* device, GpuReading& reading) const {
  struct Listed {
    std::map<pid_t, std::uint64_t> bytes;
    std::set<pid_t> unknown;  // the driver does not say how much they have
  };
  // Returns whether the driver answers.
  const auto read = [&]<class Process>(int (*function)(Device, unsigned*, Process*), Listed& listed) {
    // More processes may start between two calls, so that the list does not fit again.
    std::vector<Process> entries(32);
    int result = kInsufficientSize;
    unsigned count = 0;
    for (int tries = 0; tries < 4 && result == kInsufficientSize; ++tries) {
      count = static_cast<unsigned>(entries.size());
      result = function(device, &count, entries.data());
      if (result == kInsufficientSize) entries.resize(std::max<std::size_t>(count, entries.size()) * 2);
    }
    if (result != kSuccess || count > entries.size()) return false;
    for (unsigned i = 0; i < count; ++i) {
      const auto pid = static_cast<pid_t>(entries[i].pid);
      if (entries[i].bytes == kNotAvailable) {
        listed.unknown.insert(pid);
      } else {
        listed.bytes[pid] += entries[i].bytes;
      }
    }
    return true;
  };
  const auto list = [&](const Functions::List& functions, Listed& listed) {
    return functions.later != nullptr ? read(functions.later, listed)
                                      : functions.first != nullptr && read(functions.first, listed);
  };
  // A process that does not exist here belongs to another pid namespace, and so perhaps do those that seem to exist.
  // But it may also have just ended: then it is not in the list the next time.
  for (int tries = 0; tries < 2; ++tries) {
    Listed all;
    Listed drawing;
    if (!list(functions_->compute, all)) return;
    list(functions_->graphics, drawing);
    // A process that does both is in both lists, with all of its memory.
    for (const auto& [pid, bytes] : drawing.bytes) all.bytes[pid] = std::max(all.bytes[pid], bytes);
    all.unknown.merge(drawing.unknown);
    const auto is_there = [](pid_t pid) { return kill(pid, 0) == 0 || errno != ESRCH; };
    const bool ours = std::ranges::all_of(all.bytes, [&](const auto& entry) { return is_there(entry.first); }) &&
                      std::ranges::all_of(all.unknown, is_there);
    if (!ours) continue;
    reading.some_unknown = !all.unknown.empty();
    reading.processes = std::move(all.bytes);
    return;
  }
}

}  // namespace rota::server
