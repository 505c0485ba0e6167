// The state file's life: attaching, locking, reaping dead processes, plain memory, engines.
#include "tools/simgpu/state/shared_state.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <set>
#include <sstream>
#include <string>
#include <system_error>
#include <utility>

#include "scheduler/base/descriptor.h"
#include "tools/simgpu/state/layout.h"

namespace rota::sim {
namespace {

std::string error_text(int number) {
  return std::generic_category().message(number);
}

// Field 22 of /proc/PID/stat: the start time. False if there is no such process or it has ended. A process whose first
// thread has ended (pthread_exit in main) reads as a zombie too while others go on: then field 20 counts them. It is
// read from the first thread, where it is the same: qemu-user shows a process a different start time in its own
// /proc/PID/stat than it shows to others.
bool process_start_time(int pid, uint64_t* start) {
  char path[64];
  std::snprintf(path, sizeof path, "/proc/%d/task/%d/stat", pid, pid);
  Descriptor file(open(path, O_RDONLY | O_CLOEXEC));
  if (!file) return false;
  char text[1024];
  ssize_t length = read(file.get(), text, sizeof text - 1);
  if (length <= 0) return false;
  text[length] = '\0';
  const char* cursor = std::strrchr(text, ')');  // the name in parentheses may hold anything
  if (cursor == nullptr || cursor[1] != ' ') return false;
  cursor += 2;
  if (*cursor == 'X') return false;
  bool zombie = *cursor == 'Z';
  for (int field = 3; field < 22; ++field) {
    cursor = std::strchr(cursor, ' ');
    if (cursor == nullptr) return false;
    ++cursor;
    if (field + 1 == 20 && zombie && std::strtol(cursor, nullptr, 10) <= 1) return false;
  }
  *start = std::strtoull(cursor, nullptr, 10);
  return true;
}

// A profile's name that is valid in any working directory.
std::string lasting_name(const std::string& profile) {
  char absolute[4096];
  bool file = profile.find('/') != std::string::npos || profile.ends_with(".toml");
  return file && realpath(profile.c_str(), absolute) != nullptr ? absolute : profile;
}

// The entries created by this process image, by state file and serial: execve keeps the pid and the start time, but
// what the previous image held is lost.
class OwnEntries {
 public:
  void add(const std::string& path, uint64_t serial) {
    std::lock_guard lock(mutex_);
    entries_.emplace(path, serial);
  }
  void remove(const std::string& path, uint64_t serial) {
    std::lock_guard lock(mutex_);
    entries_.erase({path, serial});
  }
  bool has(const std::string& path, uint64_t serial) {
    std::lock_guard lock(mutex_);
    return entries_.count({path, serial}) != 0;
  }

