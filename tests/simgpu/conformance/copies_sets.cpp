// Sets of memory, and batches of copies.
#include "tests/simgpu/conformance/release.h"

namespace {

constexpr size_t kMiB = size_t{1} << 20;

CUmemcpyAttributes in_order(CUmemcpySrcAccessOrder order) {
  CUmemcpyAttributes attributes{};
  attributes.srcAccessOrder = order;
  return attributes;
}

CUmemcpy3DOperand pointer(CUdeviceptr address, size_t row, size_t height) {
  CUmemcpy3DOperand operand{};
  operand.type = CU_MEMCPY_OPERAND_TYPE_POINTER;
  operand.op.ptr.ptr = address;
  operand.op.ptr.rowLength = row;
  operand.op.ptr.layerHeight = height;
  return operand;
}

CUDA_MEMCPY3D_BATCH_OP operation(CUdeviceptr to, CUdeviceptr from, CUextent3D extent) {
  CUDA_MEMCPY3D_BATCH_OP copy{};
  copy.dst = pointer(to, 0, 0);
  copy.src = pointer(from, 0, 0);
  copy.extent = extent;
  copy.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
  return copy;
}

// Two allocations, filled with 1 and 2, and two more, filled with 0.
struct Four {
  Four() {
    for (unsigned index = 0; index < 2; ++index) {
      CHECK_OK(cu.cuMemsetD32_v2(from[index], index + 1, 256));
      CHECK_OK(cu.cuMemsetD32_v2(to[index], 0, 256));
    }
    CHECK_OK(cu.cuCtxSynchronize());
  }
  Buffer from[2] = {Buffer(1024), Buffer(1024)};
  Buffer to[2] = {Buffer(1024), Buffer(1024)};
  CUdeviceptr sources[2] = {from[0], from[1]};
  CUdeviceptr targets[2] = {to[0], to[1]};
  size_t sizes[2] = {1024, 1024};
};

}  // namespace

RULE(copies, sets_repeat_their_element, "set_takes_bytes",
     "cuMemsetD16 and cuMemsetD32 repeat all 16 or 32 bits of their value") {
  Session session;
  Buffer buffer(4096);
  CHECK_OK(cu.cuMemsetD32_v2(buffer, 0x12345678, 512));
  CHECK_OK(cu.cuMemsetD16_v2(buffer.address() + 2048, 0xabcd, 1024));
  std::vector<unsigned> words = buffer.read<unsigned>(1024);
  CHECK_EQ(words[511], 0x12345678);
  CHECK_EQ(words[1023], 0xabcdabcd);
}

RULE(copies, sets_end_where_they_should, "idle:cuMemsetD8_v2", "cuMemsetD8 sets as many bytes as asked for") {
  Session session;
  Buffer buffer(64);
  CHECK_OK(cu.cuMemsetD8_v2(buffer, 1, 64));
  CHECK_OK(cu.cuMemsetD8_v2(buffer, 9, 33));
  std::vector<unsigned char> bytes = buffer.read<unsigned char>(64);
  CHECK_EQ(+bytes[32], 9);
  CHECK_EQ(+bytes[33], 1);
}

RULE(copies, misaligned_sets_are_refused, "lenient:cuMemsetD32_v2",
     "cuMemsetD32 at an address that is no multiple of 4 answers CUDA_ERROR_INVALID_VALUE") {
  Session session;
  Buffer buffer(4096);
  CHECK_EQ(cu.cuMemsetD32_v2(buffer.address() + 2, 1, 4), CUDA_ERROR_INVALID_VALUE);
}

RULE(copies, misaligned_sets_of_16_bits_are_refused, "lenient:cuMemsetD16_v2",
     "cuMemsetD16 at an odd address answers CUDA_ERROR_INVALID_VALUE") {
  Session session;
  Buffer buffer(4096);
  CHECK_EQ(cu.cuMemsetD16_v2(buffer.address() + 1, 1, 4), CUDA_ERROR_INVALID_VALUE);
}

RULE(copies, sets_beyond_the_memory_are_refused, "lenient:cuMemsetD8_v2",
     "a set of more than the allocation holds answers CUDA_ERROR_INVALID_VALUE") {
  Session session;
  Buffer buffer(2 * kMiB);
  CHECK_EQ(cu.cuMemsetD8_v2(buffer, 1, 64 * kMiB), CUDA_ERROR_INVALID_VALUE);
}

