// The machine as nvidia-smi or rotad would see it: from a process that has no context on it.
#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <system_error>

#include "scheduler/base/descriptor.h"
#include "tools/simgpu/state/layout.h"
#include "tools/simgpu/state/shared_state.h"

namespace rota::sim {

// Opened each time, under the file's lock: a machine that no process uses may be recreated.
Result<std::vector<ObservedGpu>> SharedState::observe(const std::string& path) {
  const auto failed = [&path](const std::string& what) {
    return Error{"the state file " + path + " (ROTA_SIM_STATE) " + what};
  };
  Descriptor file(open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!file) return failed("cannot be opened: " + std::generic_category().message(errno));
  while (flock(file.get(), LOCK_EX) != 0) {
    if (errno != EINTR) return failed("cannot be locked: " + std::generic_category().message(errno));
  }
  struct stat status{};
  if (fstat(file.get(), &status) != 0 || status.st_size != static_cast<off_t>(sizeof(SharedLayout))) {
    return failed("is not the state of this version of simgpu");
  }
  void* memory = mmap(nullptr, sizeof(SharedLayout), PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  if (memory == MAP_FAILED) return failed("cannot be mapped: " + std::generic_category().message(errno));
  SharedState state;
  state.layout_ = static_cast<SharedLayout*>(memory);
  char absolute[4096];
  state.path_ = realpath(path.c_str(), absolute) != nullptr ? absolute : path;
  const SharedLayout& layout = *state.layout_;
  std::vector<ObservedGpu> gpus;
  if (layout.magic != kStateMagic || layout.version != kStateVersion) {
    flock(file.get(), LOCK_UN);
    return failed("is not the state of this version of simgpu");
  }
  state.lock();
  // The driver of this very process is another library, whose entry would look like one that a dead process with the
  // same pid has left: then only others clean up.
  const bool is_own = std::any_of(std::begin(layout.processes), std::end(layout.processes),
                                  [](const ProcessEntry& entry) { return entry.pid == getpid(); });
  if (!is_own) state.reap();
  for (int gpu = 0; gpu < layout.gpus; ++gpu) {
    ObservedGpu& seen = gpus.emplace_back();
    state.uuid(gpu, seen.uuid);
    seen.capacity = layout.capacity;
    seen.plain = layout.gpu[gpu].plain;
    seen.managed_resident = layout.gpu[gpu].managed_resident;
    for (uint32_t index = 0; index < kMaxProcesses; ++index) {
      if (layout.processes[index].pid == 0) continue;
      uint64_t bytes = layout.processes[index].plain[gpu];
      for (uint32_t piece = 0; piece < layout.shared_end; ++piece) {
        const SharedEntry& entry = layout.shared[piece];
        if (entry.id != 0 && entry.gpu == gpu && entry.counted_for == static_cast<int>(index)) bytes += entry.bytes;
      }
      if (bytes != 0) seen.processes.push_back({layout.processes[index].pid, bytes});
    }
  }
  state.unlock();
  flock(file.get(), LOCK_UN);  // closing is not enough: the mapping keeps the open file
  return gpus;
}

}  // namespace rota::sim
