// The pools behind stream-ordered memory: what each has, and what it gives back.
#include <algorithm>

#include "generated/driver_real.h"
#include "runtime/driver/context.h"
#include "runtime/memory/stream_ordered.h"

namespace rota::memory {

PoolFigures* FiguresOfPools::add(api::CUmemoryPool pool) {
  const std::size_t slot = slot_of(nullptr);
  if (slot == kMost) return nullptr;
  PoolFigures& figures = figures_[slot];
  for (std::atomic<std::uint64_t>* figure :
       {&figures.used, &figures.used_high, &figures.reserved, &figures.reserved_high}) {
    figure->store(0, std::memory_order_relaxed);
  }
  figures.above_threshold.store(false, std::memory_order_relaxed);
  pools_[slot].store(pool, std::memory_order_release);
  return &figures;
}

void FiguresOfPools::remove(api::CUmemoryPool pool) {
  if (const std::size_t slot = slot_of(pool); slot != kMost) pools_[slot].store(nullptr, std::memory_order_relaxed);
}

ServedPool::Sums ServedPool::sums() const {
  Sums all;
  for (const auto& [context, heap] : heaps) {
    all.used += heap.used_bytes();
    all.reserved += heap.reserved_bytes();
    all.unused += heap.unused_bytes();
  }
  return all;
}

namespace {

// As much of a GPU as freed swap memory may take that is cached. A judgment.
constexpr std::uint64_t kClosedPart = 64;

void show(std::uint64_t now, std::atomic<std::uint64_t>& current, std::atomic<std::uint64_t>& high) {
  if (now > high.load(std::memory_order_relaxed)) high.store(now, std::memory_order_release);
  current.store(now, std::memory_order_release);
}

}  // namespace

void ServedPool::publish() {
  const Sums now = sums();
  const std::uint64_t now_reserved = now.reserved;
  const std::uint64_t now_used = now.used - std::min(now.used, unpaid + quick);
  const bool grows = now_reserved > figures->reserved.load(std::memory_order_relaxed);
  if (grows) show(now_reserved, figures->reserved, figures->reserved_high);
  show(now_used, figures->used, figures->used_high);
  if (!grows) show(now_reserved, figures->reserved, figures->reserved_high);
  figures->above_threshold.store(now_reserved > threshold.value_or(0) && (now.unused != 0 || quick != 0),
                                 std::memory_order_relaxed);
}

void ServedPool::add_quick(std::uint64_t bytes) {
  quick += bytes;
  show(figures->used.load(std::memory_order_relaxed) - bytes, figures->used, figures->used_high);
}

void ServedPool::take_quick(std::uint64_t bytes) {
  quick -= bytes;
  show(figures->used.load(std::memory_order_relaxed) + bytes, figures->used, figures->used_high);
}

// --- what it has

StreamOrdered::Marks StreamOrdered::marks_of(const PoolFigures& figures) {
  return {.used = figures.used.load(std::memory_order_acquire),
          .used_high = figures.used_high.load(std::memory_order_acquire),
          .reserved = figures.reserved.load(std::memory_order_acquire),
          .reserved_high = figures.reserved_high.load(std::memory_order_acquire),
          .above_threshold = figures.above_threshold.load(std::memory_order_relaxed)};
}

StreamOrdered::Marks StreamOrdered::marks(api::CUmemoryPool pool) const {
  if (const PoolFigures* figures = figures_.find(pool); figures != nullptr) return marks_of(*figures);
  const std::lock_guard lock(mutex_);
  const auto known = pools_.find(pool);
  return known != pools_.end() ? marks_of(*known->second->figures) : Marks{};
}

std::vector<api::CUmemoryPool> StreamOrdered::lasting_pools() const {
  std::vector<api::CUmemoryPool> all;
  if (!any()) return all;
  const std::lock_guard lock(mutex_);
  for (const auto& [handle, pool] : pools_) {
    if (pool->heaps.contains(nullptr)) all.push_back(handle);
  }
  return all;
}

void StreamOrdered::reset_high(api::CUmemoryPool pool, Figure high, Figure current) {
  const std::lock_guard lock(mutex_);
  const auto known = pools_.find(pool);
  if (known == pools_.end()) return;
  PoolFigures& figures = *known->second->figures;
  (figures.*high).store((figures.*current).load(std::memory_order_relaxed), std::memory_order_relaxed);
}

// --- what it gives back

void StreamOrdered::trim(ServedPool& pool, std::uint64_t keep) {
  std::uint64_t reserved = pool.sums().reserved;
  // Not reusable: plain memory that other processes may have had open (opened_by_others), and memory of pools to which
  // other GPUs have had access.
  const bool reusable = !pool.shared && (pool.handle != nullptr || pool.keep != 0);
  for (auto& [context, heap] : pool.heaps) {
    if (reserved <= keep) break;
    if (fences_.is_ending(context)) continue;  // its addresses may already have been reused
    for (const Heap::Span& span : heap.empty_spans()) {
      if (reserved <= keep || reserved - span.bytes < keep) continue;
      heap.remove(span.address);
      spans_.erase(span.address);
      deferred_.add_unused(span.address, {.context = context, .device = pool.device}, reusable ? span.bytes : 0);
      reserved -= span.bytes;
      pool.grown -= std::min(pool.grown, span.bytes);
    }
  }
  pool.publish();
}

void StreamOrdered::trim_empty(ServedPool& pool) {
  if (pool.keep == UINT64_MAX) return;
  std::uint64_t empty = 0;
  for (auto& [context, heap] : pool.heaps) {
    heap.join_apart();
    empty += heap.empty_bytes();
  }
  if (empty > pool.keep) trim(pool, pool.sums().reserved - (empty - pool.keep));
}

void StreamOrdered::trim(api::CUmemoryPool pool, std::uint64_t keep) {
  if (!any()) return;
  const std::lock_guard lock(mutex_);
  flush();
  if (const auto known = pools_.find(pool); known != pools_.end()) trim(*known->second, keep);
}

void StreamOrdered::trim_all(int device) {
  if (!any()) return;
  const std::lock_guard lock(mutex_);
  flush();
  for (const auto& [handle, pool] : pools_) {
    if (pool->device == device) trim(*pool, 0);
  }
  if (const auto pool = plain_.find(device); pool != plain_.end()) trim(*pool->second, 0);
}

// The bound is for a program each of whose small allocations is opened before it makes the next: they would take 2 MiB
// each.
void StreamOrdered::opened_by_others(const Block& block) {
  const std::lock_guard lock(mutex_);
  ServedPool& pool = *pool_of(nullptr, block.device);
  pool.keep = 0;
  const auto heap = pool.heaps.find(block.context);
  if (heap == pool.heaps.end()) return;
  std::uint64_t closed = block.span_bytes;
  for (const auto& [context, each] : pool.heaps) closed += each.closed_bytes();
  if (closed <= pool.gpu_bytes / kClosedPart) heap->second.close(block.span_address);
}

void StreamOrdered::give_back_grown(int device) {
  if (!any()) return;
  const std::lock_guard lock(mutex_);
  const auto grown = [&](const auto& known) { return known.second->device == device && known.second->grown != 0; };
  if (std::none_of(pools_.begin(), pools_.end(), grown)) return;
  flush();
  for (const auto& known : pools_) {
    if (!grown(known)) continue;
    ServedPool& pool = *known.second;
    const std::uint64_t reserved = pool.sums().reserved;
    trim(pool, reserved - std::min(reserved, pool.grown));
  }
}

void StreamOrdered::trim_to_threshold(api::CUmemoryPool pool) {
  learn_threshold(pool);
  const std::lock_guard lock(mutex_);
  flush();
  const auto known = pools_.find(pool);
  if (known != pools_.end() && known->second->threshold) trim(*known->second, *known->second->threshold);
}

// The driver is asked with no lock held. If the program changes the threshold meanwhile, the answer may be the old one,
// and the next query asks again.
void StreamOrdered::learn_threshold(api::CUmemoryPool handle) {
  PoolPointer pool;
  std::uint64_t changes = 0;
  {
    const std::lock_guard lock(mutex_);
    const auto known = pools_.find(handle);
    if (known == pools_.end() || known->second->threshold) return;
    pool = known->second;
    changes = pool->threshold_changes;
  }
  std::uint64_t threshold = 0;
  if (real::cuMemPoolGetAttribute(handle, api::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold) != api::CUDA_SUCCESS) {
    return;
  }
  const std::lock_guard lock(mutex_);
  if (pool->threshold_changes != changes) return;
  pool->threshold = threshold;
  pool->publish();
}

void StreamOrdered::forget_threshold(ServedPool& pool) {
  pool.threshold.reset();
  ++pool.threshold_changes;
  pool.publish();
}

void StreamOrdered::threshold_changed(api::CUmemoryPool pool) {
  const std::lock_guard lock(mutex_);
  if (const auto known = pools_.find(pool); known != pools_.end()) forget_threshold(*known->second);
}

// --- who may use it, and its end

// With the lock held.
void StreamOrdered::set_access(const Span& span, int accessing, api::CUmemAccess_flags flags) {
  const driver::PushedContext its_own(span.context);
  if (span.context != nullptr && !its_own) return;
  const Place place{.context = span.context, .device = span.pool->device};
  span.backend->set_access(place, span.address, span.bytes, accessing, flags);
}

void StreamOrdered::set_access(api::CUmemoryPool handle, int device, int accessing, api::CUmemAccess_flags flags) {
  const std::lock_guard lock(mutex_);
  const PoolPointer pool = pool_of(handle, device);
  if (flags == api::CU_MEM_ACCESS_FLAGS_PROT_NONE) {
    pool->access.erase(accessing);
  } else {
    pool->access[accessing] = flags;
    pool->shared = true;
  }
  for (const auto& [address, span] : spans_) {
    if (span.pool == pool && !fences_.is_ending(span.context)) set_access(span, accessing, flags);
  }
}

StreamOrdered::PoolPointer StreamOrdered::serving(api::CUmemoryPool handle) const {
  const std::lock_guard lock(mutex_);
  const auto known = pools_.find(handle);
  return known != pools_.end() ? known->second : nullptr;
}

void StreamOrdered::pool_destroyed(const PoolPointer& pool) {
  if (!pool) return;
  const std::lock_guard lock(mutex_);
  flush();
  if (const auto known = pools_.find(pool->handle); known != pools_.end() && known->second == pool) {
    pools_.erase(known);  // its spans and points keep it alive
    figures_.remove(pool->handle);
    pool->figures = &pool->own_figures;
  }
  ++pool->threshold_changes;
  pool->keep = 0;
  trim_empty(*pool);
}

}  // namespace rota::memory