RULE(copies, sets_of_rectangles, "set_ignores_pitch",
     "cuMemsetD2D32 sets each row a pitch after the one before, and nothing between rows") {
  Session session;
  Buffer buffer(512 * 4);
  CHECK_OK(cu.cuMemsetD8_v2(buffer, 0, 512 * 4));
  CHECK_OK(cu.cuMemsetD2D32_v2(buffer, 512, 77, 10, 4));
  std::vector<unsigned> words = buffer.read<unsigned>(512);
  CHECK_EQ(words[3 * 128 + 9], 77);
  CHECK_EQ(words[3 * 128 + 10], 0);
  CHECK_EQ(words[10], 0);
}

RULE(copies, sets_of_device_memory_do_not_wait, "set_waits", "cuMemsetD8 of device memory returns before it is done") {
  Session session;
  Buffer buffer(4096);
  CHECK_OK(cu.cuMemsetD8_v2(buffer, 1, 4096));
  CHECK_OK(cu.cuCtxSynchronize());
  Blocker blocker(nullptr);
  CHECK_OK(cu.cuMemsetD8_v2(buffer, 2, 4096));
  CHECK_EQ(cu.cuStreamQuery(nullptr), CUDA_ERROR_NOT_READY);
  blocker.release();
  CHECK_OK(cu.cuCtxSynchronize());
}

RULE(copies, sets_of_pinned_memory_wait, "set_of_host_memory_does_not_wait",
     "cuMemsetD8 of pinned host memory returns after it was done") {
  Session session;
  Pinned pinned(4096);
  Stream blocking(CU_STREAM_DEFAULT);
  Blocker blocker(blocking);
  std::thread releasing = release_soon(blocker);
  CHECK_OK(cu.cuMemsetD8_v2(pinned.address(), 3, 4096));
  unsigned char last = pinned.data<unsigned char>()[4095];
  releasing.join();
  CHECK_EQ(+last, 3);
}

RULE(copies, sets_of_pinned_memory_in_a_stream_do_not_wait, "set_waits",
     "cuMemsetD8Async returns before it is done, also for pinned host memory") {
  Session session;
  Pinned pinned(4096);
  Stream stream;
  CHECK_OK(cu.cuMemsetD8Async(pinned.address(), 1, 4096, stream));
  CHECK_OK(cu.cuStreamSynchronize(stream));
  Blocker blocker(stream);
  CHECK_OK(cu.cuMemsetD8Async(pinned.address(), 3, 4096, stream));
  CHECK_EQ(+pinned.data<unsigned char>()[0], 1);
  blocker.release();
  CHECK_OK(cu.cuStreamSynchronize(stream));
  CHECK_EQ(+pinned.data<unsigned char>()[0], 3);
}

RULE(copies, batches_copy_all, "batch_copies_the_first_only", "cuMemcpyBatchAsync does every copy of the batch") {
  Session session;
  Four four;
  Stream stream;
  CUmemcpyAttributes attributes = in_order(CU_MEMCPY_SRC_ACCESS_ORDER_STREAM);
  size_t start = 0;
  size_t failed = 0;
  CHECK_OK(cu.cuMemcpyBatchAsync(four.targets, four.sources, four.sizes, 2, &attributes, &start, 1, &failed, stream));
  CHECK_OK(cu.cuStreamSynchronize(stream));
  std::vector<unsigned> first = four.to[0].read<unsigned>(256);
  std::vector<unsigned> second = four.to[1].read<unsigned>(256);
  CHECK_EQ(first[255], 1);
  CHECK_EQ(second[255], 2);
}

RULE(copies, batches_that_succeed_name_no_copy, "idle:cuMemcpyBatchAsync",
     "the index of the failed copy is SIZE_MAX after a batch that succeeded") {
  Session session;
  Four four;
  Stream stream;
  CUmemcpyAttributes attributes = in_order(CU_MEMCPY_SRC_ACCESS_ORDER_STREAM);
  size_t start = 0;
  size_t failed = 5;
  CHECK_OK(cu.cuMemcpyBatchAsync(four.targets, four.sources, four.sizes, 2, &attributes, &start, 1, &failed, stream));
  CHECK_OK(cu.cuStreamSynchronize(stream));
  CHECK_EQ(failed, SIZE_MAX);
}

