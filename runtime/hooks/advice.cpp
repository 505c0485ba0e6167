// Where the program itself wants its memory: advice and prefetches. The driver carries them out; rota records them and
// does not move what the program has placed elsewhere.
#include "generated/driver_gates.h"
#include "runtime/core/runtime.h"
#include "runtime/hooks/overrides.h"
#include "runtime/memory/unified.h"

namespace rota::overrides {

using api::CUdeviceptr;
using api::CUmemLocation;
using api::CUresult;
using api::CUstream;
using std::size_t;

namespace {

int device_of(const CUmemLocation& location) {
  return location.type == api::CU_MEM_LOCATION_TYPE_DEVICE ? location.id : memory::unified::kHost;
}

CUresult advised(CUresult result, CUdeviceptr address, size_t bytes, api::CUmem_advise advice, int device) {
  if (result != api::CUDA_SUCCESS) return result;
  memory::Memory& memory = runtime().memory;
  if (advice == api::CU_MEM_ADVISE_SET_PREFERRED_LOCATION) memory.placed(address, bytes, device);
  if (advice == api::CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION) memory.placed(address, bytes, std::nullopt);
  return result;
}

CUresult prefetched(CUresult result, CUdeviceptr address, size_t bytes, int device) {
  if (result == api::CUDA_SUCCESS) runtime().memory.placed(address, bytes, device);
  return result;
}

// Each location applies to the ranges from its index up to the next location's.
CUresult prefetched(CUresult result, const CUdeviceptr* addresses, const size_t* sizes, size_t count,
                    const CUmemLocation* locations, const size_t* first, size_t location_count) {
  if (result != api::CUDA_SUCCESS) return result;
  for (size_t which = 0; which < location_count; ++which) {
    const size_t end = which + 1 < location_count ? first[which + 1] : count;
    for (size_t range = first[which]; range < end && range < count; ++range) {
      runtime().memory.placed(addresses[range], sizes[range], device_of(locations[which]));
    }
  }
  return result;
}

}  // namespace

CUresult cuMemAdvise(CUdeviceptr devPtr, size_t count, api::CUmem_advise advice, api::CUdevice device) {
  return advised(gates::cuMemAdvise(devPtr, count, advice, device), devPtr, count, advice, device);
}

CUresult cuMemAdvise_v2(CUdeviceptr devPtr, size_t count, api::CUmem_advise advice, CUmemLocation location) {
  return advised(gates::cuMemAdvise_v2(devPtr, count, advice, location), devPtr, count, advice, device_of(location));
}

CUresult cuMemPrefetchAsync(CUdeviceptr devPtr, size_t count, api::CUdevice dstDevice, CUstream hStream) {
  return prefetched(gates::cuMemPrefetchAsync(devPtr, count, dstDevice, hStream), devPtr, count, dstDevice);
}

CUresult cuMemPrefetchAsync_ptsz(CUdeviceptr devPtr, size_t count, api::CUdevice dstDevice, CUstream hStream) {
  return prefetched(gates::cuMemPrefetchAsync_ptsz(devPtr, count, dstDevice, hStream), devPtr, count, dstDevice);
}

CUresult cuMemPrefetchAsync_v2(CUdeviceptr devPtr, size_t count, CUmemLocation location, unsigned int flags,
                               CUstream hStream) {
  return prefetched(gates::cuMemPrefetchAsync_v2(devPtr, count, location, flags, hStream), devPtr, count,
                    device_of(location));
}

CUresult cuMemPrefetchAsync_v2_ptsz(CUdeviceptr devPtr, size_t count, CUmemLocation location, unsigned int flags,
                                    CUstream hStream) {
  return prefetched(gates::cuMemPrefetchAsync_v2_ptsz(devPtr, count, location, flags, hStream), devPtr, count,
                    device_of(location));
}

CUresult cuMemPrefetchBatchAsync(CUdeviceptr* dptrs, size_t* sizes, size_t count, CUmemLocation* prefetchLocs,
                                 size_t* prefetchLocIdxs, size_t numPrefetchLocs, unsigned long long flags,
                                 CUstream hStream) {
  return prefetched(gates::cuMemPrefetchBatchAsync(dptrs, sizes, count, prefetchLocs, prefetchLocIdxs, numPrefetchLocs,
                                                   flags, hStream),
                    dptrs, sizes, count, prefetchLocs, prefetchLocIdxs, numPrefetchLocs);
}

CUresult cuMemPrefetchBatchAsync_ptsz(CUdeviceptr* dptrs, size_t* sizes, size_t count, CUmemLocation* prefetchLocs,
                                      size_t* prefetchLocIdxs, size_t numPrefetchLocs, unsigned long long flags,
                                      CUstream hStream) {
  return prefetched(gates::cuMemPrefetchBatchAsync_ptsz(dptrs, sizes, count, prefetchLocs, prefetchLocIdxs,
                                                        numPrefetchLocs, flags, hStream),
                    dptrs, sizes, count, prefetchLocs, prefetchLocIdxs, numPrefetchLocs);
}

CUresult cuMemDiscardAndPrefetchBatchAsync(CUdeviceptr* dptrs, size_t* sizes, size_t count, CUmemLocation* prefetchLocs,
                                           size_t* prefetchLocIdxs, size_t numPrefetchLocs, unsigned long long flags,
                                           CUstream hStream) {
  return prefetched(gates::cuMemDiscardAndPrefetchBatchAsync(dptrs, sizes, count, prefetchLocs, prefetchLocIdxs,
                                                             numPrefetchLocs, flags, hStream),
                    dptrs, sizes, count, prefetchLocs, prefetchLocIdxs, numPrefetchLocs);
}

CUresult cuMemDiscardAndPrefetchBatchAsync_ptsz(CUdeviceptr* dptrs, size_t* sizes, size_t count,
                                                CUmemLocation* prefetchLocs, size_t* prefetchLocIdxs,
                                                size_t numPrefetchLocs, unsigned long long flags, CUstream hStream) {
  return prefetched(gates::cuMemDiscardAndPrefetchBatchAsync_ptsz(dptrs, sizes, count, prefetchLocs, prefetchLocIdxs,
                                                                  numPrefetchLocs, flags, hStream),
                    dptrs, sizes, count, prefetchLocs, prefetchLocIdxs, numPrefetchLocs);
}

}  // namespace rota::overrides
