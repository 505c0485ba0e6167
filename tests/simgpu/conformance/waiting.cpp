// Which calls wait for a kernel that itself waits for the host: a program whose kernel waits for what the calling
// thread would do next hangs if such a call waits.
#include "tests/simgpu/conformance/managed.h"
#include "tests/simgpu/conformance/release.h"

namespace {

constexpr size_t kLarge = 32 * kMiB;

// The call returns while the kernel in this stream runs: if it waited, the blocker would have to give up. What the call
// needs is made before, and freed after.
template <class Call>
void returns_behind(CUstream stream, Call call) {
  Blocker blocker(stream);
  call();
  blocker.release();
}

// The call returns after the kernel, and whatever else is in this stream.
template <class Call>
void waits_behind(CUstream stream, Call call) {
  Blocker blocker(stream);
  std::thread releasing = release_soon(blocker);
  call();
  CUresult state = cu.cuStreamQuery(stream);
  releasing.join();
  CHECK_EQ(state, CUDA_SUCCESS);
}

// Loads and starts what the first call of a kind needs.
void prepare(CUdeviceptr address) {
  unsigned char byte = 0;
  CHECK_OK(cu.cuMemsetD8_v2(address, 0, 1));
  CHECK_OK(cu.cuMemcpyDtoD_v2(address, address + 16, 1));
  CHECK_OK(cu.cuMemcpyHtoD_v2(address, &byte, 1));
  CHECK_OK(cu.cuCtxSynchronize());
}

}  // namespace

// ---- behind a kernel in a non-blocking stream -----------------------------------------------------------------------

RULE(waiting, freeing_managed_memory_waits, "free_does_not_wait",
     "cuMemFree of managed memory returns after the work that was queued in its context") {
  Session session;
  CUdeviceptr address = 0;
  CHECK_OK(cu.cuMemAllocManaged(&address, kMiB, CU_MEM_ATTACH_GLOBAL));
  Stream stream;
  waits_behind(stream, [&] { CHECK_OK(cu.cuMemFree_v2(address)); });
}

RULE(waiting, freeing_pool_memory_does_not_wait, "frees_of_pool_memory_wait",
     "cuMemFree of stream-ordered memory returns while a kernel runs in another stream") {
  Session session;
  Stream stream;
  Stream other;
  CUdeviceptr address = 0;
  CHECK_OK(cu.cuMemAllocAsync(&address, kMiB, other));
  CHECK_OK(cu.cuStreamSynchronize(other));
  returns_behind(stream, [&] { CHECK_OK(cu.cuMemFree_v2(address)); });
}

RULE(waiting, allocating_does_not_wait, "waits:cuMemAlloc_v2", "cuMemAlloc returns while a kernel runs") {
  Session session;
  Stream stream;
  CUdeviceptr small = 0;
  CUdeviceptr large = 0;
  returns_behind(stream, [&] {
    CHECK_OK(cu.cuMemAlloc_v2(&small, 4096));
    CHECK_OK(cu.cuMemAlloc_v2(&large, kLarge));
  });
  CHECK_OK(cu.cuMemFree_v2(small));
  CHECK_OK(cu.cuMemFree_v2(large));
}

RULE(waiting, allocating_rows_does_not_wait, "waits:cuMemAllocPitch_v2",
     "cuMemAllocPitch returns while a kernel runs, for each element size") {
  Session session;
  Stream stream;
  CUdeviceptr addresses[3] = {};
  returns_behind(stream, [&] {
    size_t pitch = 0;
    CHECK_OK(cu.cuMemAllocPitch_v2(&addresses[0], &pitch, 100, 16, 4));
    CHECK_OK(cu.cuMemAllocPitch_v2(&addresses[1], &pitch, 100, 16, 8));
    CHECK_OK(cu.cuMemAllocPitch_v2(&addresses[2], &pitch, 100, 16, 16));
  });
  for (CUdeviceptr address : addresses) CHECK_OK(cu.cuMemFree_v2(address));
}

RULE(waiting, allocating_managed_memory_does_not_wait, "waits:cuMemAllocManaged",
     "cuMemAllocManaged returns while a kernel runs") {
  Session session;
  Stream stream;
  CUdeviceptr address = 0;
  returns_behind(stream, [&] { CHECK_OK(cu.cuMemAllocManaged(&address, kLarge, CU_MEM_ATTACH_GLOBAL)); });
  CHECK_OK(cu.cuMemFree_v2(address));
}

RULE(waiting, allocating_in_order_does_not_wait, "waits:cuMemAllocAsync",
     "cuMemAllocAsync returns while a kernel runs in another stream") {
  Session session;
  Stream stream;
  Stream other;
  CUdeviceptr address = 0;
  returns_behind(stream, [&] { CHECK_OK(cu.cuMemAllocAsync(&address, kLarge, other)); });
  CHECK_OK(cu.cuMemFreeAsync(address, other));
}

