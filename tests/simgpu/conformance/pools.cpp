// Memory pools: which one is used, what it keeps and gives back.
#include "tests/simgpu/conformance/pools.h"

RULE(pools, default_pool_is_current_at_first, "idle:cuDeviceGetMemPool",
     "The current pool of a device is its default pool until another is set") {
  Session session;
  CUmemoryPool standard = nullptr;
  CUmemoryPool current = nullptr;
  CHECK_OK(cu.cuDeviceGetDefaultMemPool(&standard, session.device()));
  CHECK_OK(cu.cuDeviceGetMemPool(&current, session.device()));
  CHECK(standard != nullptr);
  CHECK_EQ(current, standard);
}

RULE(pools, set_pool_is_current, "idle:cuDeviceSetMemPool",
     "cuDeviceGetMemPool answers the pool that cuDeviceSetMemPool was given last") {
  Session session;
  OwnPool pool(session);
  CHECK_OK(cu.cuDeviceSetMemPool(session.device(), pool));
  CUmemoryPool current = nullptr;
  CHECK_OK(cu.cuDeviceGetMemPool(&current, session.device()));
  CHECK_EQ(current, static_cast<CUmemoryPool>(pool));
}

RULE(pools, destroying_the_current_pool_brings_the_default_back, "destroyed_pools_stay_current",
     "Destroying the current pool of a device makes the default pool current again") {
  Session session;
  OwnPool pool(session);
  CUmemoryPool standard = nullptr;
  CHECK_OK(cu.cuDeviceGetDefaultMemPool(&standard, session.device()));
  CHECK_OK(cu.cuDeviceSetMemPool(session.device(), pool));
  CHECK_OK(cu.cuMemPoolDestroy(pool.release()));
  CUmemoryPool current = nullptr;
  CHECK_OK(cu.cuDeviceGetMemPool(&current, session.device()));
  CHECK_EQ(current, standard);
}

RULE(pools, default_pool_cannot_be_destroyed, "lenient:cuMemPoolDestroy",
     "cuMemPoolDestroy of a device's default pool answers CUDA_ERROR_INVALID_VALUE") {
  Session session;
  CUmemoryPool standard = nullptr;
  CHECK_OK(cu.cuDeviceGetDefaultMemPool(&standard, session.device()));
  CHECK_EQ(cu.cuMemPoolDestroy(standard), CUDA_ERROR_INVALID_VALUE);
}

RULE(pools, null_pool_cannot_be_destroyed, "lenient:cuMemPoolDestroy",
     "cuMemPoolDestroy of no pool answers CUDA_ERROR_INVALID_VALUE") {
  Session session;
  CHECK_EQ(cu.cuMemPoolDestroy(nullptr), CUDA_ERROR_INVALID_VALUE);
}

RULE(pools, alloc_async_uses_the_current_pool, "current_pools_are_not_used",
     "cuMemAllocAsync allocates from the pool that is current for the stream's device") {
  Session session;
  Stream stream;
  OwnPool pool(session);
  CHECK_OK(cu.cuDeviceSetMemPool(session.device(), pool));
  CUdeviceptr address = 0;
  CHECK_OK(cu.cuMemAllocAsync(&address, kMiB, stream));
  CHECK(used_now(pool) >= kMiB);
  CHECK_OK(cu.cuMemFreeAsync(address, stream));
  CHECK_OK(cu.cuStreamSynchronize(stream));
}

RULE(pools, pointer_names_its_pool, "current_pools_are_not_used",
     "CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE of memory from cuMemAllocAsync is the pool that was current") {
  Session session;
  Stream stream;
  OwnPool pool(session);
  CHECK_OK(cu.cuDeviceSetMemPool(session.device(), pool));
  CUdeviceptr address = 0;
  CHECK_OK(cu.cuMemAllocAsync(&address, kMiB, stream));
  CUmemoryPool named = nullptr;
  CHECK_OK(cu.cuPointerGetAttribute(&named, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, address));
  CHECK_EQ(named, static_cast<CUmemoryPool>(pool));
  CHECK_OK(cu.cuMemFreeAsync(address, stream));
  CHECK_OK(cu.cuStreamSynchronize(stream));
}

