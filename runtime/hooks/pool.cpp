// Stream-ordered memory: allocated from a pool and freed in the order of a stream; and the pools themselves. Memory is
// reserved before the gate is entered: a refusal needs no lease.
#include <cstdint>
#include <optional>

#include "generated/driver_gates.h"
#include "generated/driver_real.h"
#include "runtime/core/runtime.h"
#include "runtime/core/undo.h"
#include "runtime/hooks/overrides.h"

namespace rota::overrides {

using api::CUdeviceptr;
using api::CUmemoryPool;
using api::CUresult;
using api::CUstream;
using memory::Pools;

namespace {

CUresult allocate(CUdeviceptr* address, std::size_t bytes, CUmemoryPool pool, CUstream stream, bool per_thread,
                  const memory::Memory::RealCall& call) {
  Runtime& parts = runtime();
  return parts.placed(parts.memory.allocate_async({.address = address,
                                                   .bytes = bytes,
                                                   .pool = pool,
                                                   .stream = stream,
                                                   .per_thread = per_thread,
                                                   .capturing = parts.contexts.captures() != 0},
                                                  call));
}

}  // namespace

CUresult cuMemAllocAsync(CUdeviceptr* dptr, std::size_t bytesize, CUstream hStream) {
  return allocate(dptr, bytesize, nullptr, hStream, false,
                  [&] { return gates::cuMemAllocAsync(dptr, bytesize, hStream); });
}

CUresult cuMemAllocAsync_ptsz(CUdeviceptr* dptr, std::size_t bytesize, CUstream hStream) {
  return allocate(dptr, bytesize, nullptr, hStream, true,
                  [&] { return gates::cuMemAllocAsync_ptsz(dptr, bytesize, hStream); });
}

CUresult cuMemAllocFromPoolAsync(CUdeviceptr* dptr, std::size_t bytesize, CUmemoryPool pool, CUstream hStream) {
  const auto call = [&] { return gates::cuMemAllocFromPoolAsync(dptr, bytesize, pool, hStream); };
  if (pool == nullptr) return call();  // the driver reports the error
  return allocate(dptr, bytesize, pool, hStream, false, call);
}

CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr* dptr, std::size_t bytesize, CUmemoryPool pool, CUstream hStream) {
  const auto call = [&] { return gates::cuMemAllocFromPoolAsync_ptsz(dptr, bytesize, pool, hStream); };
  if (pool == nullptr) return call();
  return allocate(dptr, bytesize, pool, hStream, true, call);
}

CUresult cuMemFreeAsync(CUdeviceptr dptr, CUstream hStream) {
  Runtime& parts = runtime();
  const auto call = [&] { return gates::cuMemFreeAsync(dptr, hStream); };
  return parts.memory.free_async(dptr, hStream, false, call, parts.contexts.captures() != 0);
}

CUresult cuMemFreeAsync_ptsz(CUdeviceptr dptr, CUstream hStream) {
  Runtime& parts = runtime();
  const auto call = [&] { return gates::cuMemFreeAsync_ptsz(dptr, hStream); };
  return parts.memory.free_async(dptr, hStream, true, call, parts.contexts.captures() != 0);
}

// --- what each pool is

CUresult cuMemPoolCreate(CUmemoryPool* pool, const api::CUmemPoolProps* poolProps) {
  const CUresult result = real::cuMemPoolCreate(pool, poolProps);
  if (result == api::CUDA_SUCCESS) {
    runtime().memory.pool_made(*pool);
    runtime().memory.pools().made(*pool, Pools::described(*poolProps));
  }
  return result;
}

CUresult cuMemPoolDestroy(CUmemoryPool pool) {
  // Forgotten before the call: once the driver has destroyed the pool, the handle may be another thread's new pool.
  memory::Memory& memory = runtime().memory;
  const std::optional<Pools::Pool> known = memory.pools().forget(pool);
  const auto served = memory.serving(pool);
  Rollback stays([&] {
    if (known) memory.pools().made(pool, *known);
  });
  const CUresult result = real::cuMemPoolDestroy(pool);
  if (result != api::CUDA_SUCCESS) return result;
  stays.commit();
  memory.pool_destroyed(served);
  return result;
}

CUresult cuMemPoolGetAttribute(CUmemoryPool pool, api::CUmemPool_attribute attr, void* value) {
  const CUresult result = real::cuMemPoolGetAttribute(pool, attr, value);
  if (result == api::CUDA_SUCCESS) runtime().memory.add_pool_attribute(pool, attr, value);
  return result;
}

CUresult cuMemPoolSetAttribute(CUmemoryPool pool, api::CUmemPool_attribute attr, void* value) {
  const CUresult result = real::cuMemPoolSetAttribute(pool, attr, value);
  if (result == api::CUDA_SUCCESS) runtime().memory.pool_attribute_set(pool, attr);
  return result;
}

// Access of its GPU and others to the pool's memory, including what rota serves. The driver answers cuMemPoolGetAccess.
CUresult cuMemPoolSetAccess(CUmemoryPool pool, const api::CUmemAccessDesc* map, std::size_t count) {
  const CUresult result = gates::cuMemPoolSetAccess(pool, map, count);
  if (result != api::CUDA_SUCCESS) return result;
  runtime().memory.set_pool_access(pool, map, count);
  runtime().monitor.settle_reach();
  return result;
}

CUresult cuMemPoolTrimTo(CUmemoryPool pool, std::size_t minBytesToKeep) {
  const CUresult result = real::cuMemPoolTrimTo(pool, minBytesToKeep);
  if (result == api::CUDA_SUCCESS) runtime().memory.trim_pool(pool, minBytesToKeep);
  return result;
}

CUresult cuMemGetDefaultMemPool(CUmemoryPool* pool_out, api::CUmemLocation* location, api::CUmemAllocationType type) {
  const CUresult result = real::cuMemGetDefaultMemPool(pool_out, location, type);
  if (result == api::CUDA_SUCCESS) runtime().memory.pools().made(*pool_out, Pools::described(*location, type));
  return result;
}

// The current pool of a location belongs to that location, whoever created it.
CUresult cuMemGetMemPool(CUmemoryPool* pool, api::CUmemLocation* location, api::CUmemAllocationType type) {
  const CUresult result = real::cuMemGetMemPool(pool, location, type);
  if (result == api::CUDA_SUCCESS) runtime().memory.pools().named(*pool, Pools::described(*location, type));
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
