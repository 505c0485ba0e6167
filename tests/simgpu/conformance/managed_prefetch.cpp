// Prefetching and discarding managed memory, one range or many.
#include "tests/simgpu/conformance/managed.h"

namespace {

constexpr auto kLast = CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION;

}  // namespace

RULE(managed, prefetch_is_remembered, "prefetches_are_forgotten", "a range tells where it was prefetched to last") {
  Session session;
  Managed managed(4 * kMiB);
  Stream stream;
  CHECK_OK(cu.cuMemPrefetchAsync(managed, 4 * kMiB, session.device(), stream));
  CHECK_EQ(managed.attribute(kLast), session.device());
  CHECK_OK(cu.cuMemPrefetchAsync(managed, 4 * kMiB, CU_DEVICE_CPU, stream));
  CHECK_EQ(managed.attribute(kLast), CU_DEVICE_CPU);
  CHECK_OK(cu.cuStreamSynchronize(stream));
}

RULE(managed, prefetch_of_a_part, "range_attributes_look_at_the_start",
     "a range of which only a part was prefetched tells no last prefetch") {
  Session session;
  Managed managed(4 * kMiB);
  Stream stream;
  CHECK_OK(cu.cuMemPrefetchAsync(managed, 2 * kMiB, session.device(), stream));
  CHECK_EQ(range_attribute(managed, 2 * kMiB, kLast), session.device());
  CHECK_EQ(managed.attribute(kLast), CU_DEVICE_INVALID);
  CHECK_OK(cu.cuStreamSynchronize(stream));
}

RULE(managed, prefetch_by_location, "prefetches_are_forgotten", "the last prefetch reads as type and id") {
  Session session;
  Managed managed(2 * kMiB);
  Stream stream;
  CHECK_OK(
      cu.cuMemPrefetchAsync_v2(managed, 2 * kMiB, location(CU_MEM_LOCATION_TYPE_DEVICE, session.device()), 0, stream));
  CHECK_EQ(managed.attribute(CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_TYPE), CU_MEM_LOCATION_TYPE_DEVICE);
  CHECK_EQ(managed.attribute(CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_ID), session.device());
  CHECK_OK(cu.cuMemPrefetchAsync_v2(managed, 2 * kMiB, location(CU_MEM_LOCATION_TYPE_HOST, 0), 0, stream));
  CHECK_EQ(managed.attribute(CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_TYPE), CU_MEM_LOCATION_TYPE_HOST);
  CHECK_OK(cu.cuStreamSynchronize(stream));
}

RULE(managed, prefetch_runs_in_stream_order, "idle:cuMemPrefetchAsync",
     "a prefetch waits for the work before it in its stream") {
  Session session;
  Managed managed(2 * kMiB);
  Stream stream;
  Event event(CU_EVENT_DISABLE_TIMING);
  Stream other;
  CHECK_OK(cu.cuMemPrefetchAsync(managed, 2 * kMiB, session.device(), other));
  CHECK_OK(cu.cuStreamSynchronize(other));
  Blocker blocker(stream);
  CHECK_OK(cu.cuMemPrefetchAsync(managed, 2 * kMiB, CU_DEVICE_CPU, stream));
  CHECK_OK(cu.cuEventRecord(event, stream));
  CHECK_EQ(cu.cuEventQuery(event), CUDA_ERROR_NOT_READY);
  CHECK_EQ(managed.attribute(kLast), CU_DEVICE_CPU);
  blocker.release();
  CHECK_OK(cu.cuStreamSynchronize(stream));
}

RULE(managed, prefetch_needs_managed_memory, "lenient:cuMemPrefetchAsync",
     "a prefetch of memory from cuMemAlloc answers CUDA_ERROR_INVALID_VALUE") {
  Session session;
  Buffer buffer(2 * kMiB);
  CHECK_EQ(cu.cuMemPrefetchAsync(buffer, 2 * kMiB, session.device(), nullptr), CUDA_ERROR_INVALID_VALUE);
}

