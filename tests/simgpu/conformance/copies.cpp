// Copies of bytes: what they move, when their calls return.
#include "tests/simgpu/conformance/release.h"

namespace {

constexpr size_t kMiB = size_t{1} << 20;

std::vector<unsigned> counting(size_t count, unsigned first = 0) {
  std::vector<unsigned> values(count);
  for (size_t index = 0; index < count; ++index) values[index] = first + static_cast<unsigned>(index);
  return values;
}

CUdeviceptr address(const void* memory) {
  return reinterpret_cast<CUdeviceptr>(memory);
}

}  // namespace

RULE(copies, there_and_back, "idle:cuMemcpyHtoD_v2",
     "what cuMemcpyHtoD writes to the device cuMemcpyDtoH reads from it") {
  Session session;
  Buffer buffer(4096);
  std::vector<unsigned> values = counting(1024, 7);
  CHECK_OK(cu.cuMemsetD8_v2(buffer, 0, 4096));
  CHECK_OK(cu.cuMemcpyHtoD_v2(buffer, values.data(), 4096));
  CHECK(buffer.read<unsigned>(1024) == values);
}

RULE(copies, of_nothing, "refuse:cuMemcpyHtoD_v2", "copies of 0 bytes succeed") {
  Session session;
  Buffer buffer(64);
  unsigned value = 1;
  CHECK_OK(cu.cuMemcpyHtoD_v2(buffer, &value, 0));
  CHECK_OK(cu.cuMemcpyDtoH_v2(&value, buffer, 0));
}

RULE(copies, beyond_the_memory_are_refused, "lenient:cuMemcpyHtoD_v2",
     "a copy of more than the allocation holds answers CUDA_ERROR_INVALID_VALUE") {
  Session session;
  Buffer buffer(2 * kMiB);
  std::vector<char> host(32 * kMiB);
  CHECK_EQ(cu.cuMemcpyHtoD_v2(buffer, host.data(), host.size()), CUDA_ERROR_INVALID_VALUE);
}

RULE(copies, from_freed_memory_are_refused, "lenient:cuMemcpyDtoH_v2",
     "a copy from freed device memory answers CUDA_ERROR_INVALID_VALUE") {
  Session session;
  Buffer buffer(4 * kMiB);
  CUdeviceptr freed = buffer.release();
  CHECK_OK(cu.cuMemFree_v2(freed));
  unsigned value = 0;
  CHECK_EQ(cu.cuMemcpyDtoH_v2(&value, freed, 4), CUDA_ERROR_INVALID_VALUE);
}

RULE(copies, find_their_direction, "idle:cuMemcpy",
     "cuMemcpy finds out by itself on which side the device is, and copies between two places of the host too") {
  Session session;
  Buffer buffer(4096);
  std::vector<unsigned> values = counting(1024, 3);
  std::vector<unsigned> back(1024);
  std::vector<unsigned> third(1024);
  CHECK_OK(cu.cuMemcpy(buffer, address(values.data()), 4096));
  CHECK_OK(cu.cuMemcpy(address(back.data()), buffer, 4096));
  CHECK(back == values);
  CHECK_OK(cu.cuMemcpy(address(third.data()), address(back.data()), 4096));
  CHECK(third == values);
}

RULE(copies, inside_the_device, "idle:cuMemcpyDtoD_v2", "cuMemcpyDtoD copies from one allocation to another") {
  Session session;
  Buffer from(4096);
  Buffer to(4096);
  CHECK_OK(cu.cuMemsetD8_v2(to, 0, 4096));
  from.write(counting(1024, 5));
  CHECK_OK(cu.cuMemcpyDtoD_v2(to, from, 4096));
  CHECK(to.read<unsigned>(1024) == counting(1024, 5));
}

