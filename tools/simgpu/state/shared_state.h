// The state of the simulated machine's GPUs, shared by every process that uses them: who has how many bytes, which
// blocks of managed memory are resident, and until when each engine is taken. It lives in a mapped file
// (ROTA_SIM_STATE), under one robust mutex; what a dead process held is taken back as soon as anybody needs it
// (attach, memory queries, allocations, evictions), so kill -9 leaves nothing behind.
//
// Waiting is by reservation: an operation books a piece of its engine and sleeps until that is over, outside the mutex
// (engines.cpp). A dead process's booking simply passes. Times are those of the process's clock (clock.h).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "scheduler/protocol/result.h"
#include "tools/simgpu/profile.h"
#include "tools/simgpu/state/clock.h"
#include "tools/simgpu/state/options.h"

namespace rota::sim {

inline constexpr int kMaxGpus = 8;

// Bytes moved so far; what the tests and `rota sim` read. They never fall.
struct Counters {
  uint64_t first_touched;     // fresh managed memory that became resident by use
  uint64_t faulted_in;        // managed memory fetched from the host because a kernel or copy touched it
  uint64_t prefetched_in;     // the same, by an explicit prefetch (fresh memory included)
  uint64_t evicted;           // managed memory moved to the host, pushed out or prefetched there
  uint64_t kernels;           // launches that ran
  uint64_t copied_to_device;  // bytes of copies from host to device
  uint64_t copied_to_host;
};

enum class EngineKind { kCompute, kHostToDevice, kDeviceToHost, kPeer };

// What a copy between host and device does to the link: fills it, so that both directions slow each other down, or goes
// through the driver's staging buffer, which is slower than the link.
enum class Link { kFull, kStaged };

// Where managed memory lies, or shall lie, if not on a GPU.
inline constexpr int kOnHost = -1;
inline constexpr int kNowhere = -2;  // fresh; no preferred location

struct BookingRequest {
  int gpu = 0;
  EngineKind engine = EngineKind::kCompute;
  uint64_t context = 0;  // of this process: contexts take turns on the compute engine
  int64_t from = 0;      // modelled time at which the operation can begin
  int64_t nanoseconds = 0;
  Link link = Link::kFull;
};
struct Booking {
  int64_t until;        // sleep until then
  int64_t nanoseconds;  // what was booked of what was asked for; 0: it is another context's turn, ask again
};

// How managed memory is used; decides what its migration costs.
enum class Access { kKernel, kCopy, kPrefetchToDevice, kPrefetchToHost };

struct Migration {
  uint64_t first_touched = 0;
  uint64_t faulted_in = 0;
  uint64_t prefetched_in = 0;
  uint64_t evicted = 0;     // by whomever it was owned
  int64_t nanoseconds = 0;  // modelled time, before scaling
};

struct MemoryUse {
  uint64_t capacity = 0;
  uint64_t plain = 0;  // allocations and contexts of all live processes
  uint64_t managed_resident = 0;
  uint64_t own_plain = 0;  // this process's
};

// One GPU as somebody sees it who uses none.
struct ObservedGpu {
  unsigned char uuid[16];
  uint64_t capacity;
  uint64_t plain;
  uint64_t managed_resident;
  struct Process {
    int pid;
    uint64_t plain;  // contexts included, and all that it holds together with others; managed memory is nobody's
  };
  std::vector<Process> processes;  // that have any
};

struct EventEntry;
struct SharedLayout;
struct ManagedEntry;

class SharedState {
 public:
  // Maps the file, creates it where it is missing or nobody alive uses it with another shape, and takes a process
  // entry. Fails naming the file: cannot be opened, is no simgpu state, too many processes.
  static Result<SharedState*> attach(const Options& options);
  // Looks at a machine without being one of its processes. Fails naming the file: there is none, it is no simgpu state.
  static Result<std::vector<ObservedGpu>> observe(const std::string& path);
  ~SharedState();
  SharedState(const SharedState&) = delete;
  SharedState& operator=(const SharedState&) = delete;

