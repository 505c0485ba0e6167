// Functions that hand physical memory out, besides those of vmm.cpp: what a handle names, or what lies at an address
// that is bound to a multicast object or a logical endpoint. All of them export it to users that access it without
// passing the gate. If rota moves that memory, it is brought into place first and stays there, and the driver gets its
// own handle. Other memory that handles name never moves, so exporting it pins nothing.
#include <vector>

#include "generated/driver_gates.h"
#include "generated/driver_real.h"
#include "runtime/core/runtime.h"
#include "runtime/hooks/overrides.h"

namespace rota::overrides {

using api::CUresult;
using Handle = api::CUmemGenericAllocationHandle;
using memory::OwnPhysical;
using protocol::Pin;

namespace {

// Pins memory, which is in place and held there, and returns the driver's handle of it.
Handle pinned(Handle handle, Pin why) {
  runtime().monitor.shares(protocol::kSharesOwn);
  return OwnPhysical::is_ours(handle) ? runtime().memory.own_physical().pin(handle, why) : handle;
}

// If the driver refuses the call, the memory does not stay pinned.
template <typename Call>
CUresult with_pinned(Handle handle, Pin why, const Call& call) {
  const gate::MappingScope scope;
  if (scope.refused()) return gate::refusal.load();
  OwnPhysical& own = runtime().memory.own_physical();
  const CUresult result = call(OwnPhysical::is_ours(handle) ? own.driver_handle(handle) : handle);
  if (result == api::CUDA_SUCCESS) pinned(handle, why);
  return result;
}

// The same before a call that waits for other processes, during which no lock or gate is held. 0 for memory that is
// lost.
Handle pinned_before(Handle handle, Pin why) {
  if (!OwnPhysical::is_ours(handle)) return pinned(handle, why);
  const gate::MappingScope scope;
  return scope.refused() ? 0 : pinned(handle, why);
}

// Memory by its address, in place and pinned, before a call that waits for other processes. False for memory that is
// lost.
bool pin_before(api::CUdeviceptr address, std::size_t bytes) {
  const gate::MappingScope scope(reinterpret_cast<const void*>(address));
  if (scope.refused()) return false;
  runtime().monitor.shares(protocol::kSharesOwn);
  runtime().memory.pin(address, bytes, Pin::kFabric);
  return true;
}

template <typename Call>
CUresult map_arrays(const api::CUarrayMapInfo* list, unsigned int count, const Call& call) {
  std::vector<api::CUarrayMapInfo> translated;
  if (list != nullptr) translated.assign(list, list + count);
  bool any = false;
  for (api::CUarrayMapInfo& each : translated) {
    Handle& handle = each.memHandle.memHandle;
    if (each.memHandleType != api::CU_MEM_HANDLE_TYPE_GENERIC || !OwnPhysical::is_ours(handle)) continue;
    any = true;
    handle = pinned_before(handle, Pin::kSparse);
  }
  return call(any ? translated.data() : const_cast<api::CUarrayMapInfo*>(list));
}

}  // namespace

CUresult cuMemExportToShareableHandle(void* shareableHandle, Handle handle, api::CUmemAllocationHandleType handleType,
                                      unsigned long long flags) {
  // Memory that rota has made exportable for its own purposes is not exportable for the program.
  if (OwnPhysical::is_ours(handle) && !runtime().memory.own_physical().exportable(handle)) {
    return api::CUDA_ERROR_INVALID_VALUE;
  }
  return with_pinned(handle, Pin::kDescriptor, [&](Handle drivers) {
    return real::cuMemExportToShareableHandle(shareableHandle, drivers, handleType, flags);
  });
}

CUresult cuMemMapArrayAsync(api::CUarrayMapInfo* mapInfoList, unsigned int count, api::CUstream hStream) {
  return map_arrays(mapInfoList, count,
                    [&](api::CUarrayMapInfo* list) { return gates::cuMemMapArrayAsync(list, count, hStream); });
}

CUresult cuMemMapArrayAsync_ptsz(api::CUarrayMapInfo* mapInfoList, unsigned int count, api::CUstream hStream) {
  return map_arrays(mapInfoList, count,
                    [&](api::CUarrayMapInfo* list) { return gates::cuMemMapArrayAsync_ptsz(list, count, hStream); });
}

CUresult cuMulticastBindMem(Handle mcHandle, std::size_t mcOffset, Handle memHandle, std::size_t memOffset,
                            std::size_t size, unsigned long long flags) {
  return real::cuMulticastBindMem(mcHandle, mcOffset, pinned_before(memHandle, Pin::kFabric), memOffset, size, flags);
}

CUresult cuMulticastBindMem_v2(Handle mcHandle, api::CUdevice dev, std::size_t mcOffset, Handle memHandle,
                               std::size_t memOffset, std::size_t size, unsigned long long flags) {
  return real::cuMulticastBindMem_v2(mcHandle, dev, mcOffset, pinned_before(memHandle, Pin::kFabric), memOffset, size,
                                     flags);
}

CUresult cuMulticastBindAddr(Handle mcHandle, std::size_t mcOffset, api::CUdeviceptr memptr, std::size_t size,
                             unsigned long long flags) {
  if (!pin_before(memptr, size)) return gate::refusal.load();
  return real::cuMulticastBindAddr(mcHandle, mcOffset, memptr, size, flags);
}

CUresult cuMulticastBindAddr_v2(Handle mcHandle, api::CUdevice dev, std::size_t mcOffset, api::CUdeviceptr memptr,
                                std::size_t size, unsigned long long flags) {
  if (!pin_before(memptr, size)) return gate::refusal.load();
  return real::cuMulticastBindAddr_v2(mcHandle, dev, mcOffset, memptr, size, flags);
}

CUresult cuLogicalEndpointBindAddr(api::CUlogicalEndpointId leId, api::CUdevice dev, api::cuuint64_t offset, void* ptr,
                                   api::cuuint64_t size, unsigned long long flags) {
  const gate::MappingScope scope(ptr);
  if (scope.refused()) return gate::refusal.load();
  const CUresult result = real::cuLogicalEndpointBindAddr(leId, dev, offset, ptr, size, flags);
  if (result != api::CUDA_SUCCESS) return result;
  runtime().monitor.shares(protocol::kSharesOwn);
  runtime().memory.pin(reinterpret_cast<std::uintptr_t>(ptr), size, Pin::kFabric);
  return result;
}

// What is bound to it is pinned already.
CUresult cuLogicalEndpointExport(void* handle, api::CUlogicalEndpointId leId,
                                 api::CUlogicalEndpointIpcHandleType handleType) {
  const gate::MappingScope scope;
  if (scope.refused()) return gate::refusal.load();
  const CUresult result = real::cuLogicalEndpointExport(handle, leId, handleType);
  if (result == api::CUDA_SUCCESS) runtime().monitor.shares(protocol::kSharesOwn);
  return result;
}

CUresult cuLogicalEndpointBindMem(api::CUlogicalEndpointId leId, api::CUdevice dev, api::cuuint64_t offset,
                                  Handle memHandle, api::cuuint64_t memOffset, api::cuuint64_t size,
                                  unsigned long long flags) {
  return with_pinned(memHandle, Pin::kFabric, [&](Handle drivers) {
    return real::cuLogicalEndpointBindMem(leId, dev, offset, drivers, memOffset, size, flags);
  });
}

}  // namespace rota::overrides