RULE(copies, inside_the_device_do_not_wait, "device_copy_waits",
     "a synchronous copy inside a device returns before it is done") {
  Session session;
  Buffer from(4096);
  Buffer to(4096);
  CHECK_OK(cu.cuMemcpyDtoD_v2(to, from, 4096));
  CHECK_OK(cu.cuCtxSynchronize());
  Blocker blocker(nullptr);
  CHECK_OK(cu.cuMemcpyDtoD_v2(to, from, 4096));
  CHECK_EQ(cu.cuStreamQuery(nullptr), CUDA_ERROR_NOT_READY);
  blocker.release();
  CHECK_OK(cu.cuCtxSynchronize());
}

RULE(copies, from_pinned_memory_wait, "synchronous_copy_returns_early",
     "a synchronous copy from pinned memory returns after it was done") {
  Session session;
  Buffer buffer(4096);
  Pinned pinned(4096);
  Stream blocking(CU_STREAM_DEFAULT);
  Blocker blocker(blocking);
  std::thread releasing = release_soon(blocker);
  CHECK_OK(cu.cuMemcpyHtoD_v2(buffer, pinned.data(), 4096));
  CUresult state = cu.cuStreamQuery(blocking);
  releasing.join();
  CHECK_EQ(state, CUDA_SUCCESS);
}

RULE(copies, to_the_host_wait, "synchronous_copy_returns_early",
     "cuMemcpyDtoH returns after the work of blocking streams before it, and with the data") {
  Session session;
  Buffer buffer(4096);
  CUfunction fill = session.function("fill");
  CHECK_OK(cu.cuMemsetD8_v2(buffer, 0, 4096));
  CHECK_OK(cu.cuCtxSynchronize());
  Stream blocking(CU_STREAM_DEFAULT);
  unsigned value = 0;
  Blocker blocker(blocking);
  CHECK_OK(launch(fill, 1, 32, blocking, buffer.address(), 32UL, 6U));
  std::thread releasing = release_soon(blocker);
  CHECK_OK(cu.cuMemcpyDtoH_v2(&value, buffer, 4));
  unsigned seen = value;
  releasing.join();
  CHECK_EQ(seen, 6);
}

RULE(copies, from_pageable_memory_read_it_first, "pageable_source_read_late",
     "an asynchronous copy from pageable memory has read a small source when the call returns") {
  Session session;
  Buffer buffer(1024);
  Stream stream;
  std::vector<unsigned> values = counting(256, 1);
  CHECK_OK(cu.cuMemcpyHtoDAsync_v2(buffer, values.data(), 1024, stream));
  CHECK_OK(cu.cuStreamSynchronize(stream));
  Blocker blocker(stream);
  CHECK_OK(cu.cuMemcpyHtoDAsync_v2(buffer, values.data(), 1024, stream));
  values.assign(256, 0);
  blocker.release();
  CHECK_OK(cu.cuStreamSynchronize(stream));
  CHECK(buffer.read<unsigned>(256) == counting(256, 1));
}

RULE(copies, to_pageable_memory_wait, "pageable_copy_returns_early",
     "an asynchronous copy to pageable memory has written it when the call returns") {
  Session session;
  Buffer buffer(1024);
  buffer.write(counting(256, 8));
  Stream stream;
  std::vector<unsigned> values(256);
  Blocker blocker(stream);
  std::thread releasing = release_soon(blocker);
  CHECK_OK(cu.cuMemcpyDtoHAsync_v2(values.data(), buffer, 1024, stream));
  CHECK(values == counting(256, 8));
  releasing.join();
}