RULE(managed, prefetch_needs_a_device, "lenient:cuMemPrefetchAsync",
     "a prefetch to a device that does not exist answers CUDA_ERROR_INVALID_DEVICE") {
  Session session;
  Managed managed(2 * kMiB);
  CHECK_EQ(cu.cuMemPrefetchAsync(managed, 2 * kMiB, session.devices(), nullptr), CUDA_ERROR_INVALID_DEVICE);
}

RULE(managed, prefetch_of_nothing_is_refused, "lenient:cuMemPrefetchAsync",
     "a prefetch of 0 bytes answers CUDA_ERROR_INVALID_VALUE") {
  Session session;
  Managed managed(2 * kMiB);
  CHECK_EQ(cu.cuMemPrefetchAsync(managed, 0, session.device(), nullptr), CUDA_ERROR_INVALID_VALUE);
}

RULE(managed, prefetch_beyond_the_memory_is_refused, "lenient:cuMemPrefetchAsync",
     "a prefetch of more than the allocation answers CUDA_ERROR_INVALID_VALUE") {
  Session session;
  Managed managed(2 * kMiB);
  CHECK_EQ(cu.cuMemPrefetchAsync(managed, 64 * kMiB, session.device(), nullptr), CUDA_ERROR_INVALID_VALUE);
}

RULE(managed, prefetch_takes_no_flags, "lenient:cuMemPrefetchAsync_v2",
     "cuMemPrefetchAsync with flags answers CUDA_ERROR_INVALID_VALUE") {
  Session session;
  Managed managed(2 * kMiB);
  CHECK_EQ(cu.cuMemPrefetchAsync_v2(managed, 2 * kMiB, location(CU_MEM_LOCATION_TYPE_DEVICE, 0), 1, nullptr),
           CUDA_ERROR_INVALID_VALUE);
}

RULE(managed, prefetch_keeps_what_is_there, "prefetch_loses_the_contents",
     "prefetching to the device and back changes no byte") {
  Session session;
  Managed managed(4 * kMiB);
  Stream stream;
  for (size_t word = 0; word < kMiB; ++word) managed.words()[word] = static_cast<unsigned>(word * 3);
  CHECK_OK(cu.cuMemPrefetchAsync(managed, 4 * kMiB, session.device(), stream));
  CHECK_OK(cu.cuMemPrefetchAsync(managed, 4 * kMiB, CU_DEVICE_CPU, stream));
  CHECK_OK(cu.cuStreamSynchronize(stream));
  for (size_t word = 0; word < kMiB; ++word) CHECK_EQ(managed.words()[word], static_cast<unsigned>(word * 3));
}

RULE(managed, prefetch_batch_to_two_places, "idle:cuMemPrefetchBatchAsync",
     "a batch prefetches each range to the location of its part of the list") {
  Session session;
  Managed first(2 * kMiB);
  Managed second(2 * kMiB);
  Managed third(2 * kMiB);
  Stream stream;
  CUdeviceptr addresses[] = {first, second, third};
  size_t sizes[] = {2 * kMiB, 2 * kMiB, 2 * kMiB};
  CUmemLocation locations[] = {location(CU_MEM_LOCATION_TYPE_DEVICE, session.device()),
                               location(CU_MEM_LOCATION_TYPE_HOST, 0)};
  size_t starts[] = {0, 2};
  CHECK_OK(cu.cuMemPrefetchBatchAsync(addresses, sizes, 3, locations, starts, 2, 0, stream));
  CHECK_EQ(first.attribute(kLast), session.device());
  CHECK_EQ(second.attribute(kLast), session.device());
  CHECK_EQ(third.attribute(kLast), CU_DEVICE_CPU);
  CHECK_OK(cu.cuStreamSynchronize(stream));
}

RULE(managed, prefetch_batch_in_the_null_stream_is_refused, "lenient:cuMemPrefetchBatchAsync",
     "a batch of prefetches in the legacy default stream is refused") {
  Session session;
  Managed managed(2 * kMiB);
  CUdeviceptr address = managed;
  size_t size = 2 * kMiB;
  size_t start = 0;
  CUmemLocation to = location(CU_MEM_LOCATION_TYPE_DEVICE, session.device());
  CHECK_NE(cu.cuMemPrefetchBatchAsync(&address, &size, 1, &to, &start, 1, 0, nullptr), CUDA_SUCCESS);
}