RULE(pools, allocation_counts_as_used_and_reserved, "idle:cuMemAllocFromPoolAsync",
     "An allocation from a pool counts in its used memory, which is at most its reserved memory") {
  Session session;
  Stream stream;
  OwnPool pool(session);
  CHECK_EQ(used_now(pool), 0U);
  CHECK_EQ(reserved_now(pool), 0U);
  CUdeviceptr address = allocate_from(pool, 3 * kMiB, stream);
  CHECK(used_now(pool) >= 3 * kMiB);
  CHECK(reserved_now(pool) >= used_now(pool));
  CHECK_OK(cu.cuMemFreeAsync(address, stream));
  CHECK_OK(cu.cuStreamSynchronize(stream));
}

RULE(pools, freed_memory_is_not_used, "idle:cuMemFreeAsync",
     "Memory that was freed in stream order is not in use once the stream is synchronised") {
  Session session;
  Stream stream;
  OwnPool pool(session);
  CUdeviceptr address = allocate_from(pool, kMiB, stream);
  CHECK_OK(cu.cuMemFreeAsync(address, stream));
  CHECK_OK(cu.cuStreamSynchronize(stream));
  CHECK_EQ(used_now(pool), 0U);
}

RULE(pools, used_high_mark_stays_after_frees, "idle:cuMemAllocFromPoolAsync",
     "The high mark of a pool's used memory stays when memory is freed") {
  Session session;
  Stream stream;
  OwnPool pool(session);
  CUdeviceptr address = allocate_from(pool, 2 * kMiB, stream);
  CHECK_OK(cu.cuMemFreeAsync(address, stream));
  CHECK_OK(cu.cuStreamSynchronize(stream));
  CHECK_EQ(used_now(pool), 0U);
  CHECK(pool_attribute<uint64_t>(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH) >= 2 * kMiB);
}

RULE(pools, used_high_mark_can_be_reset, "pool_high_mark_stays",
     "Setting the high mark of used memory to 0 makes it follow the current use again") {
  Session session;
  Stream stream;
  OwnPool pool(session);
  CUdeviceptr address = allocate_from(pool, 2 * kMiB, stream);
  CHECK_OK(cu.cuMemFreeAsync(address, stream));
  CHECK_OK(cu.cuStreamSynchronize(stream));
  uint64_t zero = 0;
  CHECK_OK(cu.cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &zero));
  CHECK_EQ(pool_attribute<uint64_t>(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH), used_now(pool));
}

RULE(pools, high_mark_cannot_be_set, "lenient:cuMemPoolSetAttribute",
     "Setting the high mark of reserved memory to something else than 0 answers CUDA_ERROR_INVALID_VALUE") {
  Session session;
  OwnPool pool(session);
  uint64_t value = kMiB;
  CHECK_EQ(cu.cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, &value), CUDA_ERROR_INVALID_VALUE);
}

RULE(pools, current_use_cannot_be_set, "lenient:cuMemPoolSetAttribute",
     "Setting the current use of a pool answers CUDA_ERROR_INVALID_VALUE") {
  Session session;
  OwnPool pool(session);
  uint64_t value = 0;
  CHECK_EQ(cu.cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &value), CUDA_ERROR_INVALID_VALUE);
}

RULE(pools, release_threshold_is_zero_at_first, "pools_start_with_a_threshold",
     "The release threshold of a new pool is 0") {
  Session session;
  OwnPool pool(session);
  CHECK_EQ(pool_attribute<uint64_t>(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD), 0U);
}

RULE(pools, unused_memory_goes_at_a_synchronisation, "pool_keeps_everything",
     "A pool with a release threshold of 0 has nothing reserved after its memory was freed and the stream "
     "synchronised") {
  Session session;
  Stream stream;
  OwnPool pool(session);
  CUdeviceptr address = allocate_from(pool, kMiB, stream);
  CHECK_OK(cu.cuMemFreeAsync(address, stream));
  CHECK_OK(cu.cuStreamSynchronize(stream));
  CHECK_EQ(reserved_now(pool), 0U);
}

