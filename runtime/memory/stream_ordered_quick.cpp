// How stream-ordered memory is freed and allocated by way of the quick list (quick_list.h).
#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "runtime/memory/stream_ordered.h"

namespace rota::memory {

namespace {

// The list is full with kMostBlocks blocks, or with most_listed() bytes, which the other constants determine. Before a
// block is added to a full list, flush_and_query() frees all blocks in it. These values are judgements.
constexpr std::size_t kMostBlocks = 1024;
constexpr std::uint64_t kMuch = std::uint64_t{256} << 20;
constexpr std::uint64_t kPart = 128;
constexpr std::uint64_t kPartOfSmallGpu = 16;

}  // namespace

std::uint64_t StreamOrdered::most_grown(std::uint64_t gpu_bytes) {
  return gpu_bytes / kPart;
}

std::uint64_t StreamOrdered::most_listed(std::uint64_t gpu_bytes) {
  return std::max(most_grown(gpu_bytes), std::min(gpu_bytes / kPartOfSmallGpu, kMuch));
}

// With the lock held.
StreamOrdered::Claim::Claimed StreamOrdered::claim(Live& live) {
  using Claimed = Claim::Claimed;
  if (live.use != Live::Use::kUsed) return Claimed::kTwice;
  live.use = Live::Use::kClaimed;
  not_used_.fetch_add(1, std::memory_order_relaxed);
  return Claimed::kYes;
}

StreamOrdered::Claim StreamOrdered::claim(std::uint64_t address) {
  return {*this, address, claimed(address)};
}

StreamOrdered::Claim StreamOrdered::claim_quickly(std::uint64_t address, Behind* before, api::CUmemoryPool* pool) {
  return {*this, address, claimed_quickly(address, before, pool)};
}

StreamOrdered::Claim::Claimed StreamOrdered::claimed(std::uint64_t address) {
  using Claimed = Claim::Claimed;
  if (!any_quick_.load(std::memory_order_acquire)) return Claimed::kNothing;
  const std::lock_guard lock(mutex_);
  const auto found = live_at(address);
  return found == live_.end() || found->second.pool == nullptr ? Claimed::kNothing : claim(found->second);
}

StreamOrdered::Claim::Claimed StreamOrdered::claimed_quickly(std::uint64_t address, Behind* before,
                                                             api::CUmemoryPool* pool) {
  using Claimed = Claim::Claimed;
  if (!any_quick_.load(std::memory_order_acquire)) return Claimed::kNothing;
  const std::lock_guard lock(mutex_);
  const auto found = live_at(address);
  if (found == live_.end()) return Claimed::kNothing;
  Live& live = found->second;
  if (live.pool == nullptr || live.pool->destroyed()) return Claimed::kNothing;
  if (!live.pool->threshold) {
    *pool = live.pool->handle;
    return Claimed::kNothing;
  }
  // A pool above its release threshold should release unused spans, but a block in the list keeps its span in use.
  if (live.pool->figures->reserved.load(std::memory_order_relaxed) > *live.pool->threshold) return Claimed::kNothing;
  *before = live.last;
  return claim(live);
}

void StreamOrdered::unclaim(std::uint64_t address) {
  const std::lock_guard lock(mutex_);
  const auto found = live_at(address);
  if (found == live_.end() || found->second.use != Live::Use::kClaimed) return;
  found->second.use = Live::Use::kUsed;
  not_used_.fetch_sub(1, std::memory_order_relaxed);
}

void StreamOrdered::quick_free(std::uint64_t address, const Behind& behind) {
  Lock lock(mutex_);
  const Heap::Stream stream = stream_of(behind.context, behind.number);
  auto found = live_at(address);
  if (found != live_.end() &&
      (quick_.size() >= kMostBlocks || quick_.bytes() >= most_listed(found->second.pool->gpu_bytes))) {
    flush_and_query(lock);
    found = live_at(address);
  }
  if (found == live_.end() || stream == 0 || found->second.pool->destroyed()) return free_properly(address, behind);
  Live& live = found->second;
  // live.last.event is null if the block has had no event or the event's context has ended; release() ignores null.
  if (live.last.event != behind.event) fences_.release(live.last.context, live.last.event);
  live.use = Live::Use::kFreed;
  live.behind = 0;
  live.last = behind;
  live.pool->add_quick(Heap::rounded(live.bytes));
  quick_.add({.pool = live.pool->handle, .stream = stream, .bytes = live.bytes}, found);
}

bool StreamOrdered::quick_allocate(const Wanted& wanted, api::CUdeviceptr* address) {
  if (not_used_.load(std::memory_order_relaxed) == 0) return false;
  const std::lock_guard lock(mutex_);
  const Heap::Stream stream = stream_of(wanted.place.context, wanted.number);
  Lives::iterator found;
  if (stream == 0 || !quick_.take({.pool = wanted.pool, .stream = stream, .bytes = wanted.bytes}, &found)) return false;
  Live& live = found->second;
  live.use = Live::Use::kUsed;
  live.buffer_id = ++last_buffer_id_;
  live.pool->take_quick(Heap::rounded(live.bytes));
  not_used_.fetch_sub(1, std::memory_order_relaxed);
  *address = found->first;
  return true;
}

// With the lock held. Frees a block that the program has freed, but that the ledger still counts as in use.
void StreamOrdered::free_properly(std::uint64_t address, const Behind& behind) {
  const std::optional<Allocation> taken = ledger_.begin_free(address);
  const std::uint64_t charge = taken ? ledger_.hand_over(*taken) : 0;
  if (!give_back(taken.value_or(Allocation{.address = address}), charge, behind)) {
    fences_.release(behind.context, behind.event);
  }
}

// With the lock held. Frees all blocks of the list, in the order in which the program freed them.
void StreamOrdered::flush(std::vector<Fences::Queue>* queues) {
  if (quick_.size() == 0) return;
  std::vector<Lives::iterator> all = quick_.take_all();
  std::sort(all.begin(), all.end(), [](Lives::iterator first, Lives::iterator second) {
    return first->second.last.fence < second->second.last.fence;
  });
  for (const Lives::iterator each : all) {
    const Behind behind = std::exchange(each->second.last, {});
    each->second.pool->quick -= Heap::rounded(each->second.bytes);
    free_properly(each->first, behind);
    if (queues == nullptr) continue;
    const Fences::Queue queue = Fences::queue_of(stream_of(behind.context, behind.number), behind.fence);
    if (std::find(queues->begin(), queues->end(), queue) == queues->end()) queues->push_back(queue);
  }
}

// Flushes the list, then calls query_after_free() once for each stream in which a block of the list was freed.
void StreamOrdered::flush_and_query(Lock& lock) {
  std::vector<Fences::Queue> queues;
  flush(&queues);
  for (const Fences::Queue& queue : queues) {
    fences_.query_after_free(lock, queue, [&](const Fences::Point& point) { passed(point, nullptr); });
  }
}

}  // namespace rota::memory
