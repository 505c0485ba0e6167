// Rules of stream memory operations: waiting for values in memory, and writing them.
#include "tests/simgpu/conformance/work.h"

namespace {

constexpr unsigned kGreaterOrEqual = CU_STREAM_WAIT_VALUE_GEQ;

// A word of pinned memory, which a stream waits for or writes.
struct Cell : Pinned {
  Cell() : Pinned(64) {}
  template <class Value = unsigned>
  std::atomic_ref<Value> value() const {
    return std::atomic_ref<Value>(*data<Value>());
  }
};

CUstreamBatchMemOpParams write_of(CUdeviceptr address, unsigned value) {
  CUstreamBatchMemOpParams operation{};
  operation.writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
  operation.writeValue.address = address;
  operation.writeValue.value = value;
  return operation;
}

CUstreamBatchMemOpParams wait_of(CUdeviceptr address, unsigned value) {
  CUstreamBatchMemOpParams operation{};
  operation.waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
  operation.waitValue.address = address;
  operation.waitValue.value = value;
  operation.waitValue.flags = CU_STREAM_WAIT_VALUE_EQ;
  return operation;
}

// Whether the stream is held by what was put into it.
bool held(CUstream stream, const Later& later) {
  later.wait();
  CUresult result = cu.cuStreamQuery(stream);
  CHECK(result == CUDA_SUCCESS || result == CUDA_ERROR_NOT_READY);
  return result == CUDA_ERROR_NOT_READY;
}

}  // namespace

RULE(streams, values_are_written, "value_writes_are_lost",
     "cuStreamWriteValue32 writes its value to device memory in the order of the stream") {
  Session session;
  Buffer words(16);
  CHECK_OK(cu.cuMemsetD32_v2(words, 0, 4));
  CHECK_OK(cu.cuCtxSynchronize());
  Stream stream;
  CHECK_OK(cu.cuStreamWriteValue32_v2(stream, words, 1, 0));
  CHECK_OK(cu.cuStreamWriteValue32_v2(stream, words, 7, 0));
  CHECK_OK(cu.cuStreamSynchronize(stream));
  std::vector<unsigned> read = words.read<unsigned>(4);
  CHECK_EQ(read[0], 7U);
  CHECK_EQ(read[1], 0U);
}

RULE(streams, wide_values_are_written, "value_writes_are_lost",
     "cuStreamWriteValue64 writes eight bytes to device memory") {
  Session session;
  Buffer words(32);
  CHECK_OK(cu.cuMemsetD32_v2(words, 0, 8));
  CHECK_OK(cu.cuCtxSynchronize());
  Stream stream;
  CHECK_OK(cu.cuStreamWriteValue64_v2(stream, words.address() + 8, 0x1122334455667788ULL, 0));
  CHECK_OK(cu.cuStreamSynchronize(stream));
  std::vector<unsigned long> read = words.read<unsigned long>(4);
  CHECK_EQ(read[0], 0UL);
  CHECK_EQ(read[1], 0x1122334455667788UL);
  CHECK_EQ(read[2], 0UL);
}

RULE(streams, value_waits_hold_the_stream, "value_waits_are_ignored",
     "a stream that waits for a value goes on when the host writes it, and not before") {
  Session session;
  Later later(session);
  Cell cell;
  Stream stream;
  CHECK_OK(cu.cuStreamWaitValue32_v2(stream, cell.address(), 5, kGreaterOrEqual));
  CHECK(held(stream, later));
  cell.value() = 5;
  CHECK_OK(cu.cuStreamSynchronize(stream));
}

RULE(streams, value_waits_see_other_streams, "value_waits_are_ignored",
     "a stream that waits for a value in device memory goes on when another stream writes it") {
  Session session;
  Later later(session);
  Buffer words(16);
  CHECK_OK(cu.cuMemsetD32_v2(words, 0, 4));
  CHECK_OK(cu.cuCtxSynchronize());
  Stream waiting;
  Stream writing;
  CHECK_OK(cu.cuStreamWaitValue64_v2(waiting, words, 9, CU_STREAM_WAIT_VALUE_EQ));
  CHECK(held(waiting, later));
  CHECK_OK(cu.cuStreamWriteValue64_v2(writing, words, 9, 0));
  CHECK_OK(cu.cuStreamSynchronize(waiting));
}

RULE(streams, equal_is_not_greater, "value_waits_compare_for_order",
     "waiting for an equal value is not satisfied by a greater one") {
  Session session;
  Later later(session);
  Cell cell;
  cell.value() = 8;
  Stream stream;
  Stream writing;
  CHECK_OK(cu.cuStreamWaitValue32_v2(stream, cell.address(), 5, CU_STREAM_WAIT_VALUE_EQ));
  CHECK(held(stream, later));
  CHECK_OK(cu.cuStreamWriteValue32_v2(writing, cell.address(), 5, 0));
  CHECK_OK(cu.cuStreamSynchronize(stream));
}

