// Stream-ordered memory (cuMemAllocAsync and related functions), served instead of the driver's pools where plain
// memory is converted: memory from a driver's pool stays on the GPU as long as it lives, memory from a backend can
// leave it. The pools themselves remain the driver's, which is asked for their handles, policies and thresholds.
//
// Each pool has a heap (heap.h), whose spans come from a backend. Memory that is freed in a stream is available to that
// stream at once, and to all when the stream has passed the free, which an event shows. When memory is short, an
// allocation's stream waits for that, if the pool's policy allows it. Unused spans go to `Deferred`, which frees them
// where that makes no thread wait. The usual allocation and the usual free take a lock for a moment, and make no driver
// call under it, since threads queue for the driver's own lock (fences.h).
//
// A pool's memory outlives contexts, both the driver's and memory served from extents: such a pool has one heap, which
// all contexts of its GPU share. Unified Memory ends with the context that it was allocated in: there each context has
// its own heap.
//
// The quick list (quick_list.h) comes before all that: many freed blocks soon serve an allocation like their last one.
//
// Small plain memory comes from separate heaps, one per context: Unified Memory of its own for each allocation would
// cost three driver calls.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "runtime/core/function_ref.h"
#include "runtime/memory/backend.h"
#include "runtime/memory/charge.h"
#include "runtime/memory/deferred.h"
#include "runtime/memory/fences.h"
#include "runtime/memory/heap.h"
#include "runtime/memory/ledger.h"
#include "runtime/memory/quick_list.h"
#include "runtime/memory/served_pool.h"
#include "runtime/memory/spare_nodes.h"

namespace rota::memory {

// Any thread may call each function.
class StreamOrdered {
 public:
  // Reserves this many bytes, or none. `frame`: of the function that holds the charge. May wait.
  using Reserve = FunctionRef<Charge(std::uint64_t bytes, const void* frame)>;

  struct Wanted {
    Place place;                              // the stream's, or for plain memory the thread's
    api::CUmemoryPool pool = nullptr;         // null: plain memory
    std::uint64_t pool_maximum = UINT64_MAX;  // bytes that the pool may take
    std::uint64_t gpu_bytes = 0;              // the GPU's size, which determines the size of a span
    bool may_grow = false;                    // the pool may grow rather than empty the quick list
    std::uint64_t bytes = 0;                  // not 0
    api::CUstream stream = nullptr;
    bool per_thread = false;
    Heap::Stream number = 0;  // the stream's in its context (known_streams.h)
    Backing backing = Backing::kUnified;
  };

  StreamOrdered(Ledger& ledger, Deferred& deferred, driver::SpareEvents& events)
      : ledger_(ledger), deferred_(deferred), fences_(events) {}

  // Adds an entry of Kind::kServed to the ledger, or Kind::kShared if it is plain. Returns CUDA_ERROR_OUT_OF_MEMORY or
  // the driver's error.
  api::CUresult allocate(const Wanted& wanted, Backend& backend, const Reserve& reserve, api::CUdeviceptr* address);
  // The point in a stream's work at which an entry is freed. No event: its use is over.
  struct Behind {
    Heap::Fence fence = 0;  // of next_fence(), before the event was recorded
    api::CUevent event = nullptr;
    api::CUcontext context = nullptr;  // the stream's, and the event's
    Heap::Stream number = 0;           // the stream's in its context
  };
  Heap::Fence next_fence() { return fences_.next(); }
  // An entry of the ledger that is being freed (begin_free). Takes the event.
  void free(const Allocation& allocation, const Behind& behind);

  // --- the quick list (quick_list.h): the same, with the block's entry in the ledger left as it is

  // A thread that frees a block which the list might take claims it first, however the block is then freed. False: it
  // is no such block, or is freed already. The claim is undone unless the block is freed.
  class Claim {
   public:
    Claim(Claim&& other) noexcept
        : owner_(other.owner_), address_(other.address_), claimed_(std::exchange(other.claimed_, Claimed::kNothing)) {}
    Claim& operator=(Claim&&) = delete;
    ~Claim() {
      if (claimed_ == Claimed::kYes) owner_.unclaim(address_);
    }
    explicit operator bool() const { return claimed_ == Claimed::kYes; }
    // It is freed, or another thread is freeing it.
    bool twice() const { return claimed_ == Claimed::kTwice; }
    // It is freed now, or about to be.
    void commit() { claimed_ = Claimed::kNothing; }

