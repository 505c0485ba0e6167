// Device and host memory: allocation, release, what it costs, registration.
#include <thread>

#include "tests/simgpu/conformance/release.h"

namespace {

constexpr size_t kMiB = size_t{1} << 20;

// Other processes may allocate and free meanwhile: what a change does is tried a few times.
template <class Try>
bool seen_once(Try attempt) {
  for (int round = 0; round < 20; ++round) {
    if (attempt()) return true;
  }
  return false;
}

size_t free_bytes() {
  size_t free = 0;
  size_t total = 0;
  CHECK_OK(cu.cuMemGetInfo_v2(&free, &total));
  return free;
}

alignas(4096) char registered[8192];

}  // namespace

RULE(memory, alloc_of_nothing_is_refused, "lenient:cuMemAlloc_v2",
     "cuMemAlloc of 0 bytes answers CUDA_ERROR_INVALID_VALUE") {
  Session session;
  CUdeviceptr address = 0;
  CHECK_EQ(cu.cuMemAlloc_v2(&address, 0), CUDA_ERROR_INVALID_VALUE);
}

RULE(memory, alloc_beyond_the_device_is_out_of_memory, "lenient:cuMemAlloc_v2",
     "cuMemAlloc of more than the device has answers CUDA_ERROR_OUT_OF_MEMORY") {
  Session session;
  size_t total = 0;
  CHECK_OK(cu.cuDeviceTotalMem_v2(&total, session.device()));
  CUdeviceptr address = 0;
  CHECK_EQ(cu.cuMemAlloc_v2(&address, total + kMiB), CUDA_ERROR_OUT_OF_MEMORY);
}

RULE(memory, failed_alloc_leaves_the_context_usable, "refuse:cuMemsetD8_v2",
     "after CUDA_ERROR_OUT_OF_MEMORY the context goes on working") {
  Session session;
  CUdeviceptr address = 0;
  CHECK_EQ(cu.cuMemAlloc_v2(&address, SIZE_MAX / 2), CUDA_ERROR_OUT_OF_MEMORY);
  Buffer buffer(64);
  CHECK_OK(cu.cuMemsetD8_v2(buffer, 3, 64));
  std::vector<unsigned char> bytes = buffer.read<unsigned char>(64);
  CHECK_EQ(bytes[63], 3);
}

RULE(memory, allocations_are_apart, "idle:cuMemAlloc_v2",
     "two allocations share no byte, and each starts at a multiple of 256") {
  Session session;
  Buffer first(1000);
  Buffer second(1000);
  CHECK(first.address() != 0 && second.address() != 0);
  CHECK(first.address() + 1000 <= second.address() || second.address() + 1000 <= first.address());
  CHECK_EQ(first.address() % 256, 0);
  CHECK_EQ(second.address() % 256, 0);
}

RULE(memory, alloc_takes_free_memory, "idle:cuMemAlloc_v2",
     "cuMemGetInfo's free memory falls by at least what was allocated") {
  Session session;
  CHECK(seen_once([] {
    size_t before = free_bytes();
    CUdeviceptr address = 0;
    CHECK_OK(cu.cuMemAlloc_v2(&address, 48 * kMiB));
    size_t after = free_bytes();
    if (address != 0) CHECK_OK(cu.cuMemFree_v2(address));
    return before >= after + 48 * kMiB;
  }));
}

RULE(memory, free_gives_memory_back, "idle:cuMemFree_v2", "after cuMemFree the memory counts as free again") {
  Session session;
  CHECK(seen_once([] {
    CUdeviceptr address = 0;
    CHECK_OK(cu.cuMemAlloc_v2(&address, 8 * kMiB));
    size_t before = free_bytes();
    CHECK_OK(cu.cuMemFree_v2(address));
    return free_bytes() >= before + 8 * kMiB;
  }));
}

RULE(memory, info_total_is_the_devices, "idle:cuMemGetInfo_v2",
     "cuMemGetInfo's total is cuDeviceTotalMem's, and free is not more") {
  Session session;
  size_t expected = 0;
  size_t free = SIZE_MAX;
  size_t total = 0;
  CHECK_OK(cu.cuDeviceTotalMem_v2(&expected, session.device()));
  CHECK_OK(cu.cuMemGetInfo_v2(&free, &total));
  CHECK_EQ(total, expected);
  CHECK(free <= total);
}

RULE(memory, free_of_an_inner_address_is_refused, "lenient:cuMemFree_v2",
     "cuMemFree of an address inside an allocation answers CUDA_ERROR_INVALID_VALUE") {
  Session session;
  Buffer buffer(kMiB);
  CHECK_EQ(cu.cuMemFree_v2(buffer.address() + 512), CUDA_ERROR_INVALID_VALUE);
}

