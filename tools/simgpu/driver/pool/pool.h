// Memory pools: what cuMemAllocAsync allocates from. A pool of device memory takes segments of the GPU and hands them
// out piecewise; a piece freed in stream order can be allocated again at once in the same stream, and elsewhere when
// the free is over. Segments that nothing uses go back to the GPU at a synchronisation, but for the release threshold.
// Pools of host or managed memory take and give back each allocation by itself.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <tuple>
#include <vector>

#include "scheduler/protocol/descriptor.h"
#include "tools/simgpu/driver/memory/address_space.h"
#include "tools/simgpu/driver/memory/free_ranges.h"
#include "tools/simgpu/driver/stream/stream.h"

namespace rota::sim {

class Pool : public std::enable_shared_from_this<Pool> {
 public:
  // gpu: whose memory it is; of a pool on the host: 0.
  Pool(const CUmemPoolProps& properties, int gpu);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  // What is wrong with the properties, or success.
  static CUresult check(const CUmemPoolProps& properties);
  // With the file by which other processes can open it, if its properties want one. Null: out of memory.
  static std::shared_ptr<Pool> create(const CUmemPoolProps& properties);
  static std::shared_ptr<Pool> import_file(int file);  // null: stands for no pool
  CUresult export_file(int* file);                     // a new descriptor

  CUmemoryPool handle() { return reinterpret_cast<CUmemoryPool>(this); }
  bool managed() const { return properties.allocType == CU_MEM_ALLOCATION_TYPE_MANAGED; }
  bool on_gpu() const;

  CUresult get(CUmemPool_attribute attribute, void* value);
  CUresult set(CUmemPool_attribute attribute, const void* value);
  // The GPUs that may use its memory, a bit each.
  uint32_t accessible_from(bool write) const { return (write ? writable_ : readable_).load(); }
  void set_access(int gpu, CUmemAccess_flags flags);
  CUmemAccess_flags access(int gpu) const;

  // Memory for work that is queued into the stream from now on. Out of memory: the GPU or the pool is full.
  CUresult allocate(const StreamPointer& stream, uint64_t bytes, uint64_t* address);
  // A free that was queued into a stream. `over`: the stream has got there; so it has when the task is done, which
  // does nothing after an error that sticks.
  struct Free {
    std::atomic<bool> over{false};
    TaskPointer task;
  };
  // The record of the allocation is gone; its memory may be used until the free is over.
  void freed(uint64_t address, uint64_t stream, std::shared_ptr<Free> free);
  // A free is over: a pool that the program has destroyed gives back what it can.
  void reached();
  // Nothing uses the memory any more: of any allocation of the pool.
  void released(const Allocation& allocation);

  // Gives back segments that nothing uses while more than `keep` bytes are reserved.
  void trim(uint64_t keep);
  // The host has waited for something: what was freed is free for every stream, and what is above the threshold goes.
  void synchronised();
  // The program destroyed it: what is free goes at once, the rest when it is freed.
  void destroy();

  // Where an allocation lies for a process that imported the pool. Measured on driver 580.159: only once the pool was
  // exported.
  struct Shared {
    uint64_t id = 0;  // in the shared state
    Pages pages;      // of the pool's file
    uint64_t segment_bytes = 0;
  };
  bool find_shared(uint64_t address, Shared* shared);
  // The other side: an allocation of the pool that this one was imported from. Invalid value, out of memory.
  CUresult import_pointer(Context& context, const Shared& shared, uint64_t bytes, uint64_t* address);

  const CUmemPoolProps properties;
  const int gpu;
  bool imported = false;  // set before anybody else knows it

 private:
  struct Piece {
    uint64_t bytes = 0;
    bool used = false;
    // Of a free piece: the stream that freed it, until the host has seen that it got there. 0: anybody's.
    uint64_t stream = 0;
    std::shared_ptr<Free> pending;  // null: it is over
  };
  struct Segment {
    uint64_t bytes = 0;
    uint64_t charged = 0;
    uint64_t shared_id = 0;
    uint64_t file_offset = 0;
    std::map<uint64_t, Piece> pieces;  // by address, without gaps
    std::set<uint64_t> unused;         // addresses of those that are not used
  };
  using Segments = std::map<uint64_t, Segment>;

  bool take_piece(uint64_t stream, uint64_t bytes, bool wait_for_others, uint64_t* address, TaskPointer* after);
  uint64_t use(Segment& segment, std::map<uint64_t, Piece>::iterator piece, uint64_t bytes);
  CUresult grow(uint64_t bytes, uint64_t* address);
  CUresult allocate_by_itself(Allocation* allocation);
  std::map<uint64_t, Piece>::iterator piece_at(uint64_t address, Segment** segment);
  static void settle(Piece& piece);
  void merge(Segment& segment);
  void give_back(Segments::iterator segment);
  void count_used(uint64_t bytes);
  void count_reserved(uint64_t bytes);

  std::mutex mutex_;  // the fields below
  Segments segments_;
  uint64_t reserved_ = 0;
  uint64_t reserved_high_ = 0;
  uint64_t used_ = 0;
  uint64_t used_high_ = 0;
  uint64_t threshold_ = 0;
  int follow_events_ = 1;
  int opportunistic_ = 1;
  int internal_dependencies_ = 1;
  bool destroyed_ = false;
  FreeRanges file_free_;  // of the pool's file
  std::atomic<bool> exported_{false};
  Descriptor file_;  // the pages of a pool that can be exported; set when it is made
  std::atomic<uint32_t> readable_{0};
  std::atomic<uint32_t> writable_{0};
};
using PoolPointer = std::shared_ptr<Pool>;

// Which pool each place allocates from: the default one until another is made current.
class CurrentPools {
 public:
  // False: no place that pools are for.
  static bool valid(const CUmemLocation& location, CUmemAllocationType type, int gpus);
  PoolPointer default_of(const CUmemLocation& location, CUmemAllocationType type);
  PoolPointer current_of(const CUmemLocation& location, CUmemAllocationType type);
  PoolPointer current_of(int gpu) { return current_of({CU_MEM_LOCATION_TYPE_DEVICE, {gpu}}, kPinned); }
  void set_current(const CUmemLocation& location, CUmemAllocationType type, PoolPointer pool);
  bool is_default(const Pool* pool);
  void forget(const Pool* pool);  // it is destroyed: where it was current the default one is again

  static constexpr CUmemAllocationType kPinned = CU_MEM_ALLOCATION_TYPE_PINNED;

 private:
  struct Place {
    PoolPointer standard;
    PoolPointer current;
  };
  using Key = std::tuple<int, int, int>;
  static Key key(const CUmemLocation& location, CUmemAllocationType type);
  Place& at(const CUmemLocation& location, CUmemAllocationType type);

  std::mutex mutex_;
  std::map<Key, Place> places_;
};

}  // namespace rota::sim
