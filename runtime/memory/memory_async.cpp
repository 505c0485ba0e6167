// Memory's stream-ordered calls, and the pool functions that programs call.
#include <chrono>
#include <cstring>

#include "generated/driver_gates.h"
#include "generated/driver_real.h"
#include "runtime/core/one_allocation.h"
#include "runtime/core/undo.h"
#include "runtime/driver/capture_mode.h"
#include "runtime/driver/context.h"
#include "runtime/driver/stream.h"
#include "runtime/memory/memory.h"

namespace rota::memory {

api::CUresult Memory::allocate_async(const AsyncCall& wanted, const RealCall& call) {
  // Of the four small driver queries that could be needed here, the usual call makes only one: which stream it is.
  if (wanted.capturing && driver::captures(wanted.stream, wanted.per_thread)) return allocate_captured(wanted, call);
  if (wanted.address == nullptr || wanted.bytes == 0) return call();
  std::optional<driver::RelaxedCapture> relaxed;
  if (wanted.capturing) relaxed.emplace();
  const driver::KnownStream stream = streams_.identify(wanted.stream, wanted.per_thread);
  relaxed.reset();
  Place place;
  if (!here(place, stream)) return call();
  api::CUmemoryPool pool = wanted.pool;
  const Pools::Pool what = pool != nullptr ? pools_.look_up(pool, place.device) : pools_.current(place.device, &pool);
  if (what.destroyed) return call();  // the driver reports the error, however much memory is free
  Backend& server = backend_for_allocation(place.device);
  if (what.replaceable && what.device == place.device && server.backing() != Backing::kDevice) {
    const api::CUresult result = allocate_stream_ordered(wanted,
                                                         {.place = place,
                                                          .pool = pool,
                                                          .pool_maximum = what.maximum,
                                                          .gpu_bytes = device(place.device).total_bytes,
                                                          .bytes = wanted.bytes,
                                                          .stream = wanted.stream,
                                                          .per_thread = wanted.per_thread,
                                                          .number = stream.number,
                                                          .backing = server.backing()},
                                                         server);
    if (!turned_native(result, server, place.device)) return result;
  }
  if (!has_pool_of_driver_.load(std::memory_order_relaxed)) has_pool_of_driver_.store(true, std::memory_order_relaxed);
  return allocate_counted({.bytes = wanted.bytes,
                           .owner = Owner::of(wanted.pool),
                           .device = what.device.value_or(place.device),
                           .kind = what.kind},
                          call, [&] { return *wanted.address; });
}

// The memory is the graph's, which allocates it when it runs.
api::CUresult Memory::allocate_captured(const AsyncCall& wanted, const RealCall& call) {
  const api::CUresult result = call();
  if (result != api::CUDA_SUCCESS) return result;
  // Not by the stream's number: querying it ends the capture (seen on an H100 with driver 580).
  Place place;
  const driver::CurrentContext current(driver::context_of(wanted.stream, wanted.per_thread));
  if (!current || !here(place)) return result;
  if (wanted.pool == nullptr) {
    graph_allocates(place.device);
  } else {
    graph_allocates(pools_.look_up(wanted.pool, place.device).device.value_or(place.device));
  }
  return result;
}

// Asks the driver from time to time. An eighth of the GPU is likely to be enough for other programs until rota notices
// that they need more. Judgements.
bool Memory::much_is_free(const Place& place, std::uint64_t gpu_bytes) {
  constexpr std::int64_t kSamplePeriodNs = 50'000'000;
  constexpr std::uint64_t kPart = 8;
  Device& entry = devices_[static_cast<std::size_t>(place.device)];
  const std::int64_t now = std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
  if (now - entry.free_sampled_at.load(std::memory_order_relaxed) >= kSamplePeriodNs) {
    std::size_t free = 0;
    std::size_t total = 0;
    const driver::CurrentContext current(place.context);
    const bool told = current && real::cuMemGetInfo_v2(&free, &total) == api::CUDA_SUCCESS;
    entry.much_free.store(told && free >= gpu_bytes / kPart, std::memory_order_relaxed);
    entry.free_sampled_at.store(now, std::memory_order_relaxed);
  }
  return entry.much_free.load(std::memory_order_relaxed);
}

// Whether freed blocks may wait in the quick list while the pool grows: nobody waits for that memory, and no limit is
// near.
bool Memory::may_grow(const StreamOrdered::Wanted& wanted) {
  const int device = wanted.place.device;
  if (wanted.backing != Backing::kSwapped || limited() || turns_->overcommitted(device)) return false;
  const std::uint64_t most = capacity(device);
  const std::uint64_t near = 2 * StreamOrdered::most_listed(wanted.gpu_bytes);
  return much_is_free(wanted.place, wanted.gpu_bytes) && wanted.bytes <= most && most - wanted.bytes >= near &&
         ledger_.live_bytes(device) <= most - wanted.bytes - near;
}

api::CUresult Memory::allocate_stream_ordered(const AsyncCall& call, const StreamOrdered::Wanted& wanted,
                                              Backend& server) {
  if (!call.capturing && stream_ordered_.quick_allocate(wanted, call.address)) return api::CUDA_SUCCESS;
  if (call.capturing) {
    // The driver may refuse, since a capture forbids work in this stream; rota's own code would not.
    const driver::RelaxedCapture relaxed;
    StreamOrdered::Behind behind;
    const api::CUresult result = record_behind(call.stream, call.per_thread, &behind);
    if (result != api::CUDA_SUCCESS) return result;
    real::cuEventDestroy_v2(behind.event);
  }
  has_converted_.store(true, std::memory_order_relaxed);
  const OneAllocation one;
  if (wanted.backing == Backing::kSwapped) ensure_a_byte(wanted.place);
  const int device = wanted.place.device;
  StreamOrdered::Wanted how = wanted;
  how.may_grow = !call.capturing && may_grow(wanted);
  const bool swapped = wanted.backing == Backing::kSwapped;
  const api::CUresult result = with_waiting(device, wanted.bytes, wanted.backing, [&](bool first, RefusedBy& by) {
    bool limited = false;
    const auto take = [&] {
      return stream_ordered_.allocate(
          how, server,
          [&](std::uint64_t bytes, const void* frame) {
            Charge charge = reserve_or_wait(device, bytes, Kind::kServed, by, frame);
            limited = !charge;
            return charge;
          },
          call.address);
    };
    api::CUresult taken = take();
    if (taken != api::CUDA_ERROR_OUT_OF_MEMORY) by = RefusedBy::kNobody;
    if (taken != api::CUDA_ERROR_OUT_OF_MEMORY || !swapped || limited) return taken;
    // Within the limits, so only the driver has refused it, or others are in the way of its extents.
    by = refused_by(BackendReservation(server, device, wanted.bytes, wanted.bytes));
    if (by == RefusedBy::kDriver && first) taken = with_room(device, 0, take);
    if (taken != api::CUDA_ERROR_OUT_OF_MEMORY) by = RefusedBy::kNobody;
    return taken;
  });
  if (result == api::CUDA_SUCCESS) changed(device);
  return result;
}

// cuMemFree of stream-ordered memory. It does not wait and needs no context (measured on an H200 and an H100); by the
// documentation the caller must ensure that nothing uses the memory any more.
api::CUresult Memory::free_stream_ordered(Freeing& taken) {
  const api::CUresult result = refused_by_driver();
  if (result != api::CUDA_SUCCESS) return result;
  taken.commit();
  stream_ordered_.free(*taken, {});
  changed(taken->device);
  return api::CUDA_SUCCESS;
}

api::CUresult Memory::record_behind(api::CUstream stream, bool per_thread, StreamOrdered::Behind* behind,
                                    const StreamOrdered::Behind& before) {
  const driver::KnownStream known = streams_.identify(stream, per_thread);
  // The stream's context is nearly always current already; finding that out costs a driver call.
  std::optional<driver::CurrentContext> made_current;
  if (!driver::of_current_context(stream)) made_current.emplace(known.context);
  if (known.context == nullptr || (made_current && !*made_current)) {
    if (driver::of_current_context(stream)) return api::CUDA_ERROR_INVALID_CONTEXT;
    api::CUcontext none = nullptr;  // the stream's context may have failed, and the driver then says so
    const api::CUresult refused = real::cuStreamGetCtx(driver::meant(stream, per_thread), &none);
    return refused != api::CUDA_SUCCESS ? refused : api::CUDA_ERROR_INVALID_HANDLE;
  }
  *behind = {.fence = stream_ordered_.next_fence(), .event = nullptr, .context = known.context, .number = known.number};
  const bool again = before.event != nullptr && before.context == known.context;
  behind->event = again ? before.event : events_.take(known.context);
  if (behind->event == nullptr) {
    int lowest = 0;
    int highest = 0;
    const api::CUresult failed =
        real::cuCtxGetStreamPriorityRange(&lowest, &highest);  // fails, as all calls do, if the context has failed
    return failed != api::CUDA_SUCCESS ? failed : api::CUDA_ERROR_OUT_OF_MEMORY;
  }
  Rollback taken([event = behind->event, again] {
    if (!again) real::cuEventDestroy_v2(event);
  });
  const api::CUresult result =
      per_thread ? gates::cuEventRecord_ptsz(behind->event, stream) : gates::cuEventRecord(behind->event, stream);
  if (result == api::CUDA_SUCCESS) taken.commit();
  return result;
}

api::CUresult Memory::free_async(api::CUdeviceptr address, api::CUstream stream, bool per_thread, const RealCall& call,
                                 bool capturing) {
  if (!has_converted_.load(std::memory_order_relaxed)) return free(address, call);
  if (!capturing && !account::wanted() && !has_synchronous_.load(std::memory_order_relaxed)) {
    StreamOrdered::Behind before;
    api::CUmemoryPool unlearned = nullptr;
    StreamOrdered::Claim claim = stream_ordered_.claim_quickly(address, &before, &unlearned);
    if (claim.twice()) return api::CUDA_ERROR_INVALID_VALUE;
    if (claim) {
      StreamOrdered::Behind behind;
      const api::CUresult result = record_behind(stream, per_thread, &behind, before);
      if (result == api::CUDA_SUCCESS) {
        claim.commit();
        stream_ordered_.quick_free(address, behind);
      }
      return result;
    }
    if (unlearned != nullptr) stream_ordered_.learn_threshold(unlearned);
  }
  StreamOrdered::Claim claim = stream_ordered_.claim(address);
  if (claim.twice()) return api::CUDA_ERROR_INVALID_VALUE;
  const api::CUresult result = free_async_claimed(address, stream, per_thread, call, capturing);
  if (result == api::CUDA_SUCCESS) claim.commit();
  return result;
}

api::CUresult Memory::free_async_claimed(api::CUdeviceptr address, api::CUstream stream, bool per_thread,
                                         const RealCall& call, bool capturing) {
  Freeing taken(ledger_, address);
  if (!taken) {  // it begins no allocation, or another thread has just freed that
    const std::optional<Allocation> freed = ledger_.find(address);
    const bool refused = freed && freed->address == address && freed->kind.converted() && freed->kind.from_heap();
    return refused ? api::CUDA_ERROR_INVALID_VALUE : free_claimed(address, call, false);
  }
  const bool served = taken->kind.from_heap();
  // A capture has no point in time at which to free it: the driver refuses what it does not know, and frees what is
  // Unified Memory.
  const bool captured = taken->kind.converted() && capturing && driver::captures(stream, per_thread);
  if (!taken->kind.converted() || captured) {
    taken.cancel();
    const bool known_to_driver = !captured || (taken->kind.backing == Backing::kUnified && !served);
    return known_to_driver ? free_claimed(address, call, false) : call();
  }
  // The driver does not take managed memory here. An event behind the stream's work shows when it can be freed.
  // A capture that begins meanwhile in another stream forbids queries of events, which are made in relaxed mode, and
  // not their recording (according to the documentation; measured only for threads in relaxed mode).
  std::optional<driver::RelaxedCapture> relaxed;
  if (capturing) relaxed.emplace();
  StreamOrdered::Behind behind;
  const api::CUresult result = record_behind(stream, per_thread, &behind);
  if (result != api::CUDA_SUCCESS) return result;
  taken.commit();
  if (served) {
    free_shared(*taken, behind);
  } else if (taken->kind.backing != Backing::kSwapped) {
    deferred_.add(*taken, behind.event, behind.context);
  } else if (!hold_back(*taken, behind)) {
    deferred_.add(*taken, behind.event, behind.context, !swap_.was_open(taken->address));
  }
  return result;
}

void Memory::add_pool_attribute(api::CUmemoryPool pool, api::CUmemPool_attribute attribute, void* value) {
  std::uint64_t StreamOrdered::Marks::* field = nullptr;
  switch (attribute) {
    case api::CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
      field = &StreamOrdered::Marks::used;
      break;
    case api::CU_MEMPOOL_ATTR_USED_MEM_HIGH:
      field = &StreamOrdered::Marks::used_high;
      break;
    case api::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
      field = &StreamOrdered::Marks::reserved;
      break;
    case api::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
      field = &StreamOrdered::Marks::reserved_high;
      break;
    default:
      return;
  }
  if (!stream_ordered_.any()) return;
  StreamOrdered::Marks marks = stream_ordered_.marks(pool);
  // The driver returns unused memory above the threshold when the program waits for something; rota returns it when the
  // pool is queried. Some programs query at each allocation, so streams are queried only if that can return anything.
  if (marks.above_threshold) {
    stream_ordered_.learn_threshold(pool);
    marks = stream_ordered_.marks(pool);
  }
  if (marks.above_threshold) {
    for (const int ordinal : stream_ordered_.sweep()) changed(ordinal);
    stream_ordered_.trim_to_threshold(pool);
    marks = stream_ordered_.marks(pool);
  }
  std::uint64_t bytes = 0;
  std::memcpy(&bytes, value, sizeof bytes);
  bytes += marks.*field;
  std::memcpy(value, &bytes, sizeof bytes);
}

// Pools that outlive contexts keep unused memory up to their thresholds, as the driver's do. Memory beyond them may be
// moving, and this waits for it: the caller must not hold a lock that the mover waits for.
void Memory::trim_to_thresholds() {
  const driver::RelaxedCapture relaxed;
  for (const api::CUmemoryPool pool : stream_ordered_.lasting_pools()) stream_ordered_.trim_to_threshold(pool);
  if (deferred_.any()) deferred_.free_unused(Owner::of(api::CUcontext{}));
}

void Memory::pool_attribute_set(api::CUmemoryPool pool, api::CUmemPool_attribute attribute) {
  if (attribute == api::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD) stream_ordered_.threshold_changed(pool);
  if (attribute == api::CU_MEMPOOL_ATTR_USED_MEM_HIGH) {
    stream_ordered_.reset_high(pool, &PoolFigures::used_high, &PoolFigures::used);
  }
  if (attribute == api::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH) {
    stream_ordered_.reset_high(pool, &PoolFigures::reserved_high, &PoolFigures::reserved);
  }
}

void Memory::set_pool_access(api::CUmemoryPool pool, const api::CUmemAccessDesc* accesses, std::size_t count) {
  const Pools::Pool what = pools_.look_up(pool, kNobody);
  if (!what.replaceable || !what.device) return;
  for (std::size_t index = 0; index < count; ++index) {
    const auto& [location, flags] = accesses[index];
    if (location.type != api::CU_MEM_LOCATION_TYPE_DEVICE || location.id == *what.device) continue;
    stream_ordered_.set_access(pool, *what.device, location.id, flags);
  }
}

void Memory::trim_pool(api::CUmemoryPool pool, std::uint64_t keep) {
  sweep_deferred();
  stream_ordered_.trim(pool, keep);
}

}  // namespace rota::memory