   private:
    friend StreamOrdered;
    enum class Claimed : std::uint8_t { kNothing, kYes, kTwice };
    Claim(StreamOrdered& owner, std::uint64_t address, Claimed claimed)
        : owner_(owner), address_(address), claimed_(claimed) {}
    StreamOrdered& owner_;
    const std::uint64_t address_;
    Claimed claimed_;
  };
  Claim claim(std::uint64_t address);
  // The same, but only for a block that the list takes. `before`: the point behind which the block was received; its
  // event can be recorded once more, if it is of the stream's context. `pool`: learn_threshold() has to be called for
  // it before the list takes anything from it; or null.
  Claim claim_quickly(std::uint64_t address, Behind* before, api::CUmemoryPool* pool);
  // Frees it; takes the event.
  void quick_free(std::uint64_t address, const Behind& behind);
  // most_listed(): the most bytes of blocks in the list, on a GPU of this size; beyond that all of them are freed
  // properly. most_grown(): up to how many bytes in the list pools grow rather than empty it.
  static std::uint64_t most_listed(std::uint64_t gpu_bytes);
  static std::uint64_t most_grown(std::uint64_t gpu_bytes);
  // False: no block in the list is like this.
  bool quick_allocate(const Wanted& wanted, api::CUdeviceptr* address);

  // Whether there has been anything to serve.
  bool any() const { return any_.load(std::memory_order_relaxed); }
  // Checks which frees the streams have passed. Returns the GPUs whose bytes became free.
  std::vector<int> sweep();

  // What lies at an address.
  struct Block {
    std::uint64_t address = 0;
    std::uint64_t bytes = 0;  // as the program asked for
    std::uint64_t buffer_id = 0;
    api::CUmemoryPool pool = nullptr;  // null: plain memory
    std::uint64_t span_address = 0;    // the start of the span that contains it
    std::uint64_t span_bytes = 0;
    api::CUcontext context = nullptr;  // null: it ends with none
    int device = 0;
  };
  // False: the address is not in rota's spans. True: it is in a span, in the block that `block` describes or in none.
  bool find(std::uint64_t address, std::optional<Block>* block) const;

  // Whether an allocation lies in this range, or may: true outside rota's spans.
  bool in_use(std::uint64_t address, std::uint64_t bytes) const;
  // Whether a span begins here: memory that the driver's free would accept.
  bool holds(std::uint64_t address) const;

  // What a pool has here, in bytes. Takes no lock, except in a program of many pools.
  struct Marks {
    std::uint64_t used = 0;
    std::uint64_t used_high = 0;
    std::uint64_t reserved = 0;
    std::uint64_t reserved_high = 0;
    bool above_threshold = false;  // whether trim_to_threshold() may release anything, perhaps after a sweep()
  };
  Marks marks(api::CUmemoryPool pool) const;
  // Releases unused spans while more than `keep` bytes are reserved.
  void trim(api::CUmemoryPool pool, std::uint64_t keep);
  // The same for the pool's release threshold.
  void trim_to_threshold(api::CUmemoryPool pool);
  // When a GPU is short of memory: releases all unused spans there, of plain memory as well.
  void trim_all(int device);
  // Other processes have this block's span of plain memory open, and see whatever comes to lie there. It serves no more
  // blocks, as long as such spans are a 64th of the GPU at most, and unused spans of plain memory on this GPU are
  // released at once from now on.
  void opened_by_others(const Block& block);
  // Releases unused spans by which pools of this GPU have grown rather than empty the list.
  void give_back_grown(int device);
  // learn_threshold() asks the driver for the threshold unless it is known. threshold_changed(): the program has set
  // it.
  void learn_threshold(api::CUmemoryPool pool);
  void threshold_changed(api::CUmemoryPool pool);
  // The pools with spans that do not end with a context.
  std::vector<api::CUmemoryPool> lasting_pools() const;
  // Allows or forbids (CU_MEM_ACCESS_FLAGS_PROT_NONE) the use of the spans of a pool of this GPU, including future
  // ones, from another GPU. Only here and for new spans of such pools is the driver called with the lock held: no
  // context can end and no span be freed before it returns.
  void set_access(api::CUmemoryPool pool, int device, int accessing, api::CUmemAccess_flags flags);
  // A high mark begins anew at what is current.
  using Figure = std::atomic<std::uint64_t> PoolFigures::*;
  void reset_high(api::CUmemoryPool pool, Figure high, Figure current);
  // serving(): what serves a pool that the program is about to destroy; null: nothing. pool_destroyed(): the driver has
  // destroyed the pool. Its memory stays until freed, but its handle may be another thread's new pool by now.
  std::shared_ptr<ServedPool> serving(api::CUmemoryPool pool) const;
  void pool_destroyed(const std::shared_ptr<ServedPool>& pool);
  // The program has made a pool: what served an earlier one with the same handle does not serve it.
  void pool_made(api::CUmemoryPool pool) { pool_destroyed(serving(pool)); }

