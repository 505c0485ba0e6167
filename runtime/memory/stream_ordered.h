// Stream-ordered memory (cuMemAllocAsync and its kin) in the place of the driver's pools, where plain memory is
// converted: what a pool of the driver's gives stays on the GPU for as long as it lives, what a backend gives can leave
// it. The pools themselves stay the driver's: their handles, policies and thresholds are asked of it.
//
// Each pool has a heap (heap.h), whose spans come from a backend. Memory that is freed in a stream is that
// stream's again at once, and everybody's when the stream has passed it, which an event tells; at a shortage an
// allocation's stream waits for it, where the pool's policy allows that. Spans that nothing uses go to `Deferred`,
// which gives them to the driver where that makes nobody wait. The usual allocation and the usual free take a lock for
// a moment, and with it held nothing is asked of the driver, for whose own lock threads queue (fences.h).
//
// A pool's memory outlives contexts, the driver's and what is served from extents alike: such a pool has one heap,
// which all contexts of its GPU share. Unified Memory ends with the context that it was made in: there each context has
// a heap of its own.
//
// Small plain memory comes from heaps of its own, one for each context: a piece of Unified Memory for each allocation
// would cost three of the driver's calls.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <vector>

#include "runtime/memory/backend.h"
#include "runtime/memory/deferred.h"
#include "runtime/memory/fences.h"
#include "runtime/memory/heap.h"
#include "runtime/memory/ledger.h"

namespace rota::memory {

// What is served in the place of one pool, or of a GPU's small plain memory. Under the lock of StreamOrdered.
struct ServedPool {
  api::CUmemoryPool handle = nullptr;
  int device = 0;
  std::map<api::CUcontext, Heap> heaps;          // by the context that their spans end with
  std::map<int, api::CUmemAccess_flags> access;  // of other GPUs to its spans
  bool shared = false;                           // there has been some: nobody else is served from its spans
  std::uint64_t used_high = 0;
  std::uint64_t reserved_high = 0;
  std::uint64_t keep = UINT64_MAX;  // bytes of spans that nothing uses; more of them go

  std::uint64_t used() const;
  std::uint64_t reserved() const;
  void note_highs();
};

// Any thread may call each function.
class StreamOrdered {
 public:
  // Reserves room for this many bytes, or says no. May wait.
  using Reserve = std::function<bool(std::uint64_t bytes)>;

  struct Wanted {
    Place place;                              // the stream's, or for plain memory the thread's
    api::CUmemoryPool pool = nullptr;         // null: plain memory
    std::uint64_t pool_maximum = UINT64_MAX;  // bytes that the pool may take
    std::uint64_t gpu_bytes = 0;              // all of the GPU's, which say how large a span is
    std::uint64_t bytes = 0;                  // not 0
    api::CUstream stream = nullptr;
    bool per_thread = false;
    Heap::Stream number = 0;  // the stream's in its context (known_streams.h)
    Backing backing = Backing::kUnified;
  };

  StreamOrdered(Ledger& ledger, Deferred& deferred, driver::SpareEvents& events)
      : ledger_(ledger), deferred_(deferred), fences_(events) {}

  // Enters the ledger as Kind::kServed, or Kind::kShared if it is plain. CUDA_ERROR_OUT_OF_MEMORY, or what the driver
  // answered.
  api::CUresult allocate(const Wanted& wanted, Backend& backend, const Reserve& reserve, api::CUdeviceptr* address);
  // Where in a stream's work an entry is freed. No event: its use is over.
  struct Behind {
    Heap::Fence fence = 0;  // of next_fence(), before the event was recorded
    api::CUevent event = nullptr;
    api::CUcontext context = nullptr;  // the stream's, and the event's
    Heap::Stream number = 0;           // the stream's in its context
  };
  Heap::Fence next_fence() { return fences_.next(); }
  // An entry of the ledger that is being freed (begin_free). Takes the event.
  void free(const Allocation& allocation, const Behind& behind);
  // Whether there has been anything to serve.
  bool any() const { return any_.load(std::memory_order_relaxed); }
  // Looks which frees the streams have passed. The GPUs whose bytes have become room again.
  std::vector<int> sweep();

  // What lies at an address.
  struct Block {
    std::uint64_t address = 0;
    std::uint64_t bytes = 0;  // as the program asked for
    std::uint64_t buffer_id = 0;
    api::CUmemoryPool pool = nullptr;  // null: plain memory
    std::uint64_t span_address = 0;    // what is mapped in one piece around it
    std::uint64_t span_bytes = 0;
    api::CUcontext context = nullptr;  // null: it ends with none
    int device = 0;
  };
  // False: the address is none of ours. True: it lies in a span, in the block that `block` says, or in none.
  bool find(std::uint64_t address, std::optional<Block>* block) const;

