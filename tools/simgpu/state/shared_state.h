// The state of the simulated machine's GPUs, shared by every process that uses them: who has how many bytes, which
// blocks of managed memory are resident, and until when each engine is taken. It lives in a mapped file
// (ROTA_SIM_STATE), under one robust mutex. What a dead process held is reclaimed when it is needed (attach, memory
// queries, allocations, evictions), so kill -9 leaves nothing behind.
//
// Waiting uses reservations: an operation books a piece of its engine and sleeps until that piece is over, outside the
// mutex (engines.cpp). A dead process's booking simply expires. Times are those of the process's clock (clock.h).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "scheduler/base/result.h"
#include "tools/simgpu/profile.h"
#include "tools/simgpu/state/clock.h"
#include "tools/simgpu/state/options.h"

namespace rota::sim {

inline constexpr int kMaxGpus = 8;

// Bytes moved so far, for the tests and `rota sim`. They never decrease.
struct Counters {
  uint64_t first_touched;     // fresh managed memory that became resident by use
  uint64_t faulted_in;        // managed memory fetched from the host because a kernel or copy touched it
  uint64_t prefetched_in;     // the same, by an explicit prefetch (fresh memory included)
  uint64_t evicted;           // managed memory moved to the host, evicted or prefetched there
  uint64_t kernels;           // launches that ran
  uint64_t copied_to_device;  // bytes of copies from host to device
  uint64_t copied_to_host;
};

enum class EngineKind { kCompute, kHostToDevice, kDeviceToHost, kPeer };

// How a copy between host and device uses the link: it fills it, so that both directions slow each other down, or goes
// through the driver's staging buffer, which is slower than the link.
enum class Link { kFull, kStaged };

// Where managed memory is, or should be, if not on a GPU.
inline constexpr int kOnHost = -1;
inline constexpr int kNowhere = -2;  // fresh; no preferred location

struct BookingRequest {
  int gpu = 0;
  EngineKind engine = EngineKind::kCompute;
  uint64_t context = 0;  // a context of this process: contexts take turns on the compute engine
  int64_t from = 0;      // modelled time at which the operation can begin
  int64_t nanoseconds = 0;
  Link link = Link::kFull;
};
struct Booking {
  int64_t until;        // sleep until then
  int64_t nanoseconds;  // how much of the request was booked; 0: it is another context's turn, ask again
};

// How managed memory is used; decides what its migration costs.
enum class Access { kKernel, kCopy, kPrefetchToDevice, kPrefetchToHost };

struct Migration {
  uint64_t first_touched = 0;
  uint64_t faulted_in = 0;
  uint64_t prefetched_in = 0;
  uint64_t evicted = 0;     // whoever owned it
  int64_t nanoseconds = 0;  // modelled time, before scaling
};

struct MemoryUse {
  uint64_t capacity = 0;
  uint64_t plain = 0;  // allocations and contexts of all live processes
  uint64_t managed_resident = 0;
  uint64_t own_plain = 0;  // this process's
};

// One GPU as seen by a process that uses none.
struct ObservedGpu {
  unsigned char uuid[16];
  uint64_t capacity;
  uint64_t plain;
  uint64_t managed_resident;
  struct Process {
    int pid;
    // Includes contexts. Shared memory counts for one process at most (leave_shared()), managed memory for none.
    uint64_t plain;
  };
  std::vector<Process> processes;  // only those that have any
};

struct EventEntry;
struct SharedLayout;
struct ManagedEntry;

class SharedState {
 public:
  // Maps the file and takes a process entry. Creates the file if it is missing, or if it has another shape and no live
  // process uses it. The error names the file: cannot be opened, not a simgpu state, too many processes.
  static Result<SharedState*> attach(const Options& options);
  // Observes a machine without being one of its processes. The error names the file: missing, or not a simgpu state.
  static Result<std::vector<ObservedGpu>> observe(const std::string& path);
  ~SharedState();
  SharedState(const SharedState&) = delete;
  SharedState& operator=(const SharedState&) = delete;

  int gpus() const;
  // From now on this process sees only these GPUs, numbered by their index in the list (CUDA_VISIBLE_DEVICES). Call
  // once, before use.
  void show(std::vector<int> gpus) { visible_ = std::move(gpus); }
  int physical(int gpu) const { return visible_.empty() ? gpu : visible_[static_cast<size_t>(gpu)]; }
  int visible(int physical) const;  // the reverse mapping; kNowhere: not visible
  int machine_gpus() const;
  // False: the time scale is 0 and nothing takes time.
  bool waits() const { return waits_; }
  uint64_t capacity() const;  // bytes per GPU
  // The card that the first process chose.
  const Profile& profile() const { return *profile_; }
  // 16 bytes that differ between state files and GPUs, and are constant for one file.
  void uuid(int gpu, unsigned char out[16]) const;

