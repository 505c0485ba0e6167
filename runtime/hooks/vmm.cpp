// Virtual memory management: physical memory (cuMemCreate) and its mappings. It is not moved, and counts against the
// limit.
#include <cstdint>

#include "generated/driver_real.h"
#include "runtime/core/runtime.h"
#include "runtime/hooks/overrides.h"

namespace rota::overrides {

using api::CUdeviceptr;
using api::CUresult;
using memory::Kind;

// Charged to the GPU that the properties name, whichever context is current (there need be none).
CUresult cuMemCreate(api::CUmemGenericAllocationHandle* handle, std::size_t size, const api::CUmemAllocationProp* prop,
                     unsigned long long flags) {
  if (prop == nullptr || prop->location.type != api::CU_MEM_LOCATION_TYPE_DEVICE) {
    return real::cuMemCreate(handle, size, prop, flags);
  }
  memory::Memory& memory = runtime().memory;
  const int device = prop->location.id;
  if (!memory.reserve(device, size, Kind::kPhysical)) return api::CUDA_ERROR_OUT_OF_MEMORY;
  const CUresult result = real::cuMemCreate(handle, size, prop, flags);
  if (result == api::CUDA_SUCCESS) {
    memory.physical().created(*handle, device, size);
    memory.changed(device);
  } else {
    memory.ledger().release(device, size, Kind::kPhysical);
  }
  return result;
}

CUresult cuMemRelease(api::CUmemGenericAllocationHandle handle) {
  memory::Memory& memory = runtime().memory;
  // Counted down first: once the driver has it, the number may be another thread's new handle.
  const auto gone = memory.physical().released(handle);
  const CUresult result = real::cuMemRelease(handle);
  if (result == api::CUDA_SUCCESS && gone) {
    memory.ledger().release(gone->device, gone->bytes, Kind::kPhysical);
    memory.changed(gone->device);
  } else if (gone) {
    memory.physical().created(handle, gone->device, gone->bytes);
  }
  return result;
}

CUresult cuMemMap(CUdeviceptr ptr, std::size_t size, std::size_t offset, api::CUmemGenericAllocationHandle handle,
                  unsigned long long flags) {
  const CUresult result = real::cuMemMap(ptr, size, offset, handle, flags);
  if (result == api::CUDA_SUCCESS) runtime().memory.physical().mapped(ptr, handle);
  return result;
}

CUresult cuMemUnmap(CUdeviceptr ptr, std::size_t size) {
  const CUresult result = real::cuMemUnmap(ptr, size);
  if (result != api::CUDA_SUCCESS) return result;
  memory::Memory& memory = runtime().memory;
  for (const auto& [device, bytes] : memory.physical().unmapped(ptr, size)) {
    memory.ledger().release(device, bytes, Kind::kPhysical);
    memory.changed(device);
  }
  return result;
}

CUresult cuMemRetainAllocationHandle(api::CUmemGenericAllocationHandle* handle, void* addr) {
  const CUresult result = real::cuMemRetainAllocationHandle(handle, addr);
  if (result == api::CUDA_SUCCESS) {
    runtime().memory.physical().retained(*handle, reinterpret_cast<std::uintptr_t>(addr));
  }
  return result;
}

}  // namespace rota::overrides