RULE(memory, free_twice_is_refused, "lenient:cuMemFree_v2",
     "cuMemFree of memory that was freed already answers CUDA_ERROR_INVALID_VALUE") {
  Session session;
  Buffer buffer(4 * kMiB);
  CUdeviceptr address = buffer.release();
  CHECK_OK(cu.cuMemFree_v2(address));
  CHECK_EQ(cu.cuMemFree_v2(address), CUDA_ERROR_INVALID_VALUE);
}

RULE(memory, free_of_null_does_nothing, "refuse:cuMemFree_v2", "cuMemFree of 0 succeeds") {
  Session session;
  CHECK_OK(cu.cuMemFree_v2(0));
}

RULE(memory, free_of_host_memory_is_refused, "lenient:cuMemFree_v2",
     "cuMemFree of memory from cuMemHostAlloc answers CUDA_ERROR_INVALID_VALUE") {
  Session session;
  Pinned pinned(4096);
  CHECK_EQ(cu.cuMemFree_v2(reinterpret_cast<CUdeviceptr>(pinned.data())), CUDA_ERROR_INVALID_VALUE);
}

RULE(memory, free_waits_for_the_context, "free_does_not_wait",
     "cuMemFree of memory from cuMemAlloc returns after the work that was queued in its context") {
  Session session;
  CUdeviceptr address = 0;
  CHECK_OK(cu.cuMemAlloc_v2(&address, 4 * kMiB));
  Stream stream;
  Blocker blocker(stream);
  std::thread releasing = release_soon(blocker);
  CHECK_OK(cu.cuMemFree_v2(address));
  CUresult state = cu.cuStreamQuery(stream);
  releasing.join();
  CHECK_EQ(state, CUDA_SUCCESS);
}

RULE(memory, pitch_is_rounded_up_to_512, "idle:cuMemAllocPitch_v2",
     "cuMemAllocPitch's pitch is the width rounded up to a multiple of 512") {
  Session session;
  for (size_t width : {1, 512, 513, 4000}) {
    CUdeviceptr address = 0;
    size_t pitch = 0;
    CHECK_OK(cu.cuMemAllocPitch_v2(&address, &pitch, width, 16, 4));
    CHECK_EQ(pitch, (width + 511) / 512 * 512);
    CHECK_OK(cu.cuMemsetD2D8_v2(address, pitch, 1, width, 16));
    CHECK_OK(cu.cuMemFree_v2(address));
  }
}

RULE(memory, pitch_needs_a_known_element_size, "lenient:cuMemAllocPitch_v2",
     "cuMemAllocPitch with an element size other than 4, 8 and 16 answers CUDA_ERROR_INVALID_VALUE") {
  Session session;
  CUdeviceptr address = 0;
  size_t pitch = 0;
  CHECK_EQ(cu.cuMemAllocPitch_v2(&address, &pitch, 64, 64, 3), CUDA_ERROR_INVALID_VALUE);
  CHECK_EQ(cu.cuMemAllocPitch_v2(&address, &pitch, 64, 64, 32), CUDA_ERROR_INVALID_VALUE);
}

RULE(memory, pitch_of_nothing_is_refused, "lenient:cuMemAllocPitch_v2",
     "cuMemAllocPitch without width answers CUDA_ERROR_INVALID_VALUE") {
  Session session;
  CUdeviceptr address = 0;
  size_t pitch = 0;
  CHECK_EQ(cu.cuMemAllocPitch_v2(&address, &pitch, 0, 64, 4), CUDA_ERROR_INVALID_VALUE);
}

RULE(memory, address_range_of_an_inner_address, "idle:cuMemGetAddressRange_v2",
     "cuMemGetAddressRange gives the start and the size of the allocation that holds the address") {
  Session session;
  Buffer buffer(2 * kMiB);
  CUdeviceptr base = 0;
  size_t size = 0;
  CHECK_OK(cu.cuMemGetAddressRange_v2(&base, &size, buffer.address() + 12345));
  CHECK_EQ(base, buffer.address());
  CHECK_EQ(size, 2 * kMiB);
}

RULE(memory, address_range_outputs_are_optional, "refuse:cuMemGetAddressRange_v2",
     "cuMemGetAddressRange takes a null pointer for either of its results") {
  Session session;
  Buffer buffer(kMiB);
  CUdeviceptr base = 0;
  size_t size = 0;
  CHECK_OK(cu.cuMemGetAddressRange_v2(&base, nullptr, buffer));
  CHECK_OK(cu.cuMemGetAddressRange_v2(nullptr, &size, buffer));
  CHECK_EQ(base, buffer.address());
  CHECK_EQ(size, kMiB);
}

