// Stream-ordered memory (cuMemAllocAsync and its kin) in the place of the driver's pools, where plain memory is
// converted: what a pool of the driver's gives stays on the GPU for as long as it lives, what a backend gives can leave
// it. The pools themselves stay the driver's: their handles, policies and thresholds are asked of it.
//
// Each pool has a heap (heap.h) per context, whose spans come from a backend. Memory that is freed in a stream is that
// stream's again at once, and everybody's when the stream has passed it, which an event tells; at a shortage an
// allocation's stream waits for it, where the pool's policy allows that. Spans that nothing uses go to `Deferred`,
// which gives them to the driver where that makes nobody wait.
//
// Unlike the driver's, such memory ends with the context that its span was made in.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <vector>

#include "runtime/memory/backend.h"
#include "runtime/memory/deferred.h"
#include "runtime/memory/heap.h"
#include "runtime/memory/ledger.h"

namespace rota::memory {

// Any thread may call each function. Those that ask the driver want RELAXED capture mode.
class StreamOrdered {
 public:
  // Reserves room for this many bytes, or says no. May wait.
  using Reserve = std::function<bool(std::uint64_t bytes)>;

  struct Wanted {
    Place place;  // the stream's
    api::CUmemoryPool pool = nullptr;
    std::uint64_t pool_maximum = UINT64_MAX;  // bytes that the pool may take
    std::uint64_t gpu_bytes = 0;              // all of the GPU's, which say how large a span is
    std::uint64_t bytes = 0;                  // not 0
    api::CUstream stream = nullptr;
    bool per_thread = false;
  };

  StreamOrdered(Ledger& ledger, Deferred& deferred) : ledger_(ledger), deferred_(deferred) {}

  // Enters the ledger as Kind::kServed. CUDA_ERROR_OUT_OF_MEMORY, or what the driver answered.
  api::CUresult allocate(const Wanted& wanted, Backend& backend, const Reserve& reserve, api::CUdeviceptr* address);
  // An entry of the ledger that is being freed (begin_free), behind `event` of `context` in the stream; no event: its
  // use is over. Takes the event.
  void free(const Allocation& allocation, api::CUstream stream, bool per_thread, api::CUevent event,
            api::CUcontext context);
  // Whether there has been anything to serve.
  bool any() const { return any_.load(std::memory_order_relaxed); }
  // Looks which frees the streams have passed. The GPUs whose bytes have become room again.
  std::vector<int> sweep();

  // What lies at an address.
  struct Block {
    std::uint64_t address = 0;
    std::uint64_t bytes = 0;  // as the program asked for
    std::uint64_t buffer_id = 0;
    api::CUmemoryPool pool = nullptr;
    std::uint64_t span_address = 0;  // what is mapped in one piece around it
    std::uint64_t span_bytes = 0;
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
  void reset_used_high(api::CUmemoryPool pool);
  void reset_reserved_high(api::CUmemoryPool pool);
  // The program has destroyed the pool: its handle may be another one's from now on, its memory stays until freed.
  void pool_destroyed(api::CUmemoryPool pool);

  // A context is about to be destroyed: its events are left alone from now on. Then says whether it is gone.
  void context_ending(api::CUcontext context);
  void context_ended(api::CUcontext context, bool gone);

 private:
  struct Pool {
    api::CUmemoryPool handle = nullptr;
    int device = 0;
    std::map<api::CUcontext, Heap> heaps;
    std::uint64_t used_high = 0;
    std::uint64_t reserved_high = 0;
    bool destroyed = false;

    std::uint64_t used() const;
    std::uint64_t reserved() const;
    void note_highs();
  };
  using PoolPointer = std::shared_ptr<Pool>;
  struct Span {
    PoolPointer pool;
    api::CUcontext context = nullptr;
    std::uint64_t address = 0;
    std::uint64_t bytes = 0;
  };
  struct Live {
    std::uint64_t bytes = 0;
    std::uint64_t buffer_id = 0;
    Heap::Fence behind = 0;  // its own stream was given the block behind this fence
  };
  // A free that a stream has yet to pass.
  struct Point {
    Heap::Fence fence = 0;
    api::CUevent event = nullptr;
    api::CUcontext event_context = nullptr;
    PoolPointer pool;
    api::CUcontext heap_context = nullptr;
    int awaited = 0;  // threads that are making their streams wait for the event
  };
  using Points = std::deque<Point>;

  PoolPointer pool_of(const Wanted& wanted);
  bool put_back(const PoolPointer& pool, api::CUcontext context, const Heap::Taken& taken);
  bool pay(const Wanted& wanted, const PoolPointer& pool, const Heap::Taken& taken, const Reserve& reserve);
  void enter(const Wanted& wanted, const Heap::Taken& taken, api::CUdeviceptr* into);
  std::optional<Heap::Taken> take(const Wanted& wanted, const PoolPointer& pool);
  api::CUresult grow(const Wanted& wanted, const PoolPointer& pool, Backend& backend, Heap::Taken* taken);
  std::optional<Heap::Taken> take_behind(const Wanted& wanted, const PoolPointer& pool, const Reserve& reserve);
  const Span* span_at(std::uint64_t address) const;
  Point* outstanding(Heap::Fence fence);
  void passed(const Point& point, std::set<int>* devices);
  void sweep(Points& points, std::size_t most, std::set<int>* devices);
  void sweep(std::set<int>* devices);
  void trim(Pool& pool, std::uint64_t keep);

  Ledger& ledger_;
  Deferred& deferred_;
  mutable std::mutex mutex_;  // the fields below
  std::map<api::CUmemoryPool, PoolPointer> pools_;
  std::map<std::uint64_t, Span> spans_;     // by address
  std::map<std::uint64_t, Live> live_;      // by address
  std::map<std::uint64_t, Points> points_;  // by stream, in order
  std::multiset<api::CUcontext> ending_;
  Heap::Fence last_fence_ = 0;
  std::uint64_t last_buffer_id_ = std::uint64_t{1} << 48;  // beyond the driver's
  std::atomic<bool> any_{false};                           // there was a span
};

}  // namespace rota::memory
