// Stream-ordered memory: allocated from a pool and freed in the order of a stream; and the pools themselves. Room is
// reserved before the gate is entered: a refusal needs no lease.
#include <cstdint>
#include <optional>

#include "generated/driver_gates.h"
#include "generated/driver_real.h"
#include "runtime/core/runtime.h"
#include "runtime/hooks/overrides.h"

namespace rota::overrides {

using api::CUdeviceptr;
using api::CUmemoryPool;
using api::CUresult;
using api::CUstream;
using memory::Pools;

CUresult cuMemAllocAsync(CUdeviceptr* dptr, std::size_t bytesize, CUstream hStream) {
  return runtime().memory.allocate_async(
      bytesize, nullptr, hStream, false, [&] { return gates::cuMemAllocAsync(dptr, bytesize, hStream); },
      [&] { return *dptr; });
}

CUresult cuMemAllocAsync_ptsz(CUdeviceptr* dptr, std::size_t bytesize, CUstream hStream) {
  return runtime().memory.allocate_async(
      bytesize, nullptr, hStream, true, [&] { return gates::cuMemAllocAsync_ptsz(dptr, bytesize, hStream); },
      [&] { return *dptr; });
}

CUresult cuMemAllocFromPoolAsync(CUdeviceptr* dptr, std::size_t bytesize, CUmemoryPool pool, CUstream hStream) {
  const auto call = [&] { return gates::cuMemAllocFromPoolAsync(dptr, bytesize, pool, hStream); };
  if (pool == nullptr) return call();  // the driver says what is wrong
  return runtime().memory.allocate_async(bytesize, pool, hStream, false, call, [&] { return *dptr; });
}

CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr* dptr, std::size_t bytesize, CUmemoryPool pool, CUstream hStream) {
  const auto call = [&] { return gates::cuMemAllocFromPoolAsync_ptsz(dptr, bytesize, pool, hStream); };
  if (pool == nullptr) return call();
  return runtime().memory.allocate_async(bytesize, pool, hStream, true, call, [&] { return *dptr; });
}

CUresult cuMemFreeAsync(CUdeviceptr dptr, CUstream hStream) {
  return runtime().memory.free_async(dptr, hStream, false, [&] { return gates::cuMemFreeAsync(dptr, hStream); });
}

CUresult cuMemFreeAsync_ptsz(CUdeviceptr dptr, CUstream hStream) {
  return runtime().memory.free_async(dptr, hStream, true, [&] { return gates::cuMemFreeAsync_ptsz(dptr, hStream); });
}

// --- what each pool is

CUresult cuMemPoolCreate(CUmemoryPool* pool, const api::CUmemPoolProps* poolProps) {
  const CUresult result = real::cuMemPoolCreate(pool, poolProps);
  if (result == api::CUDA_SUCCESS) {
    runtime().memory.pools().made(*pool, Pools::described(poolProps->location, poolProps->allocType));
  }
  return result;
}

CUresult cuMemPoolDestroy(CUmemoryPool pool) {
  // Forgotten first: once the driver has it, the handle may be another thread's new pool.
  Pools& pools = runtime().memory.pools();
  const std::optional<Pools::Pool> known = pools.forget(pool);
  const CUresult result = real::cuMemPoolDestroy(pool);
  if (result != api::CUDA_SUCCESS && known) pools.made(pool, *known);
  return result;
}

CUresult cuMemGetDefaultMemPool(CUmemoryPool* pool_out, api::CUmemLocation* location, api::CUmemAllocationType type) {
  const CUresult result = real::cuMemGetDefaultMemPool(pool_out, location, type);
  if (result == api::CUDA_SUCCESS) runtime().memory.pools().made(*pool_out, Pools::described(*location, type));
  return result;
}

CUresult cuDeviceSetMemPool(api::CUdevice dev, CUmemoryPool pool) {
  runtime().memory.pools().chosen();
  return real::cuDeviceSetMemPool(dev, pool);
}

CUresult cuMemSetMemPool(api::CUmemLocation* location, api::CUmemAllocationType type, CUmemoryPool pool) {
  runtime().memory.pools().chosen();
  return real::cuMemSetMemPool(location, type, pool);
}

}  // namespace rota::overrides
