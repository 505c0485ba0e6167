// Plain memory that the driver does not know as such: how rota frees it like the driver's own, and what it reports
// about it.
#include "generated/driver_real.h"
#include "runtime/driver/capture_mode.h"
#include "runtime/driver/context.h"
#include "runtime/memory/memory.h"

namespace rota::memory {

// Frees a part of a span, which stays, or extents, whose release never waits. The driver's cuMemFree waits for the work
// of the memory's context, host functions included, and for no other context's; so does cuCtxSynchronize (measured on
// an H100, 580.159.04), which takes 0.3 us there if nothing runs, where a free and its allocation take 4.4. A plain
// byte is freed instead where a synchronization might do something else: to a capture (Contexts::synchronize), or to a
// pool of the driver's, which it trims. Then the driver refuses what it would have refused, with the same effect.
// No context has to be current (Numba frees after it has popped its last one).
api::CUresult Memory::free_plain(Freeing& taken, bool capturing) {
  const auto context = reinterpret_cast<api::CUcontext>(taken->owner.id);
  api::CUresult result = refused_by_driver();
  if (result == api::CUDA_SUCCESS) {
    std::optional<api::CUresult> waited;
    if (!capturing && !has_pool_of_driver_.load(std::memory_order_relaxed)) waited = turns_->synchronize(context);
    result = waited ? *waited : free_a_byte({.context = context, .device = taken->device});
    // Another thread is destroying the context. The memory goes with it: there is no allocation at the address.
    const bool ends = result == api::CUDA_ERROR_INVALID_CONTEXT || result == api::CUDA_ERROR_CONTEXT_IS_DESTROYED;
    if (ends) result = api::CUDA_ERROR_INVALID_VALUE;
  }
  if (result != api::CUDA_SUCCESS) return result;
  taken.commit();
  if (taken->kind.route == Route::kShared) {
    free_shared(*taken, {});
  } else if (!hold_back(*taken, {}, capturing)) {
    if (capturing) {
      defer_captured(*taken);
    } else {
      give_up_extents(*taken);
    }
  }
  changed(taken->device);
  return result;
}

// Allocates a byte in the context of an allocation and frees it: the work of another context may be waiting for this
// very thread. A full GPU may refuse even a byte.
api::CUresult Memory::free_a_byte(const Place& place) {
  const driver::CurrentContext its_own(place.context);
  if (!its_own) return api::CUDA_ERROR_INVALID_CONTEXT;
  api::CUdeviceptr stand_in = 0;
  api::CUresult result = real::cuMemAlloc_v2(&stand_in, 1);
  if (result == api::CUDA_ERROR_OUT_OF_MEMORY) return real::cuCtxSynchronize();
  if (result != api::CUDA_SUCCESS) return result;
  ensure_a_byte(place);
  result = real::cuMemFree_v2(stand_in);
  if (result != api::CUDA_SUCCESS) deferred_.add_unused(stand_in, place);
  return result;
}

// A call that allocates or frees plain memory has to fail where the driver's own call would: during a capture that
// forbids such calls, which the attempt ends, and where the current context has failed or has ended. A free of address
// 0 fails there too, does nothing else, needs no context, waits for nothing and takes 30 ns (measured on an H100 and an
// H200, 580.159.04).
api::CUresult Memory::refused_by_driver() {
  return real::cuMemFree_v2(0);
}

// The driver maps memory for the first small allocation in a context and unmaps it with the last: a byte that stays
// allocated keeps the stand-ins cheap. And queries of the byte return what the driver reports for plain memory, which
// queries of extents do not. Returns the byte of the current context, or 0 if there is none.
api::CUdeviceptr Memory::keep_a_byte(const Place& place) {
  {
    const std::lock_guard lock(devices_mutex_);
    const auto known = kept_bytes_.find(place.context);
    if (known != kept_bytes_.end()) return known->second.address;
  }
  const driver::RelaxedCapture relaxed;
  api::CUdeviceptr kept = 0;  // freed with its context
  if (real::cuMemAlloc_v2(&kept, 1) != api::CUDA_SUCCESS) return 0;
  const std::lock_guard lock(devices_mutex_);
  const auto [entry, first] = kept_bytes_.try_emplace(place.context, KeptByte{kept, place.device});
  if (first) swap_.add_overhead(place.device, kGranularity);
  if (!first) deferred_.add_unused(kept, place);
  return entry->second.address;
}

// Called before each allocation and free, so nearly always without a lock or a driver call.
void Memory::ensure_a_byte(const Place& place) {
  if (last_with_a_byte_.load(std::memory_order_relaxed) == place.context) return;
  const driver::CurrentContext its_own(place.context);
  if (!its_own || keep_a_byte(place) == 0) return;
  const std::lock_guard lock(devices_mutex_);
  if (kept_bytes_.contains(place.context)) last_with_a_byte_.store(place.context, std::memory_order_relaxed);
}

// Memory that has outlived every context with a byte gets one in the context that asks.
api::CUdeviceptr Memory::twin_of(const Block& block) {
  {
    const std::lock_guard lock(devices_mutex_);
    if (block.context != nullptr) {
      const auto byte = kept_bytes_.find(block.context);
      return byte != kept_bytes_.end() ? byte->second.address : 0;
    }
    for (const auto& [context, byte] : kept_bytes_) {
      if (byte.device == block.device) return byte.address;
    }
  }
  Place place;
  return here(place) && place.device == block.device ? keep_a_byte(place) : 0;
}

bool Memory::find_block(api::CUdeviceptr address, std::optional<Block>* block) {
  block->reset();
  if (const auto opened = opened_.find(address)) {
    if (!opened->inside) return true;
    *block = Block{{.address = opened->address,
                    .bytes = opened->bytes,
                    .buffer_id = opened->buffer_id,
                    .span_address = opened->address,
                    .span_bytes = opened->bytes,
                    .context = opened->place.context,
                    .device = opened->place.device}};
    (*block)->twin = twin_of(**block);
    return true;
  }
  std::optional<StreamOrdered::Block> found;
  bool ours = stream_ordered_.find(address, &found);
  if (found) *block = Block{*found};
  if (!swap_.any()) return ours;
  const std::optional<SwapBackend::Found> place = swap_.find(address);
  if (!place) return ours;
  ours = true;
  if (!found) {
    const std::optional<Allocation> what = ledger_.find(address);
    if (!what || what->kind.route != Route::kPlain || what->freeing) return ours;
    *block = Block{{.address = what->address,
                    .bytes = what->bytes,
                    .buffer_id = place->buffer_id,
                    .span_address = what->address,
                    .span_bytes = what->bytes,
                    .context = place->context,
                    .device = what->device}};
  }
  (*block)->twin = twin_of(**block);
  return ours;
}

api::CUcontext Memory::context_of_plain(api::CUdeviceptr address) const {
  if (!swap_.any()) return nullptr;
  const std::optional<Allocation> what = ledger_.find(address);
  const bool plain = what && !what->freeing && what->kind.backing == Backing::kSwapped &&
                     (what->kind.route == Route::kPlain || what->kind.route == Route::kShared);
  return plain ? reinterpret_cast<api::CUcontext>(what->owner.id) : nullptr;
}

api::CUdeviceptr Memory::twin(api::CUdeviceptr address) {
  std::optional<Block> block;
  return find_block(address, &block) && block ? block->twin : 0;
}

}  // namespace rota::memory