  // context_ending(): a context is about to be destroyed, and its events are not touched from now on. context_ended()
  // says whether it was.
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
    Heap::Fence behind = 0;      // the stream received the block behind this fence of its own
    ServedPool* pool = nullptr;  // where it can be freed quickly
    enum class Use : std::uint8_t { kUsed, kClaimed, kFreed } use = Use::kUsed;
    // kFreed: the point behind which it was freed. Otherwise, if it has come from the quick list: the point behind
    // which the stream received it, instead of `behind`.
    Behind last{};
  };
  using Lives = std::map<std::uint64_t, Live>;  // by address
  PoolPointer pool_of(api::CUmemoryPool handle, int device);
  static void set_access(const Span& span, int accessing, api::CUmemAccess_flags flags);
  static Place home_of(const Wanted& wanted);
  Heap::Stream stream_of(api::CUcontext context, Heap::Stream number);
  bool put_back(const Wanted& wanted, const PoolPointer& pool, const Heap::Taken& taken, bool unpaid);
  bool pay(const Wanted& wanted, const PoolPointer& pool, const Heap::Taken& taken, const Reserve& reserve);
  static bool is_paid(const Wanted& wanted, const Heap::Taken& taken) { return taken.charge >= wanted.bytes; }
  void note(const Wanted& wanted, ServedPool& pool, const Heap::Taken& taken, bool paid);
  void enter(const Wanted& wanted, const Heap::Taken& taken, api::CUdeviceptr* into);
  bool give_back(const Allocation& allocation, std::uint64_t charge, Behind behind);
  void free_properly(std::uint64_t address, const Behind& behind);
  void flush(std::vector<Fences::Queue>* queues = nullptr);
  void flush_and_query(Lock& lock);
  Claim::Claimed claim(Live& live);
  Claim::Claimed claimed(std::uint64_t address);
  Claim::Claimed claimed_quickly(std::uint64_t address, Behind* before, api::CUmemoryPool* pool);
  void unclaim(std::uint64_t address);
  Lives::iterator live_at(std::uint64_t address);
  void forget(Lives::iterator live);
  void forget(std::uint64_t address, std::uint64_t bytes);
  Lives::iterator& latest(std::uint64_t address) { return latest_[address * 0x9e3779b97f4a7c15u >> 54]; }
  std::optional<Heap::Taken> take(const Wanted& wanted, PoolPointer* pool);
  api::CUresult grow(const Wanted& wanted, const PoolPointer& pool, Backend& backend, Heap::Taken* taken);
  std::optional<Heap::Taken> take_behind(const Wanted& wanted, const PoolPointer& pool, const Reserve& reserve);
  const Span* span_at(std::uint64_t address) const;
  void passed(const Fences::Point& point, std::set<int>* devices);
  static Marks marks_of(const PoolFigures& figures);
  static void forget_threshold(ServedPool& pool);
  void trim(ServedPool& pool, std::uint64_t keep);
  void trim_empty(ServedPool& pool);

  Ledger& ledger_;
  Deferred& deferred_;
  mutable std::mutex mutex_;  // the fields below
  std::map<api::CUmemoryPool, PoolPointer> pools_;
  FiguresOfPools figures_;                                    // of those; read without the lock
  std::map<int, PoolPointer> plain_;                          // by device
  std::map<api::CUcontext, std::set<PoolPointer>> pools_of_;  // with a heap of that context
  std::map<std::uint64_t, Span> spans_;                       // by address
  Lives live_;
  std::array<Lives::iterator, 1024> latest_{};  // of live_, by a hash of the address: for live_at()
  SpareNodes<Lives> spare_live_;
  QuickList<Lives::iterator> quick_;
  std::atomic<std::size_t> not_used_{0};                     // of live_, those whose `use` says so
  std::atomic<bool> any_quick_{false};                       // there was a block that the list might take
  std::map<api::CUcontext, std::uint64_t> context_numbers_;  // stream_of()
  std::uint64_t last_context_number_ = 0;
  std::pair<api::CUcontext, std::uint64_t> last_context_{};  // the entry that was looked up last
  Fences fences_;
  std::uint64_t last_buffer_id_ = std::uint64_t{1} << 48;  // beyond the driver's
  std::atomic<bool> any_{false};                           // there was a span
};

}  // namespace rota::memory
