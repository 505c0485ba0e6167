// Batches of copies, and copies with their own attributes.
#include "tools/simgpu/driver/array/array.h"
#include "tools/simgpu/driver/copy/copies.h"
#include "tools/simgpu/driver/entry/mutations.h"

using namespace rota::sim;  // NOLINT: the exported functions are all in the global namespace

namespace {

bool valid(CUmemcpySrcAccessOrder order, unsigned flags) {
  bool known = order == CU_MEMCPY_SRC_ACCESS_ORDER_STREAM || order == CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL ||
               order == CU_MEMCPY_SRC_ACCESS_ORDER_ANY;
  return known && (flags & ~unsigned{CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE}) == 0;
}

SourceOrder order_of(CUmemcpySrcAccessOrder order) {
  switch (order) {
    case CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL:
      return mutated(Mutation::pageable_source_read_late) ? SourceOrder::kAny : SourceOrder::kDuringCall;
    case CU_MEMCPY_SRC_ACCESS_ORDER_ANY:
      return SourceOrder::kAny;
    default:
      return SourceOrder::kStream;
  }
}

// The stream of a batch: any except the legacy default stream.
CUresult batch_stream(CUstream handle, Form form, ContextPointer* context, StreamPointer* stream) {
  ROTA_SIM_CONTEXT_FOR(handle, current);
  ROTA_SIM_CHECK(driver().stream_of(handle, form, current, stream));
  if (*stream == current->legacy) return CUDA_ERROR_INVALID_VALUE;
  *context = std::move(current);
  return CUDA_SUCCESS;
}

struct Planned {
  CUDA_MEMCPY3D copy{};
  SourceOrder order = SourceOrder::kStream;
};

// Checks all copies before queuing any; *failed is the first invalid one.
CUresult queue_all(const ContextPointer& context, const StreamPointer& stream, const std::vector<Planned>& copies,
                   size_t* failed) {
  for (size_t index = 0; index < copies.size(); ++index) {
    Operation unused;
    CUresult result = make_copy(*context, copies[index].copy, &unused);
    if (result == CUDA_SUCCESS) continue;
    *failed = index;
    return result;
  }
  size_t count = mutated(Mutation::batch_copies_the_first_only) ? 1 : copies.size();
  for (size_t index = 0; index < count; ++index) {
    ROTA_SIM_CHECK(queue_copy(context, stream, copies[index].copy, copies[index].order));
  }
  return CUDA_SUCCESS;
}

struct PlainBatch {
  const CUdeviceptr* to = nullptr;
  const CUdeviceptr* from = nullptr;
  const size_t* sizes = nullptr;
  size_t count = 0;
  const CUmemcpyAttributes* attributes = nullptr;
  const size_t* first = nullptr;  // per attribute: the first copy that it applies to
  size_t attribute_count = 0;
};

CUresult copy_batch(const PlainBatch& batch, size_t* failed, CUstream handle, Form form) {
  ContextPointer context;
  StreamPointer stream;
  ROTA_SIM_CHECK(batch_stream(handle, form, &context, &stream));
  bool lists = batch.to != nullptr && batch.from != nullptr && batch.sizes != nullptr && batch.count != 0;
  bool attributes = batch.attributes != nullptr && batch.first != nullptr && batch.attribute_count != 0;
  if (!lists || !attributes || batch.attribute_count > batch.count || batch.first[0] != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  for (size_t index = 1; index < batch.attribute_count; ++index) {
    if (batch.first[index] <= batch.first[index - 1] || batch.first[index] >= batch.count) {
      return CUDA_ERROR_INVALID_VALUE;
    }
  }
  std::vector<Planned> copies;
  size_t which = 0;
  for (size_t index = 0; index < batch.count; ++index) {
    if (which + 1 < batch.attribute_count && batch.first[which + 1] == index) ++which;
    const CUmemcpyAttributes& said = batch.attributes[which];
    if (!valid(said.srcAccessOrder, said.flags) || batch.sizes[index] == 0) {
      *failed = index;
      return CUDA_ERROR_INVALID_VALUE;
    }
    copies.push_back({plain_copy(CU_MEMORYTYPE_UNIFIED, batch.to[index], CU_MEMORYTYPE_UNIFIED, batch.from[index],
                                 batch.sizes[index]),
                      order_of(said.srcAccessOrder)});
  }
  return queue_all(context, stream, copies, failed);
}

// Element size of an operand; 0 for a pointer, which uses the other side's (or 1); false: no such array.
bool element_of(const CUmemcpy3DOperand& operand, size_t* element) {
  *element = 0;
  if (operand.type == CU_MEMCPY_OPERAND_TYPE_POINTER) return true;
  auto array = driver().arrays.find(operand.op.array.array);
  if (array) *element = array->element;
  return array != nullptr;
}

struct OneSide {
  CUmemorytype type = CU_MEMORYTYPE_UNIFIED;
  CUdeviceptr pointer = 0;
  CUarray array = nullptr;
  size_t x = 0;
  size_t y = 0;
  size_t z = 0;
  size_t pitch = 0;
  size_t height = 0;
};

CUresult side_of(const CUmemcpy3DOperand& operand, const CUextent3D& extent, size_t element, OneSide* side) {
  if (operand.type == CU_MEMCPY_OPERAND_TYPE_ARRAY) {
    side->type = CU_MEMORYTYPE_ARRAY;
    side->array = operand.op.array.array;
    if (__builtin_mul_overflow(operand.op.array.offset.x, element, &side->x)) return CUDA_ERROR_INVALID_VALUE;
    side->y = operand.op.array.offset.y;
    side->z = operand.op.array.offset.z;
    return CUDA_SUCCESS;
  }
  const auto& pointer = operand.op.ptr;
  bool short_row = pointer.rowLength != 0 && pointer.rowLength < extent.width;
  bool short_layer = pointer.layerHeight != 0 && pointer.layerHeight < extent.height;
  if (short_row || short_layer || __builtin_mul_overflow(pointer.rowLength, element, &side->pitch)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  side->pointer = pointer.ptr;
  side->height = pointer.layerHeight;
  return CUDA_SUCCESS;
}

CUresult plan_operation(const CUDA_MEMCPY3D_BATCH_OP& operation, Planned* planned) {
  auto known = [](CUmemcpy3DOperandType type) {
    return type == CU_MEMCPY_OPERAND_TYPE_POINTER || type == CU_MEMCPY_OPERAND_TYPE_ARRAY;
  };
  const CUextent3D& extent = operation.extent;
  bool some = extent.width != 0 && extent.height != 0 && extent.depth != 0;
  if (!some || !known(operation.src.type) || !known(operation.dst.type) ||
      !valid(operation.srcAccessOrder, operation.flags)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  size_t from_element = 0;
  size_t to_element = 0;
  if (!element_of(operation.src, &from_element) || !element_of(operation.dst, &to_element)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (from_element != 0 && to_element != 0 && from_element != to_element) return CUDA_ERROR_INVALID_VALUE;
  size_t element = from_element != 0 ? from_element : to_element != 0 ? to_element : 1;
  OneSide from;
  OneSide to;
  ROTA_SIM_CHECK(side_of(operation.src, extent, element, &from));
  ROTA_SIM_CHECK(side_of(operation.dst, extent, element, &to));
  CUDA_MEMCPY3D& copy = planned->copy;
  if (__builtin_mul_overflow(extent.width, element, &copy.WidthInBytes)) return CUDA_ERROR_INVALID_VALUE;
  copy.Height = extent.height;
  copy.Depth = extent.depth;
  copy.srcMemoryType = from.type;
  copy.srcDevice = from.pointer;
  copy.srcArray = from.array;
  copy.srcXInBytes = from.x;
  copy.srcY = from.y;
  copy.srcZ = from.z;
  copy.srcPitch = from.pitch;
  copy.srcHeight = from.height;
  copy.dstMemoryType = to.type;
  copy.dstDevice = to.pointer;
  copy.dstArray = to.array;
  copy.dstXInBytes = to.x;
  copy.dstY = to.y;
  copy.dstZ = to.z;
  copy.dstPitch = to.pitch;
  copy.dstHeight = to.height;
  planned->order = order_of(operation.srcAccessOrder);
  return CUDA_SUCCESS;
}

CUresult copy_3d_batch(size_t count, const CUDA_MEMCPY3D_BATCH_OP* operations, unsigned long long flags, size_t* failed,
                       CUstream handle, Form form, bool any_stream = false) {
  ContextPointer context;
  StreamPointer stream;
  if (any_stream) {
    ROTA_SIM_CONTEXT_FOR(handle, current);
    ROTA_SIM_CHECK(driver().stream_of(handle, form, current, &stream));
    context = std::move(current);
  } else {
    ROTA_SIM_CHECK(batch_stream(handle, form, &context, &stream));
  }
  if (flags != 0 || count == 0 || operations == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::vector<Planned> copies;  // grows as copies pass the checks: the count may be any number
  for (size_t index = 0; index < count; ++index) {
    CUresult result = plan_operation(operations[index], &copies.emplace_back());
    if (result == CUDA_SUCCESS) continue;
    *failed = index;
    return result;
  }
  return queue_all(context, stream, copies, failed);
}

CUresult copy_with_attributes(CUdeviceptr to, CUdeviceptr from, size_t bytes, const CUmemcpyAttributes* attributes,
                              CUstream handle, Form form) {
  ROTA_SIM_CONTEXT_FOR(handle, context);
  StreamPointer stream;
  ROTA_SIM_CHECK(driver().stream_of(handle, form, context, &stream));
  if (attributes == nullptr || !valid(attributes->srcAccessOrder, attributes->flags)) return CUDA_ERROR_INVALID_VALUE;
  return queue_copy(context, stream, plain_copy(CU_MEMORYTYPE_UNIFIED, to, CU_MEMORYTYPE_UNIFIED, from, bytes),
                    order_of(attributes->srcAccessOrder));
}

// The first versions report which copy of a batch is invalid; SIZE_MAX means no single one, or success (measured on
// driver 580.159).
class FailIndex {
 public:
  explicit FailIndex(size_t* out) : out_(out) {}
  ~FailIndex() {
    if (out_ != nullptr) *out_ = index;
  }
  FailIndex(const FailIndex&) = delete;
  FailIndex& operator=(const FailIndex&) = delete;
  size_t index = SIZE_MAX;

 private:
  size_t* out_;
};

}  // namespace

#define FORMS(form, batch_name, batch_v2_name, boxes_name, boxes_v2_name, with_name, box_with_name)                  \
  ROTA_SIM_EXPORT(batch_name)                                                                                        \
  (CUdeviceptr * to, CUdeviceptr * from, size_t* sizes, size_t count, CUmemcpyAttributes* attributes, size_t* first, \
   size_t number, size_t* failed, CUstream stream) {                                                                 \
    FailIndex index(failed);                                                                                         \
    return copy_batch({to, from, sizes, count, attributes, first, number}, &index.index, stream, form);              \
  }                                                                                                                  \
  ROTA_SIM_EXPORT(batch_v2_name)                                                                                     \
  (CUdeviceptr * to, CUdeviceptr * from, size_t* sizes, size_t count, CUmemcpyAttributes* attributes, size_t* first, \
   size_t number, CUstream stream) {                                                                                 \
    FailIndex index(nullptr);                                                                                        \
    return copy_batch({to, from, sizes, count, attributes, first, number}, &index.index, stream, form);              \
  }                                                                                                                  \
  ROTA_SIM_EXPORT(boxes_name)                                                                                        \
  (size_t count, CUDA_MEMCPY3D_BATCH_OP* operations, size_t* failed, unsigned long long flags, CUstream stream) {    \
    FailIndex index(failed);                                                                                         \
    return copy_3d_batch(count, operations, flags, &index.index, stream, form);                                      \
  }                                                                                                                  \
  ROTA_SIM_EXPORT(boxes_v2_name)                                                                                     \
  (size_t count, CUDA_MEMCPY3D_BATCH_OP* operations, unsigned long long flags, CUstream stream) {                    \
    FailIndex index(nullptr);                                                                                        \
    return copy_3d_batch(count, operations, flags, &index.index, stream, form);                                      \
  }                                                                                                                  \
  ROTA_SIM_EXPORT(with_name)                                                                                         \
  (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUmemcpyAttributes* attributes, CUstream stream) {                \
    return copy_with_attributes(to, from, bytes, attributes, stream, form);                                          \
  }                                                                                                                  \
  ROTA_SIM_EXPORT(box_with_name)                                                                                     \
  (CUDA_MEMCPY3D_BATCH_OP * operation, unsigned long long flags, CUstream stream) {                                  \
    FailIndex index(nullptr);                                                                                        \
    return copy_3d_batch(1, operation, flags, &index.index, stream, form, true);                                     \
  }
FORMS(Form::kLegacy, cuMemcpyBatchAsync, cuMemcpyBatchAsync_v2, cuMemcpy3DBatchAsync, cuMemcpy3DBatchAsync_v2,
      cuMemcpyWithAttributesAsync, cuMemcpy3DWithAttributesAsync)
FORMS(Form::kPerThread, cuMemcpyBatchAsync_ptsz, cuMemcpyBatchAsync_v2_ptsz, cuMemcpy3DBatchAsync_ptsz,
      cuMemcpy3DBatchAsync_v2_ptsz, cuMemcpyWithAttributesAsync_ptsz, cuMemcpy3DWithAttributesAsync_ptsz)
#undef FORMS
