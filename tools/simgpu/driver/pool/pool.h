// Memory pools, from which cuMemAllocAsync allocates. A pool of device memory takes segments from the GPU and hands
// them out in pieces. A piece freed in stream order can be reused at once in the same stream, and in others when the
// free is complete. Unused segments are returned to the GPU at a synchronisation, except up to the release threshold.
// Pools of host or managed memory allocate and free each allocation separately.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <tuple>
#include <vector>

#include "scheduler/base/descriptor.h"
#include "tools/simgpu/driver/memory/address_space.h"
#include "tools/simgpu/driver/memory/free_ranges.h"
#include "tools/simgpu/driver/stream/stream.h"

namespace rota::sim {

class Pool : public std::enable_shared_from_this<Pool> {
 public:
  // gpu: the GPU whose memory it is; 0 for a pool on the host.
  Pool(const CUmemPoolProps& properties, int gpu);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  // What is wrong with the properties, or success.
  static CUresult check(const CUmemPoolProps& properties);
  // Creates a pool, with a file through which other processes can open it if its properties request one. Null: out of
  // memory.
  static std::shared_ptr<Pool> create(const CUmemPoolProps& properties);
  static std::shared_ptr<Pool> import_file(int file);  // null: not a pool's file
  CUresult export_file(int* file);                     // a new descriptor

  CUmemoryPool handle() { return reinterpret_cast<CUmemoryPool>(this); }
  bool managed() const { return properties.allocType == CU_MEM_ALLOCATION_TYPE_MANAGED; }
  bool on_gpu() const;

  CUresult get(CUmemPool_attribute attribute, void* value);
  CUresult set(CUmemPool_attribute attribute, const void* value);
  // The GPUs that may use its memory, one bit each.
  uint32_t accessible_from(bool write) const { return (write ? writable_ : readable_).load(); }
  void set_access(int gpu, CUmemAccess_flags flags);
  CUmemAccess_flags access(int gpu) const;

  // Allocates memory for work that is queued in the stream from now on. Out of memory: the GPU or the pool is full.
  CUresult allocate(const StreamPointer& stream, uint64_t bytes, uint64_t* address);
  // A free queued in a stream. `over`: the stream has reached it. That is also true once the task is done, which does
  // nothing after a sticky error.
  struct Free {
    std::atomic<bool> over{false};
    TaskPointer task;
  };
  // The record of the allocation is removed; its memory may be used until the free is complete.
  void freed(uint64_t address, uint64_t stream, std::shared_ptr<Free> free);
  // A free is complete: a pool that the program has destroyed releases what it can.
  void reached();
  // Releases the memory of an allocation of the pool that nothing uses any more.
  void released(const Allocation& allocation);

  // Releases unused segments while more than `keep` bytes are reserved.
  void trim(uint64_t keep);
  // The host has synchronised: freed pieces become available to every stream, and unused segments above the threshold
  // are released.
  void synchronised();
  // The program destroyed the pool: free memory is released at once, the rest when it is freed.
  void destroy();

  // Where a process that imported the pool finds an allocation. Measured on driver 580.159: only once the pool has been
  // exported.
  struct Shared {
    uint64_t id = 0;  // in the shared state
    Pages pages;      // of the pool's file
    uint64_t segment_bytes = 0;
  };
  bool find_shared(uint64_t address, Shared* shared);
  // The importing side: opens an allocation of the pool that this one was imported from. Invalid value, out of memory.
  CUresult import_pointer(Context& context, const Shared& shared, uint64_t bytes, uint64_t* address);

  const CUmemPoolProps properties;
  const int gpu;
  bool imported = false;  // set before the pool is visible to others

 private:
  struct Piece {
    uint64_t bytes = 0;
    bool used = false;
    // For a free piece: the stream that freed it, until the host has seen that the free is complete. 0: available to
    // any stream.
    uint64_t stream = 0;
    std::shared_ptr<Free> pending;  // null: complete
  };
  struct Segment {
    uint64_t bytes = 0;
    uint64_t charged = 0;
    uint64_t shared_id = 0;
    uint64_t file_offset = 0;
    std::map<uint64_t, Piece> pieces;  // by address, without gaps
    std::set<uint64_t> unused;         // addresses of unused pieces
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
  Descriptor file_;  // the pages of an exportable pool; set at creation
  std::atomic<uint32_t> readable_{0};
  std::atomic<uint32_t> writable_{0};
};
using PoolPointer = std::shared_ptr<Pool>;

// Which pool each location allocates from: the default one until another is made current.
class CurrentPools {
 public:
  // False: pools do not exist for this location.
  static bool valid(const CUmemLocation& location, CUmemAllocationType type, int gpus);
  PoolPointer default_of(const CUmemLocation& location, CUmemAllocationType type);
  PoolPointer current_of(const CUmemLocation& location, CUmemAllocationType type);
  PoolPointer current_of(int gpu) { return current_of({CU_MEM_LOCATION_TYPE_DEVICE, {gpu}}, kPinned); }
  void set_current(const CUmemLocation& location, CUmemAllocationType type, PoolPointer pool);
  bool is_default(const Pool* pool);
  void forget(const Pool* pool);  // it is destroyed: where it was current, the default one becomes current again

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
