// Batches of copies, and copies with attributes of their own. Where the driver refuses a batch because rota has mapped
// memory in it for one GPU only, the copies are made one by one, in the forms that the driver then accepts
// (transfer.cpp, row_transfer.cpp): in an order that is stricter than a batch's.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

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

// Flags of CUmemcpyAttributes, or of one copy in rows.
template <typename Copy>
bool is_valid(const Copy& each) {
  return each.srcAccessOrder >= api::CU_MEMCPY_SRC_ACCESS_ORDER_STREAM &&
         each.srcAccessOrder <= api::CU_MEMCPY_SRC_ACCESS_ORDER_ANY &&
         (each.flags & ~unsigned{api::CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE}) == 0;
}

// Whether the program may change what is copied as soon as the call returns.
template <typename Copy>
bool is_read_during_call(const Copy& each) {
  return each.srcAccessOrder == api::CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL;
}

// Whether the driver may refuse the copy although its arguments are right.
bool is_of_others(const memory::Memory& memory, CUdeviceptr to, CUdeviceptr from, int current) {
  const auto lies_elsewhere = [&](CUdeviceptr address) {
    const int device = memory.device_of(address);
    return device >= 0 && device != current;
  };
  return (memory.swaps(to, 1) || memory.swaps(from, 1)) && (lies_elsewhere(to) || lies_elsewhere(from));
}

// `make` makes one copy of a batch after the other. `failed`: the one that is refused, or SIZE_MAX; may be null.
// `waits`: the program may change the sources once this returns.
template <typename Make>
CUresult made_in_order(std::size_t count, std::size_t* failed, bool waits, CUstream stream, const Make& make) {
  for (std::size_t index = 0; index < count; ++index) {
    const CUresult made = make(index);
    if (made == api::CUDA_SUCCESS) continue;
    if (failed != nullptr) *failed = index;
    return made;
  }
  if (failed != nullptr) *failed = SIZE_MAX;
  return waits ? real::cuStreamSynchronize(stream) : api::CUDA_SUCCESS;
}

// A batch that the driver answered with `result`. The driver accepts no batch in the legacy stream, and none is made
// for a capture.
CUresult one_by_one(CUresult result, const Batch& batch, std::size_t* failed, CUstream stream) {
  if (result != api::CUDA_ERROR_INVALID_VALUE || stream == nullptr || stream == driver::kLegacyStream) return result;
  const bool whole =
      batch.to != nullptr && batch.from != nullptr && batch.sizes != nullptr && batch.attributes != nullptr;
  if (!whole || driver::captures(stream, false)) return result;
  const CUmemcpyAttributes* const last = batch.attributes + batch.attribute_count;
  int current = -1;
  if (!std::all_of(batch.attributes, last, is_valid<CUmemcpyAttributes>) ||
      real::cuCtxGetDevice(&current) != api::CUDA_SUCCESS) {
    return result;
  }
  bool any = false;
  for (std::size_t index = 0; index < batch.count && !any; ++index) {
    any = is_of_others(runtime().memory, batch.to[index], batch.from[index], current);
  }
  if (!any) return result;
  const bool waits = std::any_of(batch.attributes, last, is_read_during_call<CUmemcpyAttributes>);
  return made_in_order(batch.count, failed, waits, stream, [&](std::size_t index) {
    return cuMemcpyAsync(batch.to[index], batch.from[index], batch.sizes[index], stream);
  });
}

// One copy that the driver has answered with `result`.
CUresult plainly(CUresult result, CUdeviceptr to, CUdeviceptr from, std::size_t bytes,
                 const CUmemcpyAttributes* attributes, CUstream stream) {
  if (result != api::CUDA_ERROR_INVALID_VALUE || attributes == nullptr || !is_valid(*attributes)) return result;
  int current = -1;
  if (real::cuCtxGetDevice(&current) != api::CUDA_SUCCESS || !is_of_others(runtime().memory, to, from, current)) {
    return result;
  }
  const CUresult made = cuMemcpyAsync(to, from, bytes, stream);
  const bool waits = made == api::CUDA_SUCCESS && is_read_during_call(*attributes) && !driver::captures(stream, false);
  return waits ? real::cuStreamSynchronize(stream) : made;
}