RULE(managed, prefetch_batch_starts_at_the_first, "lenient:cuMemPrefetchBatchAsync",
     "a batch whose first location is not for range 0, or that has more locations than ranges, is refused") {
  Session session;
  Managed managed(2 * kMiB);
  Stream stream;
  CUdeviceptr addresses[] = {managed, managed.address() + kMiB};
  size_t sizes[] = {kMiB, kMiB};
  CUmemLocation to[3];
  for (CUmemLocation& each : to) each = location(CU_MEM_LOCATION_TYPE_DEVICE, session.device());
  size_t late[] = {1};
  CHECK_EQ(cu.cuMemPrefetchBatchAsync(addresses, sizes, 2, to, late, 1, 0, stream), CUDA_ERROR_INVALID_VALUE);
  size_t many[] = {0, 1, 2};
  CHECK_EQ(cu.cuMemPrefetchBatchAsync(addresses, sizes, 2, to, many, 3, 0, stream), CUDA_ERROR_INVALID_VALUE);
}

RULE(managed, discard_takes_no_flags, "lenient:cuMemDiscardBatchAsync",
     "a batch of discards with flags answers CUDA_ERROR_INVALID_VALUE") {
  Session session;
  Managed managed(2 * kMiB);
  Stream stream;
  CUdeviceptr address = managed;
  size_t size = 2 * kMiB;
  CHECK_EQ(cu.cuMemDiscardBatchAsync(&address, &size, 1, 1, stream), CUDA_ERROR_INVALID_VALUE);
}

RULE(managed, discarded_memory_can_be_written, "refuse:cuMemDiscardBatchAsync",
     "what is written into a discarded range is there") {
  Session session;
  Managed managed(2 * kMiB);
  Stream stream;
  managed.words()[0] = 1;
  CUdeviceptr address = managed;
  size_t size = 2 * kMiB;
  CHECK_OK(cu.cuMemDiscardBatchAsync(&address, &size, 1, 0, stream));
  CHECK_OK(cu.cuMemsetD32Async(managed, 7, 64, stream));
  CHECK_OK(cu.cuStreamSynchronize(stream));
  CHECK_EQ(managed.words()[63], 7);
}

RULE(managed, discard_and_prefetch_is_a_prefetch, "idle:cuMemDiscardAndPrefetchBatchAsync",
     "a range that was discarded and prefetched tells where to") {
  Session session;
  Managed managed(2 * kMiB);
  Stream stream;
  CUdeviceptr address = managed;
  size_t size = 2 * kMiB;
  size_t start = 0;
  CUmemLocation to = location(CU_MEM_LOCATION_TYPE_DEVICE, session.device());
  CHECK_OK(cu.cuMemDiscardAndPrefetchBatchAsync(&address, &size, 1, &to, &start, 1, 0, stream));
  CHECK_OK(cu.cuStreamSynchronize(stream));
  CHECK_EQ(managed.attribute(kLast), session.device());
}

RULE(managed, prefetch_to_another_gpu, "prefetches_are_forgotten",
     "memory that was allocated on one GPU can be prefetched to another, and a kernel there uses it") {
  Session session;
  SKIP_UNLESS(session.devices() >= 2, "needs two GPUs");
  Managed managed(4 * kMiB);
  Stream stream;
  CHECK_OK(cu.cuMemsetD32_v2(managed, 3, kMiB));
  CHECK_OK(cu.cuMemPrefetchAsync(managed, 4 * kMiB, 1, stream));
  CHECK_OK(cu.cuStreamSynchronize(stream));
  CHECK_EQ(managed.attribute(kLast), 1);
  Session other(1);
  CHECK_OK(launch(other.function("fill"), 1, 64, nullptr, managed.address(), 64UL, 4U));
  CHECK_OK(cu.cuCtxSynchronize());
  CHECK_EQ(managed.words()[63], 4);
  CHECK_EQ(managed.words()[64], 3);
}