RULE(waiting, freeing_in_order_does_not_wait, "waits:cuMemFreeAsync",
     "cuMemFreeAsync returns while a kernel runs in another stream") {
  Session session;
  Stream stream;
  Stream other;
  CUdeviceptr address = 0;
  CHECK_OK(cu.cuMemAllocAsync(&address, kMiB, other));
  returns_behind(stream, [&] { CHECK_OK(cu.cuMemFreeAsync(address, other)); });
}

RULE(waiting, freeing_behind_the_kernel_in_order_does_not_wait, "waits:cuMemFreeAsync",
     "cuMemFreeAsync returns while a kernel runs in its own stream, and so does cuMemAllocAsync after it") {
  Session session;
  Stream stream;
  CUdeviceptr address = 0;
  CUdeviceptr next = 0;
  CHECK_OK(cu.cuMemAllocAsync(&address, kMiB, stream));
  returns_behind(stream, [&] {
    CHECK_OK(cu.cuMemFreeAsync(address, stream));
    CHECK_OK(cu.cuMemAllocAsync(&next, kMiB, stream));
  });
  CHECK_OK(cu.cuMemFreeAsync(next, stream));
}

RULE(waiting, allocating_after_a_free_in_order_does_not_wait, "waits:cuMemAlloc_v2",
     "cuMemAlloc returns while cuMemFreeAsync of memory from cuMemAlloc is queued behind a kernel") {
  Session session;
  Stream stream;
  CUdeviceptr address = 0;
  CUdeviceptr next = 0;
  CHECK_OK(cu.cuMemAlloc_v2(&address, kMiB));
  returns_behind(stream, [&] {
    CHECK_OK(cu.cuMemFreeAsync(address, stream));
    CHECK_OK(cu.cuMemAlloc_v2(&next, kMiB));
  });
  CHECK_OK(cu.cuMemFree_v2(next));
}

RULE(waiting, sets_wait_for_no_other_stream, "waits:cuMemsetD8_v2",
     "cuMemsetD8 of plain and of managed memory returns while a kernel runs in a non-blocking stream") {
  Session session;
  Stream stream;
  Buffer plain(kMiB);
  Managed managed(kMiB);
  prepare(plain);
  prepare(managed);
  returns_behind(stream, [&] {
    CHECK_OK(cu.cuMemsetD8_v2(plain, 1, kMiB));
    CHECK_OK(cu.cuMemsetD8_v2(managed, 1, kMiB));
  });
}

RULE(waiting, copies_inside_the_device_wait_for_no_other_stream, "waits:cuMemcpyDtoD_v2",
     "cuMemcpyDtoD of plain and of managed memory returns while a kernel runs in a non-blocking stream") {
  Session session;
  Stream stream;
  Buffer plain(kMiB);
  Buffer other_plain(kMiB);
  Managed managed(kMiB);
  Managed other_managed(kMiB);
  prepare(plain);
  prepare(managed);
  returns_behind(stream, [&] {
    CHECK_OK(cu.cuMemcpyDtoD_v2(plain, other_plain, kMiB));
    CHECK_OK(cu.cuMemcpyDtoD_v2(managed, other_managed, kMiB));
    CHECK_OK(cu.cuMemcpyDtoD_v2(plain, managed, kMiB));
  });
}

RULE(waiting, copies_from_the_host_wait_for_no_other_stream, "waits:cuMemcpyHtoD_v2",
     "cuMemcpyHtoD of 4 KiB of pageable memory returns while a kernel runs in a non-blocking stream") {
  Session session;
  Stream stream;
  Buffer plain(kMiB);
  Managed managed(kMiB);
  prepare(plain);
  prepare(managed);
  std::vector<char> pageable(4096);
  returns_behind(stream, [&] {
    CHECK_OK(cu.cuMemcpyHtoD_v2(plain, pageable.data(), pageable.size()));
    CHECK_OK(cu.cuMemcpyHtoD_v2(managed, pageable.data(), pageable.size()));
  });
}

RULE(waiting, large_copies_from_pageable_memory_wait_for_no_other_stream, "waits:cuMemcpyHtoDAsync_v2",
     "cuMemcpyHtoDAsync of 32 MiB of pageable memory returns while a kernel runs in another stream") {
  Session session;
  Stream stream;
  Stream other;
  Buffer plain(kLarge);
  prepare(plain);
  std::vector<char> pageable(kLarge);
  returns_behind(stream, [&] { CHECK_OK(cu.cuMemcpyHtoDAsync_v2(plain, pageable.data(), kLarge, other)); });
  CHECK_OK(cu.cuStreamSynchronize(other));
}

RULE(waiting, advice_does_not_wait, "waits:cuMemAdvise", "cuMemAdvise returns while a kernel runs") {
  Session session;
  Stream stream;
  Managed managed(kMiB);
  prepare(managed);
  returns_behind(stream, [&] { managed.set_preferred(kMiB, session.device()); });
}

// ---- behind a kernel in the null stream -----------------------------------------------------------------------------