std::size_t bytes_of(api::CUarray_format format) {
  switch (format) {
    case api::CU_AD_FORMAT_UNSIGNED_INT8:
    case api::CU_AD_FORMAT_SIGNED_INT8:
      return 1;
    case api::CU_AD_FORMAT_UNSIGNED_INT16:
    case api::CU_AD_FORMAT_SIGNED_INT16:
    case api::CU_AD_FORMAT_HALF:
      return 2;
    case api::CU_AD_FORMAT_UNSIGNED_INT32:
    case api::CU_AD_FORMAT_SIGNED_INT32:
    case api::CU_AD_FORMAT_FLOAT:
      return 4;
    default:
      return 0;
  }
}

// The size of an element: a copy in rows counts in elements of its arrays, and between addresses in bytes. 0: an
// unknown format.
std::size_t element_of(const api::CUmemcpy3DOperand& side) {
  api::CUDA_ARRAY3D_DESCRIPTOR array{};
  if (side.type != api::CU_MEMCPY_OPERAND_TYPE_ARRAY) return 1;
  if (real::cuArray3DGetDescriptor_v2(&array, side.op.array.array) != api::CUDA_SUCCESS) return 0;
  return bytes_of(array.Format) * array.NumChannels;
}

// One side of a copy in the form that has no attributes.
struct Side {
  api::CUmemorytype type = api::CU_MEMORYTYPE_UNIFIED;
  CUdeviceptr device = 0;
  api::CUarray array = nullptr;
  std::size_t x = 0;
  std::size_t y = 0;
  std::size_t z = 0;
  std::size_t pitch = 0;
  std::size_t height = 0;
};

Side side_of(const api::CUmemcpy3DOperand& side, std::size_t element) {
  if (side.type != api::CU_MEMCPY_OPERAND_TYPE_ARRAY) {
    const auto& linear = side.op.ptr;
    return {.device = linear.ptr, .pitch = linear.rowLength * element, .height = linear.layerHeight};
  }
  const auto& [array, offset] = side.op.array;
  return {.type = api::CU_MEMORYTYPE_ARRAY, .array = array, .x = offset.x * element, .y = offset.y, .z = offset.z};
}

// The copy in the form that has no attributes; nothing: the attributes matter, or the format of its elements is
// unknown.
std::optional<api::CUDA_MEMCPY3D> as_plain(const api::CUDA_MEMCPY3D_BATCH_OP& copy) {
  if (copy.extent.width == 0 || copy.extent.height == 0 || copy.extent.depth == 0) return std::nullopt;
  const auto [least, element] = std::minmax({element_of(copy.src), element_of(copy.dst)});
  if (least == 0) return std::nullopt;
  const Side from = side_of(copy.src, element);
  const Side to = side_of(copy.dst, element);
  return api::CUDA_MEMCPY3D{.srcXInBytes = from.x,
                            .srcY = from.y,
                            .srcZ = from.z,
                            .srcLOD = 0,
                            .srcMemoryType = from.type,
                            .srcHost = nullptr,
                            .srcDevice = from.device,
                            .srcArray = from.array,
                            .reserved0 = nullptr,
                            .srcPitch = from.pitch,
                            .srcHeight = from.height,
                            .dstXInBytes = to.x,
                            .dstY = to.y,
                            .dstZ = to.z,
                            .dstLOD = 0,
                            .dstMemoryType = to.type,
                            .dstHost = nullptr,
                            .dstDevice = to.device,
                            .dstArray = to.array,
                            .reserved1 = nullptr,
                            .dstPitch = to.pitch,
                            .dstHeight = to.height,
                            .WidthInBytes = copy.extent.width * element,
                            .Height = copy.extent.height,
                            .Depth = copy.extent.depth};
}

// An address for is_of_others(): where the copy begins, or the array.
CUdeviceptr address_of(const api::CUmemcpy3DOperand& side) {
  return side.type == api::CU_MEMCPY_OPERAND_TYPE_ARRAY ? memory::address_of_handle(side.op.array.array)
                                                        : side.op.ptr.ptr;
}