RULE(copies, batches_in_the_null_stream_are_refused, "lenient:cuMemcpyBatchAsync",
     "cuMemcpyBatchAsync in the legacy default stream is refused") {
  Session session;
  Four four;
  CUmemcpyAttributes attributes = in_order(CU_MEMCPY_SRC_ACCESS_ORDER_STREAM);
  size_t start = 0;
  size_t failed = 0;
  CHECK_NE(cu.cuMemcpyBatchAsync(four.targets, four.sources, four.sizes, 2, &attributes, &start, 1, &failed, nullptr),
           CUDA_SUCCESS);
}

RULE(copies, batches_need_attributes_for_every_copy, "lenient:cuMemcpyBatchAsync",
     "a batch whose first attributes are not for copy 0, or without any, answers CUDA_ERROR_INVALID_VALUE") {
  Session session;
  Four four;
  Stream stream;
  CUmemcpyAttributes attributes = in_order(CU_MEMCPY_SRC_ACCESS_ORDER_STREAM);
  size_t start = 1;
  size_t failed = 0;
  CHECK_EQ(cu.cuMemcpyBatchAsync(four.targets, four.sources, four.sizes, 2, &attributes, &start, 1, &failed, stream),
           CUDA_ERROR_INVALID_VALUE);
  start = 0;
  CHECK_EQ(cu.cuMemcpyBatchAsync(four.targets, four.sources, four.sizes, 2, &attributes, &start, 0, &failed, stream),
           CUDA_ERROR_INVALID_VALUE);
}

RULE(copies, batches_need_an_access_order, "lenient:cuMemcpyBatchAsync",
     "a batch whose attributes name no order of access answers CUDA_ERROR_INVALID_VALUE") {
  Session session;
  Four four;
  Stream stream;
  CUmemcpyAttributes attributes = in_order(CU_MEMCPY_SRC_ACCESS_ORDER_INVALID);
  size_t start = 0;
  size_t failed = 0;
  CHECK_EQ(cu.cuMemcpyBatchAsync(four.targets, four.sources, four.sizes, 2, &attributes, &start, 1, &failed, stream),
           CUDA_ERROR_INVALID_VALUE);
}

RULE(copies, batches_may_read_during_the_call, "pageable_source_read_late",
     "with DURING_API_CALL a pageable source was read when cuMemcpyBatchAsync returns") {
  Session session;
  Buffer buffer(1024);
  std::vector<unsigned> values(256, 6);
  Stream stream;
  CUmemcpyAttributes attributes = in_order(CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL);
  CUdeviceptr target = buffer;
  CUdeviceptr source = reinterpret_cast<CUdeviceptr>(values.data());
  size_t size = 1024;
  size_t start = 0;
  size_t failed = 0;
  Blocker blocker(stream);
  CHECK_OK(cu.cuMemcpyBatchAsync(&target, &source, &size, 1, &attributes, &start, 1, &failed, stream));
  values.assign(256, 0);
  blocker.release();
  CHECK_OK(cu.cuStreamSynchronize(stream));
  CHECK(buffer.read<unsigned>(256) == std::vector<unsigned>(256, 6));
}

RULE(copies, batches_of_boxes, "batch_copies_the_first_only", "cuMemcpy3DBatchAsync does every copy of the batch") {
  Session session;
  Four four;
  Stream stream;
  CUDA_MEMCPY3D_BATCH_OP operations[] = {operation(four.to[0], four.from[0], {64, 4, 4}),
                                         operation(four.to[1], four.from[1], {1024, 1, 1})};
  size_t failed = 0;
  CHECK_OK(cu.cuMemcpy3DBatchAsync(2, operations, &failed, 0, stream));
  CHECK_OK(cu.cuStreamSynchronize(stream));
  std::vector<unsigned> first = four.to[0].read<unsigned>(256);
  std::vector<unsigned> second = four.to[1].read<unsigned>(256);
  CHECK_EQ(first[255], 1);
  CHECK_EQ(second[255], 2);
}

RULE(copies, batches_of_empty_boxes_are_refused, "lenient:cuMemcpy3DBatchAsync",
     "cuMemcpy3DBatchAsync with an extent of 0 answers CUDA_ERROR_INVALID_VALUE") {
  Session session;
  Four four;
  Stream stream;
  CUDA_MEMCPY3D_BATCH_OP copy = operation(four.to[0], four.from[0], {64, 0, 4});
  size_t failed = 0;
  CHECK_EQ(cu.cuMemcpy3DBatchAsync(1, &copy, &failed, 0, stream), CUDA_ERROR_INVALID_VALUE);
}
