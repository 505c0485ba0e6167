// Memory pools: refused arguments, access, sharing with other processes, other kinds of memory.
#include <unistd.h>

#include "tests/simgpu/conformance/pools.h"

RULE(pools, maximum_size_is_kept, "lenient:cuMemAllocFromPoolAsync",
     "An allocation beyond a pool's maximum size answers CUDA_ERROR_OUT_OF_MEMORY") {
  Session session;
  Stream stream;
  CUmemPoolProps properties = device_pool_properties(session.device());
  properties.maxSize = 32 * kMiB;
  OwnPool pool(properties);
  CUdeviceptr address = 0;
  CHECK_EQ(cu.cuMemAllocFromPoolAsync(&address, 64 * kMiB, pool, stream), CUDA_ERROR_OUT_OF_MEMORY);
}

RULE(pools, too_much_is_out_of_memory, "lenient:cuMemAllocAsync",
     "cuMemAllocAsync of more than the device has answers CUDA_ERROR_OUT_OF_MEMORY") {
  Session session;
  Stream stream;
  size_t free = 0;
  size_t total = 0;
  CHECK_OK(cu.cuMemGetInfo_v2(&free, &total));
  CUdeviceptr address = 0;
  CHECK_EQ(cu.cuMemAllocAsync(&address, 2 * total, stream), CUDA_ERROR_OUT_OF_MEMORY);
}

RULE(pools, allocation_needs_a_place_for_the_pointer, "lenient:cuMemAllocAsync",
     "cuMemAllocAsync without a place for the pointer answers CUDA_ERROR_INVALID_VALUE") {
  Session session;
  Stream stream;
  CHECK_EQ(cu.cuMemAllocAsync(nullptr, kMiB, stream), CUDA_ERROR_INVALID_VALUE);
}

RULE(pools, allocation_needs_a_pool, "lenient:cuMemAllocFromPoolAsync",
     "cuMemAllocFromPoolAsync from no pool answers CUDA_ERROR_INVALID_VALUE") {
  Session session;
  Stream stream;
  CUdeviceptr address = 0;
  CHECK_EQ(cu.cuMemAllocFromPoolAsync(&address, kMiB, nullptr, stream), CUDA_ERROR_INVALID_VALUE);
}

RULE(pools, unknown_address_cannot_be_freed_in_order, "lenient:cuMemFreeAsync",
     "cuMemFreeAsync of an address that was never allocated answers CUDA_ERROR_INVALID_VALUE") {
  Session session;
  Stream stream;
  CHECK_EQ(cu.cuMemFreeAsync(4096, stream), CUDA_ERROR_INVALID_VALUE);
}

RULE(pools, managed_memory_cannot_be_freed_in_order, "lenient:cuMemFreeAsync",
     "cuMemFreeAsync of memory from cuMemAllocManaged answers CUDA_ERROR_NOT_SUPPORTED") {
  Session session;
  Stream stream;
  CUdeviceptr address = 0;
  CHECK_OK(cu.cuMemAllocManaged(&address, kMiB, CU_MEM_ATTACH_GLOBAL));
  CHECK_EQ(cu.cuMemFreeAsync(address, stream), CUDA_ERROR_NOT_SUPPORTED);
  CHECK_OK(cu.cuMemFree_v2(address));
}

RULE(pools, plain_memory_can_be_freed_in_order, "idle:cuMemFreeAsync",
     "cuMemFreeAsync takes memory from cuMemAlloc, which is gone once the stream is synchronised") {
  Session session;
  Stream stream;
  CUdeviceptr address = 0;
  CHECK_OK(cu.cuMemAlloc_v2(&address, kMiB));
  CHECK_OK(cu.cuMemFreeAsync(address, stream));
  CHECK_OK(cu.cuStreamSynchronize(stream));
  CHECK_EQ(cu.cuMemFree_v2(address), CUDA_ERROR_INVALID_VALUE);
}

RULE(pools, pool_memory_can_be_freed_at_once, "idle:cuMemFree_v2",
     "cuMemFree takes memory that was allocated in stream order, once") {
  Session session;
  Stream stream;
  OwnPool pool(session);
  CUdeviceptr address = allocate_from(pool, kMiB, stream);
  CHECK_OK(cu.cuStreamSynchronize(stream));
  CHECK_OK(cu.cuMemFree_v2(address));
  CHECK_EQ(cu.cuMemFree_v2(address), CUDA_ERROR_INVALID_VALUE);
}

