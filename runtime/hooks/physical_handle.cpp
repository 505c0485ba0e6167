// Functions that take handles of physical memory, besides those of vmm.cpp: all of them export it to users that access
// it without passing the gate. If rota moves that memory, it is brought into place first and stays there, and the
// driver gets its own handle.
#include <vector>

#include "generated/driver_gates.h"
#include "runtime/core/runtime.h"
#include "runtime/hooks/overrides.h"

namespace rota::overrides {

using api::CUresult;
using Handle = api::CUmemGenericAllocationHandle;
using memory::OwnPhysical;

namespace {

// The driver's handle, which is permanent now: nothing moves from now on.
Handle pinned(Handle handle, Symbol symbol) {
  if (!OwnPhysical::is_ours(handle)) return handle;
  runtime().mark_unevictable("other processes can access memory that it exported",
                             kSymbolNames[static_cast<std::size_t>(symbol)]);
  return runtime().memory.own_physical().driver_handle(handle);
}

template <typename Call>
CUresult map_arrays(Symbol symbol, const api::CUarrayMapInfo* list, unsigned int count, const Call& call) {
  std::vector<api::CUarrayMapInfo> translated;
  if (list != nullptr) translated.assign(list, list + count);
  bool any = false;
  for (api::CUarrayMapInfo& each : translated) {
    if (each.memHandleType != api::CU_MEM_HANDLE_TYPE_GENERIC || !OwnPhysical::is_ours(each.memHandle.memHandle)) {
      continue;
    }
    any = true;
    each.memHandle.memHandle = pinned(each.memHandle.memHandle, symbol);
  }
  return call(any ? translated.data() : const_cast<api::CUarrayMapInfo*>(list));
}

}  // namespace

CUresult cuMemExportToShareableHandle(void* shareableHandle, Handle handle, api::CUmemAllocationHandleType handleType,
                                      unsigned long long flags) {
  if (!OwnPhysical::is_ours(handle)) {
    return gates::cuMemExportToShareableHandle(shareableHandle, handle, handleType, flags);
  }
  OwnPhysical& own = runtime().memory.own_physical();
  // Memory that rota has made exportable for its own purposes is not exportable for the program.
  if (!own.exportable(handle)) return api::CUDA_ERROR_INVALID_VALUE;
  const gate::MappingScope scope;
  if (scope.refused()) return gate::refusal.load();
  return gates::cuMemExportToShareableHandle(shareableHandle, own.driver_handle(handle), handleType, flags);
}

CUresult cuMemMapArrayAsync(api::CUarrayMapInfo* mapInfoList, unsigned int count, api::CUstream hStream) {
  return map_arrays(Symbol::k_cuMemMapArrayAsync, mapInfoList, count,
                    [&](api::CUarrayMapInfo* list) { return gates::cuMemMapArrayAsync(list, count, hStream); });
}

CUresult cuMemMapArrayAsync_ptsz(api::CUarrayMapInfo* mapInfoList, unsigned int count, api::CUstream hStream) {
  return map_arrays(Symbol::k_cuMemMapArrayAsync_ptsz, mapInfoList, count,
                    [&](api::CUarrayMapInfo* list) { return gates::cuMemMapArrayAsync_ptsz(list, count, hStream); });
}

CUresult cuMulticastBindMem(Handle mcHandle, std::size_t mcOffset, Handle memHandle, std::size_t memOffset,
                            std::size_t size, unsigned long long flags) {
  return gates::cuMulticastBindMem(mcHandle, mcOffset, pinned(memHandle, Symbol::k_cuMulticastBindMem), memOffset, size,
                                   flags);
}

CUresult cuMulticastBindMem_v2(Handle mcHandle, api::CUdevice dev, std::size_t mcOffset, Handle memHandle,
                               std::size_t memOffset, std::size_t size, unsigned long long flags) {
  return gates::cuMulticastBindMem_v2(mcHandle, dev, mcOffset, pinned(memHandle, Symbol::k_cuMulticastBindMem_v2),
                                      memOffset, size, flags);
}

CUresult cuLogicalEndpointBindMem(api::CUlogicalEndpointId leId, api::CUdevice dev, api::cuuint64_t offset,
                                  Handle memHandle, api::cuuint64_t memOffset, api::cuuint64_t size,
                                  unsigned long long flags) {
  return gates::cuLogicalEndpointBindMem(leId, dev, offset, pinned(memHandle, Symbol::k_cuLogicalEndpointBindMem),
                                         memOffset, size, flags);
}

}  // namespace rota::overrides
