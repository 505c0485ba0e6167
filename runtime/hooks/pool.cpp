// Stream-ordered memory: allocated from a pool and freed in the order of a stream.
#include <cstdint>

#include "generated/driver_real.h"
#include "runtime/core/runtime.h"
#include "runtime/hooks/overrides.h"
#include "runtime/turn/scope.h"

namespace rota::overrides {

using api::CUdeviceptr;
using api::CUresult;
using api::CUstream;

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

}  // namespace rota::overrides