  // Takes plain device memory (allocations, contexts), evicting managed memory of any process if necessary. False: out
  // of memory, nothing changed.
  bool take(int gpu, uint64_t bytes, Migration* migration);
  void give_back(int gpu, uint64_t bytes);

  // Managed memory: known from allocation on, resident when used. Id 0 = the tables are full.
  uint32_t add_managed(int gpu, uint64_t bytes);
  void remove_managed(uint32_t id);
  // Advice for the blocks that a range touches. The location is a GPU, kOnHost or kNowhere (none).
  void set_preferred(uint32_t id, uint64_t offset, uint64_t bytes, int location);
  void set_accessed_by(uint32_t id, uint64_t offset, uint64_t bytes, int gpu, bool mapped);
  // Makes [offset, offset + bytes) resident on the GPU (or the host) and returns what had to move.
  Migration touch(uint32_t id, uint64_t offset, uint64_t bytes, Access access, int gpu);
  // Blocks entirely inside the range count as fresh again: their contents need not move.
  void discard(uint32_t id, uint64_t offset, uint64_t bytes);
  int location(
      uint32_t id,
      uint64_t offset);  // of one byte: a GPU, kOnHost or kNowhere; kNowhere also for a GPU that is not visible
  uint64_t resident_bytes(uint32_t id);  // on all GPUs

  // Plain memory that several processes may hold; charged once, until the last holder releases it or dies. This process
  // is the first holder. `taken`: take() has charged it already. 0: out of memory (or the table is full), nothing
  // changed.
  uint64_t share(int gpu, uint64_t bytes, bool taken, Migration* migration);
  // Each call adds one hold. revive: also for memory that no process holds any more but that a descriptor kept; it is
  // charged again. False: it has been freed, or the GPU is full.
  bool hold(uint64_t id, int gpu, uint64_t bytes, bool revive, Migration* migration);
  // True: no process holds it any more.
  bool let_go(uint64_t id);
  // Reverts share(): the bytes are this process's plain memory again.
  void unshare(uint64_t id);

  // Events that several processes record and wait for; destroyed with the last process that holds them. 0: table full.
  uint64_t add_event();
  bool hold_event(uint64_t id);  // false: there is none
  void let_go_event(uint64_t id);
  uint64_t record_event(uint64_t id);                             // the number of this record
  void complete_event(uint64_t id, uint64_t record, int64_t at);  // modelled time
  uint64_t last_record(uint64_t id);
  bool event_done(uint64_t id, uint64_t record);
  int64_t completion_time(uint64_t id);  // of the newest completed record; 0: its recorder died, or there is none
  // Sleeps until the record completes, but not for long: ask again. A record of a dead process counts as complete.
  void wait_for_event(uint64_t id, uint64_t record);

  // The GPU falls off the bus, for every process, until no process uses the state any more.
  void lose(int gpu);
  bool lost(int gpu) const;

  MemoryUse use(int gpu);
  Counters counters(int gpu);  // of all processes, the dead included
  void count_kernel(int gpu);
  void count_copy(int gpu, EngineKind kind, uint64_t bytes);

  // Books a piece of an engine. The caller sleeps until it is over and books the rest, or leaves the queue.
  Booking reserve(const BookingRequest& asked);
  void leave_line(const BookingRequest& asked);

 private:
  SharedState() = default;
  bool lock();
  void unlock();
  void reap();
  bool any_lost() const;
  bool other_shape(const Options& options) const;
  // The machine is in use with another shape: one line saying which requested values were not applied.
  void say_ignored(const Options& options) const;
  void initialise(const Options& options);
  void evict(int gpu, uint64_t bytes, uint32_t spared, Migration* migration);
  uint64_t evict_from(uint32_t id, int gpu, uint64_t bytes, uint32_t spared_from, uint32_t spared_to);
  uint64_t leave_device(ManagedEntry& entry, uint32_t block, uint8_t becomes);
  template <class Function>
  void for_blocks(uint32_t id, uint64_t offset, uint64_t bytes, bool whole, Function function);
  std::string make_clock(const Options& options);
  void release_managed(uint32_t id);
  std::string take_process_entry();
  uint64_t key_of(const BookingRequest& asked) const;
  bool take_locked(int gpu, uint64_t bytes, Migration* migration);
  void forget_holder(int process);
  void leave_shared(uint32_t index, int process);
  EventEntry* event(uint64_t id);

  SharedLayout* layout_ = nullptr;
  std::shared_ptr<const Profile> profile_;
  std::string path_;
  std::vector<int> visible_;  // empty: all
  bool waits_ = true;
  double slower_down_ = 1;  // copies from host to device while the other direction is full, and vice versa
  double slower_up_ = 1;
  int process_ = -1;                   // index of this process's entry
  std::map<uint64_t, unsigned> held_;  // how often this process holds shared memory; under lock()
};

}  // namespace rota::sim
