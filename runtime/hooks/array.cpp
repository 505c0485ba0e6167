// CUDA arrays, plain and mipmapped. They are not moved, and count against the limit.
#include <cstdint>

#include "generated/driver_real.h"
#include "runtime/core/runtime.h"
#include "runtime/hooks/overrides.h"
#include "runtime/memory/array_bytes.h"

namespace rota::overrides {

using api::CUresult;
using memory::Kind;

namespace {

template <typename Call>
CUresult make_array(std::uint64_t bytes, api::CUarray* handle, Call&& call) {
  return runtime().memory.allocate_native(bytes, Kind::kArray, call,
                                          [&] { return memory::address_of_handle(*handle); });
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
  return runtime().memory.free(memory::address_of_handle(hArray), [&] { return real::cuArrayDestroy(hArray); });
}

CUresult cuMipmappedArrayCreate(api::CUmipmappedArray* pHandle, const api::CUDA_ARRAY3D_DESCRIPTOR* pMipmappedArrayDesc,
                                unsigned int numMipmapLevels) {
  return runtime().memory.allocate_native(
      bytes_3d(pMipmappedArrayDesc, numMipmapLevels), Kind::kArray,
      [&] { return real::cuMipmappedArrayCreate(pHandle, pMipmappedArrayDesc, numMipmapLevels); },
      [&] { return memory::address_of_handle(*pHandle); });
}

CUresult cuMipmappedArrayDestroy(api::CUmipmappedArray hMipmappedArray) {
  return runtime().memory.free(memory::address_of_handle(hMipmappedArray),
                               [&] { return real::cuMipmappedArrayDestroy(hMipmappedArray); });
}

}  // namespace rota::overrides