RULE(pools, memory_below_the_threshold_stays, "pool_ignores_threshold",
     "A pool keeps unused memory up to its release threshold over synchronisations") {
  Session session;
  Stream stream;
  OwnPool pool(session);
  uint64_t threshold = UINT64_MAX;
  CHECK_OK(cu.cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold));
  threshold = 256 * kMiB;
  CHECK_OK(cu.cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold));
  CUdeviceptr address = allocate_from(pool, kMiB, stream);
  uint64_t reserved = reserved_now(pool);
  CHECK_OK(cu.cuMemFreeAsync(address, stream));
  CHECK_OK(cu.cuStreamSynchronize(stream));
  CHECK_EQ(reserved_now(pool), reserved);
  CHECK(reserved >= kMiB);
}

RULE(pools, trimming_gives_unused_memory_back, "idle:cuMemPoolTrimTo",
     "cuMemPoolTrimTo(0) gives back what the pool keeps unused") {
  Session session;
  Stream stream;
  OwnPool pool(session);
  keep_everything(pool);
  CUdeviceptr address = allocate_from(pool, kMiB, stream);
  CHECK_OK(cu.cuMemFreeAsync(address, stream));
  CHECK_OK(cu.cuStreamSynchronize(stream));
  CHECK(reserved_now(pool) != 0);
  CHECK_OK(cu.cuMemPoolTrimTo(pool, 0));
  CHECK_EQ(reserved_now(pool), 0U);
}

RULE(pools, trimming_keeps_what_it_is_told_to, "pool_trim_keeps_nothing",
     "cuMemPoolTrimTo leaves at least as much reserved as it is told to keep, if there was so much") {
  Session session;
  Stream stream;
  OwnPool pool(session);
  keep_everything(pool);
  CUdeviceptr address = allocate_from(pool, 8 * kMiB, stream);
  CHECK_OK(cu.cuMemFreeAsync(address, stream));
  CHECK_OK(cu.cuStreamSynchronize(stream));
  CHECK_OK(cu.cuMemPoolTrimTo(pool, 4 * kMiB));
  CHECK(reserved_now(pool) >= 4 * kMiB);
}

RULE(pools, memory_in_use_is_not_trimmed, "pool_trims_memory_in_use",
     "cuMemPoolTrimTo(0) leaves memory that is allocated, with its contents") {
  Session session;
  Stream stream;
  OwnPool pool(session);
  CUdeviceptr address = allocate_from(pool, kMiB, stream);
  CHECK_OK(cu.cuMemsetD32Async(address, 77, kMiB / 4, stream));
  CHECK_OK(cu.cuStreamSynchronize(stream));
  CHECK_OK(cu.cuMemPoolTrimTo(pool, 0));
  CHECK(reserved_now(pool) >= kMiB);
  unsigned word = 0;
  CHECK_OK(cu.cuMemcpyDtoH_v2(&word, address, sizeof word));
  CHECK_EQ(word, 77U);
  CHECK_OK(cu.cuMemFreeAsync(address, stream));
  CHECK_OK(cu.cuStreamSynchronize(stream));
}

RULE(pools, reserved_memory_is_taken_from_the_device, "pools_take_no_memory",
     "What a pool keeps reserved is missing in the free memory that cuMemGetInfo answers") {
  Session session;
  Stream stream;
  OwnPool pool(session);
  keep_everything(pool);
  CHECK_OK(cu.cuCtxSynchronize());
  bool missing = false;
  // Other processes use the device too: one look may be wrong.
  for (int look = 0; look < 10 && !missing; ++look) {
    size_t before = 0;
    size_t after = 0;
    size_t total = 0;
    CHECK_OK(cu.cuMemGetInfo_v2(&before, &total));
    CUdeviceptr address = allocate_from(pool, 48 * kMiB, stream);
    CHECK_OK(cu.cuMemFreeAsync(address, stream));
    CHECK_OK(cu.cuStreamSynchronize(stream));
    CHECK_OK(cu.cuMemGetInfo_v2(&after, &total));
    missing = before >= after + 48 * kMiB;
    CHECK_OK(cu.cuMemPoolTrimTo(pool, 0));
  }
  CHECK(missing);
}

