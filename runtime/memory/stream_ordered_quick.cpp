// How stream-ordered memory is freed and allocated by way of the quick list.
#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "runtime/memory/stream_ordered.h"

namespace rota::memory {

namespace {

// The most that the list holds: then all of it is freed properly. A judgement.
constexpr std::size_t kMostBlocks = 1024;
constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 30;

}  // namespace

StreamOrdered::QuickFree StreamOrdered::begin_quick_free(std::uint64_t address, Behind* before,
                                                         api::CUmemoryPool* pool) {
  if (!any()) return QuickFree::kNo;
  const std::lock_guard lock(mutex_);
  const auto found = live_at(address);
  if (found == live_.end()) return QuickFree::kNo;
  Live& live = found->second;
  if (live.use != Live::Use::kUsed) return QuickFree::kTwice;
  if (live.pool == nullptr || live.pool->destroyed()) return QuickFree::kNo;
  *pool = live.pool->handle;
  // A pool beyond its threshold gives back what it can, which a block in the list would keep from it.
  if (!live.pool->threshold) return QuickFree::kNotYet;
  if (live.pool->figures->reserved.load(std::memory_order_relaxed) > *live.pool->threshold) return QuickFree::kNo;
  live.use = Live::Use::kGoing;
  quick_freed_.fetch_add(1, std::memory_order_relaxed);
  *before = std::exchange(live.last, {});
  return QuickFree::kYes;
}

void StreamOrdered::cancel_quick_free(std::uint64_t address, const Behind& before) {
  const std::lock_guard lock(mutex_);
  quick_freed_.fetch_sub(1, std::memory_order_relaxed);
  const auto live = live_.find(address);
  if (live == live_.end()) return fences_.release(before.context, before.event);
  live->second.use = Live::Use::kUsed;
  live->second.last = before;
}

void StreamOrdered::quick_free(std::uint64_t address, const Behind& behind, const Behind& before) {
  const std::lock_guard lock(mutex_);
  fences_.release(before.context, before.event);
  const auto found = live_at(address);
  const Heap::Stream stream = stream_of(behind.context, behind.number);
  if (found == live_.end() || stream == 0 || found->second.pool->destroyed()) {
    quick_freed_.fetch_sub(1, std::memory_order_relaxed);
    return free_properly(address, behind);
  }
  Live& live = found->second;
  if (quick_.size() >= kMostBlocks || quick_.bytes() + live.bytes > kMostBytes) flush();
  live.use = Live::Use::kFreed;
  live.behind = 0;
  live.last = behind;
  live.pool->add_quick(Heap::rounded(live.bytes));
  quick_.add({.pool = live.pool->handle, .stream = stream, .bytes = live.bytes}, found);
}

bool StreamOrdered::is_quick_freed(std::uint64_t address) const {
  if (quick_freed_.load(std::memory_order_relaxed) == 0) return false;
  const std::lock_guard lock(mutex_);
  const auto live = live_.find(address);
  return live != live_.end() && live->second.use != Live::Use::kUsed;
}

bool StreamOrdered::quick_allocate(const Wanted& wanted, api::CUdeviceptr* address) {
  if (quick_freed_.load(std::memory_order_relaxed) == 0) return false;
  const std::lock_guard lock(mutex_);
  const Heap::Stream stream = stream_of(wanted.place.context, wanted.number);
  Lives::iterator found;
  if (stream == 0 || !quick_.take({.pool = wanted.pool, .stream = stream, .bytes = wanted.bytes}, &found)) return false;
  Live& live = found->second;
  live.use = Live::Use::kUsed;
  live.buffer_id = ++last_buffer_id_;
  live.pool->take_quick(Heap::rounded(live.bytes));
  quick_freed_.fetch_sub(1, std::memory_order_relaxed);
  *address = found->first;
  return true;
}

// With the lock held: a block that the ledger has as one in use.
void StreamOrdered::free_properly(std::uint64_t address, const Behind& behind) {
  const std::optional<Allocation> taken = ledger_.begin_free(address);
  give_back(taken.value_or(Allocation{.address = address}), taken ? ledger_.hand_over(*taken) : 0, behind);
}

// With the lock held: all that is in the list, in the order in which it was freed.
void StreamOrdered::flush() {
  if (quick_.size() == 0) return;
  std::vector<Lives::iterator> all = quick_.take_all();
  std::sort(all.begin(), all.end(), [](Lives::iterator first, Lives::iterator second) {
    return first->second.last.fence < second->second.last.fence;
  });
  quick_freed_.fetch_sub(all.size(), std::memory_order_relaxed);
  for (const Lives::iterator each : all) {
    each->second.pool->quick -= Heap::rounded(each->second.bytes);
    free_properly(each->first, std::exchange(each->second.last, {}));
  }
}

}  // namespace rota::memory
