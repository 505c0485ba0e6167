// Functions that take handles of physical memory, besides those of vmm.cpp: all of them export it to users that access
// it without passing the gate. If rota moves that memory, it is brought into place first and stays there, and the
// driver gets its own handle. Other memory that handles name never moves, so exporting it pins nothing.
#include <vector>

#include "generated/driver_gates.h"
#include "generated/driver_real.h"
#include "runtime/core/runtime.h"
#include "runtime/hooks/overrides.h"

namespace rota::overrides {

using api::CUresult;
using Handle = api::CUmemGenericAllocationHandle;
using memory::OwnPhysical;

namespace {

// The driver's handle of memory that is in place and stays there from now on.
Handle pinned(Handle handle) {
  runtime().monitor.shares(protocol::kSharesOwn);
  return OwnPhysical::is_ours(handle) ? runtime().memory.own_physical().pin(handle) : handle;
}

// What the driver refuses does not stay pinned.
template <typename Call>
CUresult with_pinned(Handle handle, const Call& call) {
  const gate::MappingScope scope;
  if (scope.refused()) return gate::refusal.load();
  OwnPhysical& own = runtime().memory.own_physical();
  const CUresult result = call(OwnPhysical::is_ours(handle) ? own.driver_handle(handle) : handle);
  if (result == api::CUDA_SUCCESS) pinned(handle);
  return result;
}

// The same for a call that waits for other processes: nothing is held back meanwhile. 0 for memory that is lost.
Handle pinned_before(Handle handle) {
  if (!OwnPhysical::is_ours(handle)) return pinned(handle);
  const gate::MappingScope scope;
  return scope.refused() ? 0 : pinned(handle);
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
    handle = pinned_before(handle);
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
  return with_pinned(handle, [&](Handle drivers) {
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
  return real::cuMulticastBindMem(mcHandle, mcOffset, pinned_before(memHandle), memOffset, size, flags);
}

CUresult cuMulticastBindMem_v2(Handle mcHandle, api::CUdevice dev, std::size_t mcOffset, Handle memHandle,
                               std::size_t memOffset, std::size_t size, unsigned long long flags) {
  return real::cuMulticastBindMem_v2(mcHandle, dev, mcOffset, pinned_before(memHandle), memOffset, size, flags);
}

CUresult cuLogicalEndpointBindMem(api::CUlogicalEndpointId leId, api::CUdevice dev, api::cuuint64_t offset,
                                  Handle memHandle, api::cuuint64_t memOffset, api::cuuint64_t size,
                                  unsigned long long flags) {
  return with_pinned(memHandle, [&](Handle drivers) {
    return real::cuLogicalEndpointBindMem(leId, dev, offset, drivers, memOffset, size, flags);
  });
}

}  // namespace rota::overrides
