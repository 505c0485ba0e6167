// Memory that the program has freed in the order of a stream and that the driver takes only by a call that waits: the
// driver's cuMemFreeAsync refuses converted memory, and its cuMemFree waits for the work of the memory's context. While
// it waits, launches, copies, allocations and event records of every other thread of the process wait too (measured on
// an H200), so a separate thread would not help either: a kernel that waits for the host would hang the program.
//
// So a freed block waits here and remains an entry of the ledger. An event behind the stream's work shows when the
// program's use of it is over; from then on its bytes count as free, and the block itself
//  - serves the program's next allocation of the same size in the same context, or
//  - goes to the driver when nothing of this process can be running: by the monitor with the gate closed, or behind a
//    cuMemFree of the program's own, which has just waited for the same.
//
// The driver is asked about events with no lock held, since it has one of its own for which threads queue.
//
// A block's life depends on two contexts: its own, with which it ends, and the stream's, whose end also ends the
// block's use. Neither may end while a block is being freed, or the driver could be given an address that belongs to
// another allocation by then. So the end of a context waits for driver calls about its blocks.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "runtime/core/function_ref.h"
#include "runtime/driver/events.h"
#include "runtime/memory/backend.h"
#include "runtime/memory/ledger.h"

namespace rota::memory {

class Deferred {
 public:
  // Gives a block back to where it came from.
  using GiveBack = std::function<void(api::CUdeviceptr)>;

  Deferred(Ledger& ledger, driver::SpareEvents& events, GiveBack give_back)
      : ledger_(ledger), events_(events), give_back_(std::move(give_back)), state_(std::make_unique<State>()) {}

  // Any thread may call these; free_unused() needs RELAXED capture mode.

  bool any() const { return count_.load(std::memory_order_acquire) != 0; }
  // Adds a block whose entry in the ledger is marked as being freed, and the event (of `event_context`) behind its last
  // use. `reusable`: for reuse().
  void add(const Allocation& allocation, api::CUevent event, api::CUcontext event_context, bool reusable = true);
  // Adds a block of rota's own that is unused and not in the ledger. `bytes`: for reuse_unused(); 0: not reusable.
  void add_unused(api::CUdeviceptr address, const Place& place, std::uint64_t bytes = 0);
  // Whether a block begins here: for the program the address is freed, for the driver it is not.
  bool holds(api::CUdeviceptr address) const;
  // Checks which blocks' use is over; their bytes count as free from then on. Returns their GPUs. If another thread is
  // asking the driver about a block, waits for the answer.
  std::vector<int> sweep();
  // Returns a block of exactly this size whose use is over, for reuse by the program: it is no longer an entry. Queries
  // the driver about a few blocks of that size and no others.
  std::optional<api::CUdeviceptr> reuse(const Place& place, std::uint64_t bytes);
  // One of those of add_unused(), of exactly this size.
  std::optional<api::CUdeviceptr> reuse_unused(const Place& place, std::uint64_t bytes);
  // Frees every block whose use is over, or those of one owner. Waits for the GPU and makes others wait: call it where
  // nothing runs there.
  void free_unused(const std::optional<Owner>& owner = std::nullopt);
  // The same for blocks that `is_extents` identifies, except those that were freed during a capture, which may still
  // refer to them. Freeing extents never waits, so this may be called at any time. Returns whether it has freed any.
  bool free_extents(FunctionRef<bool(api::CUdeviceptr)> is_extents);

  // context_ending(): a context is about to be destroyed. From now on none of its blocks is freed in the driver, and
  // frees under way have finished. context_ended() says whether it was destroyed.
  void context_ending(api::CUcontext context);
  void context_ended(api::CUcontext context, bool gone);

 private:
  struct Block {
    Allocation allocation;
    api::CUevent event = nullptr;  // null: its use is over
    api::CUcontext event_context = nullptr;
    bool in_ledger = true;
    bool captured = false;      // was freed during a capture
    bool reusable = true;       // it is in by_size
    bool asked = false;         // a driver call is under way, a query of the event or the free of the block
    std::uint64_t queries = 0;  // of the event, so far
    int held = 0;               // contexts of it that are ending
  };
  using Id = std::uint64_t;
  using Blocks = std::map<Id, Block>;
  using Size = std::tuple<std::uint64_t, int, std::uint64_t>;  // the owner's id, the GPU, bytes
  struct State {
    std::mutex mutex;
    std::condition_variable answered;
    Blocks blocks;
    std::multimap<Size, Id> by_size;
    std::multiset<api::CUdeviceptr> addresses;
    Id last = 0;
  };
  using Lock = std::unique_lock<std::mutex>;
  // How many blocks of a size the driver is asked about before another one is allocated.
  static constexpr std::size_t kFew = 2;

  static Size size_of(const Block& block) {
    return {block.allocation.owner.id, block.allocation.device, block.allocation.bytes};
  }
  static bool of(const Block& block, api::CUcontext context);
  static bool may_be_taken(const Block& block, bool in_ledger);
  void insert(const Block& block);
  bool free_those(FunctionRef<bool(const Block&)> which);
  Blocks::iterator erase(Blocks::iterator block);
  std::optional<api::CUdeviceptr> take(const Place& place, std::uint64_t bytes, bool in_ledger);
  std::set<int> ask(Lock& lock, const std::vector<Id>& blocks);
  void recount() { count_.store(state_->blocks.size(), std::memory_order_release); }

  Ledger& ledger_;
  driver::SpareEvents& events_;
  const GiveBack give_back_;
  std::unique_ptr<State> state_;
  std::atomic<std::size_t> count_{0};
};

}  // namespace rota::memory
