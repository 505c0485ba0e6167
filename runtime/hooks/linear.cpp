// Plain, pitched and managed memory: allocation, free, and how much is free.
#include <algorithm>
#include <cstdint>

#include "generated/driver_real.h"
#include "runtime/core/runtime.h"
#include "runtime/hooks/overrides.h"

namespace rota::overrides {

using api::CUdeviceptr;
using api::CUresult;
using memory::Kind;

CUresult cuMemAlloc_v2(CUdeviceptr* dptr, std::size_t bytesize) {
  Runtime& parts = runtime();
  return parts.placed(parts.memory.allocate(dptr, bytesize, parts.contexts.captures() == 0));
}

// The forms of CUDA 3.1 and before carry 32-bit addresses, which managed memory does not have: counted, not converted.
CUresult cuMemAlloc(api::CUdeviceptr_v1* dptr, unsigned int bytesize) {
  return runtime().memory.allocate_native(
      bytesize, Kind::kPlain, [&] { return real::cuMemAlloc(dptr, bytesize); }, [&] { return *dptr; });
}

CUresult cuMemAllocPitch_v2(CUdeviceptr* dptr, std::size_t* pPitch, std::size_t WidthInBytes, std::size_t Height,
                            unsigned int ElementSizeBytes) {
  Runtime& parts = runtime();
  return parts.placed(parts.memory.allocate_pitch(dptr, pPitch, WidthInBytes, Height, ElementSizeBytes,
                                                  parts.contexts.captures() == 0));
}

CUresult cuMemAllocPitch(api::CUdeviceptr_v1* dptr, unsigned int* pPitch, unsigned int WidthInBytes,
                         unsigned int Height, unsigned int ElementSizeBytes) {
  return runtime().memory.allocate_pitch_native(
      WidthInBytes, Height, [&] { return real::cuMemAllocPitch(dptr, pPitch, WidthInBytes, Height, ElementSizeBytes); },
      [&] { return *dptr; }, [&] { return *pPitch; });
}

CUresult cuMemAllocManaged(CUdeviceptr* dptr, std::size_t bytesize, unsigned int flags) {
  return runtime().memory.allocate_native(
      bytesize, Kind::kManaged, [&] { return real::cuMemAllocManaged(dptr, bytesize, flags); }, [&] { return *dptr; });
}

CUresult cuMemFree_v2(CUdeviceptr dptr) {
  Runtime& parts = runtime();
  return parts.memory.free_waiting(dptr, parts.contexts.captures() != 0, [&] { return real::cuMemFree_v2(dptr); });
}

CUresult cuMemFree(api::CUdeviceptr_v1 dptr) {
  Runtime& parts = runtime();
  return parts.memory.free_waiting(dptr, parts.contexts.captures() != 0, [&] { return real::cuMemFree(dptr); });
}

CUresult cuMemGetInfo_v2(std::size_t* free, std::size_t* total) {
  return runtime().memory.info(free, total);
}

CUresult cuMemGetInfo(unsigned int* free, unsigned int* total) {
  const CUresult result = real::cuMemGetInfo(free, total);
  std::size_t wide_free = 0;
  std::size_t wide_total = 0;
  if (result != api::CUDA_SUCCESS || runtime().memory.info(&wide_free, &wide_total) != api::CUDA_SUCCESS) return result;
  // 32 bits cannot say more than this.
  if (free != nullptr) *free = static_cast<unsigned int>(std::min<std::size_t>(wide_free, UINT32_MAX));
  if (total != nullptr) *total = static_cast<unsigned int>(std::min<std::size_t>(wide_total, UINT32_MAX));
  return result;
}

}  // namespace rota::overrides
