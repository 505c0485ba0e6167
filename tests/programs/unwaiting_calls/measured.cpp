// Calls that wait in some uses and, as measured on an H200 (driver 580.159), do not wait in these: they must not wait
// under rota either. The functions may block, so neither a header nor the policy says so.
#include "tests/programs/unwaiting_calls/calls.h"

namespace {

using behind_kernel::kBytes;
using behind_kernel::Objects;

enum class Kernel { kInNullStream, kInOther };

// The call succeeds and returns while the kernel runs.
template <class Call>
void returns(Kernel where, Call call) {
  Session session;
  Stream busy;
  Objects objects(session);
  objects.stream = objects.spare;
  Blocker blocker(where == Kernel::kInNullStream ? nullptr : static_cast<CUstream>(busy));
  call(objects);
  blocker.release();
  CHECK_OK(cu.cuCtxSynchronize());
}

}  // namespace

RULE(measured, sets_of_plain_memory, "set_waits", "cuMemsetD8 of memory from cuMemAlloc behind the null stream") {
  returns(Kernel::kInNullStream, [](Objects& o) { CHECK_OK(cu.cuMemsetD8_v2(o.plain, 1, kBytes)); });
}
RULE(measured, wide_sets_of_plain_memory, "set_waits",
     "cuMemsetD2D32 of memory from cuMemAlloc behind the null stream") {
  returns(Kernel::kInNullStream, [](Objects& o) { CHECK_OK(cu.cuMemsetD2D32_v2(o.plain, 1024, 1, 64, 16)); });
}
RULE(measured, copies_of_plain_memory, "device_copy_waits",
     "cuMemcpyDtoD between memory from cuMemAlloc behind the null stream") {
  returns(Kernel::kInNullStream, [](Objects& o) { CHECK_OK(cu.cuMemcpyDtoD_v2(o.plain, o.other_plain, kBytes)); });
}
RULE(measured, shaped_copies_of_plain_memory, "device_copy_waits",
     "cuMemcpy2D between memory from cuMemAlloc behind the null stream") {
  returns(Kernel::kInNullStream, [](Objects& o) {
    CUDA_MEMCPY2D copy{};
    copy.srcMemoryType = copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
    copy.srcDevice = o.other_plain;
    copy.dstDevice = o.plain;
    copy.srcPitch = copy.dstPitch = 1024;
    copy.WidthInBytes = 512;
    copy.Height = 16;
    CHECK_OK(cu.cuMemcpy2D_v2(&copy));
  });
}
RULE(measured, sets_beside_a_stream, "waits:cuMemsetD8_v2", "cuMemsetD8 of plain and managed memory beside a stream") {
  returns(Kernel::kInOther, [](Objects& o) {
    CHECK_OK(cu.cuMemsetD8_v2(o.plain, 1, kBytes));
    CHECK_OK(cu.cuMemsetD8_v2(o.managed, 1, kBytes));
  });
}
RULE(measured, copies_beside_a_stream, "waits:cuMemcpyDtoD_v2",
     "cuMemcpyDtoD of plain and managed memory beside a stream") {
  returns(Kernel::kInOther, [](Objects& o) {
    CHECK_OK(cu.cuMemcpyDtoD_v2(o.plain, o.other_plain, kBytes));
    CHECK_OK(cu.cuMemcpyDtoD_v2(o.plain, o.managed, kBytes));
  });
}
RULE(measured, small_copies_beside_a_stream, "waits:cuMemcpyHtoD_v2",
     "cuMemcpyHtoD of 4 KiB of pageable memory beside a stream") {
  returns(Kernel::kInOther, [](Objects& o) {
    std::vector<char> pageable(4096);
    CHECK_OK(cu.cuMemcpyHtoD_v2(o.plain, pageable.data(), pageable.size()));
  });
}
RULE(measured, copies_in_another_stream, "waits:cuMemcpyHtoDAsync_v2",
     "cuMemcpyHtoDAsync of pinned and of pageable memory in another stream") {
  returns(Kernel::kInOther, [](Objects& o) {
    std::vector<char> pageable(4096);
    CHECK_OK(cu.cuMemcpyHtoDAsync_v2(o.plain, o.pinned, kBytes, o.stream));
    CHECK_OK(cu.cuMemcpyHtoDAsync_v2(o.plain, pageable.data(), pageable.size(), o.stream));
  });
}
RULE(measured, frees_of_pool_memory, "frees_of_pool_memory_wait", "cuMemFree of stream-ordered memory") {
  returns(Kernel::kInOther, [](Objects& o) { CHECK_OK(cu.cuMemFree_v2(o.in_order)); });
}
RULE(measured, maps, "waits:cuMemMap", "cuMemMap, cuMemSetAccess, cuMemUnmap and cuMemRelease") {
  returns(Kernel::kInOther, [](Objects& o) {
    CHECK_OK(cu.cuMemMap(o.reserved, o.extent, 0, o.handle, 0));
    CHECK_OK(set_access(o.reserved, o.extent, o.device));
    CHECK_OK(cu.cuMemUnmap(o.reserved, o.extent));
    CHECK_OK(cu.cuMemRelease(o.handle));
  });
}
namespace {

// Memory freed in stream order may still have to be released when the next allocation is made.
void allocate_after_a_free(bool behind_the_kernel) {
  Session session;
  Stream busy;
  Objects o(session);
  Blocker blocker(busy);
  CUstream freeing = behind_the_kernel ? static_cast<CUstream>(busy) : o.spare;
  CHECK_OK(cu.cuMemFreeAsync(o.plain, freeing));
  if (!behind_the_kernel) CHECK_OK(cu.cuStreamSynchronize(freeing));
  CHECK_OK(cu.cuMemAlloc_v2(o.any, kBytes));
  CHECK_OK(cu.cuMemAllocManaged(o.any, kBytes, CU_MEM_ATTACH_GLOBAL));
  CHECK_OK(cu.cuMemAllocAsync(o.any, kBytes, o.spare));
  blocker.release();
  CHECK_OK(cu.cuCtxSynchronize());
}

}  // namespace

RULE(measured, allocations_after_a_free_behind_the_kernel, "waits:cuMemAlloc_v2",
     "cuMemAlloc, cuMemAllocManaged and cuMemAllocAsync after cuMemFreeAsync of memory from cuMemAlloc behind the "
     "kernel") {
  allocate_after_a_free(true);
}
RULE(
    measured, allocations_after_a_free_beside_the_kernel, "waits:cuMemAlloc_v2",
    "cuMemAlloc, cuMemAllocManaged and cuMemAllocAsync after cuMemFreeAsync of memory from cuMemAlloc in a stream that "
    "has got there") {
  allocate_after_a_free(false);
}
