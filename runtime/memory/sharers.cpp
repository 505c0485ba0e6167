#include "runtime/memory/sharers.h"

#include <link.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <string>

#include "runtime/core/log.h"
#include "runtime/memory/swap/reach.h"

namespace rota::memory {

namespace {

constexpr std::array kLaunchers = {"WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE",
                                   "SLURM_STEP_NUM_TASKS"};

// The variable in which a launcher says that there are several processes, or null.
const char* several_processes() {
  for (const char* name : kLaunchers) {
    const char* value = std::getenv(name);  // NOLINT(concurrency-mt-unsafe): as the libraries themselves read it
    if (value != nullptr && std::strtol(value, nullptr, 10) > 1) return name;
  }
  return nullptr;
}

struct Search {
  const char* launcher;
  std::string library;  // the evidence
};

std::string_view name_of(const dl_phdr_info* library) {
  const std::string_view path = library->dlpi_name != nullptr ? library->dlpi_name : "";
  return path.substr(path.rfind('/') + 1);
}

int find_sharer(dl_phdr_info* library, std::size_t, void* data) {
  auto& search = *static_cast<Search*>(data);
  const std::string_view name = name_of(library);
  const bool counts =
      Sharers::for_sharing_only(name) || (search.launcher != nullptr && Sharers::for_several_processes(name));
  if (counts) search.library = name;
  return counts ? 1 : 0;
}

int find_watcher(dl_phdr_info* library, std::size_t, void* data) {
  const std::string_view name = name_of(library);
  if (!Sharers::for_watching(name)) return 0;
  *static_cast<std::string*>(data) = name;
  return 1;
}

int count_loaded(dl_phdr_info* library, std::size_t size, void* data) {
  // The count belongs to the loader, not to this library: the first one will do.
  if (size >= offsetof(dl_phdr_info, dlpi_adds) + sizeof library->dlpi_adds) {
    *static_cast<unsigned long long*>(data) = library->dlpi_adds;
  }
  return 1;
}

bool begins(std::string_view name, std::string_view with) {
  return name.substr(0, with.size()) == with;
}

}  // namespace

bool Sharers::for_sharing_only(std::string_view library) {
  return begins(library, "libucp.so");
}

bool Sharers::for_several_processes(std::string_view library) {
  return begins(library, "libmpi.so") || begins(library, "libmpich.so") || begins(library, "libnccl.so") ||
         begins(library, "libnvshmem_host.so");
}

bool Sharers::for_watching(std::string_view library) {
  return begins(library, "libsanitizer-collection.so") || begins(library, "libcuda-injection.so");
}

bool Sharers::watched() {
  const Watched known = watched_.load(std::memory_order_relaxed);
  if (known != Watched::kNotAsked) return known == Watched::kYes;
  std::string library;
  const Watched now = dl_iterate_phdr(find_watcher, &library) != 0 ? Watched::kYes : Watched::kNo;
  if (watched_.exchange(now) == Watched::kNotAsked && now == Watched::kYes) {
    log::info("{} is loaded: this process's memory stays native, so that the tool sees the bounds of each allocation",
              library);
  }
  return now == Watched::kYes;
}

bool Sharers::debugged() {
  const Watched known = debugged_.load(std::memory_order_relaxed);
  if (known != Watched::kNotAsked) return known == Watched::kYes;
  const long tracer = traced_by();
  const Watched now = tracer != 0 ? Watched::kYes : Watched::kNo;
  if (debugged_.exchange(now) == Watched::kNotAsked && now == Watched::kYes) {
    log::info("process {} traces this one: memory that could be swapped stays native, as a debugger expects it",
              tracer);
  }
  return now == Watched::kYes;
}

bool Sharers::found() {
  if (found_.load(std::memory_order_relaxed)) return true;
  unsigned long long loaded = 0;
  dl_iterate_phdr(count_loaded, &loaded);
  if (loaded != 0 && loaded_.exchange(loaded, std::memory_order_relaxed) == loaded) return false;
  Search search{several_processes(), {}};
  if (dl_iterate_phdr(find_sharer, &search) == 0) return false;
  if (!found_.exchange(true)) {
    log::info("{} is loaded{}{}: this process's memory stays native, because other processes may open it",
              search.library, for_sharing_only(search.library) ? "" : " and there are several processes, according to ",
              for_sharing_only(search.library) ? "" : search.launcher);
  }
  return true;
}

}  // namespace rota::memory
