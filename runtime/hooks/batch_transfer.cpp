// Batches of linear copies. Where the driver refuses one because rota has mapped memory of it for one GPU only, its
// copies are made one by one, in the form that this takes (transfer.cpp): in an order that is stricter than a batch's.
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "generated/driver_gates.h"
#include "generated/driver_real.h"
#include "runtime/core/runtime.h"
#include "runtime/driver/stream.h"
#include "runtime/hooks/overrides.h"
#include "runtime/hooks/transfer.h"

namespace rota::overrides {

using api::CUdeviceptr;
using api::CUmemcpyAttributes;
using api::CUresult;
using api::CUstream;

namespace {

struct Batch {
  const CUdeviceptr* to;
  const CUdeviceptr* from;
  const std::size_t* sizes;
  std::size_t count;
  const CUmemcpyAttributes* attributes;
  std::size_t attribute_count;
};

bool is_valid(const CUmemcpyAttributes& each) {
  return each.srcAccessOrder >= api::CU_MEMCPY_SRC_ACCESS_ORDER_STREAM &&
         each.srcAccessOrder <= api::CU_MEMCPY_SRC_ACCESS_ORDER_ANY;
}

// Whether the driver may refuse the copy although its arguments are right.
bool is_of_others(const memory::Memory& memory, CUdeviceptr to, CUdeviceptr from, int current) {
  const auto lies_elsewhere = [&](CUdeviceptr address) {
    const int device = memory.device_of(address);
    return device >= 0 && device != current;
  };
  return (memory.swaps(to, 1) || memory.swaps(from, 1)) && (lies_elsewhere(to) || lies_elsewhere(from));
}

// What the driver answered with `result`. It takes no batch in the legacy stream, and none is made for a capture.
// `failed`: the copy that is refused; may be null.
CUresult one_by_one(CUresult result, const Batch& batch, std::size_t* failed, CUstream stream) {
  if (result != api::CUDA_ERROR_INVALID_VALUE || stream == nullptr || stream == driver::kLegacyStream) return result;
  const bool whole =
      batch.to != nullptr && batch.from != nullptr && batch.sizes != nullptr && batch.attributes != nullptr;
  if (!whole || driver::captures(stream, false)) return result;
  const CUmemcpyAttributes* const last = batch.attributes + batch.attribute_count;
  int current = -1;
  if (!std::all_of(batch.attributes, last, is_valid) || real::cuCtxGetDevice(&current) != api::CUDA_SUCCESS) {
    return result;
  }
  bool any = false;
  for (std::size_t index = 0; index < batch.count && !any; ++index) {
    any = is_of_others(runtime().memory, batch.to[index], batch.from[index], current);
  }
  if (!any) return result;
  for (std::size_t index = 0; index < batch.count; ++index) {
    const CUresult made = cuMemcpyAsync(batch.to[index], batch.from[index], batch.sizes[index], stream);
    if (made == api::CUDA_SUCCESS) continue;
    if (failed != nullptr) *failed = index;
    return made;
  }
  if (failed != nullptr) *failed = SIZE_MAX;
  // The program may change these sources as soon as the call returns.
  const bool read_during_call = std::any_of(batch.attributes, last, [](const CUmemcpyAttributes& each) {
    return each.srcAccessOrder == api::CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL;
  });
  return read_during_call ? real::cuStreamSynchronize(stream) : api::CUDA_SUCCESS;
}

}  // namespace

CUresult cuMemcpyBatchAsync(CUdeviceptr* dsts, CUdeviceptr* srcs, std::size_t* sizes, std::size_t count,
                            CUmemcpyAttributes* attrs, std::size_t* attrsIdxs, std::size_t numAttrs,
                            std::size_t* failIdx, CUstream hStream) {
  return one_by_one(gates::cuMemcpyBatchAsync(dsts, srcs, sizes, count, attrs, attrsIdxs, numAttrs, failIdx, hStream),
                    {dsts, srcs, sizes, count, attrs, numAttrs}, failIdx, hStream);
}

CUresult cuMemcpyBatchAsync_ptsz(CUdeviceptr* dsts, CUdeviceptr* srcs, std::size_t* sizes, std::size_t count,
                                 CUmemcpyAttributes* attrs, std::size_t* attrsIdxs, std::size_t numAttrs,
                                 std::size_t* failIdx, CUstream hStream) {
  return one_by_one(
      gates::cuMemcpyBatchAsync_ptsz(dsts, srcs, sizes, count, attrs, attrsIdxs, numAttrs, failIdx, hStream),
      {dsts, srcs, sizes, count, attrs, numAttrs}, failIdx, own_of_thread(hStream));
}

CUresult cuMemcpyBatchAsync_v2(CUdeviceptr* dsts, CUdeviceptr* srcs, std::size_t* sizes, std::size_t count,
                               CUmemcpyAttributes* attrs, std::size_t* attrsIdxs, std::size_t numAttrs,
                               CUstream hStream) {
  return one_by_one(gates::cuMemcpyBatchAsync_v2(dsts, srcs, sizes, count, attrs, attrsIdxs, numAttrs, hStream),
                    {dsts, srcs, sizes, count, attrs, numAttrs}, nullptr, hStream);
}

CUresult cuMemcpyBatchAsync_v2_ptsz(CUdeviceptr* dsts, CUdeviceptr* srcs, std::size_t* sizes, std::size_t count,
                                    CUmemcpyAttributes* attrs, std::size_t* attrsIdxs, std::size_t numAttrs,
                                    CUstream hStream) {
  return one_by_one(gates::cuMemcpyBatchAsync_v2_ptsz(dsts, srcs, sizes, count, attrs, attrsIdxs, numAttrs, hStream),
                    {dsts, srcs, sizes, count, attrs, numAttrs}, nullptr, own_of_thread(hStream));
}

}  // namespace rota::overrides