RULE(memory, address_range_of_nothing_is_not_found, "lenient:cuMemGetAddressRange_v2",
     "cuMemGetAddressRange of an address that no allocation holds answers CUDA_ERROR_NOT_FOUND") {
  Session session;
  int local = 0;
  CUdeviceptr base = 0;
  size_t size = 0;
  CHECK_EQ(cu.cuMemGetAddressRange_v2(&base, &size, reinterpret_cast<CUdeviceptr>(&local)), CUDA_ERROR_NOT_FOUND);
}

RULE(memory, host_alloc_needs_known_flags, "lenient:cuMemHostAlloc",
     "cuMemHostAlloc with a flag that does not exist answers CUDA_ERROR_INVALID_VALUE") {
  Session session;
  void* memory = nullptr;
  CHECK_EQ(cu.cuMemHostAlloc(&memory, 4096, 0x1000), CUDA_ERROR_INVALID_VALUE);
}

RULE(memory, host_flags_are_those_asked_for, "idle:cuMemHostGetFlags",
     "cuMemHostGetFlags tells the flags that the memory was allocated with") {
  Session session;
  void* memory = nullptr;
  unsigned flags = 0;
  CHECK_OK(cu.cuMemHostAlloc(&memory, 4096, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP));
  CHECK_OK(cu.cuMemHostGetFlags(&flags, memory));
  CHECK_EQ(flags, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP);
  CHECK_OK(cu.cuMemFreeHost(memory));
}

RULE(memory, host_flags_of_pageable_memory_are_refused, "lenient:cuMemHostGetFlags",
     "cuMemHostGetFlags of memory that is not pinned answers CUDA_ERROR_INVALID_VALUE") {
  Session session;
  unsigned flags = 0;
  CHECK_EQ(cu.cuMemHostGetFlags(&flags, registered), CUDA_ERROR_INVALID_VALUE);
}

RULE(memory, pinned_memory_has_one_address, "idle:cuMemHostGetDevicePointer_v2",
     "cuMemHostGetDevicePointer of memory from cuMemHostAlloc gives the host's own address") {
  Session session;
  void* memory = nullptr;
  CUdeviceptr device = 0;
  CHECK_OK(cu.cuMemAllocHost_v2(&memory, 4096));
  CHECK_OK(cu.cuMemHostGetDevicePointer_v2(&device, memory, 0));
  CHECK_EQ(device, reinterpret_cast<CUdeviceptr>(memory));
  CHECK_OK(cu.cuMemFreeHost(memory));
}

RULE(memory, device_pointer_takes_no_flags, "lenient:cuMemHostGetDevicePointer_v2",
     "cuMemHostGetDevicePointer with flags answers CUDA_ERROR_INVALID_VALUE") {
  Session session;
  Pinned pinned(4096);
  CUdeviceptr device = 0;
  CHECK_EQ(cu.cuMemHostGetDevicePointer_v2(&device, pinned.data(), 1), CUDA_ERROR_INVALID_VALUE);
}

RULE(memory, device_pointer_needs_pinned_memory, "lenient:cuMemHostGetDevicePointer_v2",
     "cuMemHostGetDevicePointer of memory that is not pinned is refused") {
  Session session;
  CUdeviceptr device = 0;
  CHECK_NE(cu.cuMemHostGetDevicePointer_v2(&device, registered, 0), CUDA_SUCCESS);
}

RULE(memory, kernels_write_pinned_memory, "idle:cuLaunchKernel",
     "what a kernel writes into pinned memory the host reads after the stream was waited for") {
  Session session;
  Pinned pinned(256);
  Stream stream;
  CHECK_OK(launch(session.function("fill"), 1, 64, stream, pinned.address(), 64UL, 17U));
  CHECK_OK(cu.cuStreamSynchronize(stream));
  CHECK_EQ(pinned.data()[63], 17);
}

RULE(memory, free_host_twice_is_refused, "lenient:cuMemFreeHost",
     "cuMemFreeHost of memory that was freed already answers CUDA_ERROR_INVALID_VALUE") {
  Session session;
  void* memory = nullptr;
  CHECK_OK(cu.cuMemHostAlloc(&memory, 4096, 0));
  CHECK_OK(cu.cuMemFreeHost(memory));
  CHECK_EQ(cu.cuMemFreeHost(memory), CUDA_ERROR_INVALID_VALUE);
}

RULE(memory, free_host_of_registered_memory_is_refused, "lenient:cuMemFreeHost",
     "cuMemFreeHost of memory that was only registered is refused") {
  Session session;
  CHECK_OK(cu.cuMemHostRegister_v2(registered, sizeof registered, 0));
  CHECK_NE(cu.cuMemFreeHost(registered), CUDA_SUCCESS);
  CHECK_OK(cu.cuMemHostUnregister(registered));
}