// Copies in rows. A single one may be made in any stream; a batch as in one_by_one().
CUresult rows_one_by_one(CUresult result, const api::CUDA_MEMCPY3D_BATCH_OP* copies, std::size_t count,
                         unsigned long long flags, std::size_t* failed, CUstream stream, bool batch) {
  if (result != api::CUDA_ERROR_INVALID_VALUE || copies == nullptr || flags != 0) return result;
  const bool legacy = stream == nullptr || stream == driver::kLegacyStream;
  int current = -1;
  if ((batch && legacy) || driver::captures(stream, false) || real::cuCtxGetDevice(&current) != api::CUDA_SUCCESS) {
    return result;
  }
  bool any = false;
  std::vector<api::CUDA_MEMCPY3D> plain;
  for (const auto* each = copies; each != copies + count; ++each) {
    const auto one = is_valid(*each) ? as_plain(*each) : std::nullopt;
    if (!one) return result;
    plain.push_back(*one);
    any |= is_of_others(runtime().memory, address_of(each->dst), address_of(each->src), current);
  }
  if (!any) return result;
  const bool waits = std::any_of(copies, copies + count, is_read_during_call<api::CUDA_MEMCPY3D_BATCH_OP>);
  return made_in_order(count, failed, waits, stream,
                       [&](std::size_t index) { return cuMemcpy3DAsync_v2(&plain[index], stream); });
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

CUresult cuMemcpyWithAttributesAsync(CUdeviceptr dst, CUdeviceptr src, std::size_t size, CUmemcpyAttributes* attr,
                                     CUstream hStream) {
  return plainly(gates::cuMemcpyWithAttributesAsync(dst, src, size, attr, hStream), dst, src, size, attr, hStream);
}

CUresult cuMemcpyWithAttributesAsync_ptsz(CUdeviceptr dst, CUdeviceptr src, std::size_t size, CUmemcpyAttributes* attr,
                                          CUstream hStream) {
  return plainly(gates::cuMemcpyWithAttributesAsync_ptsz(dst, src, size, attr, hStream), dst, src, size, attr,
                 own_of_thread(hStream));
}

CUresult cuMemcpy3DBatchAsync(std::size_t numOps, api::CUDA_MEMCPY3D_BATCH_OP* opList, std::size_t* failIdx,
                              unsigned long long flags, CUstream hStream) {
  return rows_one_by_one(gates::cuMemcpy3DBatchAsync(numOps, opList, failIdx, flags, hStream), opList, numOps, flags,
                         failIdx, hStream, true);
}

CUresult cuMemcpy3DBatchAsync_ptsz(std::size_t numOps, api::CUDA_MEMCPY3D_BATCH_OP* opList, std::size_t* failIdx,
                                   unsigned long long flags, CUstream hStream) {
  return rows_one_by_one(gates::cuMemcpy3DBatchAsync_ptsz(numOps, opList, failIdx, flags, hStream), opList, numOps,
                         flags, failIdx, own_of_thread(hStream), true);
}

CUresult cuMemcpy3DBatchAsync_v2(std::size_t numOps, api::CUDA_MEMCPY3D_BATCH_OP* opList, unsigned long long flags,
                                 CUstream hStream) {
  return rows_one_by_one(gates::cuMemcpy3DBatchAsync_v2(numOps, opList, flags, hStream), opList, numOps, flags, nullptr,
                         hStream, true);
}

CUresult cuMemcpy3DBatchAsync_v2_ptsz(std::size_t numOps, api::CUDA_MEMCPY3D_BATCH_OP* opList, unsigned long long flags,
                                      CUstream hStream) {
  return rows_one_by_one(gates::cuMemcpy3DBatchAsync_v2_ptsz(numOps, opList, flags, hStream), opList, numOps, flags,
                         nullptr, own_of_thread(hStream), true);
}

CUresult cuMemcpy3DWithAttributesAsync(api::CUDA_MEMCPY3D_BATCH_OP* op, unsigned long long flags, CUstream hStream) {
  return rows_one_by_one(gates::cuMemcpy3DWithAttributesAsync(op, flags, hStream), op, 1, flags, nullptr, hStream,
                         false);
}

CUresult cuMemcpy3DWithAttributesAsync_ptsz(api::CUDA_MEMCPY3D_BATCH_OP* op, unsigned long long flags,
                                            CUstream hStream) {
  return rows_one_by_one(gates::cuMemcpy3DWithAttributesAsync_ptsz(op, flags, hStream), op, 1, flags, nullptr,
                         own_of_thread(hStream), false);
}

}  // namespace rota::overrides