 private:
  std::mutex mutex_;
  std::set<std::pair<std::string, uint64_t>> entries_;
};

// Never destroyed: streams' threads outlive static destructors.
OwnEntries& own_entries() {
  static auto* entries = new OwnEntries;
  return *entries;
}

bool alive(const ProcessEntry& entry, const std::string& path) {
  uint64_t start = 0;
  if (!process_start_time(entry.pid, &start) || start != entry.start_time) return false;
  return entry.pid != getpid() || own_entries().has(path, entry.serial);
}

}  // namespace

Result<SharedState*> SharedState::attach(const Options& options) {
  if (!options.unusable.empty()) return Error{options.unusable};
  const std::string& path = options.state_path;
  Descriptor file(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!file) return Error{"cannot open the state file " + path + " (ROTA_SIM_STATE): " + error_text(errno)};
  // Creating the file or changing its shape needs the file's lock; everything later needs the mutex inside it.
  while (flock(file.get(), LOCK_EX) != 0) {
    if (errno != EINTR) return Error{"cannot lock the state file " + path + ": " + error_text(errno)};
  }
  struct stat status{};
  fstat(file.get(), &status);
  bool fresh = status.st_size == 0;
  if (!fresh && status.st_size != static_cast<off_t>(sizeof(SharedLayout))) {
    return Error{path + " (ROTA_SIM_STATE) is not the state of this version of simgpu: remove it or name another file"};
  }
  // Allocates all pages: a page missing later on a full file system would kill the program without a message.
  if (int number = fresh ? posix_fallocate(file.get(), 0, sizeof(SharedLayout)) : 0; number != 0) {
    int ignored = ftruncate(file.get(), 0);
    static_cast<void>(ignored);
    return Error{"cannot create the state file " + path + " (ROTA_SIM_STATE) of " +
                 std::to_string(sizeof(SharedLayout) >> 20) + " MiB: " + error_text(number)};
  }
  void* memory = mmap(nullptr, sizeof(SharedLayout), PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  if (memory == MAP_FAILED) {
    return Error{"cannot map the state file " + path + ": " + error_text(errno)};
  }
  auto* state = new SharedState;
  state->layout_ = static_cast<SharedLayout*>(memory);
  char absolute[4096];
  state->path_ = realpath(path.c_str(), absolute) != nullptr ? absolute : path;
  state->profile_ = options.profile ? options.profile : std::make_shared<const Profile>(default_profile());
  SharedLayout* layout = state->layout_;
  if (layout->magic == 0) {
    state->initialise(options);
  } else if (layout->magic != kStateMagic || layout->version != kStateVersion) {
    delete state;
    flock(file.get(), LOCK_UN);
    return Error{path + " (ROTA_SIM_STATE) is not the state of this version of simgpu: remove it or name another file"};
  } else if (state->other_shape(options) || state->any_lost()) {
    state->lock();
    state->reap();
    bool used = std::any_of(layout->processes, layout->processes + kMaxProcesses,
                            [](const ProcessEntry& entry) { return entry.pid != 0; });
    state->unlock();
    if (!used) {
      state->initialise(options);
    } else if (state->other_shape(options)) {
      state->say_ignored(options);
      if (auto shared = load_profile(layout->profile)) {
        state->profile_ = std::make_shared<const Profile>(std::move(*shared));
      }
    }
  }
  std::string refused = state->take_process_entry();
  if (refused.empty()) refused = state->make_clock(options);
  flock(file.get(), LOCK_UN);  // closing is not enough: the mapping keeps the open file, and with it the lock
  file = {};
  if (!refused.empty()) {
    delete state;
    return Error{path + " (ROTA_SIM_STATE) " + refused};
  }
  return state;
}

// Returns an empty string, or why this process cannot have its clock. Under the file's lock.
std::string SharedState::make_clock(const Options& options) {
  const CostFigures& cost = profile_->cost;
  slower_down_ = cost.pinned_host_to_device / cost.duplex_host_to_device();
  slower_up_ = cost.pinned_device_to_host / cost.duplex_device_to_host();
  lock();
  const ProcessEntry& own = layout_->processes[process_];
  const ProcessEntry* other = nullptr;
  for (const ProcessEntry& entry : layout_->processes) {
    if (entry.pid != 0 && &entry != &own && (other == nullptr || entry.serial == layout_->virtual_process)) {
      other = &entry;
    }
  }
  bool taken = other != nullptr && other->serial == layout_->virtual_process;
  bool refused = taken || (options.virtual_clock && other != nullptr);
  if (!refused) layout_->virtual_process = options.virtual_clock ? own.serial : 0;
  if (other == nullptr) {  // earlier bookings belong to other clocks or to dead processes
    for (GpuState& gpu : layout_->gpu) {
      gpu.compute = ComputeEngine{};
      for (CopyEngine& engine : gpu.copies) engine = CopyEngine{};
    }
  }
  unlock();
  if (taken) {
    return "is used by process " + std::to_string(other->pid) +
           " on a virtual clock (ROTA_SIM_CLOCK=virtual), which allows only one process: name another file";
  }
  if (refused) {
    return "is used by process " + std::to_string(other->pid) +
           ", and a virtual clock (ROTA_SIM_CLOCK) allows only one process: name another file";
  }
  waits_ = options.virtual_clock || layout_->time_scale > 0;
  set_process_clock(options.virtual_clock ? make_virtual_clock()
                                          : make_real_clock(layout_->time_scale, layout_->epoch));
  return "";
}

void SharedState::say_ignored(const Options& options) const {
  const std::string card = layout_->profile;
  std::string ignored;
  size_t count = 0;
  const auto ignore = [&](const std::string& what) { ignored += (count++ == 0 ? "" : ", ") + what; };
  const bool other_card = lasting_name(profile_->name) != card;
  if (!options.written) {
    if (layout_->gpus != options.gpus) ignore("ROTA_SIM_GPUS");
    if (layout_->capacity != options.memory) ignore("ROTA_SIM_MEMORY");
    if (other_card) ignore("ROTA_SIM_PROFILE");
    if (layout_->time_scale != options.time_scale) ignore("ROTA_SIM_TIME_SCALE");
  } else {
    std::istringstream lines(*options.written);
    for (std::string line; std::getline(lines, line);) {
      const bool holds = line.starts_with("--gpu")       ? layout_->gpus == options.gpus && !other_card
                         : line.starts_with("--profile") ? !other_card
                         : line.starts_with("--memory")  ? layout_->capacity == options.memory
                                                         : layout_->time_scale == options.time_scale;
      if (!holds) ignore(line);
    }
  }
  if (ignored.empty()) return;
  if (const size_t comma = ignored.rfind(", "); comma != std::string::npos) ignored.replace(comma, 2, " and ");
  const std::string gpus = layout_->gpus == 1 ? "one GPU " + card : std::to_string(layout_->gpus) + " GPUs " + card;
  const uint64_t mebibytes = layout_->capacity >> 20;
  std::fprintf(stderr,
               "simgpu: the machine %s is in use, with %s of %lluM%s: %s %s ignored; name another file with %s, or "
               "wait until its programs have ended\n",
               path_.c_str(), gpus.c_str(), static_cast<unsigned long long>(mebibytes),
               layout_->time_scale == 1 ? "" : (" at time scale " + std::to_string(layout_->time_scale)).c_str(),
               ignored.c_str(), count == 1 ? "is" : "are", options.written ? "--state" : "ROTA_SIM_STATE");
}

bool SharedState::other_shape(const Options& options) const {
  return layout_->gpus != options.gpus || layout_->capacity != options.memory ||
         layout_->time_scale != options.time_scale || lasting_name(profile_->name) != layout_->profile;
}

SharedState::~SharedState() {
  if (process_ >= 0) {
    lock();
    ProcessEntry& own = layout_->processes[process_];
    own_entries().remove(path_, own.serial);
    own.start_time = 0;  // marks the entry as dead while the pid still exists
    process_ = -1;
    reap();
    unlock();
  }
  if (layout_ != nullptr) munmap(layout_, sizeof(SharedLayout));
}

void SharedState::initialise(const Options& options) {
  std::memset(static_cast<void*>(layout_), 0, offsetof(SharedLayout, managed) + sizeof(ManagedEntry));
  std::memset(layout_->blocks, kBlockFree, sizeof layout_->blocks);
  layout_->gpus = options.gpus;
  layout_->capacity = options.memory;
  std::snprintf(layout_->profile, sizeof layout_->profile, "%s", lasting_name(profile_->name).c_str());
  layout_->time_scale = options.time_scale;
  layout_->epoch = monotonic_nanoseconds();
  layout_->next_serial = 1;
  layout_->managed_end = 1;
  pthread_mutexattr_t attributes;
  pthread_mutexattr_init(&attributes);
  pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
  pthread_mutex_init(&layout_->mutex, &attributes);
  pthread_mutexattr_destroy(&attributes);
  layout_->version = kStateVersion;
  layout_->magic = kStateMagic;
}

// Returns an empty string, or why there is no entry for this process.
std::string SharedState::take_process_entry() {
  uint64_t start_time = 0;
  if (!process_start_time(getpid(), &start_time)) return "cannot be used without /proc/self/stat: " + error_text(errno);
  lock();
  reap();
  for (uint32_t index = 0; index < kMaxProcesses && process_ < 0; ++index) {
    ProcessEntry& entry = layout_->processes[index];
    if (entry.pid != 0) continue;
    entry = ProcessEntry{};
    entry.start_time = start_time;
    entry.pid = getpid();
    entry.serial = layout_->next_serial++;
    own_entries().add(path_, entry.serial);
    process_ = static_cast<int>(index);
  }
  unlock();
  if (process_ >= 0) return "";
  return "already serves " + std::to_string(kMaxProcesses) + " processes: end some, or name another file";
}

bool SharedState::lock() {
  int result = pthread_mutex_lock(&layout_->mutex);
  if (result == EOWNERDEAD) {
    // The owner died between two stores: sums are recomputed from the entries.
    pthread_mutex_consistent(&layout_->mutex);
    for (int gpu = 0; gpu < layout_->gpus; ++gpu) {
      GpuState& state = layout_->gpu[gpu];
      state.plain = 0;
      state.managed_resident = 0;
      for (const ProcessEntry& entry : layout_->processes) {
        if (entry.pid != 0) state.plain += entry.plain[gpu];
      }
    }
    for (uint32_t index = 0; index < layout_->shared_end; ++index) {
      const SharedEntry& entry = layout_->shared[index];
      if (entry.id != 0) layout_->gpu[entry.gpu].plain += entry.bytes;
    }
    for (uint32_t id = 1; id < layout_->managed_end; ++id) {
      ManagedEntry& entry = layout_->managed[id];
      if (entry.owner == 0) continue;
      std::fill(entry.resident, entry.resident + kMaxGpus, 0);
      for (uint32_t block = 0; block < entry.blocks; ++block) {
        uint8_t state = layout_->blocks[entry.first_block + block];
        if (state < kBlockOnDevice) continue;
        entry.resident[state - kBlockOnDevice] += block_bytes(entry, block);
        layout_->gpu[state - kBlockOnDevice].managed_resident += block_bytes(entry, block);
      }
    }
  }
  return result == 0 || result == EOWNERDEAD;
}

void SharedState::unlock() {
  pthread_mutex_unlock(&layout_->mutex);
}

// Reclaims what dead processes held. Under the mutex. The caller is alive, whatever /proc says.
void SharedState::reap() {
  for (ProcessEntry& entry : layout_->processes) {
    bool own = &entry - layout_->processes == process_;
    if (entry.pid == 0 || own || alive(entry, path_)) continue;
    for (uint32_t id = 1; id < layout_->managed_end; ++id) {
      if (layout_->managed[id].owner == entry.serial) release_managed(id);
    }
    for (int gpu = 0; gpu < layout_->gpus; ++gpu) layout_->gpu[gpu].plain -= entry.plain[gpu];
    forget_holder(static_cast<int>(&entry - layout_->processes));
    entry = ProcessEntry{};
  }
}

int SharedState::gpus() const {
  return visible_.empty() ? layout_->gpus : static_cast<int>(visible_.size());
}
int SharedState::machine_gpus() const {
  return layout_->gpus;
}
int SharedState::visible(int physical) const {
  if (visible_.empty()) return physical;
  auto found = std::find(visible_.begin(), visible_.end(), physical);
  return found == visible_.end() ? kNowhere : static_cast<int>(found - visible_.begin());
}
uint64_t SharedState::capacity() const {
  return layout_->capacity;
}

void SharedState::uuid(int gpu, unsigned char out[16]) const {
  gpu = physical(gpu);
  uint64_t halves[2];
  for (uint64_t half = 0; half < 2; ++half) {
    uint64_t hash = 0xcbf29ce484222325ULL + half * 0x9e3779b97f4a7c15ULL;  // FNV-1a, two starting points
    auto add = [&hash](unsigned char byte) { hash = (hash ^ byte) * 0x100000001b3ULL; };
    for (char letter : path_) add(static_cast<unsigned char>(letter));
    add(static_cast<unsigned char>(gpu));
    add(static_cast<unsigned char>(half));
    halves[half] = hash;
  }
  std::memcpy(out, halves, sizeof halves);
}

// Under the mutex. Charges the GPU, but not yet a process.
bool SharedState::take_locked(int gpu, uint64_t bytes, Migration* migration) {
  GpuState& state = layout_->gpu[gpu];
  auto fits = [&] { return bytes <= layout_->capacity && state.plain <= layout_->capacity - bytes; };
  if (!fits()) reap();
  if (!fits()) return false;
  state.plain += bytes;
  if (state.plain + state.managed_resident > layout_->capacity) {
    evict(gpu, state.plain + state.managed_resident - layout_->capacity, 0, migration);
  }
  return true;
}

bool SharedState::take(int gpu, uint64_t bytes, Migration* migration) {
  gpu = physical(gpu);
  lock();
  bool granted = take_locked(gpu, bytes, migration);
  if (granted) layout_->processes[process_].plain[gpu] += bytes;
  unlock();
  return granted;
}

void SharedState::give_back(int gpu, uint64_t bytes) {
  gpu = physical(gpu);
  lock();
  // Never below zero: a sum that wraps would leave no memory for any process.
  uint64_t& own = layout_->processes[process_].plain[gpu];
  bytes = std::min({bytes, own, layout_->gpu[gpu].plain});
  layout_->gpu[gpu].plain -= bytes;
  own -= bytes;
  unlock();
}

void SharedState::lose(int gpu) {
  gpu = physical(gpu);
  __atomic_store_n(&layout_->gpu[gpu].lost, 1, __ATOMIC_RELEASE);
}
bool SharedState::lost(int gpu) const {
  gpu = physical(gpu);
  return __atomic_load_n(&layout_->gpu[gpu].lost, __ATOMIC_ACQUIRE) != 0;
}
bool SharedState::any_lost() const {
  for (int gpu = 0; gpu < layout_->gpus; ++gpu) {
    if (lost(gpu)) return true;
  }
  return false;
}

MemoryUse SharedState::use(int gpu) {
  gpu = physical(gpu);
  lock();
  reap();
  MemoryUse use{layout_->capacity, layout_->gpu[gpu].plain, layout_->gpu[gpu].managed_resident,
                layout_->processes[process_].plain[gpu]};
  unlock();
  return use;
}

Counters SharedState::counters(int gpu) {
  gpu = physical(gpu);
  lock();
  Counters counters = layout_->gpu[gpu].counters;
  unlock();
  return counters;
}

void SharedState::count_kernel(int gpu) {
  gpu = physical(gpu);
  lock();
  ++layout_->gpu[gpu].counters.kernels;
  unlock();
}

void SharedState::count_copy(int gpu, EngineKind kind, uint64_t bytes) {
  gpu = physical(gpu);
  lock();
  Counters& counters = layout_->gpu[gpu].counters;
  (kind == EngineKind::kHostToDevice ? counters.copied_to_device : counters.copied_to_host) += bytes;
  unlock();
}

}  // namespace rota::sim