  // Whether a span begins here: memory of the driver's that its free would take.
  bool holds(std::uint64_t address) const;

  // What a pool has here, in bytes.
  struct Marks {
    std::uint64_t used = 0;
    std::uint64_t used_high = 0;
    std::uint64_t reserved = 0;
    std::uint64_t reserved_high = 0;
  };
  // Gives spans that nothing uses back while more than `keep` bytes are reserved.
  void trim(api::CUmemoryPool pool, std::uint64_t keep);
  Marks marks(api::CUmemoryPool pool) const;
  // Those with spans that end with no context.
  std::vector<api::CUmemoryPool> lasting_pools() const;
  // From now on the spans of a pool of this GPU, those to come included, may be used from another one, or no more
  // (CU_MEM_ACCESS_FLAGS_PROT_NONE). The one place where the driver is called with the lock held, by this and for the
  // new spans of such pools: no context can end, and no span go, before it has answered.
  void set_access(api::CUmemoryPool pool, int device, int accessing, api::CUmemAccess_flags flags);
  void reset_used_high(api::CUmemoryPool pool);
  void reset_reserved_high(api::CUmemoryPool pool);
  // The program has destroyed the pool: its handle may be another one's from now on, its memory stays until freed.
  void pool_destroyed(api::CUmemoryPool pool);

  // A context is about to be destroyed: its events are left alone from now on. Then says whether it is gone.
  void context_ending(api::CUcontext context);
  void context_ended(api::CUcontext context, bool gone);

 private:
  using PoolPointer = std::shared_ptr<ServedPool>;
  using Lock = Fences::Lock;
  struct Span {
    PoolPointer pool;
    api::CUcontext context = nullptr;  // whose heap it is in
    std::uint64_t address = 0;
    std::uint64_t bytes = 0;
    Backend* backend = nullptr;
  };
  struct Live {
    std::uint64_t bytes = 0;
    std::uint64_t buffer_id = 0;
    Heap::Stream stream = 0;
    Heap::Fence behind = 0;  // the stream was given the block behind this fence of its own
  };
  PoolPointer pool_of(api::CUmemoryPool handle, int device);
  static void set_access(const Span& span, int accessing, api::CUmemAccess_flags flags);
  static Place home_of(const Wanted& wanted);
  Heap::Stream stream_of(api::CUcontext context, Heap::Stream number);
  bool put_back(const Wanted& wanted, const PoolPointer& pool, const Heap::Taken& taken);
  bool pay(const Wanted& wanted, const PoolPointer& pool, const Heap::Taken& taken, const Reserve& reserve);
  void note(const Wanted& wanted, ServedPool& pool, const Heap::Taken& taken);
  void enter(const Wanted& wanted, const Heap::Taken& taken, api::CUdeviceptr* into);
  std::optional<Heap::Taken> take(const Wanted& wanted, PoolPointer* pool);
  api::CUresult grow(const Wanted& wanted, const PoolPointer& pool, Backend& backend, Heap::Taken* taken);
  std::optional<Heap::Taken> take_behind(const Wanted& wanted, const PoolPointer& pool, const Reserve& reserve);
  const Span* span_at(std::uint64_t address) const;
  void passed(const Fences::Point& point, std::set<int>* devices);
  void trim(ServedPool& pool, std::uint64_t keep);
  void trim_empty(ServedPool& pool);

  Ledger& ledger_;
  Deferred& deferred_;
  mutable std::mutex mutex_;  // the fields below
  std::map<api::CUmemoryPool, PoolPointer> pools_;
  std::map<int, PoolPointer> plain_;                          // by device
  std::map<api::CUcontext, std::set<PoolPointer>> pools_of_;  // with a heap of that context
  std::map<std::uint64_t, Span> spans_;                       // by address
  std::map<std::uint64_t, Live> live_;                        // by address
  std::map<api::CUcontext, std::uint64_t> context_numbers_;   // stream_of()
  std::uint64_t last_context_number_ = 0;
  Fences fences_;
  std::uint64_t last_buffer_id_ = std::uint64_t{1} << 48;  // beyond the driver's
  std::atomic<bool> any_{false};                           // there was a span
};

}  // namespace rota::memory