RULE(copies, between_pinned_memory_and_device_do_not_wait, "pinned_copy_waits",
     "asynchronous copies between pinned memory and the device return before they are done") {
  Session session;
  Buffer buffer(1024);
  Pinned pinned(1024);
  Stream stream;
  CHECK_OK(cu.cuMemsetD32_v2(buffer, 9, 256));
  CHECK_OK(cu.cuCtxSynchronize());
  Blocker blocker(stream);
  CHECK_OK(cu.cuMemcpyDtoHAsync_v2(pinned.data(), buffer, 1024, stream));
  CHECK_OK(cu.cuMemcpyHtoDAsync_v2(buffer, pinned.data(), 1024, stream));
  CHECK_EQ(cu.cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
  CHECK_EQ(pinned.data()[0], 0);
  blocker.release();
  CHECK_OK(cu.cuStreamSynchronize(stream));
  CHECK_EQ(pinned.data()[255], 9);
}

RULE(copies, between_two_places_of_the_host_wait, "host_copy_returns_early",
     "an asynchronous copy from host memory to host memory is done when the call returns") {
  Session session;
  Stream stream;
  std::vector<unsigned> from = counting(256, 2);
  std::vector<unsigned> to(256);
  Blocker blocker(stream);
  std::thread releasing = release_soon(blocker);
  CHECK_OK(cu.cuMemcpyAsync(address(to.data()), address(from.data()), 1024, stream));
  CHECK(to == from);
  releasing.join();
}

RULE(copies, in_one_stream_follow_each_other, "idle:cuMemcpyDtoDAsync_v2",
     "copies of one stream run one after the other") {
  Session session;
  Buffer first(4096);
  Buffer second(4096);
  Buffer third(4096);
  Stream stream;
  std::vector<unsigned> values = counting(1024, 4);
  CHECK_OK(cu.cuMemsetD8_v2(third, 0, 4096));
  CHECK_OK(cu.cuCtxSynchronize());
  CHECK_OK(cu.cuMemcpyHtoDAsync_v2(first, values.data(), 4096, stream));
  CHECK_OK(cu.cuMemcpyDtoDAsync_v2(second, first, 4096, stream));
  CHECK_OK(cu.cuMemcpyDtoDAsync_v2(third, second, 4096, stream));
  CHECK_OK(cu.cuStreamSynchronize(stream));
  CHECK(third.read<unsigned>(1024) == values);
}

RULE(copies, between_contexts_of_a_gpu, "idle:cuMemcpyPeer",
     "cuMemcpyPeer copies from memory of one context to memory of another") {
  Session session;
  Buffer from(4096);
  from.write(counting(1024, 11));
  CUcontext other = nullptr;
  CHECK_OK(cu.cuCtxCreate_v2(&other, 0, session.device()));
  CUdeviceptr to = 0;
  CHECK_OK(cu.cuMemAlloc_v2(&to, 4096));
  CHECK_OK(cu.cuMemsetD8_v2(to, 0, 4096));
  CHECK_OK(cu.cuMemcpyPeer(to, other, from, session.context(), 4096));
  std::vector<unsigned> values(1024);
  CHECK_OK(cu.cuMemcpyDtoH_v2(values.data(), to, 4096));
  CHECK(values == counting(1024, 11));
  CHECK_OK(cu.cuCtxDestroy_v2(other));
  CHECK_OK(cu.cuCtxSetCurrent(session.context()));
}

RULE(copies, between_two_gpus, "idle:cuMemcpyPeerAsync",
     "cuMemcpyPeerAsync copies between two GPUs, whether access was enabled or not") {
  SKIP_UNLESS(Session(0).devices() >= 2, "needs two GPUs");
  Session second(1);
  Buffer to(4096);
  CHECK_OK(cu.cuMemsetD8_v2(to, 0, 4096));
  CHECK_OK(cu.cuCtxSynchronize());
  Session session(0);
  Buffer from(4096);
  from.write(counting(1024, 12));
  CHECK_OK(cu.cuCtxSynchronize());
  Stream stream;
  CHECK_OK(cu.cuMemcpyPeerAsync(to, second.context(), from, session.context(), 4096, stream));
  CHECK_OK(cu.cuStreamSynchronize(stream));
  CHECK(to.read<unsigned>(1024) == counting(1024, 12));
}

RULE(copies, beside_a_capture_in_a_non_blocking_stream, "copies_are_unsafe_while_capturing",
     "synchronous copies and sets work while the thread captures a non-blocking stream, and the capture goes on") {
  Session session;
  Buffer buffer(kMiB);
  std::vector<unsigned> values = counting(kMiB / 4);
  Stream stream;
  CHECK_OK(cu.cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  CHECK_OK(cu.cuMemcpyHtoD_v2(buffer, values.data(), 4));
  CHECK_OK(cu.cuMemcpyHtoD_v2(buffer, values.data(), kMiB));
  CHECK_OK(cu.cuMemsetD8_v2(buffer, 0, 64));
  CHECK_OK(cu.cuMemcpyDtoH_v2(values.data(), buffer, 64));
  CUgraph graph = nullptr;
  CHECK_OK(cu.cuStreamEndCapture(stream, &graph));
  CHECK_OK(cu.cuGraphDestroy(graph));
  CHECK_EQ(values[0], 0);
}

RULE(copies, beside_a_capture_in_a_blocking_stream, "lenient:cuMemcpyHtoD_v2",
     "a synchronous copy is refused with STREAM_CAPTURE_IMPLICIT while a blocking stream captures, and the capture is "
     "lost") {
  Session session;
  Buffer buffer(64);
  unsigned value = 1;
  Stream stream(CU_STREAM_DEFAULT);
  CHECK_OK(cu.cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  CHECK_EQ(cu.cuMemcpyHtoD_v2(buffer, &value, 4), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
  CUgraph graph = nullptr;
  CHECK_EQ(cu.cuStreamEndCapture(stream, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

RULE(copies, peer_access_to_oneself_is_refused, "lenient:cuCtxEnablePeerAccess",
     "cuCtxEnablePeerAccess of the current context answers CUDA_ERROR_PEER_ACCESS_UNSUPPORTED") {
  Session session;
  CHECK_EQ(cu.cuCtxEnablePeerAccess(session.context(), 0), CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
}

RULE(copies, peer_access_twice_is_refused, "lenient:cuCtxEnablePeerAccess",
     "enabling peer access twice answers PEER_ACCESS_ALREADY_ENABLED, disabling it without PEER_ACCESS_NOT_ENABLED") {
  Session session(0);
  SKIP_UNLESS(session.devices() >= 2, "needs two GPUs");
  int possible = 0;
  CHECK_OK(cu.cuDeviceCanAccessPeer(&possible, 0, 1));
  SKIP_UNLESS(possible != 0, "needs peer access");
  Session second(1);
  CHECK_OK(cu.cuCtxSetCurrent(session.context()));
  CHECK_EQ(cu.cuCtxDisablePeerAccess(second.context()), CUDA_ERROR_PEER_ACCESS_NOT_ENABLED);
  CHECK_OK(cu.cuCtxEnablePeerAccess(second.context(), 0));
  CHECK_EQ(cu.cuCtxEnablePeerAccess(second.context(), 0), CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
  CHECK_OK(cu.cuCtxDisablePeerAccess(second.context()));
}

RULE(copies, kernels_need_peer_access, "peers_need_no_access",
     "a kernel that touches another GPU's memory without peer access fails with CUDA_ERROR_ILLEGAL_ADDRESS") {
  SKIP_UNLESS(Session(0).devices() >= 2, "needs two GPUs");
  Session second(1);
  CUdeviceptr memory = 0;
  CHECK_OK(cu.cuMemAlloc_v2(&memory, kMiB));
  Session session(0);
  CHECK_OK(launch(session.function("fill"), 1, 32, nullptr, memory, 32UL, 1U));
  CHECK_EQ(cu.cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
}

RULE(copies, kernels_use_peer_access, "idle:cuCtxEnablePeerAccess",
     "with peer access a kernel uses another GPU's memory") {
  SKIP_UNLESS(Session(0).devices() >= 2, "needs two GPUs");
  Session second(1);
  int possible = 0;
  CHECK_OK(cu.cuDeviceCanAccessPeer(&possible, 0, 1));
  SKIP_UNLESS(possible != 0, "needs peer access");
  Buffer memory(kMiB);
  Session session(0);
  CHECK_OK(cu.cuCtxEnablePeerAccess(second.context(), 0));
  CHECK_OK(launch(session.function("fill"), 1, 32, nullptr, memory.address(), 32UL, 13U));
  CHECK_OK(cu.cuCtxSynchronize());
  std::vector<unsigned> words = memory.read<unsigned>(32);
  CHECK_EQ(words[31], 13);
}
