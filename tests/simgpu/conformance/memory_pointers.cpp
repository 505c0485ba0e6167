// What pointers say about themselves.
#include "tests/simgpu/conformance/release.h"

namespace {

constexpr size_t kMiB = size_t{1} << 20;
char pageable[4096];

template <class T>
T attribute(CUpointer_attribute which, CUdeviceptr address, T before) {
  CHECK_OK(cu.cuPointerGetAttribute(&before, which, address));
  return before;
}

}  // namespace

RULE(memory, pointer_type_of_device_memory, "idle:cuPointerGetAttribute",
     "memory from cuMemAlloc is of type device, on the ordinal and in the context that it was allocated in") {
  Session session;
  Buffer buffer(kMiB);
  CHECK_EQ(attribute(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, buffer, 99U), CU_MEMORYTYPE_DEVICE);
  CHECK_EQ(attribute(CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, buffer, 99), session.device());
  CHECK_EQ(attribute<CUcontext>(CU_POINTER_ATTRIBUTE_CONTEXT, buffer, nullptr), session.context());
}

RULE(memory, pointer_type_of_pinned_memory, "idle:cuPointerGetAttribute",
     "memory from cuMemHostAlloc is of type host, and its host pointer is itself") {
  Session session;
  Pinned pinned(4096);
  auto address = reinterpret_cast<CUdeviceptr>(pinned.data());
  CHECK_EQ(attribute(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address, 99U), CU_MEMORYTYPE_HOST);
  CHECK_EQ(attribute<CUdeviceptr>(CU_POINTER_ATTRIBUTE_HOST_POINTER, address + 8, 0), address + 8);
}

RULE(memory, pointer_without_host_address, "lenient:cuPointerGetAttribute",
     "the host pointer of memory from cuMemAlloc is refused with CUDA_ERROR_INVALID_VALUE") {
  Session session;
  Buffer buffer(kMiB);
  CUdeviceptr host = 0;
  CHECK_EQ(cu.cuPointerGetAttribute(&host, CU_POINTER_ATTRIBUTE_HOST_POINTER, buffer), CUDA_ERROR_INVALID_VALUE);
}

RULE(memory, pointer_as_the_device_sees_it, "idle:cuPointerGetAttribute",
     "the device pointer of an address inside an allocation is that address") {
  Session session;
  Buffer buffer(kMiB);
  CHECK_EQ(attribute<CUdeviceptr>(CU_POINTER_ATTRIBUTE_DEVICE_POINTER, buffer.address() + 77, 0),
           buffer.address() + 77);
}

RULE(memory, pointer_that_is_none_is_refused, "lenient:cuPointerGetAttribute",
     "attributes of memory that CUDA does not know answer CUDA_ERROR_INVALID_VALUE") {
  Session session;
  auto address = reinterpret_cast<CUdeviceptr>(pageable);
  unsigned value = 0;
  CHECK_EQ(cu.cuPointerGetAttribute(&value, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address), CUDA_ERROR_INVALID_VALUE);
  CHECK_EQ(cu.cuPointerGetAttribute(&value, CU_POINTER_ATTRIBUTE_IS_MANAGED, address), CUDA_ERROR_INVALID_VALUE);
}

RULE(memory, pointer_after_free_is_none, "idle:cuMemFree_v2", "an address of freed memory has no attributes any more") {
  Session session;
  Buffer buffer(4 * kMiB);
  CUdeviceptr address = buffer.release();
  CHECK_OK(cu.cuMemFree_v2(address));
  unsigned type = 0;
  CHECK_EQ(cu.cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address), CUDA_ERROR_INVALID_VALUE);
}

RULE(memory, pointer_buffer_ids_are_never_used_again, "buffer_ids_are_addresses",
     "every allocation has a buffer id of its own, also when it takes a freed one's place") {
  Session session;
  Buffer first(2 * kMiB);
  auto before = attribute<unsigned long long>(CU_POINTER_ATTRIBUTE_BUFFER_ID, first, 0);
  CHECK_EQ(attribute<unsigned long long>(CU_POINTER_ATTRIBUTE_BUFFER_ID, first.address() + 4096, 0), before);
  CHECK_OK(cu.cuMemFree_v2(first.release()));
  Buffer second(2 * kMiB);
  CHECK_NE(attribute<unsigned long long>(CU_POINTER_ATTRIBUTE_BUFFER_ID, second, 0), before);
}

RULE(memory, pointer_range, "idle:cuPointerGetAttribute",
     "an address inside an allocation tells the allocation's start and size") {
  Session session;
  Buffer buffer(2 * kMiB);
  CHECK_EQ(attribute<CUdeviceptr>(CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, buffer.address() + 5000, 0), buffer.address());
  CHECK_EQ(attribute<size_t>(CU_POINTER_ATTRIBUTE_RANGE_SIZE, buffer.address() + 5000, 0), 2 * kMiB);
}

