// What a program is told of a GPU's memory: how much there is, and how much of that it could have.
#include <algorithm>

#include "generated/driver_real.h"
#include "runtime/memory/memory.h"

namespace rota::memory {

namespace {

std::uint64_t without(std::uint64_t bytes, std::uint64_t part) {
  return bytes - std::min(bytes, part);
}

}  // namespace

api::CUresult Memory::info(std::size_t* free_bytes, std::size_t* total_bytes) {
  const api::CUresult result = real::cuMemGetInfo_v2(free_bytes, total_bytes);
  Place place;
  if (result != api::CUDA_SUCCESS || !here(place)) return result;
  // The driver would have returned what its pools have above their thresholds when the program waited last.
  if (stream_ordered_.any()) {
    sweep_deferred();
    trim_to_thresholds();
  }
  // If the driver accepts null for one of them, it has filled in only the other.
  const std::uint64_t of_gpu = total_bytes != nullptr ? *total_bytes : device(place.device).total_bytes;
  const Shown seen = shown(place.device, of_gpu, free_bytes != nullptr ? *free_bytes : of_gpu);
  if (free_bytes != nullptr) *free_bytes = seen.free;
  if (total_bytes != nullptr) *total_bytes = seen.total;
  return result;
}

Memory::Shown Memory::shown(int ordinal, std::uint64_t total, std::uint64_t free) {
  turns_->refresh(ordinal);
  sweep_deferred();
  if (graphs_.any()) graphs_.poll(ordinal);
  const SharedLimit shared = turns_->shared_limit(ordinal);  // known once rotad has sent it
  Shown seen{
      .total = std::min({total, settings_.limit_bytes, shared.total}), .free = 0, .own = ledger_.live_bytes(ordinal)};
  // NVML's total is all of the GPU's memory, CUDA's only the part that programs can have.
  const std::uint64_t usable = device(ordinal).total_bytes;
  const std::uint64_t most = usable != 0 ? std::min(seen.total, usable) : seen.total;
  std::uint64_t left = std::min(without(most, seen.own), shared.left);
  // The process's own limit refuses only what is requested beyond it. But a program that takes all that it is told is
  // free should keep to the limit together with its contexts. (A limit that is no larger than those can only be meant
  // without them.)
  const std::uint64_t taken = contexts(ordinal);
  if (settings_.limit_bytes != kNoLimit && settings_.limit_bytes > taken) {
    left = std::min(left, without(settings_.limit_bytes - taken, seen.own));
  }
  const bool moves = backend(ordinal).backing() != Backing::kDevice;
  if (moves && usable != 0) left = std::min(left, obtainable(ordinal, seen.own, free));
  seen.free = moves ? left : std::min(left, free);
  return seen;
}

// The driver's figure of what is free says what is there now, not what this program may have: other programs' memory
// that can be evicted counts as free, since rotad has them evict it. What cannot be evicted does not: contexts, what
// programs without rota have, and what others have that stays. Extents are larger than what has been allocated in them,
// and all of them must be on the GPU at once.
std::uint64_t Memory::obtainable(int ordinal, std::uint64_t own, std::uint64_t free) {
  std::uint64_t left = without(device(ordinal).total_bytes, all_contexts(ordinal));
  left = without(left, turns_->fixed_of_others_bytes(ordinal));
  // Without a rotad nobody evicts memory.
  if (!device(ordinal).served.load(std::memory_order_relaxed)) left = without(left, others(ordinal, own, free));
  if (backend(ordinal).backing() != Backing::kSwapped) return without(left, own);
  const std::uint64_t needed = needed_bytes(ordinal) + missing_byte(ordinal);
  const std::uint64_t taken = std::max(own, ledger_.fixed_bytes(ordinal) + needed);
  const std::uint64_t rest = without(left, taken);
  return rest - rest % kGranularity;
}

// What other processes use. The driver does not say how much of this process's Unified Memory is on the GPU: it may be
// none or all of it. So the last figure, which is exact if there was no Unified Memory, holds as far as the present
// reading allows.
std::uint64_t Memory::others(int ordinal, std::uint64_t own, std::uint64_t free) {
  const bool swaps = backend(ordinal).backing() == Backing::kSwapped;
  const std::uint64_t extents = swaps ? swap_.resident_bytes(ordinal) + swap_.overhead_bytes(ordinal) : 0;
  const std::uint64_t stays = ledger_.fixed_bytes(ordinal) + extents;
  const std::uint64_t in_use = without(device(ordinal).total_bytes, free);
  const std::uint64_t there = without(in_use, contexts(ordinal));
  const std::uint64_t most = without(there, stays);
  const std::uint64_t least = swaps ? most : std::min(without(there, own), most);
  std::atomic<std::uint64_t>& last = device(ordinal).others;
  const std::uint64_t found = std::clamp(last.load(std::memory_order_relaxed), least, most);
  last.store(found, std::memory_order_relaxed);
  return found;
}

std::uint64_t Memory::missing_byte(int ordinal) {
  Place place;
  const bool asks_there = here(place) && place.device == ordinal;
  const std::lock_guard lock(devices_mutex_);
  const auto kept = [&](const auto& each) {
    return asks_there ? each.first == place.context : each.second.device == ordinal;
  };
  return std::ranges::any_of(kept_bytes_, kept) ? 0 : kGranularity;
}

int Memory::device_of(api::CUdeviceptr address, bool* booked) const {
  const std::optional<Allocation> known = ledger_.find(address);
  if (known && known->device != kNobody) {
    if (booked != nullptr) *booked = true;
    return known->kind.backing == Backing::kUnified ? -1 : known->device;
  }
  if (swap_.any()) {
    if (const auto range = swap_.find(address)) return range->device;
    if (const auto own = own_physical_.find(address)) return own->device;
  }
  unsigned int type = 0;
  int device = -1;
  if (real::cuPointerGetAttribute(&type, api::CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address) != api::CUDA_SUCCESS ||
      type != api::CU_MEMORYTYPE_DEVICE) {
    return -1;
  }
  const api::CUresult result = real::cuPointerGetAttribute(&device, api::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, address);
  return result == api::CUDA_SUCCESS ? device : -1;
}

int Memory::device_of_array(const void* handle) const {
  const std::optional<Allocation> known = ledger_.find(address_of_handle(handle));
  return known ? known->device : -1;
}

}  // namespace rota::memory
