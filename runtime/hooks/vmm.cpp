// Virtual memory management: physical memory (cuMemCreate) and its mappings. It is not moved, and counts against the
// limit.
#include <cstdint>

#include "generated/driver_gates.h"
#include "generated/driver_real.h"
#include "runtime/core/runtime.h"
#include "runtime/hooks/overrides.h"

namespace rota::overrides {

using api::CUdeviceptr;
using api::CUresult;

// Charged to the GPU that the properties name, whichever context is current (there need be none).
CUresult cuMemCreate(api::CUmemGenericAllocationHandle* handle, std::size_t size, const api::CUmemAllocationProp* prop,
                     unsigned long long flags) {
  const auto call = [&] { return real::cuMemCreate(handle, size, prop, flags); };
  if (prop == nullptr) return call();
  switch (prop->location.type) {
    case api::CU_MEM_LOCATION_TYPE_DEVICE:
      return runtime().memory.create_physical(handle, size, prop->location.id, call);
    case api::CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN:
      return runtime().memory.create_physical(handle, size, prop->location.localized.deviceId, call);
    default:
      return call();
  }
}

CUresult cuMemRelease(api::CUmemGenericAllocationHandle handle) {
  return runtime().memory.release_physical(handle, [&] { return real::cuMemRelease(handle); });
}

CUresult cuMemMap(CUdeviceptr ptr, std::size_t size, std::size_t offset, api::CUmemGenericAllocationHandle handle,
                  unsigned long long flags) {
  // What the driver answers where memory of cuMemAlloc lies.
  if (runtime().memory.swaps(ptr, size)) return api::CUDA_ERROR_INVALID_VALUE;
  const CUresult result = real::cuMemMap(ptr, size, offset, handle, flags);
  if (result == api::CUDA_SUCCESS) runtime().memory.physical().mapped(ptr, size, handle);
  return result;
}

CUresult cuMemUnmap(CUdeviceptr ptr, std::size_t size) {
  if (runtime().memory.swaps(ptr, size)) return api::CUDA_ERROR_INVALID_VALUE;
  return runtime().memory.unmap(ptr, size, [&] { return real::cuMemUnmap(ptr, size); });
}

CUresult cuMemSetAccess(CUdeviceptr ptr, std::size_t size, const api::CUmemAccessDesc* desc, std::size_t count) {
  if (runtime().memory.swaps(ptr, size)) return api::CUDA_ERROR_INVALID_VALUE;
  return gates::cuMemSetAccess(ptr, size, desc, count);
}

CUresult cuMemAddressFree(CUdeviceptr ptr, std::size_t size) {
  if (runtime().memory.swaps(ptr, size)) return api::CUDA_ERROR_INVALID_VALUE;
  return real::cuMemAddressFree(ptr, size);
}

CUresult cuMemRetainAllocationHandle(api::CUmemGenericAllocationHandle* handle, void* addr) {
  if (runtime().memory.swaps(reinterpret_cast<std::uintptr_t>(addr), 1)) return api::CUDA_ERROR_INVALID_VALUE;
  const CUresult result = gates::cuMemRetainAllocationHandle(handle, addr);
  if (result == api::CUDA_SUCCESS) {
    runtime().memory.physical().retained(*handle, reinterpret_cast<std::uintptr_t>(addr));
  }
  return result;
}

CUresult cuMemImportFromShareableHandle(api::CUmemGenericAllocationHandle* handle, void* osHandle,
                                        api::CUmemAllocationHandleType shHandleType) {
  const CUresult result = real::cuMemImportFromShareableHandle(handle, osHandle, shHandleType);
  if (result == api::CUDA_SUCCESS) runtime().memory.physical().imported(*handle);
  return result;
}

}  // namespace rota::overrides