RULE(memory, pointer_flags_of_plain_memory, "idle:cuPointerGetAttribute",
     "memory from cuMemAlloc is mapped, not managed, and of no pool") {
  Session session;
  Buffer buffer(kMiB);
  // Some attributes are a byte wide, some four: only their lowest byte is looked at.
  CHECK_EQ(attribute(CU_POINTER_ATTRIBUTE_MAPPED, buffer, 0U) & 0xff, 1);
  CHECK_EQ(attribute(CU_POINTER_ATTRIBUTE_IS_MANAGED, buffer, 7U) & 0xff, 0);
  auto* none = reinterpret_cast<CUmemoryPool>(&buffer);
  CHECK(attribute(CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, buffer, none) == nullptr);
}

RULE(memory, pointer_attributes_of_nothing_are_null, "idle:cuPointerGetAttributes",
     "cuPointerGetAttributes of memory that CUDA does not know succeeds and gives no context and no type") {
  Session session;
  CUcontext context = session.context();
  unsigned type = 99;
  CUpointer_attribute which[] = {CU_POINTER_ATTRIBUTE_CONTEXT, CU_POINTER_ATTRIBUTE_MEMORY_TYPE};
  void* data[] = {&context, &type};
  CHECK_OK(cu.cuPointerGetAttributes(2, which, data, reinterpret_cast<CUdeviceptr>(pageable)));
  CHECK(context == nullptr);
  CHECK_EQ(type, 0);
}

RULE(memory, pointer_attributes_several_at_once, "idle:cuPointerGetAttributes",
     "cuPointerGetAttributes gives what cuPointerGetAttribute gives, and a null host pointer for device memory") {
  Session session;
  Buffer buffer(kMiB);
  unsigned type = 0;
  size_t size = 0;
  void* host = &buffer;
  CUpointer_attribute which[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_RANGE_SIZE,
                                 CU_POINTER_ATTRIBUTE_HOST_POINTER};
  void* data[] = {&type, &size, &host};
  CHECK_OK(cu.cuPointerGetAttributes(3, which, data, buffer));
  CHECK_EQ(type, CU_MEMORYTYPE_DEVICE);
  CHECK_EQ(size, kMiB);
  CHECK(host == nullptr);
}

RULE(memory, pointer_attributes_of_no_count_are_refused, "lenient:cuPointerGetAttributes",
     "cuPointerGetAttributes of 0 attributes answers CUDA_ERROR_INVALID_VALUE") {
  Session session;
  Buffer buffer(64);
  unsigned type = 0;
  CUpointer_attribute which = CU_POINTER_ATTRIBUTE_MEMORY_TYPE;
  void* data = &type;
  CHECK_EQ(cu.cuPointerGetAttributes(0, &which, &data, buffer), CUDA_ERROR_INVALID_VALUE);
}

RULE(memory, pointer_attributes_cannot_be_set_but_one, "lenient:cuPointerSetAttribute",
     "cuPointerSetAttribute of anything but SYNC_MEMOPS answers CUDA_ERROR_INVALID_VALUE") {
  Session session;
  Buffer buffer(kMiB);
  unsigned value = 1;
  CHECK_EQ(cu.cuPointerSetAttribute(&value, CU_POINTER_ATTRIBUTE_IS_MANAGED, buffer), CUDA_ERROR_INVALID_VALUE);
}

RULE(memory, pointer_sync_memops_reads_back, "idle:cuPointerSetAttribute",
     "SYNC_MEMOPS is off at first and reads as it was set") {
  Session session;
  Buffer buffer(kMiB);
  CHECK_EQ(attribute(CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, buffer, 0U) & 0xff, 0);
  unsigned on = 1;
  CHECK_OK(cu.cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, buffer));
  CHECK_EQ(attribute(CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, buffer, 0U) & 0xff, 1);
}

RULE(memory, pointer_sync_memops_is_on_for_managed_memory, "managed_memory_says_asynchronous",
     "SYNC_MEMOPS of memory from cuMemAllocManaged is on") {
  Session session;
  CUdeviceptr address = 0;
  CHECK_OK(cu.cuMemAllocManaged(&address, kMiB, CU_MEM_ATTACH_GLOBAL));
  CHECK_EQ(attribute(CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, address, 0U) & 0xff, 1);
  CHECK_OK(cu.cuMemFree_v2(address));
}

RULE(memory, pointer_sync_memops_makes_sets_wait, "synchronous_memory_does_not_wait",
     "cuMemsetD8 of memory with SYNC_MEMOPS returns after the set was done") {
  Session session;
  Buffer buffer(kMiB);
  unsigned on = 1;
  CHECK_OK(cu.cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, buffer));
  Stream blocking(CU_STREAM_DEFAULT);
  Blocker blocker(blocking);
  std::thread releasing = release_soon(blocker);
  CHECK_OK(cu.cuMemsetD8_v2(buffer, 1, kMiB));
  CUresult state = cu.cuStreamQuery(blocking);
  releasing.join();
  CHECK_EQ(state, CUDA_SUCCESS);
}