RULE(streams, greater_values_satisfy, "value_waits_compare_for_equality",
     "waiting for a greater or equal value goes on with a greater one") {
  Session session;
  Cell cell;
  cell.value() = 8;
  Stream stream;
  CHECK_OK(cu.cuStreamWaitValue32_v2(stream, cell.address(), 5, kGreaterOrEqual));
  Event event;
  CHECK_OK(cu.cuEventRecord(event, stream));
  CHECK(ends(event));
}

RULE(streams, greater_is_cyclic, "value_waits_are_not_cyclic",
     "greater or equal is meant cyclically: 5 comes after 0xfffffff0") {
  Session session;
  Cell cell;
  cell.value() = 5;
  Stream stream;
  Event event;
  CHECK_OK(cu.cuStreamWaitValue32_v2(stream, cell.address(), 0xfffffff0U, kGreaterOrEqual));
  CHECK_OK(cu.cuEventRecord(event, stream));
  CHECK(ends(event));
}

RULE(streams, smaller_values_hold, "value_waits_are_ignored",
     "a value that comes before the one waited for, cyclically, holds the stream") {
  Session session;
  Later later(session);
  Cell cell;
  cell.value() = 0xfffffff0U;
  Stream stream;
  CHECK_OK(cu.cuStreamWaitValue32_v2(stream, cell.address(), 5, kGreaterOrEqual));
  CHECK(held(stream, later));
  cell.value() = 5;
  CHECK_OK(cu.cuStreamSynchronize(stream));
}

RULE(streams, and_waits_for_a_common_bit, "value_waits_compare_for_equality",
     "CU_STREAM_WAIT_VALUE_AND waits until the memory and the value have a bit in common") {
  Session session;
  Cell cell;
  cell.value() = 8;
  Stream stream;
  Event event;
  CHECK_OK(cu.cuStreamWaitValue32_v2(stream, cell.address(), 3, CU_STREAM_WAIT_VALUE_AND));
  CHECK_OK(cu.cuEventRecord(event, stream));
  CHECK_EQ(cu.cuEventQuery(event), CUDA_ERROR_NOT_READY);
  cell.value() = 2;
  CHECK(ends(event));
}

RULE(streams, nor_waits_for_a_bit_that_neither_has, "value_waits_compare_for_equality",
     "CU_STREAM_WAIT_VALUE_NOR waits until some bit is set neither in the memory nor in the value") {
  Session session;
  int able = 0;
  CHECK_OK(cu.cuDeviceGetAttribute(&able, CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR, session.device()));
  SKIP_UNLESS(able != 0, "needs CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR");
  Cell cell;
  cell.value() = 0xffffff00U;
  Stream stream;
  Event event;
  CHECK_OK(cu.cuStreamWaitValue32_v2(stream, cell.address(), 0xffU, CU_STREAM_WAIT_VALUE_NOR));
  CHECK_OK(cu.cuEventRecord(event, stream));
  CHECK_EQ(cu.cuEventQuery(event), CUDA_ERROR_NOT_READY);
  cell.value() = 0xfffffe00U;
  CHECK(ends(event));
}

RULE(streams, batches_keep_their_order, "idle:cuStreamBatchMemOp_v2",
     "the operations of a batch happen in their order, and hold what comes after them") {
  Session session;
  Later later(session);
  Cell first;
  Cell second;
  Stream stream;
  CUstreamBatchMemOpParams batch[] = {wait_of(first.address(), 1), write_of(second.address(), 2)};
  CHECK_OK(cu.cuStreamBatchMemOp_v2(stream, 2, batch, 0));
  CHECK(held(stream, later));
  CHECK_EQ(second.value().load(), 0U);
  first.value() = 1;
  CHECK_OK(cu.cuStreamSynchronize(stream));
  CHECK_EQ(second.value().load(), 2U);
}

RULE(streams, batches_are_short, "lenient:cuStreamBatchMemOp_v2", "a batch has fewer than 256 operations") {
  Session session;
  Cell cell;
  Stream stream;
  std::vector<CUstreamBatchMemOpParams> batch(256, write_of(cell.address(), 1));
  CHECK_EQ(cu.cuStreamBatchMemOp_v2(stream, 256, batch.data(), 0), CUDA_ERROR_INVALID_VALUE);
  CHECK_OK(cu.cuStreamBatchMemOp_v2(stream, 255, batch.data(), 0));
  CHECK_OK(cu.cuStreamSynchronize(stream));
}

