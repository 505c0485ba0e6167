#include "runtime/memory/physical.h"

#include <algorithm>

#include "runtime/core/undo.h"

namespace rota::memory {

std::uint64_t Physical::fresh(Handle handle, const Allocated& what) {
  if (const auto stale = state_->handles.find(handle); stale != state_->handles.end()) {
    // The driver has reused the number: the old handle was released in a way that rota does not see.
    if (const auto old = state_->allocated.find(stale->second); old != state_->allocated.end()) {
      drop(stale->second, &Allocated::handles, old->second.handles);
    }
  }
  const std::uint64_t number = ++state_->last;
  state_->allocated[number] = what;
  state_->handles[handle] = number;
  return number;
}

int Physical::drop(std::uint64_t number, std::uint64_t Allocated::* count, std::uint64_t how_many) {
  const auto found = state_->allocated.find(number);
  if (found == state_->allocated.end()) return kNobody;
  Allocated& what = found->second;
  what.*count -= std::min(what.*count, how_many);
  if (what.handles > 0 || what.mappings > 0) return kNobody;
  const int device = what.device;
  ledger_.release(device, what.bytes, Kind::kPhysical);
  state_->allocated.erase(found);
  return device;
}

void Physical::created(Handle handle, int device, std::uint64_t bytes) {
  const std::lock_guard lock(state_->mutex);
  fresh(handle, {.device = device, .bytes = bytes, .handles = 1});
}

void Physical::imported(Handle handle) {
  const std::lock_guard lock(state_->mutex);
  // A descriptor of this process's own memory may come back as the same handle: it counts once more.
  if (const auto known = state_->handles.find(handle); known != state_->handles.end()) {
    ++state_->allocated[known->second].handles;
    return;
  }
  fresh(handle, {.device = kNobody, .bytes = 0, .handles = 1});
}

void Physical::retained(Handle handle, std::uint64_t address) {
  const std::optional<Allocation> mapping = ledger_.find(address);
  if (!mapping || mapping->owner.kind != Owner::Kind::kPhysical) return;
  const std::lock_guard lock(state_->mutex);
  const auto what = state_->allocated.find(mapping->owner.id);
  if (what == state_->allocated.end()) return;
  ++what->second.handles;
  state_->handles[handle] = what->first;  // perhaps released before, and so no longer in the table
}

api::CUresult Physical::release(Handle handle, FunctionRef<api::CUresult()> call, int* freed) {
  *freed = kNobody;
  std::uint64_t number = 0;
  {
    // Counted down first: once the driver has released it, the number may be another thread's new handle.
    const std::lock_guard lock(state_->mutex);
    if (const auto found = state_->handles.find(handle); found != state_->handles.end()) {
      number = found->second;
      if (--state_->allocated[number].handles == 0) state_->handles.erase(found);
    }
  }
  const api::CUresult result = call();
  if (number == 0) return result;
  const std::lock_guard lock(state_->mutex);
  if (result == api::CUDA_SUCCESS) {
    *freed = drop(number, &Allocated::handles, 0);
  } else if (const auto what = state_->allocated.find(number); what != state_->allocated.end()) {
    ++what->second.handles;
    state_->handles.try_emplace(handle, number);
  }
  return result;
}

void Physical::mapped(std::uint64_t address, std::uint64_t bytes, Handle handle) {
  Allocation mapping{.address = address, .bytes = bytes, .kind = Kind::kMapping};
  mapping.charged = false;
  {
    const std::lock_guard lock(state_->mutex);
    const auto found = state_->handles.find(handle);
    if (found == state_->handles.end()) return;
    Allocated& what = state_->allocated[found->second];
    ++what.mappings;
    mapping.owner = {Owner::Kind::kPhysical, found->second};
    mapping.device = what.device;
  }
  ledger_.add(mapping);
}

api::CUresult Physical::unmap(std::uint64_t address, std::uint64_t size, FunctionRef<api::CUresult()> call,
                              std::vector<int>* freed) {
  bool any = false;
  {
    const std::lock_guard lock(state_->mutex);
    any = !state_->allocated.empty();
  }
  if (!any) return call();  // the ledger would search all of its shards
  // Removed from the ledger first: once the driver has unmapped them, another thread may map something else there.
  const std::vector<Allocation> mappings = ledger_.take_range(address, size, Kind::kMapping);
  Rollback stay([&] {
    for (const Allocation& mapping : mappings) ledger_.add(mapping);
  });
  const api::CUresult result = call();
  if (result != api::CUDA_SUCCESS) return result;
  stay.commit();
  const std::lock_guard lock(state_->mutex);
  for (const Allocation& mapping : mappings) {
    const int device = drop(mapping.owner.id, &Allocated::mappings, 1);
    if (device != kNobody) freed->push_back(device);
  }
  return result;
}

}  // namespace rota::memory
