#include "runtime/memory/stream_ordered.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

#include "generated/driver_gates.h"
#include "generated/driver_real.h"
#include "runtime/core/one_allocation.h"
#include "runtime/driver/capture_mode.h"
#include "runtime/driver/context.h"
#include "runtime/memory/round_up.h"

namespace rota::memory {

namespace {

// Like the driver's pools: 32 MiB at a time (measured on an H200), less on a small GPU and where the pool's maximum is
// near.
constexpr std::uint64_t kSmallSpan = std::uint64_t{2} << 20;
constexpr std::uint64_t kLargeSpan = std::uint64_t{32} << 20;
constexpr std::uint64_t kLargeGpu = std::uint64_t{8} << 30;

// A stream is identified by its number and its context's: numbers may repeat across contexts.
constexpr unsigned kStreamBits = 40;
constexpr std::uint64_t kMostContexts = UINT64_MAX >> kStreamBits;

bool may_wait_for_others(api::CUmemoryPool pool) {
  int allowed = 1;
  real::cuMemPoolGetAttribute(pool, api::CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES, &allowed);
  return allowed != 0;
}

Kind booked(const Allocation& block) {
  return block.kind.route == Route::kShared ? Kind::kShared : Kind::kServed;
}

}  // namespace

StreamOrdered::PoolPointer StreamOrdered::pool_of(api::CUmemoryPool handle, int device) {
  const bool plain = handle == nullptr;
  PoolPointer& pool = plain ? plain_[device] : pools_[handle];
  if (!pool) {
    pool = std::make_shared<ServedPool>();
    if (plain) pool->keep = kLargeSpan;
    pool->handle = handle;
    pool->device = device;
    if (PoolFigures* figures = plain ? nullptr : figures_.add(handle); figures != nullptr) pool->figures = figures;
  }
  return pool;
}

// What a block's life depends on: plain memory on its context, a pool's on none, if the backend supports that.
Place StreamOrdered::home_of(const Wanted& wanted) {
  const bool outlives = wanted.pool != nullptr && wanted.backing == Backing::kSwapped;
  return {.context = outlives ? nullptr : wanted.place.context, .device = wanted.place.device};
}

// A number unique among all streams of the process. 0: the stream cannot be identified. With the lock held.
Heap::Stream StreamOrdered::stream_of(api::CUcontext context, Heap::Stream number) {
  if (number == 0 || number >> kStreamBits != 0) return 0;
  if (last_context_.second == 0 || context != last_context_.first) {
    const auto [known, first] = context_numbers_.try_emplace(context, last_context_number_ + 1);
    if (first) ++last_context_number_;
    last_context_ = *known;
  }
  return last_context_.second > kMostContexts ? 0 : last_context_.second << kStreamBits | number;
}

// --- allocating

std::optional<Heap::Taken> StreamOrdered::take(const Wanted& wanted, PoolPointer* pool) {
  Lock lock(mutex_);
  *pool = pool_of(wanted.pool, wanted.place.device);
  (*pool)->gpu_bytes = wanted.gpu_bytes;
  const api::CUcontext home = home_of(wanted).context;
  const Heap::Stream stream = stream_of(wanted.place.context, wanted.number);
  const auto try_to = [&](auto Heap::* how) -> std::optional<Heap::Taken> {
    const auto heap = (*pool)->heaps.find(home);
    return heap != (*pool)->heaps.end() ? (heap->second.*how)(wanted.bytes, stream) : std::nullopt;
  };
  std::optional<Heap::Taken> taken;
  // While there is enough memory the list is not emptied: a program whose allocations change from step to step soon
  // finds all of their sizes there. But a pool beyond its threshold lists nothing more.
  const bool may_grow = wanted.may_grow && quick_.bytes() < most_grown(wanted.gpu_bytes) &&
                        (*pool)->sums().reserved + wanted.bytes < (*pool)->threshold.value_or(0);
  if (wanted.pool != nullptr && quick_.size() != 0 && !may_grow) {
    // The list is emptied only if nothing else serves, since it serves later allocations.
    if (!quick_.has_as_large({wanted.pool, stream, wanted.bytes})) taken = try_to(&Heap::take_own);
    if (!taken) flush_and_query(lock);
  }
  if (!taken) taken = try_to(&Heap::take);
  if (!taken && (*pool)->heaps.contains(home)) {
    fences_.query(lock, [&](const Fences::Point& point) { passed(point, nullptr); });
    taken = try_to(&Heap::take);
  }
  if (taken) note(wanted, **pool, *taken, is_paid(wanted, *taken));
  return taken;
}

// Records a block that was taken from the heap, as the program sees it. If it is unpaid, pay() decides what becomes of
// it.
void StreamOrdered::note(const Wanted& wanted, ServedPool& pool, const Heap::Taken& taken, bool paid) {
  if (!paid) pool.unpaid += taken.bytes;
  // Extents move as a whole, whatever is in use in them. Managed memory that is only listed would be moved for nothing.
  const bool quick = wanted.pool != nullptr && wanted.backing == Backing::kSwapped;
  const Live live{.bytes = wanted.bytes,
                  .buffer_id = ++last_buffer_id_,
                  .stream = taken.stream,
                  .behind = taken.fence,
                  .pool = quick ? &pool : nullptr};
  if (quick) any_quick_.store(true, std::memory_order_release);
  auto entry = live_.lower_bound(taken.address);
  if (entry != live_.end() && entry->first == taken.address) {
    entry->second = live;
  } else {
    entry = spare_live_.add(live_, entry, taken.address, live);
  }
  latest(taken.address) = entry;
  pool.publish();
}

// Most look-ups are of what was allocated last.
StreamOrdered::Lives::iterator StreamOrdered::live_at(std::uint64_t address) {
  const Lives::iterator known = latest(address);
  return known != Lives::iterator() && known->first == address ? known : live_.find(address);
}

void StreamOrdered::forget(Lives::iterator live) {
  if (latest(live->first) == live) latest(live->first) = {};
  if (live->second.use != Live::Use::kUsed) not_used_.fetch_sub(1, std::memory_order_relaxed);
  spare_live_.erase(live_, live);
}

void StreamOrdered::forget(std::uint64_t address, std::uint64_t bytes) {
  for (auto live = live_.lower_bound(address); live != live_.end() && live->first - address < bytes;) forget(live++);
}

// The block was taken but is not used after all. True: its previous charge applies again.
bool StreamOrdered::put_back(const Wanted& wanted, const PoolPointer& pool, const Heap::Taken& taken, bool unpaid) {
  const std::lock_guard lock(mutex_);
  if (unpaid) pool->unpaid -= taken.bytes;
  const auto heap = pool->heaps.find(home_of(wanted).context);
  if (heap == pool->heaps.end()) return false;
  if (const auto live = live_.find(taken.address); live != live_.end()) forget(live);
  if (taken.fence == 0 || fences_.outstanding(Fences::queue_of(taken.stream, taken.fence), taken.fence)) {
    heap->second.put_back(taken);
    pool->publish();
    return true;
  }
  heap->second.give(taken.address, 0, 0, 0);  // passed since
  pool->publish();
  return false;
}

// Bytes that were charged to the block's last user pass to this one; the difference is reserved or released. If that
// fails, or the thread is cancelled while it waits for memory, the block goes back to the heap.
bool StreamOrdered::pay(const Wanted& wanted, const PoolPointer& pool, const Heap::Taken& taken,
                        const Reserve& reserve) {
  const int device = wanted.place.device;
  if (taken.charge > wanted.bytes) ledger_.release(device, taken.charge - wanted.bytes, pool->kind());
  if (is_paid(wanted, taken)) return true;
  Rollback back([&] {
    if (!put_back(wanted, pool, taken, true)) ledger_.release(pool->device, taken.charge, pool->kind());
  });
  Charge charge = reserve(wanted.bytes - taken.charge, __builtin_dwarf_cfa());
  if (!charge) return false;
  charge.commit();
  back.commit();
  const std::lock_guard lock(mutex_);
  pool->unpaid -= taken.bytes;
  pool->publish();
  return true;
}

void StreamOrdered::enter(const Wanted& wanted, const Heap::Taken& taken, api::CUdeviceptr* into) {
  const api::CUcontext home = home_of(wanted).context;
  ledger_.add({.address = taken.address,
               .bytes = wanted.bytes,
               .owner = home != nullptr ? Owner::of(home) : Owner::of(wanted.pool),
               .device = wanted.place.device,
               .kind = {wanted.pool == nullptr ? Route::kShared : Route::kServed, wanted.backing}});
  *into = taken.address;
}

// Adds a span, and takes a block of what is free then.
api::CUresult StreamOrdered::grow(const Wanted& wanted, const PoolPointer& pool, Backend& backend, Heap::Taken* taken) {
  const driver::RelaxedCapture relaxed;
  const driver::PushedContext pushed(wanted.place.context);
  if (!pushed) return api::CUDA_ERROR_INVALID_CONTEXT;
  std::uint64_t bytes = 0;
  {
    const std::lock_guard lock(mutex_);
    std::uint64_t span = wanted.gpu_bytes >= kLargeGpu ? kLargeSpan : kSmallSpan;
    // A program that allocates little plain memory gets small spans; one that allocates more gets fewer, larger ones.
    // In extents all are small: another process that opens such an allocation sees its span, no more of its neighbours
    // than with the driver's, and only that stays on the GPU.
    if (wanted.pool == nullptr && wanted.backing == Backing::kSwapped) span = kSmallSpan;
    if (wanted.pool == nullptr) span = std::clamp(round_up(pool->sums().reserved / 4, kSmallSpan), kSmallSpan, span);
    bytes = round_up(wanted.bytes, span);
    if (bytes < wanted.bytes) return api::CUDA_ERROR_OUT_OF_MEMORY;
    const std::uint64_t most =
        wanted.pool_maximum > UINT64_MAX - kSmallSpan ? UINT64_MAX : round_up(wanted.pool_maximum, kSmallSpan);
    const std::uint64_t left = most - std::min(most, pool->sums().reserved);
    if (bytes > left) bytes = round_up(wanted.bytes, kSmallSpan);
    if (bytes > left) return api::CUDA_ERROR_OUT_OF_MEMORY;
  }
  const Place home = home_of(wanted);
  api::CUdeviceptr address = 0;
  const auto get = [&] {
    if (const auto again = deferred_.reuse_unused(home, bytes)) {
      address = *again;
      return api::CUDA_SUCCESS;
    }
    return BackendReservation(backend, home.device, bytes, 0).allocate(home, &address);
  };
  const std::uint64_t least = round_up(wanted.bytes, kSmallSpan);
  api::CUresult result = api::CUDA_SUCCESS;
  {
    std::optional<OneAllocation::FirstWay> smaller_is_next;
    if (bytes != least) smaller_is_next.emplace();
    result = get();
  }
  if (result == api::CUDA_ERROR_OUT_OF_MEMORY && bytes != least) {
    bytes = least;
    result = get();
  }
  if (result != api::CUDA_SUCCESS) return result;
  backend.place_allocation(home, address, bytes);
  const std::lock_guard lock(mutex_);
  any_.store(true, std::memory_order_relaxed);
  // The list would have freed this many bytes instead.
  if (wanted.may_grow) pool->grown += std::min(bytes, quick_.bytes());
  pool->grown = std::min(pool->grown, most_grown(wanted.gpu_bytes));
  Heap& heap = pool->heaps[home.context];
  if (home.context != nullptr) pools_of_[home.context].insert(pool);
  // The driver reuses addresses as soon as their context has ended, which may not be known here yet.
  forget(address, bytes);
  const Span& span = spans_[address] = {pool, home.context, address, bytes, &backend};
  for (const auto& [accessing, flags] : pool->access) set_access(span, accessing, flags);
  heap.add({address, bytes});
  // From what is free and fits now: never what a stream still uses.
  *taken = *heap.take(wanted.bytes, 0);
  note(wanted, *pool, *taken, true);
  return api::CUDA_SUCCESS;
}

// When memory is short, takes a block whose free another stream has not passed yet, and makes this stream wait for
// that.
std::optional<Heap::Taken> StreamOrdered::take_behind(const Wanted& wanted, const PoolPointer& pool,
                                                      const Reserve& reserve) {
  if (wanted.pool == nullptr || !may_wait_for_others(wanted.pool)) return std::nullopt;
  std::optional<Heap::Taken> taken;
  Fences::Queue queue;
  api::CUevent event = nullptr;
  {
    const std::lock_guard lock(mutex_);
    const auto heap = pool->heaps.find(home_of(wanted).context);
    if (heap == pool->heaps.end()) return std::nullopt;
    taken = heap->second.take_behind(wanted.bytes);
    if (!taken) return std::nullopt;
    note(wanted, *pool, *taken, is_paid(wanted, *taken));
    queue = Fences::queue_of(taken->stream, taken->fence);
    event = fences_.hold(queue, taken->fence);
  }
  // In each case, also if the thread is cancelled while it waits for memory.
  const Rollback awaited([&, fence = taken->fence] {
    Lock lock(mutex_);
    fences_.let_go(lock, queue, fence);
  });
  if (!pay(wanted, pool, *taken, reserve)) return std::nullopt;
  if (event == nullptr) return taken;
  Rollback back([&] {
    Heap::Taken unpaid = *taken;
    unpaid.charge = 0;
    put_back(wanted, pool, unpaid, false);
  });
  Charge charge(ledger_, wanted.place.device, wanted.bytes, pool->kind());
  charge.begin();
  const api::CUresult result = wanted.per_thread ? gates::cuStreamWaitEvent_ptsz(wanted.stream, event, 0)
                                                 : gates::cuStreamWaitEvent(wanted.stream, event, 0);
  if (result != api::CUDA_SUCCESS) return std::nullopt;
  charge.commit();
  back.commit();
  return taken;
}

api::CUresult StreamOrdered::allocate(const Wanted& wanted, Backend& backend, const Reserve& reserve,
                                      api::CUdeviceptr* address) {
  PoolPointer pool;
  if (const auto taken = take(wanted, &pool); taken && pay(wanted, pool, *taken, reserve)) {
    enter(wanted, *taken, address);
    return api::CUDA_SUCCESS;
  }
  api::CUresult result = api::CUDA_ERROR_OUT_OF_MEMORY;
  if (Charge charge = reserve(wanted.bytes, __builtin_dwarf_cfa())) {
    Heap::Taken taken;
    result = grow(wanted, pool, backend, &taken);
    if (result == api::CUDA_SUCCESS) {
      charge.commit();
      enter(wanted, taken, address);
      return result;
    }
  }
  if (result != api::CUDA_ERROR_OUT_OF_MEMORY) return result;
  const driver::RelaxedCapture relaxed;
  if (wanted.may_grow) {  // there was less memory than it seemed
    Wanted scarce = wanted;
    scarce.may_grow = false;
    if (const auto taken = take(scarce, &pool); taken && pay(scarce, pool, *taken, reserve)) {
      enter(scarce, *taken, address);
      return api::CUDA_SUCCESS;
    }
  }
  if (const auto taken = take_behind(wanted, pool, reserve)) {
    enter(wanted, *taken, address);
    return api::CUDA_SUCCESS;
  }
  return result;
}

// --- freeing

void StreamOrdered::free(const Allocation& allocation, const Behind& behind) {
  const std::uint64_t charge = ledger_.hand_over(allocation);
  Lock lock(mutex_);
  const bool given = give_back(allocation, charge, behind);
  if (behind.event == nullptr) return;
  if (!given) {
    lock.unlock();
    real::cuEventDestroy_v2(behind.event);
    return;
  }
  const Fences::Queue queue = Fences::queue_of(stream_of(behind.context, behind.number), behind.fence);
  fences_.query_after_free(lock, queue, [&](const Fences::Point& point) { passed(point, nullptr); });
}

// With the lock held. False: there is nothing to give back, and the event is still the caller's.
bool StreamOrdered::give_back(const Allocation& allocation, std::uint64_t charge, Behind behind) {
  Live what;
  if (const auto live = live_at(allocation.address); live != live_.end()) {
    what = live->second;
    forget(live);
  }
  if (behind.event == nullptr) {
    behind = what.last;
  } else {
    fences_.release(what.last.context, what.last.event);
  }
  const Span* span = span_at(allocation.address);
  if (span == nullptr) {  // its context has just ended, and the span with it; the event's context may still exist
    ledger_.release(allocation.device, charge, booked(allocation));
    return false;
  }
  const PoolPointer pool = span->pool;
  const api::CUcontext context = span->context;
  Heap& heap = pool->heaps.at(context);
  if (behind.event == nullptr) {
    // The block's own use is over, but its stream may have received it behind work on the block's previous contents.
    if (what.behind != 0 && fences_.outstanding(Fences::queue_of(what.stream, what.behind), what.behind)) {
      heap.give(allocation.address, what.stream, what.behind, charge);
      pool->publish();
      return true;
    }
    heap.give(allocation.address, 0, 0, 0);
    pool->publish();
    ledger_.release(allocation.device, charge, pool->kind());
    trim_empty(*pool);
    return true;
  }
  const Heap::Stream own = stream_of(behind.context, behind.number);
  fences_.add(Fences::queue_of(own, behind.fence), {.fence = behind.fence,
                                                    .event = behind.event,
                                                    .event_context = behind.context,
                                                    .pool = pool,
                                                    .heap_context = context,
                                                    .address = allocation.address,
                                                    .bytes = charge});
  heap.give_behind_its_own(allocation.address, own, behind.fence, charge);
  pool->publish();
  return true;
}

const StreamOrdered::Span* StreamOrdered::span_at(std::uint64_t address) const {
  const auto next = spans_.upper_bound(address);
  if (next == spans_.begin()) return nullptr;
  const auto span = std::prev(next);
  return address - span->first < span->second.bytes ? &span->second : nullptr;
}

void StreamOrdered::passed(const Fences::Point& point, std::set<int>* devices) {
  const auto heap = point.pool->heaps.find(point.heap_context);
  if (heap == point.pool->heaps.end()) return;
  if (const std::uint64_t charge = heap->second.passed(point.fence, point.address); charge != 0) {
    ledger_.release(point.pool->device, charge, point.pool->kind());
    if (devices != nullptr) devices->insert(point.pool->device);
  }
  trim_empty(*point.pool);
}

std::vector<int> StreamOrdered::sweep() {
  if (!any()) return {};
  std::set<int> devices;
  Lock lock(mutex_);
  flush();
  fences_.query(lock, [&](const Fences::Point& point) { passed(point, &devices); });
  return {devices.begin(), devices.end()};
}

// --- addresses

bool StreamOrdered::find(std::uint64_t address, std::optional<Block>* block) const {
  block->reset();
  if (!any()) return false;
  const std::lock_guard lock(mutex_);
  const Span* span = span_at(address);
  if (span == nullptr) return false;
  const auto after = live_.upper_bound(address);
  if (after == live_.begin()) return true;
  const auto& [start, what] = *std::prev(after);
  if (start < span->address || address - start >= what.bytes || what.use != Live::Use::kUsed) return true;
  *block = {.address = start,
            .bytes = what.bytes,
            .buffer_id = what.buffer_id,
            .pool = span->pool->handle,
            .span_address = span->address,
            .span_bytes = span->bytes,
            .context = span->context,
            .device = span->pool->device};
  return true;
}

bool StreamOrdered::in_use(std::uint64_t address, std::uint64_t bytes) const {
  if (!any()) return true;
  const std::lock_guard lock(mutex_);
  if (span_at(address) == nullptr) return true;
  for (auto next = live_.lower_bound(address + bytes); next != live_.begin();) {
    const auto& [start, what] = *--next;
    if (start + what.bytes <= address) break;
    if (what.use != Live::Use::kFreed) return true;
  }
  return false;
}

bool StreamOrdered::holds(std::uint64_t address) const {
  if (!any()) return false;
  const std::lock_guard lock(mutex_);
  return spans_.contains(address);
}

// --- contexts

void StreamOrdered::context_ending(api::CUcontext context) {
  Lock lock(mutex_);
  flush();
  fences_.context_ending(lock, context);
}

void StreamOrdered::context_ended(api::CUcontext context, bool gone) {
  const std::lock_guard lock(mutex_);
  flush();
  for (auto& [address, live] : live_) {
    if (gone && live.last.context == context) live.last = {};
  }
  for (auto span = spans_.begin(); gone && span != spans_.end();) {
    if (span->second.context != context) {
      ++span;
      continue;
    }
    forget(span->first, span->second.bytes);
    span = spans_.erase(span);
  }
  // Even if another context has its spans' addresses by now.
  for (const PoolPointer& pool : gone ? std::exchange(pools_of_[context], {}) : std::set<PoolPointer>()) {
    const auto heap = pool->heaps.find(context);
    if (heap == pool->heaps.end()) continue;
    ledger_.release(pool->device, heap->second.pending_charge(), pool->kind());
    pool->heaps.erase(heap);
    pool->publish();
  }
  if (gone) {
    pools_of_.erase(context);
    context_numbers_.erase(context);
    last_context_ = {};
    // It is not documented whether the reset of a device resets the thresholds of its pools.
    for (const auto& [handle, pool] : pools_) forget_threshold(*pool);
  }
  fences_.context_ended(context, gone, [&](const Fences::Point& point) { passed(point, nullptr); });
}

}  // namespace rota::memory
