// Overrides: plain, pitched, managed and stream-ordered memory, and every way to give it back.
#include <algorithm>
#include <cstdint>

#include "generated/driver_real.h"
#include "runtime/gate/scope.h"
#include "runtime/overrides.h"
#include "runtime/runtime.h"

namespace rota::overrides {

using api::CUdeviceptr;
using api::CUresult;
using api::CUstream;
using memory::Kind;

CUresult cuMemAlloc_v2(CUdeviceptr* dptr, std::size_t bytesize) {
  return runtime().memory.allocate(dptr, bytesize);
}

// The forms of CUDA 3.1 and before carry 32-bit addresses, which managed memory does not have: counted, not converted.
CUresult cuMemAlloc(api::CUdeviceptr_v1* dptr, unsigned int bytesize) {
  return runtime().memory.allocate_native(
      bytesize, Kind::kPlain, [&] { return real::cuMemAlloc(dptr, bytesize); }, [&] { return *dptr; });
}

CUresult cuMemAllocPitch_v2(CUdeviceptr* dptr, std::size_t* pPitch, std::size_t WidthInBytes, std::size_t Height,
                            unsigned int ElementSizeBytes) {
  return runtime().memory.allocate_pitch(dptr, pPitch, WidthInBytes, Height, ElementSizeBytes);
}

CUresult cuMemAllocPitch(api::CUdeviceptr_v1* dptr, unsigned int* pPitch, unsigned int WidthInBytes,
                         unsigned int Height, unsigned int ElementSizeBytes) {
  return runtime().memory.allocate_native(
      std::uint64_t{WidthInBytes} * Height, Kind::kPlain,
      [&] { return real::cuMemAllocPitch(dptr, pPitch, WidthInBytes, Height, ElementSizeBytes); },
      [&] { return *dptr; });
}

CUresult cuMemAllocManaged(CUdeviceptr* dptr, std::size_t bytesize, unsigned int flags) {
  return runtime().memory.allocate_native(
      bytesize, Kind::kManaged, [&] { return real::cuMemAllocManaged(dptr, bytesize, flags); }, [&] { return *dptr; });
}

CUresult cuMemFree_v2(CUdeviceptr dptr) {
  return runtime().memory.free(dptr, [&] { return real::cuMemFree_v2(dptr); });
}

CUresult cuMemFree(api::CUdeviceptr_v1 dptr) {
  return runtime().memory.free(dptr, [&] { return real::cuMemFree(dptr); });
}

namespace {

// Room is reserved before the gate is entered: a refusal needs no lease.
template <typename Call>
CUresult allocate_async(Symbol symbol, CUdeviceptr* dptr, std::size_t bytes, CUstream stream, bool per_thread,
                        Call&& call) {
  return runtime().memory.allocate_async(
      bytes, stream, per_thread,
      [&] {
        const gate::Scope scope({symbol, stream, true, per_thread});
        return call();
      },
      [&] { return *dptr; });
}

template <typename Call>
CUresult free_async(Symbol symbol, CUdeviceptr dptr, CUstream stream, bool per_thread, Call&& call) {
  const gate::Scope scope({symbol, stream, true, per_thread});
  return runtime().memory.free_async(dptr, stream, per_thread, call);
}

}  // namespace

CUresult cuMemAllocAsync(CUdeviceptr* dptr, std::size_t bytesize, CUstream hStream) {
  return allocate_async(Symbol::k_cuMemAllocAsync, dptr, bytesize, hStream, false,
                        [&] { return real::cuMemAllocAsync(dptr, bytesize, hStream); });
}

CUresult cuMemAllocAsync_ptsz(CUdeviceptr* dptr, std::size_t bytesize, CUstream hStream) {
  return allocate_async(Symbol::k_cuMemAllocAsync_ptsz, dptr, bytesize, hStream, true,
                        [&] { return real::cuMemAllocAsync_ptsz(dptr, bytesize, hStream); });
}

CUresult cuMemAllocFromPoolAsync(CUdeviceptr* dptr, std::size_t bytesize, api::CUmemoryPool pool, CUstream hStream) {
  return allocate_async(Symbol::k_cuMemAllocFromPoolAsync, dptr, bytesize, hStream, false,
                        [&] { return real::cuMemAllocFromPoolAsync(dptr, bytesize, pool, hStream); });
}

CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr* dptr, std::size_t bytesize, api::CUmemoryPool pool,
                                      CUstream hStream) {
  return allocate_async(Symbol::k_cuMemAllocFromPoolAsync_ptsz, dptr, bytesize, hStream, true,
                        [&] { return real::cuMemAllocFromPoolAsync_ptsz(dptr, bytesize, pool, hStream); });
}

CUresult cuMemFreeAsync(CUdeviceptr dptr, CUstream hStream) {
  return free_async(Symbol::k_cuMemFreeAsync, dptr, hStream, false,
                    [&] { return real::cuMemFreeAsync(dptr, hStream); });
}

CUresult cuMemFreeAsync_ptsz(CUdeviceptr dptr, CUstream hStream) {
  return free_async(Symbol::k_cuMemFreeAsync_ptsz, dptr, hStream, true,
                    [&] { return real::cuMemFreeAsync_ptsz(dptr, hStream); });
}

CUresult cuMemGetInfo_v2(std::size_t* free, std::size_t* total) {
  return runtime().memory.info(free, total);
}

CUresult cuMemGetInfo(unsigned int* free, unsigned int* total) {
  const CUresult result = real::cuMemGetInfo(free, total);
  std::size_t wide_free = 0;
  std::size_t wide_total = 0;
  if (result != api::CUDA_SUCCESS || free == nullptr || total == nullptr ||
      runtime().memory.info(&wide_free, &wide_total) != api::CUDA_SUCCESS) {
    return result;
  }
  // 32 bits cannot say more than this.
  *free = static_cast<unsigned int>(std::min<std::size_t>(wide_free, UINT32_MAX));
  *total = static_cast<unsigned int>(std::min<std::size_t>(wide_total, UINT32_MAX));
  return result;
}

CUresult cuIpcGetMemHandle(api::CUipcMemHandle* pHandle, CUdeviceptr dptr) {
  return runtime().memory.ipc_handle(pHandle, dptr);
}

}  // namespace rota::overrides
