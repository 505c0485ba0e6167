// Virtual memory management: physical memory (cuMemCreate) and its mappings. All GPU memory that is created counts
// against the limit. Memory that rota moves has handles of rota's own, which are translated wherever one occurs
// (generated/driver_physical.inc); other memory stays where it is.
#include <algorithm>
#include <cstdint>
#include <optional>

#include "generated/driver_gates.h"
#include "generated/driver_real.h"
#include "runtime/core/runtime.h"
#include "runtime/core/undo.h"
#include "runtime/hooks/overrides.h"

namespace rota::overrides {

using api::CUdeviceptr;
using api::CUresult;
using Handle = api::CUmemGenericAllocationHandle;
using memory::OwnPhysical;

namespace {

OwnPhysical& own() {
  return runtime().memory.own_physical();
}

// The result of `call` if it has one: what the driver is certain to answer. Otherwise that of calling it again with all
// memory in place.
template <typename Call>
CUresult known_or_in_place(const Call& call) {
  if (const std::optional<CUresult> known = call()) return *known;
  const gate::MappingScope scope;
  if (scope.refused()) return gate::refusal.load();
  return call().value_or(api::CUDA_ERROR_INVALID_VALUE);
}

}  // namespace

// Charged to the GPU that the properties name, whichever context is current (there need be none).
CUresult cuMemCreate(Handle* handle, std::size_t size, const api::CUmemAllocationProp* prop, unsigned long long flags) {
  const auto call = [&] { return real::cuMemCreate(handle, size, prop, flags); };
  if (prop == nullptr) return call();
  switch (prop->location.type) {
    case api::CU_MEM_LOCATION_TYPE_DEVICE: {
      const auto result = flags == 0 ? runtime().memory.create_moving(handle, size, *prop) : std::nullopt;
      return result ? runtime().placed(*result)
                    : runtime().memory.create_physical(handle, size, prop->location.id, call);
    }
    case api::CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN:
      return runtime().memory.create_physical(handle, size, prop->location.localized.deviceId, call);
    default:
      return call();
  }
}

CUresult cuMemRelease(Handle handle) {
  return runtime().memory.release_physical(handle, [&] { return real::cuMemRelease(handle); });
}

CUresult cuMemGetAllocationPropertiesFromHandle(api::CUmemAllocationProp* prop, Handle handle) {
  return OwnPhysical::is_ours(handle) ? own().properties(prop, handle)
                                      : real::cuMemGetAllocationPropertiesFromHandle(prop, handle);
}

CUresult cuMemAddressReserve(CUdeviceptr* ptr, std::size_t size, std::size_t alignment, CUdeviceptr addr,
                             unsigned long long flags) {
  const CUresult result = real::cuMemAddressReserve(ptr, size, alignment, addr, flags);
  if (result == api::CUDA_SUCCESS) own().reserved(*ptr, size);
  return result;
}

CUresult cuMemAddressFree(CUdeviceptr ptr, std::size_t size) {
  // The driver refuses addresses that are mapped, and does not know mappings of memory that is evicted.
  if (runtime().memory.swaps(ptr, size) || own().overlaps(ptr, size)) return api::CUDA_ERROR_INVALID_VALUE;
  // Erased first: once the driver has freed the range, another thread may reserve it.
  const std::uint64_t noted = own().unreserved(ptr);
  Rollback stays([&] {
    if (noted != 0) own().reserved(ptr, noted);
  });
  const CUresult result = real::cuMemAddressFree(ptr, size);
  if (result == api::CUDA_SUCCESS) stays.commit();
  return result;
}

CUresult cuMemMap(CUdeviceptr ptr, std::size_t size, std::size_t offset, Handle handle, unsigned long long flags) {
  // The driver's result at addresses of cuMemAlloc's memory.
  if (runtime().memory.swaps(ptr, size)) return api::CUDA_ERROR_INVALID_VALUE;
  if (OwnPhysical::is_ours(handle)) {
    return known_or_in_place([&] { return own().map(ptr, size, offset, handle, flags); });
  }
  // The driver's call waits for other processes if the handle is a multicast object's, so no lock is held.
  if (own().overlaps(ptr, size)) return api::CUDA_ERROR_INVALID_VALUE;
  const CUresult result = real::cuMemMap(ptr, size, offset, handle, flags);
  if (result != api::CUDA_SUCCESS) return result;
  own().mapped_otherwise(ptr, size);
  runtime().memory.physical().mapped(ptr, size, handle);
  return result;
}

CUresult cuMemUnmap(CUdeviceptr ptr, std::size_t size) {
  if (runtime().memory.swaps(ptr, size)) return api::CUDA_ERROR_INVALID_VALUE;
  return runtime().memory.unmap(
      ptr, size, [](std::uint64_t address, std::uint64_t bytes) { return real::cuMemUnmap(address, bytes); });
}

CUresult cuMemSetAccess(CUdeviceptr ptr, std::size_t size, const api::CUmemAccessDesc* desc, std::size_t count) {
  if (runtime().memory.swaps(ptr, size)) return api::CUDA_ERROR_INVALID_VALUE;
  if (!own().overlaps(ptr, size)) return gates::cuMemSetAccess(ptr, size, desc, count);
  const auto call = [&] { return real::cuMemSetAccess(ptr, size, desc, count); };
  const auto is_elsewhere = [](const api::CUmemAccessDesc& each) {
    return each.location.type != api::CU_MEM_LOCATION_TYPE_DEVICE;
  };
  const auto set = [&] { return own().set_access(ptr, size, desc, count, call); };
  if (desc == nullptr || std::none_of(desc, desc + count, is_elsewhere)) {
    const CUresult result = known_or_in_place(set);
    if (result == api::CUDA_SUCCESS) runtime().monitor.settle_reach();
    return result;
  }
  // The memory stays in place from the moment at which something other than GPUs may use it.
  const gate::MappingScope scope;
  if (scope.refused()) return gate::refusal.load();
  const CUresult result = set().value_or(api::CUDA_ERROR_INVALID_VALUE);
  if (result == api::CUDA_SUCCESS) own().pin(ptr, size, protocol::Pin::kAccess);
  return result;
}

CUresult cuMemRetainAllocationHandle(Handle* handle, void* addr) {
  const auto address = reinterpret_cast<std::uintptr_t>(addr);
  if (runtime().memory.swaps(address, 1)) return api::CUDA_ERROR_INVALID_VALUE;
  if (handle != nullptr) {
    if (const auto ours = own().retain(address)) {
      *handle = *ours;
      return api::CUDA_SUCCESS;
    }
  }
  const gate::MappingScope scope;
  if (scope.refused()) return gate::refusal.load();
  const CUresult result = real::cuMemRetainAllocationHandle(handle, addr);  // of memory that never moves
  if (result == api::CUDA_SUCCESS) runtime().memory.physical().retained(*handle, address);
  return result;
}

CUresult cuMemImportFromShareableHandle(Handle* handle, void* osHandle, api::CUmemAllocationHandleType shHandleType) {
  const CUresult result = real::cuMemImportFromShareableHandle(handle, osHandle, shHandleType);
  if (result == api::CUDA_SUCCESS) {
    runtime().memory.physical().imported(*handle);
    runtime().monitor.shares(protocol::kSharesOfOthers);  // ipc.cpp
    runtime().monitor.memory_shared();
  }
  return result;
}

}  // namespace rota::overrides