RULE(waiting, sets_do_not_wait_for_the_null_stream, "set_waits",
     "cuMemsetD8 of plain memory returns while a kernel runs in the null stream") {
  Session session;
  Buffer plain(kMiB);
  prepare(plain);
  returns_behind(nullptr, [&] { CHECK_OK(cu.cuMemsetD8_v2(plain, 1, kMiB)); });
}

RULE(waiting, sets_of_managed_memory_wait_for_the_null_stream, "set_of_host_memory_does_not_wait",
     "cuMemsetD8 of managed memory returns after the kernel in the null stream") {
  Session session;
  Managed managed(kMiB);
  prepare(managed);
  waits_behind(nullptr, [&] { CHECK_OK(cu.cuMemsetD8_v2(managed, 1, kMiB)); });
}

RULE(waiting, copies_inside_the_device_do_not_wait_for_the_null_stream, "device_copy_waits",
     "cuMemcpyDtoD between plain memory returns while a kernel runs in the null stream") {
  Session session;
  Buffer plain(kMiB);
  Buffer other(kMiB);
  prepare(plain);
  returns_behind(nullptr, [&] { CHECK_OK(cu.cuMemcpyDtoD_v2(plain, other, kMiB)); });
}

RULE(waiting, copies_between_managed_memory_wait_for_the_null_stream, "managed_copies_do_not_wait",
     "cuMemcpyDtoD between managed memory returns after the kernel in the null stream") {
  Session session;
  Managed managed(kMiB);
  Managed other(kMiB);
  prepare(managed);
  waits_behind(nullptr, [&] { CHECK_OK(cu.cuMemcpyDtoD_v2(managed, other, kMiB)); });
}

RULE(waiting, copies_from_managed_memory_wait_for_the_null_stream, "managed_copies_do_not_wait",
     "cuMemcpyDtoD from managed to plain memory returns after the kernel in the null stream") {
  Session session;
  Buffer plain(kMiB);
  Managed managed(kMiB);
  prepare(plain);
  prepare(managed);
  waits_behind(nullptr, [&] { CHECK_OK(cu.cuMemcpyDtoD_v2(plain, managed, kMiB)); });
}

RULE(waiting, copies_to_managed_memory_wait_for_the_null_stream, "managed_copies_do_not_wait",
     "cuMemcpyDtoD from plain to managed memory returns after the kernel in the null stream") {
  Session session;
  Buffer plain(kMiB);
  Managed managed(kMiB);
  prepare(plain);
  prepare(managed);
  waits_behind(nullptr, [&] { CHECK_OK(cu.cuMemcpyDtoD_v2(managed, plain, kMiB)); });
}

RULE(waiting, copies_from_the_host_wait_for_the_null_stream, "synchronous_copy_returns_early",
     "cuMemcpyHtoD to plain memory returns after the kernel in the null stream") {
  Session session;
  Buffer plain(kMiB);
  prepare(plain);
  std::vector<char> pageable(4096);
  waits_behind(nullptr, [&] { CHECK_OK(cu.cuMemcpyHtoD_v2(plain, pageable.data(), pageable.size())); });
}

RULE(waiting, copies_from_the_host_to_managed_memory_wait_for_the_null_stream, "synchronous_copy_returns_early",
     "cuMemcpyHtoD to managed memory returns after the kernel in the null stream") {
  Session session;
  Managed managed(kMiB);
  prepare(managed);
  std::vector<char> pageable(4096);
  waits_behind(nullptr, [&] { CHECK_OK(cu.cuMemcpyHtoD_v2(managed, pageable.data(), pageable.size())); });
}

RULE(waiting, sets_in_another_stream_do_not_wait, "waits:cuMemsetD8Async",
     "cuMemsetD8Async of plain and of managed memory in a non-blocking stream returns while a kernel runs in the null "
     "stream") {
  Session session;
  Stream other;
  Buffer plain(kMiB);
  Managed managed(kMiB);
  prepare(plain);
  prepare(managed);
  returns_behind(nullptr, [&] {
    CHECK_OK(cu.cuMemsetD8Async(plain, 1, kMiB, other));
    CHECK_OK(cu.cuMemsetD8Async(managed, 1, kMiB, other));
    CHECK_OK(cu.cuStreamSynchronize(other));
  });
}

RULE(
    waiting, copies_in_another_stream_do_not_wait, "waits:cuMemcpyDtoDAsync_v2",
    "cuMemcpyDtoDAsync of plain and of managed memory in a non-blocking stream returns while a kernel runs in the null "
    "stream") {
  Session session;
  Stream other;
  Buffer plain(kMiB);
  Managed managed(kMiB);
  prepare(plain);
  prepare(managed);
  returns_behind(nullptr, [&] {
    CHECK_OK(cu.cuMemcpyDtoDAsync_v2(plain, managed, kMiB, other));
    CHECK_OK(cu.cuMemcpyDtoDAsync_v2(managed, plain, kMiB, other));
    CHECK_OK(cu.cuStreamSynchronize(other));
  });
}