RULE(pools, own_device_may_read_and_write, "idle:cuMemPoolGetAccess",
     "A pool's memory can be read and written by the device that it lies on") {
  Session session;
  OwnPool pool(session);
  CUmemLocation location{};
  location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  location.id = session.device();
  CUmemAccess_flags flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;
  CHECK_OK(cu.cuMemPoolGetAccess(&flags, pool, &location));
  CHECK_EQ(flags, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
}

RULE(pools, own_device_keeps_its_access, "lenient:cuMemPoolSetAccess",
     "Taking a device's access to its own pool away is refused") {
  Session session;
  OwnPool pool(session);
  CUmemAccessDesc wanted{};
  wanted.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  wanted.location.id = session.device();
  wanted.flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;
  CHECK_NE(cu.cuMemPoolSetAccess(pool, &wanted, 1), CUDA_SUCCESS);
}

RULE(pools, other_devices_have_no_access_at_first, "idle:cuMemPoolSetAccess",
     "Another device has no access to a pool until cuMemPoolSetAccess gives it") {
  Session session;
  SKIP_UNLESS(session.devices() >= 2, "needs two GPUs");
  OwnPool pool(session);
  CUmemAccessDesc wanted{};
  wanted.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  wanted.location.id = 1;
  wanted.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  CUmemAccess_flags flags = CU_MEM_ACCESS_FLAGS_PROT_MAX;
  CHECK_OK(cu.cuMemPoolGetAccess(&flags, pool, &wanted.location));
  CHECK_EQ(flags, CU_MEM_ACCESS_FLAGS_PROT_NONE);
  CHECK_OK(cu.cuMemPoolSetAccess(pool, &wanted, 1));
  CHECK_OK(cu.cuMemPoolGetAccess(&flags, pool, &wanted.location));
  CHECK_EQ(flags, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
}

RULE(pools, memory_outlives_its_pool, "refuse:cuMemPoolDestroy",
     "Memory of a destroyed pool can be used and freed as before") {
  Session session;
  Stream stream;
  OwnPool pool(session);
  CUdeviceptr address = allocate_from(pool, kMiB, stream);
  CHECK_OK(cu.cuMemPoolDestroy(pool.release()));
  CHECK_OK(cu.cuMemsetD32Async(address, 9, kMiB / 4, stream));
  unsigned word = 0;
  CHECK_OK(cu.cuMemcpyDtoHAsync_v2(&word, address, sizeof word, stream));
  CHECK_OK(cu.cuMemFreeAsync(address, stream));
  CHECK_OK(cu.cuStreamSynchronize(stream));
  CHECK_EQ(word, 9U);
}

RULE(pools, creating_needs_a_known_place, "lenient:cuMemPoolCreate",
     "cuMemPoolCreate for a place of no type answers CUDA_ERROR_INVALID_VALUE") {
  Session session;
  CUmemPoolProps properties = device_pool_properties(session.device());
  properties.location.type = CU_MEM_LOCATION_TYPE_INVALID;
  CUmemoryPool pool = nullptr;
  CHECK_EQ(cu.cuMemPoolCreate(&pool, &properties), CUDA_ERROR_INVALID_VALUE);
}

RULE(pools, creating_needs_a_known_device, "lenient:cuMemPoolCreate",
     "cuMemPoolCreate for a device that does not exist is refused") {
  Session session;
  CUmemPoolProps properties = device_pool_properties(1000);
  CUmemoryPool pool = nullptr;
  CHECK_NE(cu.cuMemPoolCreate(&pool, &properties), CUDA_SUCCESS);
}

RULE(pools, creating_needs_an_allocation_type, "lenient:cuMemPoolCreate",
     "cuMemPoolCreate without an allocation type answers CUDA_ERROR_INVALID_VALUE") {
  Session session;
  CUmemPoolProps properties = device_pool_properties(session.device());
  properties.allocType = CU_MEM_ALLOCATION_TYPE_INVALID;
  CUmemoryPool pool = nullptr;
  CHECK_EQ(cu.cuMemPoolCreate(&pool, &properties), CUDA_ERROR_INVALID_VALUE);
}

RULE(pools, managed_pool_gives_managed_memory, "managed_pools_give_plain_memory",
     "Memory from a pool of managed memory is managed, and the host can use it") {
  Session session;
  int concurrent = 0;
  CHECK_OK(cu.cuDeviceGetAttribute(&concurrent, CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, session.device()));
  SKIP_UNLESS(concurrent != 0, "needs concurrent managed access");
  Stream stream;
  CUmemPoolProps properties = device_pool_properties(session.device());
  properties.allocType = CU_MEM_ALLOCATION_TYPE_MANAGED;
  OwnPool pool(properties);
  CUdeviceptr address = allocate_from(pool, kMiB, stream);
  CHECK_OK(cu.cuMemsetD32Async(address, 3, kMiB / 4, stream));
  CHECK_OK(cu.cuStreamSynchronize(stream));
  unsigned managed = 0;
  CHECK_OK(cu.cuPointerGetAttribute(&managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, address));
  CHECK_EQ(managed, 1U);
  CHECK_EQ(*reinterpret_cast<unsigned*>(address), 3U);
  CHECK_OK(cu.cuMemFreeAsync(address, stream));
  CHECK_OK(cu.cuStreamSynchronize(stream));
}

RULE(pools, managed_pool_has_no_maximum, "lenient:cuMemPoolCreate",
     "cuMemPoolCreate of a managed pool with a maximum size answers CUDA_ERROR_INVALID_VALUE") {
  Session session;
  CUmemPoolProps properties = device_pool_properties(session.device());
  properties.allocType = CU_MEM_ALLOCATION_TYPE_MANAGED;
  properties.maxSize = 32 * kMiB;
  CUmemoryPool pool = nullptr;
  CHECK_EQ(cu.cuMemPoolCreate(&pool, &properties), CUDA_ERROR_INVALID_VALUE);
}

RULE(pools, default_pool_by_place_is_the_devices, "idle:cuMemGetDefaultMemPool",
     "cuMemGetDefaultMemPool for pinned memory of a device answers the device's default pool") {
  Session session;
  SKIP_UNLESS(exported("cuMemGetDefaultMemPool"), "came with CUDA 13.0");
  CUmemLocation location{};
  location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  location.id = session.device();
  CUmemoryPool by_place = nullptr;
  CUmemoryPool standard = nullptr;
  CHECK_OK(cu.cuMemGetDefaultMemPool(&by_place, &location, CU_MEM_ALLOCATION_TYPE_PINNED));
  CHECK_OK(cu.cuDeviceGetDefaultMemPool(&standard, session.device()));
  CHECK_EQ(by_place, standard);
}

RULE(pools, pool_set_by_place_is_the_devices, "idle:cuMemSetMemPool",
     "cuMemSetMemPool for pinned memory of a device does what cuDeviceSetMemPool does") {
  Session session;
  SKIP_UNLESS(exported("cuMemSetMemPool"), "came with CUDA 13.0");
  OwnPool pool(session);
  CUmemLocation location{};
  location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  location.id = session.device();
  CHECK_OK(cu.cuMemSetMemPool(&location, CU_MEM_ALLOCATION_TYPE_PINNED, pool));
  CUmemoryPool current = nullptr;
  CHECK_OK(cu.cuDeviceGetMemPool(&current, session.device()));
  CHECK_EQ(current, static_cast<CUmemoryPool>(pool));
}

RULE(pools, pool_of_another_type_cannot_be_set, "lenient:cuMemSetMemPool",
     "cuMemSetMemPool with a pool of another allocation type answers CUDA_ERROR_INVALID_VALUE") {
  Session session;
  SKIP_UNLESS(exported("cuMemSetMemPool"), "came with CUDA 13.0");
  OwnPool pool(session);
  CUmemLocation location{};
  location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  location.id = session.device();
  CHECK_EQ(cu.cuMemSetMemPool(&location, CU_MEM_ALLOCATION_TYPE_MANAGED, pool), CUDA_ERROR_INVALID_VALUE);
}

RULE(pools, pool_without_handles_cannot_be_exported, "lenient:cuMemPoolExportToShareableHandle",
     "A pool that was not made for it cannot be exported: CUDA_ERROR_INVALID_VALUE") {
  Session session;
  OwnPool pool(session);
  int file = -1;
  CHECK_EQ(cu.cuMemPoolExportToShareableHandle(&file, pool, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
           CUDA_ERROR_INVALID_VALUE);
}

CHILD(pools_importer) {
  Session session;
  int file = parent.receive_file();
  CUmemoryPool pool = nullptr;
  CHECK_OK(cu.cuMemPoolImportFromShareableHandle(&pool, reinterpret_cast<void*>(static_cast<intptr_t>(file)),
                                                 CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  ::close(file);
  if (argument == "allocate") {
    CUdeviceptr own = 0;
    parent.send_value(cu.cuMemAllocFromPoolAsync(&own, kMiB, pool, nullptr));
    return;
  }
  auto shared = parent.receive_value<CUmemPoolPtrExportData>();
  CUdeviceptr address = 0;
  CHECK_OK(cu.cuMemPoolImportPointer(&address, pool, &shared));
  unsigned word = 0;
  CHECK_OK(cu.cuMemcpyDtoH_v2(&word, address, sizeof word));
  parent.send_value(word);
  CHECK_OK(cu.cuMemsetD32_v2(address, word + 1, 16));
  CHECK_OK(cu.cuCtxSynchronize());
  CHECK_OK(cu.cuMemFree_v2(address));
  parent.send("done");
}

namespace {

CUmemPoolProps shared_pool_properties(const Session& session) {
  int types = 0;
  CHECK_OK(cu.cuDeviceGetAttribute(&types, CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES, session.device()));
  SKIP_UNLESS((types & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) != 0, "needs pools that can be exported as files");
  CUmemPoolProps properties = device_pool_properties(session.device());
  properties.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  return properties;
}

int export_pool(CUmemoryPool pool) {
  int file = -1;
  CHECK_OK(cu.cuMemPoolExportToShareableHandle(&file, pool, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  return file;
}

}  // namespace

RULE(pools, memory_outlives_its_context, "pool_memory_goes_with_the_context",
     "What a pool gave is there after the context that it was allocated in was destroyed, and can be freed") {
  Session session;
  CUcontext context = nullptr;
  CUdeviceptr address = 0;
  unsigned word = 0;
  CHECK_OK(cu.cuCtxCreate_v2(&context, 0, session.device()));
  {
    Stream stream;
    CHECK_OK(cu.cuMemAllocAsync(&address, 4096, stream));
    CHECK_OK(cu.cuStreamSynchronize(stream));
  }
  CHECK_OK(cu.cuCtxDestroy_v2(context));
  CHECK_OK(cu.cuMemsetD32_v2(address, 5, 1));
  CHECK_OK(cu.cuMemcpyDtoH_v2(&word, address, sizeof word));
  CHECK_EQ(word, 5);
  CHECK_OK(cu.cuMemFree_v2(address));
}

RULE(pools, refused_frees_leave_the_memory, "refused_frees_take_the_memory",
     "Memory whose free was refused, since a capture forbids work in the legacy stream, is the same buffer and can be "
     "freed") {
  Session session;
  Stream stream(CU_STREAM_DEFAULT);
  CUdeviceptr address = 0;
  CUgraph captured = nullptr;
  unsigned long long before = 0;
  unsigned long long after = 0;
  CHECK_OK(cu.cuMemAllocAsync(&address, 4096, stream));
  CHECK_OK(cu.cuStreamSynchronize(stream));
  CHECK_OK(cu.cuPointerGetAttribute(&before, CU_POINTER_ATTRIBUTE_BUFFER_ID, address));
  CHECK_OK(cu.cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  CHECK_EQ(cu.cuMemFreeAsync(address, nullptr), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
  CHECK_EQ(cu.cuStreamEndCapture(stream, &captured), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  CHECK_OK(cu.cuPointerGetAttribute(&after, CU_POINTER_ATTRIBUTE_BUFFER_ID, address));
  CHECK_EQ(after, before);
  CHECK_OK(cu.cuMemFreeAsync(address, stream));
}

RULE(pools, imported_pointer_is_the_same_memory, "idle:cuMemPoolImportPointer",
     "Memory of an exported pool is read and written by a process that imported the pool and the pointer") {
  Session session;
  OwnPool pool(shared_pool_properties(session));
  CUdeviceptr address = allocate_from(pool, kMiB, nullptr);
  CHECK_OK(cu.cuMemsetD32_v2(address, 1234, kMiB / 4));
  CHECK_OK(cu.cuCtxSynchronize());
  int file = export_pool(pool);
  CUmemPoolPtrExportData shared{};
  CHECK_OK(cu.cuMemPoolExportPointer(&shared, address));
  Child child("pools_importer");
  child.send_file(file);
  ::close(file);
  child.send_value(shared);
  CHECK_EQ(child.receive_value<unsigned>(), 1234U);
  CHECK_EQ(child.receive(), "done");
  child.finish();
  unsigned word = 0;
  CHECK_OK(cu.cuMemcpyDtoH_v2(&word, address, sizeof word));
  CHECK_EQ(word, 1235U);
  CHECK_OK(cu.cuMemFree_v2(address));
}

RULE(pools, imported_pool_does_not_allocate, "lenient:cuMemAllocFromPoolAsync",
     "cuMemAllocFromPoolAsync from an imported pool is refused") {
  Session session;
  OwnPool pool(shared_pool_properties(session));
  Child child("pools_importer", "allocate");
  int file = export_pool(pool);
  child.send_file(file);
  ::close(file);
  CHECK_NE(child.receive_value<CUresult>(), CUDA_SUCCESS);
  child.finish();
}

RULE(pools, pointer_is_exported_after_its_pool, "lenient:cuMemPoolExportPointer",
     "cuMemPoolExportPointer answers CUDA_ERROR_INVALID_VALUE before the pool itself was exported") {
  Session session;
  OwnPool pool(shared_pool_properties(session));
  CUdeviceptr address = allocate_from(pool, kMiB, nullptr);
  CHECK_OK(cu.cuCtxSynchronize());
  CUmemPoolPtrExportData shared{};
  CHECK_EQ(cu.cuMemPoolExportPointer(&shared, address), CUDA_ERROR_INVALID_VALUE);
  CHECK_OK(cu.cuMemFree_v2(address));
}
