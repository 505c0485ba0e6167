// Overrides: CUDA arrays and physical memory (cuMemCreate). Neither is moved; both count against the limit.
#include <cstdint>

#include "generated/driver_real.h"
#include "runtime/overrides.h"
#include "runtime/runtime.h"

namespace rota::overrides {

using api::CUdeviceptr;
using api::CUresult;
using memory::Kind;

namespace {

std::uint64_t key(const void* handle) {
  return reinterpret_cast<std::uintptr_t>(handle) | memory::kHandleBit;
}

template <typename Call>
CUresult make_array(std::uint64_t bytes, api::CUarray* handle, Call&& call) {
  return runtime().memory.allocate_native(bytes, Kind::kArray, call, [&] { return key(*handle); });
}

template <typename Descriptor>
std::uint64_t bytes_3d(const Descriptor* descriptor, unsigned levels) {
  if (descriptor == nullptr) return 0;  // the driver answers
  return memory::array_bytes(descriptor->Width, descriptor->Height, descriptor->Depth, descriptor->NumChannels,
                             descriptor->Format, descriptor->Flags, levels);
}

template <typename Descriptor>
std::uint64_t bytes_2d(const Descriptor* descriptor) {
  if (descriptor == nullptr) return 0;
  return memory::array_bytes(descriptor->Width, descriptor->Height, 0, descriptor->NumChannels, descriptor->Format, 0,
                             1);
}

}  // namespace

CUresult cuArrayCreate_v2(api::CUarray* pHandle, const api::CUDA_ARRAY_DESCRIPTOR* pAllocateArray) {
  return make_array(bytes_2d(pAllocateArray), pHandle, [&] { return real::cuArrayCreate_v2(pHandle, pAllocateArray); });
}

CUresult cuArrayCreate(api::CUarray* pHandle, const api::CUDA_ARRAY_DESCRIPTOR_v1* pAllocateArray) {
  return make_array(bytes_2d(pAllocateArray), pHandle, [&] { return real::cuArrayCreate(pHandle, pAllocateArray); });
}

CUresult cuArray3DCreate_v2(api::CUarray* pHandle, const api::CUDA_ARRAY3D_DESCRIPTOR* pAllocateArray) {
  return make_array(bytes_3d(pAllocateArray, 1), pHandle,
                    [&] { return real::cuArray3DCreate_v2(pHandle, pAllocateArray); });
}

CUresult cuArray3DCreate(api::CUarray* pHandle, const api::CUDA_ARRAY3D_DESCRIPTOR_v1* pAllocateArray) {
  return make_array(bytes_3d(pAllocateArray, 1), pHandle,
                    [&] { return real::cuArray3DCreate(pHandle, pAllocateArray); });
}

CUresult cuArrayDestroy(api::CUarray hArray) {
  return runtime().memory.free(key(hArray), [&] { return real::cuArrayDestroy(hArray); });
}

CUresult cuMipmappedArrayCreate(api::CUmipmappedArray* pHandle, const api::CUDA_ARRAY3D_DESCRIPTOR* pMipmappedArrayDesc,
                                unsigned int numMipmapLevels) {
  return runtime().memory.allocate_native(
      bytes_3d(pMipmappedArrayDesc, numMipmapLevels), Kind::kArray,
      [&] { return real::cuMipmappedArrayCreate(pHandle, pMipmappedArrayDesc, numMipmapLevels); },
      [&] { return key(*pHandle); });
}

CUresult cuMipmappedArrayDestroy(api::CUmipmappedArray hMipmappedArray) {
  return runtime().memory.free(key(hMipmappedArray), [&] { return real::cuMipmappedArrayDestroy(hMipmappedArray); });
}

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