RULE(pools, reuse_policies_are_on_at_first, "reuse_flags_start_off",
     "The three reuse policies of a new pool are switched on") {
  Session session;
  OwnPool pool(session);
  CHECK_EQ(pool_attribute<int>(pool, CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES), 1);
  CHECK_EQ(pool_attribute<int>(pool, CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC), 1);
  CHECK_EQ(pool_attribute<int>(pool, CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES), 1);
}

RULE(pools, reuse_policies_can_be_switched_off, "idle:cuMemPoolSetAttribute",
     "A reuse policy that was set to 0 reads as 0, and the others stay") {
  Session session;
  OwnPool pool(session);
  int off = 0;
  CHECK_OK(cu.cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC, &off));
  CHECK_EQ(pool_attribute<int>(pool, CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC), 0);
  CHECK_EQ(pool_attribute<int>(pool, CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES), 1);
}

RULE(pools, same_stream_has_freed_memory_again_at_once, "pool_reuse_needs_the_host",
     "Memory freed in a stream is allocated in that stream again while work before the free still runs") {
  Session session;
  Stream stream;
  OwnPool pool(session);
  keep_everything(pool);
  CUdeviceptr first = allocate_from(pool, 16 * kMiB, stream);
  CHECK_OK(cu.cuStreamSynchronize(stream));
  Blocker blocker(stream);
  CHECK_OK(cu.cuMemFreeAsync(first, stream));
  CUdeviceptr second = allocate_from(pool, 16 * kMiB, stream);
  CHECK_EQ(second, first);
  blocker.release();
  CHECK_OK(cu.cuMemFreeAsync(second, stream));
  CHECK_OK(cu.cuStreamSynchronize(stream));
}

RULE(pools, other_streams_wait_for_the_free, "pool_reuses_too_early",
     "Without reuse policies, memory whose free has not been reached is not given to another stream") {
  Session session;
  Stream stream;
  Stream other;
  OwnPool pool(session);
  keep_everything(pool);
  int off = 0;
  CHECK_OK(cu.cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC, &off));
  CHECK_OK(cu.cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES, &off));
  CHECK_OK(cu.cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES, &off));
  CUdeviceptr first = allocate_from(pool, 32 * kMiB, stream);
  CHECK_OK(cu.cuStreamSynchronize(stream));
  Blocker blocker(stream);
  CHECK_OK(cu.cuMemFreeAsync(first, stream));
  CUdeviceptr second = allocate_from(pool, 32 * kMiB, other);
  CHECK_NE(second, first);
  blocker.release();
  CHECK_OK(cu.cuMemFreeAsync(second, other));
  CHECK_OK(cu.cuCtxSynchronize());
}

RULE(pools, freeing_waits_for_work_queued_before, "frees_take_the_memory_at_once",
     "Memory freed in stream order can be used by work that was queued into the stream before") {
  Session session;
  Stream stream;
  OwnPool pool(session);
  Pinned result(sizeof(unsigned));
  CUdeviceptr address = allocate_from(pool, kMiB, stream);
  CUfunction fill = session.function("fill");
  CHECK_OK(cu.cuStreamSynchronize(stream));
  Blocker blocker(stream);
  CHECK_OK(launch(fill, 1, 32, stream, address, static_cast<unsigned long>(kMiB / 4), 5U));
  CHECK_OK(cu.cuMemcpyDtoHAsync_v2(result.data(), address + kMiB - 4, sizeof(unsigned), stream));
  CHECK_OK(cu.cuMemFreeAsync(address, stream));
  blocker.release();
  CHECK_OK(cu.cuStreamSynchronize(stream));
  CHECK_EQ(*result.data(), 5U);
}