  int gpus() const;
  // From now on this process sees these GPUs only, by their place in the list (CUDA_VISIBLE_DEVICES). Once, before use.
  void show(std::vector<int> gpus) { visible_ = std::move(gpus); }
  int physical(int gpu) const { return visible_.empty() ? gpu : visible_[static_cast<size_t>(gpu)]; }
  int visible(int physical) const;  // the other way round; kNowhere: not shown
  int machine_gpus() const;
  // False: the time scale is 0, nothing takes time.
  bool waits() const { return waits_; }
  uint64_t capacity() const;  // bytes per GPU
  // The card that the first process chose.
  const Profile& profile() const { return *profile_; }
  // 16 bytes that differ between state files and GPUs and stay the same for one file.
  void uuid(int gpu, unsigned char out[16]) const;

  // Takes plain device memory (allocations, contexts), evicting managed memory of anyone where that makes room.
  // False: out of memory, nothing changed.
  bool take(int gpu, uint64_t bytes, Migration* migration);
  void give_back(int gpu, uint64_t bytes);

  // Managed memory: known from allocation on, resident when used. Id 0 = the tables are full.
  uint32_t add_managed(int gpu, uint64_t bytes);
  void remove_managed(uint32_t id);
  // Advice for the blocks that a range has bytes of. The location is a GPU, kOnHost or kNowhere (none).
  void set_preferred(uint32_t id, uint64_t offset, uint64_t bytes, int location);
  void set_accessed_by(uint32_t id, uint64_t offset, uint64_t bytes, int gpu, bool mapped);
  // Makes [offset, offset + bytes) resident on the GPU (or the host) and says what had to move.
  Migration touch(uint32_t id, uint64_t offset, uint64_t bytes, Access access, int gpu);
  // What lies wholly in the range counts as fresh again: its contents need not move.
  void discard(uint32_t id, uint64_t offset, uint64_t bytes);
  int location(uint32_t id, uint64_t offset);  // of one byte: a GPU, kOnHost or kNowhere; a GPU not shown is kNowhere
  uint64_t resident_bytes(uint32_t id);        // on all GPUs

  // Plain memory that several processes may hold; charged once, until the last holder lets go or dies. This process is
  // the first holder. `taken`: take() has charged it already. 0: out of memory (or the table is full), nothing changed.
  uint64_t share(int gpu, uint64_t bytes, bool taken, Migration* migration);
  // One holder more, as often as it is called. revive: of memory that nobody held any more too, because a descriptor
  // kept it; it is charged anew. False: it is gone, or there is no room.
  bool hold(uint64_t id, int gpu, uint64_t bytes, bool revive, Migration* migration);
  // True: nobody holds it any more.
  bool let_go(uint64_t id);
  // share() taken back: the bytes are this process's plain memory again.
  void unshare(uint64_t id);

  // Events that several processes record and wait for; gone with the last process that holds them. 0: table full.
  uint64_t add_event();
  bool hold_event(uint64_t id);  // false: there is none
  void let_go_event(uint64_t id);
  uint64_t record_event(uint64_t id);                             // the number of this record
  void complete_event(uint64_t id, uint64_t record, int64_t at);  // modelled time
  uint64_t last_record(uint64_t id);
  bool event_done(uint64_t id, uint64_t record);
  int64_t completion_time(uint64_t id);  // of the newest record that is over; 0: its recorder died, or none
  // Sleeps until the record is over, but not for long: ask again. A record of a process that died is over.
  void wait_for_event(uint64_t id, uint64_t record);

  // The GPU falls off the bus, for every process, until nobody uses the state any more.
  void lose(int gpu);
  bool lost(int gpu) const;

  MemoryUse use(int gpu);
  Counters counters(int gpu);  // of all processes, the dead included
  void count_kernel(int gpu);
  void count_copy(int gpu, EngineKind kind, uint64_t bytes);

  // Books a piece of an engine. The caller sleeps until it is over and books the rest, or leaves the line.
  Booking reserve(const BookingRequest& asked);
  void leave_line(const BookingRequest& asked);

 private:
  SharedState() = default;
  bool lock();
  void unlock();
  void reap();
  bool any_lost() const;
  bool other_shape(const Options& options) const;
  // The machine is in use with another shape: what of that was asked for in vain, in one line.
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
  double slower_down_ = 1;  // copies from host to device while the other direction is full, and the other way round
  double slower_up_ = 1;
  int process_ = -1;                   // index of our entry
  std::map<uint64_t, unsigned> held_;  // how often this process holds shared memory; under lock()
};

}  // namespace rota::sim