RULE(streams, batches_have_no_flags, "lenient:cuStreamBatchMemOp_v2",
     "cuStreamBatchMemOp refuses flags: they are for the future") {
  Session session;
  Cell cell;
  Stream stream;
  CUstreamBatchMemOpParams batch = write_of(cell.address(), 1);
  CHECK_EQ(cu.cuStreamBatchMemOp_v2(stream, 1, &batch, 1), CUDA_ERROR_INVALID_VALUE);
}

RULE(streams, unknown_operations_are_refused, "lenient:cuStreamBatchMemOp_v2",
     "a batch with an operation that does not exist is refused with CUDA_ERROR_INVALID_VALUE") {
  Session session;
  Cell cell;
  Stream stream;
  CUstreamBatchMemOpParams batch = write_of(cell.address(), 1);
  batch.operation = static_cast<CUstreamBatchMemOpType>(77);
  CHECK_EQ(cu.cuStreamBatchMemOp_v2(stream, 1, &batch, 0), CUDA_ERROR_INVALID_VALUE);
}

RULE(streams, values_are_aligned, "memory_operations_take_any_alignment",
     "stream memory operations refuse an address that is not aligned to the value's size") {
  Session session;
  Buffer words(64);
  Stream stream;
  CHECK_EQ(cu.cuStreamWriteValue32_v2(stream, words.address() + 2, 1, 0), CUDA_ERROR_INVALID_VALUE);
  CHECK_EQ(cu.cuStreamWaitValue64_v2(stream, words.address() + 4, 0, kGreaterOrEqual), CUDA_ERROR_INVALID_VALUE);
}

RULE(streams, values_are_not_in_managed_memory, "memory_operations_take_managed_memory",
     "stream memory operations refuse managed memory") {
  Session session;
  CUdeviceptr managed = 0;
  CHECK_OK(cu.cuMemAllocManaged(&managed, 4096, CU_MEM_ATTACH_GLOBAL));
  Stream stream;
  CHECK_EQ(cu.cuStreamWriteValue32_v2(stream, managed, 1, 0), CUDA_ERROR_INVALID_VALUE);
  CHECK_EQ(cu.cuStreamWaitValue32_v2(stream, managed, 0, kGreaterOrEqual), CUDA_ERROR_INVALID_VALUE);
  CHECK_OK(cu.cuMemFree_v2(managed));
}

RULE(streams, values_need_memory, "lenient:cuStreamWriteValue32_v2",
     "cuStreamWriteValue32 refuses an address that is no memory") {
  Session session;
  Stream stream;
  CHECK_EQ(cu.cuStreamWriteValue32_v2(stream, 0, 1, 0), CUDA_ERROR_INVALID_VALUE);
}

RULE(streams, wait_flags_are_known_ones, "lenient:cuStreamWaitValue32_v2",
     "cuStreamWaitValue32 refuses flags that do not exist") {
  Session session;
  Cell cell;
  Stream stream;
  CHECK_EQ(cu.cuStreamWaitValue32_v2(stream, cell.address(), 0, 0x10), CUDA_ERROR_INVALID_VALUE);
}

RULE(streams, flushing_needs_a_platform, "lenient:cuStreamWaitValue32_v2",
     "a wait that flushes remote writes is refused where CU_DEVICE_ATTRIBUTE_CAN_FLUSH_REMOTE_WRITES is 0") {
  Session session;
  int able = 1;
  CHECK_OK(cu.cuDeviceGetAttribute(&able, CU_DEVICE_ATTRIBUTE_CAN_FLUSH_REMOTE_WRITES, session.device()));
  SKIP_UNLESS(able == 0, "the platform can flush remote writes");
  Cell cell;
  Stream stream;
  unsigned flags = CU_STREAM_WAIT_VALUE_GEQ | CU_STREAM_WAIT_VALUE_FLUSH;
  CHECK_EQ(cu.cuStreamWaitValue32_v2(stream, cell.address(), 0, flags), CUDA_ERROR_NOT_SUPPORTED);
}

RULE(streams, first_version_as_the_device_says, "refuse:cuStreamWriteValue32",
     "the first version of cuStreamWriteValue32 works if CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_MEM_OPS_V1 says so, and is "
     "not supported otherwise") {
  Session session;
  int able = 0;
  CHECK_OK(cu.cuDeviceGetAttribute(&able, CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_MEM_OPS_V1, session.device()));
  Cell cell;
  Stream stream;
  CHECK_EQ(cu.cuStreamWriteValue32(stream, cell.address(), 3, 0), able != 0 ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED);
  CHECK_OK(cu.cuStreamSynchronize(stream));
  CHECK_EQ(cell.value().load(), able != 0 ? 3U : 0U);
}