RULE(memory, register_twice_is_refused, "lenient:cuMemHostRegister_v2",
     "cuMemHostRegister of registered memory answers CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED") {
  Session session;
  CHECK_OK(cu.cuMemHostRegister_v2(registered, sizeof registered, 0));
  CHECK_EQ(cu.cuMemHostRegister_v2(registered, sizeof registered, 0), CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
  CHECK_EQ(cu.cuMemHostRegister_v2(registered + 4096, 4096, 0), CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
  CHECK_OK(cu.cuMemHostUnregister(registered));
}

RULE(memory, register_of_nothing_is_refused, "lenient:cuMemHostRegister_v2",
     "cuMemHostRegister of no address or of 0 bytes answers CUDA_ERROR_INVALID_VALUE") {
  Session session;
  CHECK_EQ(cu.cuMemHostRegister_v2(nullptr, 4096, 0), CUDA_ERROR_INVALID_VALUE);
  CHECK_EQ(cu.cuMemHostRegister_v2(registered, 0, 0), CUDA_ERROR_INVALID_VALUE);
}

RULE(memory, registered_memory_is_host_memory, "idle:cuMemHostRegister_v2",
     "registered memory is of type host, and pageable again after cuMemHostUnregister") {
  Session session;
  unsigned type = 0;
  auto address = reinterpret_cast<CUdeviceptr>(registered);
  CHECK_OK(cu.cuMemHostRegister_v2(registered, sizeof registered, CU_MEMHOSTREGISTER_PORTABLE));
  CHECK_OK(cu.cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address));
  CHECK_EQ(type, CU_MEMORYTYPE_HOST);
  CHECK_OK(cu.cuMemHostUnregister(registered));
  CHECK_EQ(cu.cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address), CUDA_ERROR_INVALID_VALUE);
}

RULE(memory, unregister_of_pageable_memory_is_refused, "lenient:cuMemHostUnregister",
     "cuMemHostUnregister of memory that is not registered answers CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED") {
  Session session;
  CHECK_EQ(cu.cuMemHostUnregister(registered), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
}

RULE(memory, unregistered_memory_can_be_registered_again, "idle:cuMemHostUnregister",
     "memory can be registered again after cuMemHostUnregister") {
  Session session;
  CHECK_OK(cu.cuMemHostRegister_v2(registered, sizeof registered, 0));
  CHECK_OK(cu.cuMemHostUnregister(registered));
  CHECK_OK(cu.cuMemHostRegister_v2(registered, sizeof registered, 0));
  CHECK_OK(cu.cuMemHostUnregister(registered));
}

RULE(memory, memory_goes_with_its_context, "idle:cuCtxDestroy_v2",
     "cuCtxDestroy gives back the memory that was allocated in the context") {
  Session session;
  CUcontext context = nullptr;
  CHECK_OK(cu.cuCtxCreate_v2(&context, 0, session.device()));
  CUdeviceptr address = 0;
  CHECK_OK(cu.cuMemAlloc_v2(&address, kMiB));
  CHECK_OK(cu.cuCtxDestroy_v2(context));
  CHECK_OK(cu.cuCtxSetCurrent(session.context()));
  CUdeviceptr base = 0;
  CHECK_NE(cu.cuMemGetAddressRange_v2(&base, nullptr, address), CUDA_SUCCESS);
}

RULE(memory, contexts_of_a_gpu_share_addresses, "contexts_keep_their_memory",
     "a kernel of one context may use memory of another context of the same GPU") {
  Session session;
  Buffer buffer(kMiB);
  CUcontext context = nullptr;
  CHECK_OK(cu.cuCtxCreate_v2(&context, 0, session.device()));
  CHECK_OK(launch(session.function("fill"), 1, 32, nullptr, buffer.address(), 32UL, 9U));
  CHECK_OK(cu.cuCtxSynchronize());
  CHECK_OK(cu.cuCtxDestroy_v2(context));
  CHECK_OK(cu.cuCtxSetCurrent(session.context()));
  std::vector<unsigned> words = buffer.read<unsigned>(32);
  CHECK_EQ(words[31], 9);
}

RULE(memory, freed_memory_is_an_illegal_address, "idle:cuMemFree_v2",
     "a kernel that touches a large allocation after cuMemFree fails with CUDA_ERROR_ILLEGAL_ADDRESS, and so do later "
     "calls") {
  Session session;
  CUfunction fill = session.function("fill");
  Buffer buffer(32 * kMiB);
  CUdeviceptr address = buffer.release();
  CHECK_OK(cu.cuMemFree_v2(address));
  CHECK_OK(launch(fill, 1, 32, nullptr, address, 32UL, 1U));
  CHECK_EQ(cu.cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
  CHECK_EQ(cu.cuMemAlloc_v2(&address, 64), CUDA_ERROR_ILLEGAL_ADDRESS);
}
