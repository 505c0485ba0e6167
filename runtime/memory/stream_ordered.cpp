#include "runtime/memory/stream_ordered.h"

#include <algorithm>
#include <iterator>

#include "generated/driver_gates.h"
#include "generated/driver_real.h"
#include "runtime/driver/capture_mode.h"
#include "runtime/driver/context.h"
#include "runtime/driver/own_streams.h"
#include "runtime/driver/stream.h"
#include "runtime/memory/round_up.h"

namespace rota::memory {

namespace {

// As the driver's pools: 32 MiB at a time (measured on an H200), less on a small GPU and where the pool's maximum is
// near.
constexpr std::uint64_t kSmallSpan = std::uint64_t{2} << 20;
constexpr std::uint64_t kLargeSpan = std::uint64_t{32} << 20;
constexpr std::uint64_t kLargeGpu = std::uint64_t{8} << 30;

// Points of streams that cannot be told apart are queues of their own.
constexpr std::uint64_t kUnnumbered = std::uint64_t{1} << 63;

bool may_wait_for_others(api::CUmemoryPool pool) {
  int allowed = 1;
  real::cuMemPoolGetAttribute(pool, api::CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES, &allowed);
  return allowed != 0;
}

}  // namespace

std::uint64_t StreamOrdered::Pool::used() const {
  std::uint64_t sum = 0;
  for (const auto& [context, heap] : heaps) sum += heap.used_bytes();
  return sum;
}

std::uint64_t StreamOrdered::Pool::reserved() const {
  std::uint64_t sum = 0;
  for (const auto& [context, heap] : heaps) sum += heap.reserved_bytes();
  return sum;
}

void StreamOrdered::Pool::note_highs() {
  used_high = std::max(used_high, used());
  reserved_high = std::max(reserved_high, reserved());
}

StreamOrdered::PoolPointer StreamOrdered::pool_of(const Wanted& wanted) {
  const std::lock_guard lock(mutex_);
  PoolPointer& pool = pools_[wanted.pool];
  if (!pool) {
    pool = std::make_shared<Pool>();
    pool->handle = wanted.pool;
    pool->device = wanted.place.device;
  }
  return pool;
}

// --- allocating

std::optional<Heap::Taken> StreamOrdered::take(const Wanted& wanted, const PoolPointer& pool) {
  const Heap::Stream stream = driver::number_of(wanted.stream, wanted.per_thread);
  const std::lock_guard lock(mutex_);
  const auto heap = pool->heaps.find(wanted.place.context);
  if (heap == pool->heaps.end()) return std::nullopt;
  std::optional<Heap::Taken> taken = heap->second.take(wanted.bytes, stream);
  if (!taken) {
    std::set<int> devices;
    sweep(&devices);
    taken = heap->second.take(wanted.bytes, stream);
  }
  if (taken) pool->note_highs();
  return taken;
}

// The block was taken, and is not used after all. True: what it was charged for is its again.
bool StreamOrdered::put_back(const PoolPointer& pool, api::CUcontext context, const Heap::Taken& taken) {
  const std::lock_guard lock(mutex_);
  const auto heap = pool->heaps.find(context);
  if (heap == pool->heaps.end()) return false;
  if (taken.fence == 0 || outstanding(taken.fence) != nullptr) {
    heap->second.put_back(taken);
    return true;
  }
  heap->second.give(taken.address, 0, 0, 0);  // passed since
  return false;
}

// Bytes that were charged to the block's last user are this one's; the rest is reserved, or too much given back. Where
// that fails, or the thread is cancelled while it waits for room, the block goes back.
bool StreamOrdered::pay(const Wanted& wanted, const PoolPointer& pool, const Heap::Taken& taken,
                        const Reserve& reserve) {
  const int device = wanted.place.device;
  if (taken.charge > wanted.bytes) ledger_.release(device, taken.charge - wanted.bytes, Kind::kServed);
  if (taken.charge >= wanted.bytes) return true;
  struct Unpaid {
    ~Unpaid() {
      if (paid || owner.put_back(pool, context, taken)) return;
      owner.ledger_.release(pool->device, taken.charge, Kind::kServed);
    }
    StreamOrdered& owner;
    const PoolPointer& pool;
    api::CUcontext context;
    const Heap::Taken& taken;
    bool paid = false;
  } unpaid{*this, pool, wanted.place.context, taken};
  unpaid.paid = reserve(wanted.bytes - taken.charge);
  return unpaid.paid;
}

void StreamOrdered::enter(const Wanted& wanted, const Heap::Taken& taken, api::CUdeviceptr* into) {
  {
    const std::lock_guard lock(mutex_);
    live_[taken.address] = {wanted.bytes, ++last_buffer_id_, taken.fence};
  }
  ledger_.add({.address = taken.address,
               .bytes = wanted.bytes,
               .owner = Owner::of(wanted.place.context),
               .device = wanted.place.device,
               .kind = Kind::kServed});
  *into = taken.address;
}

// A new span, and the block at its beginning.
api::CUresult StreamOrdered::grow(const Wanted& wanted, const PoolPointer& pool, Backend& backend, Heap::Taken* taken) {
  const driver::RelaxedCapture relaxed;
  const driver::PushedContext pushed(wanted.place.context);
  if (!pushed) return api::CUDA_ERROR_INVALID_CONTEXT;
  std::uint64_t bytes = round_up(wanted.bytes, wanted.gpu_bytes >= kLargeGpu ? kLargeSpan : kSmallSpan);
  if (bytes < wanted.bytes) return api::CUDA_ERROR_OUT_OF_MEMORY;
  {
    const std::lock_guard lock(mutex_);
    const std::uint64_t most =
        wanted.pool_maximum > UINT64_MAX - kSmallSpan ? UINT64_MAX : round_up(wanted.pool_maximum, kSmallSpan);
    const std::uint64_t left = most - std::min(most, pool->reserved());
    if (bytes > left) bytes = round_up(wanted.bytes, kSmallSpan);
    if (bytes > left) return api::CUDA_ERROR_OUT_OF_MEMORY;
  }
  api::CUdeviceptr address = 0;
  const auto get = [&] {
    if (const auto again = deferred_.reuse_unused(wanted.place.context, bytes)) {
      address = *again;
      return api::CUDA_SUCCESS;
    }
    return backend.allocate(wanted.place, &address, bytes);
  };
  api::CUresult result = get();
  if (result == api::CUDA_ERROR_OUT_OF_MEMORY && bytes != round_up(wanted.bytes, kSmallSpan)) {
    bytes = round_up(wanted.bytes, kSmallSpan);
    result = get();
  }
  if (result != api::CUDA_SUCCESS) return result;
  backend.settle(wanted.place, address, bytes);
  const std::lock_guard lock(mutex_);
  any_.store(true, std::memory_order_relaxed);
  Heap& heap = pool->heaps[wanted.place.context];
  spans_[address] = {pool, wanted.place.context, address, bytes};
  heap.add({address, bytes});
  // From what is free, and that fits now: never what a stream still uses.
  *taken = *heap.take(wanted.bytes, 0);
  pool->note_highs();
  return api::CUDA_SUCCESS;
}

// At a shortage: what another stream has yet to pass, for which this one is made to wait.
std::optional<Heap::Taken> StreamOrdered::take_behind(const Wanted& wanted, const PoolPointer& pool,
                                                      const Reserve& reserve) {
  if (!may_wait_for_others(wanted.pool)) return std::nullopt;
  std::optional<Heap::Taken> taken;
  api::CUevent event = nullptr;
  {
    const std::lock_guard lock(mutex_);
    const auto heap = pool->heaps.find(wanted.place.context);
    if (heap == pool->heaps.end()) return std::nullopt;
    taken = heap->second.take_behind(wanted.bytes);
    if (!taken) return std::nullopt;
    pool->note_highs();
    if (Point* point = outstanding(taken->fence); point != nullptr) {
      ++point->awaited;
      event = point->event;
    }
  }
  // Also if the thread is cancelled while it waits for room.
  struct Awaited {
    ~Awaited() {
      const std::lock_guard lock(owner.mutex_);
      if (Point* point = owner.outstanding(fence); point != nullptr) --point->awaited;
    }
    StreamOrdered& owner;
    Heap::Fence fence;
  };
  const Awaited awaited{*this, taken->fence};
  bool used = pay(wanted, pool, *taken, reserve);
  if (used && event != nullptr) {
    const api::CUresult result = wanted.per_thread ? gates::cuStreamWaitEvent_ptsz(wanted.stream, event, 0)
                                                   : gates::cuStreamWaitEvent(wanted.stream, event, 0);
    if (result != api::CUDA_SUCCESS) {
      ledger_.release(wanted.place.device, wanted.bytes, Kind::kServed);
      Heap::Taken unpaid = *taken;
      unpaid.charge = 0;
      put_back(pool, wanted.place.context, unpaid);
      used = false;
    }
  }
  return used ? taken : std::nullopt;
}

api::CUresult StreamOrdered::allocate(const Wanted& wanted, Backend& backend, const Reserve& reserve,
                                      api::CUdeviceptr* address) {
  const driver::RelaxedCapture relaxed;
  const PoolPointer pool = pool_of(wanted);
  if (const auto taken = take(wanted, pool); taken && pay(wanted, pool, *taken, reserve)) {
    enter(wanted, *taken, address);
    return api::CUDA_SUCCESS;
  }
  api::CUresult result = api::CUDA_ERROR_OUT_OF_MEMORY;
  if (reserve(wanted.bytes)) {
    Heap::Taken taken;
    result = grow(wanted, pool, backend, &taken);
    if (result == api::CUDA_SUCCESS) {
      enter(wanted, taken, address);
      return result;
    }
    ledger_.release(wanted.place.device, wanted.bytes, Kind::kServed);
  }
  if (result != api::CUDA_ERROR_OUT_OF_MEMORY) return result;
  if (const auto taken = take_behind(wanted, pool, reserve)) {
    enter(wanted, *taken, address);
    return api::CUDA_SUCCESS;
  }
  return result;
}

// --- freeing

void StreamOrdered::free(const Allocation& allocation, api::CUstream stream, bool per_thread, api::CUevent event,
                         api::CUcontext context) {
  const std::uint64_t number = event != nullptr ? driver::number_of(stream, per_thread) : 0;
  const std::lock_guard lock(mutex_);
  const std::uint64_t charge = ledger_.hand_over(allocation);
  const auto live = live_.extract(allocation.address);
  const Span* span = span_at(allocation.address);
  if (span == nullptr) {  // its context has just ended, and it with it
    if (event != nullptr) real::cuEventDestroy_v2(event);
    ledger_.release(allocation.device, charge, Kind::kServed);
    return;
  }
  const PoolPointer pool = span->pool;
  Heap& heap = pool->heaps.at(span->context);
  if (event == nullptr) {
    // The block's own use is over, but its stream may have got it behind work on what was there before.
    if (const Heap::Fence behind = live ? live.mapped().behind : 0; behind != 0 && outstanding(behind) != nullptr) {
      heap.give(allocation.address, 0, behind, charge);
      return;
    }
    heap.give(allocation.address, 0, 0, 0);
    ledger_.release(allocation.device, charge, Kind::kServed);
    if (pool->destroyed) trim(*pool, 0);
    return;
  }
  const Heap::Fence fence = ++last_fence_;
  // A stream of another context is nobody's own there: contexts may number alike.
  const std::uint64_t own = context == span->context ? number : 0;
  Points& points = points_[own != 0 ? own : kUnnumbered | fence];
  points.push_back(
      {.fence = fence, .event = event, .event_context = context, .pool = pool, .heap_context = span->context});
  heap.give(allocation.address, own, fence, charge);
  // A program that frees and allocates in one stream never runs short: two for one, so that the points stay few.
  std::set<int> devices;
  sweep(points, 2, &devices);
}

const StreamOrdered::Span* StreamOrdered::span_at(std::uint64_t address) const {
  const auto next = spans_.upper_bound(address);
  if (next == spans_.begin()) return nullptr;
  const auto span = std::prev(next);
  return address - span->first < span->second.bytes ? &span->second : nullptr;
}

StreamOrdered::Point* StreamOrdered::outstanding(Heap::Fence fence) {
  for (auto& [stream, points] : points_) {
    const auto found = std::lower_bound(points.begin(), points.end(), fence,
                                        [](const Point& point, Heap::Fence wanted) { return point.fence < wanted; });
    if (found != points.end() && found->fence == fence) return &*found;
  }
  return nullptr;
}

void StreamOrdered::passed(const Point& point, std::set<int>* devices) {
  if (point.event != nullptr) real::cuEventDestroy_v2(point.event);
  const auto heap = point.pool->heaps.find(point.heap_context);
  if (heap == point.pool->heaps.end()) return;
  if (const std::uint64_t charge = heap->second.passed(point.fence); charge != 0) {
    ledger_.release(point.pool->device, charge, Kind::kServed);
    devices->insert(point.pool->device);
  }
  if (point.pool->destroyed) trim(*point.pool, 0);
}

// The first points of a stream that it has passed, this many at most.
void StreamOrdered::sweep(Points& points, std::size_t most, std::set<int>* devices) {
  for (; most != 0 && !points.empty(); --most) {
    const Point& first = points.front();
    if (first.awaited > 0 || ending_.contains(first.event_context)) return;
    if (first.event != nullptr && !driver::reached(first.event)) return;
    passed(first, devices);
    points.pop_front();
  }
}

void StreamOrdered::sweep(std::set<int>* devices) {
  for (auto stream = points_.begin(); stream != points_.end();) {
    sweep(stream->second, SIZE_MAX, devices);
    stream = stream->second.empty() ? points_.erase(stream) : std::next(stream);
  }
}

std::vector<int> StreamOrdered::sweep() {
  if (!any()) return {};
  std::set<int> devices;
  const std::lock_guard lock(mutex_);
  sweep(&devices);
  return {devices.begin(), devices.end()};
}

// --- pools

void StreamOrdered::trim(Pool& pool, std::uint64_t keep) {
  std::uint64_t reserved = pool.reserved();
  for (auto& [context, heap] : pool.heaps) {
    if (reserved <= keep) return;
    for (const Heap::Span& span : heap.empty_spans()) {
      if (reserved <= keep || reserved - span.bytes < keep) continue;
      heap.remove(span.address);
      spans_.erase(span.address);
      deferred_.add_unused(span.address, context, span.bytes);
      reserved -= span.bytes;
    }
  }
}

void StreamOrdered::trim(api::CUmemoryPool pool, std::uint64_t keep) {
  if (!any()) return;
  const std::lock_guard lock(mutex_);
  if (const auto known = pools_.find(pool); known != pools_.end()) trim(*known->second, keep);
}

StreamOrdered::Marks StreamOrdered::marks(api::CUmemoryPool pool) const {
  const std::lock_guard lock(mutex_);
  const auto known = pools_.find(pool);
  if (known == pools_.end()) return {};
  const Pool& what = *known->second;
  return {.used = what.used(),
          .used_high = what.used_high,
          .reserved = what.reserved(),
          .reserved_high = what.reserved_high};
}

void StreamOrdered::reset_used_high(api::CUmemoryPool pool) {
  const std::lock_guard lock(mutex_);
  if (const auto known = pools_.find(pool); known != pools_.end()) known->second->used_high = known->second->used();
}

void StreamOrdered::reset_reserved_high(api::CUmemoryPool pool) {
  const std::lock_guard lock(mutex_);
  const auto known = pools_.find(pool);
  if (known != pools_.end()) known->second->reserved_high = known->second->reserved();
}

void StreamOrdered::pool_destroyed(api::CUmemoryPool pool) {
  const std::lock_guard lock(mutex_);
  const auto known = pools_.find(pool);
  if (known == pools_.end()) return;
  known->second->destroyed = true;
  trim(*known->second, 0);
  pools_.erase(known);  // its spans and points keep it
}

bool StreamOrdered::find(std::uint64_t address, std::optional<Block>* block) const {
  block->reset();
  if (!any()) return false;
  const std::lock_guard lock(mutex_);
  const Span* span = span_at(address);
  if (span == nullptr) return false;
  const auto after = live_.upper_bound(address);
  if (after == live_.begin()) return true;
  const auto& [start, what] = *std::prev(after);
  if (start < span->address || address - start >= what.bytes) return true;
  *block = {.address = start,
            .bytes = what.bytes,
            .buffer_id = what.buffer_id,
            .pool = span->pool->handle,
            .span_address = span->address,
            .span_bytes = span->bytes};
  return true;
}

bool StreamOrdered::holds(std::uint64_t address) const {
  if (!any()) return false;
  const std::lock_guard lock(mutex_);
  return spans_.contains(address);
}

// --- contexts

void StreamOrdered::context_ending(api::CUcontext context) {
  const std::lock_guard lock(mutex_);
  ending_.insert(context);
}

void StreamOrdered::context_ended(api::CUcontext context, bool gone) {
  const std::lock_guard lock(mutex_);
  if (const auto held = ending_.find(context); held != ending_.end()) ending_.erase(held);
  if (!gone) return;
  // Events go with their context, and the work before them has ended with it.
  for (auto& [stream, points] : points_) {
    for (Point& point : points) {
      if (point.event_context == context) point.event = nullptr;
    }
  }
  std::set<PoolPointer> pools;
  for (auto span = spans_.begin(); span != spans_.end();) {
    if (span->second.context != context) {
      ++span;
      continue;
    }
    live_.erase(live_.lower_bound(span->first), live_.lower_bound(span->first + span->second.bytes));
    pools.insert(span->second.pool);
    span = spans_.erase(span);
  }
  for (const PoolPointer& pool : pools) {
    const auto heap = pool->heaps.find(context);
    ledger_.release(pool->device, heap->second.pending_charge(), Kind::kServed);
    pool->heaps.erase(heap);
  }
  std::set<int> devices;
  sweep(&devices);
}

}  // namespace rota::memory
