// Rules of calls by a thread that has no current context: a free finds the memory's context, a call in a stream the
// stream's. Measured on an H100, driver 580.159.04. Numba frees all it has after it has popped its last context.
#include "tests/simgpu/conformance/pools.h"
#include "tests/simgpu/conformance/release.h"
#include "tests/simgpu/conformance/work.h"

namespace {

// No context is current while this lives.
class NoContext {
 public:
  NoContext() {
    CHECK_OK(cu.cuCtxGetCurrent(&context_));
    CHECK_OK(cu.cuCtxSetCurrent(nullptr));
  }
  ~NoContext() { cu.cuCtxSetCurrent(context_); }
  NoContext(const NoContext&) = delete;
  NoContext& operator=(const NoContext&) = delete;

 private:
  CUcontext context_ = nullptr;
};

CUdeviceptr plain(size_t bytes) {
  CUdeviceptr address = 0;
  CHECK_OK(cu.cuMemAlloc_v2(&address, bytes));
  return address;
}

CUdeviceptr pooled(CUstream stream) {
  CUdeviceptr address = 0;
  CHECK_OK(cu.cuMemAllocAsync(&address, kMiB, stream));
  CHECK_OK(cu.cuStreamSynchronize(stream));
  return address;
}

CUresult free_without_context(CUdeviceptr address) {
  const NoContext none;
  return cu.cuMemFree_v2(address);
}

}  // namespace

RULE(memory, free_needs_no_context, "frees_need_a_context",
     "cuMemFree of plain, pitched and managed memory succeeds with no context current, once") {
  Session session;
  CUdeviceptr pitched = 0;
  CUdeviceptr managed = 0;
  size_t pitch = 0;
  CHECK_OK(cu.cuMemAllocPitch_v2(&pitched, &pitch, 1000, 1000, 4));
  CHECK_OK(cu.cuMemAllocManaged(&managed, 8 * kMiB, CU_MEM_ATTACH_GLOBAL));
  for (const CUdeviceptr address : {plain(4096), plain(8 * kMiB), pitched, managed}) {
    CHECK_OK(free_without_context(address));
    CHECK_EQ(free_without_context(address), CUDA_ERROR_INVALID_VALUE);
  }
  CHECK_OK(free_without_context(0));
}

RULE(memory, free_without_a_context_waits, "free_does_not_wait",
     "cuMemFree of memory from cuMemAlloc waits for the work of its context with no context current, too") {
  Session session;
  const CUdeviceptr address = plain(4 * kMiB);
  Stream stream;
  Blocker blocker(stream);
  std::thread releasing = release_soon(blocker);
  CHECK_OK(free_without_context(address));
  const CUresult state = cu.cuStreamQuery(stream);
  releasing.join();
  CHECK_EQ(state, CUDA_SUCCESS);
}

RULE(memory, free_host_needs_no_context, "frees_need_a_context", "cuMemFreeHost succeeds with no context current") {
  Session session;
  void* memory = nullptr;
  CHECK_OK(cu.cuMemHostAlloc(&memory, 4096, 0));
  const NoContext none;
  CHECK_OK(cu.cuMemFreeHost(memory));
}

RULE(memory, synchronous_calls_need_a_context, "lenient:cuMemcpyDtoH_v2",
     "cuMemcpyDtoH and cuMemsetD8 with no context current answer CUDA_ERROR_INVALID_CONTEXT") {
  Session session;
  Buffer buffer(64);
  char byte = 0;
  const NoContext none;
  CHECK_EQ(cu.cuMemcpyDtoH_v2(&byte, buffer, 1), CUDA_ERROR_INVALID_CONTEXT);
  CHECK_EQ(cu.cuMemsetD8_v2(buffer, 0, 64), CUDA_ERROR_INVALID_CONTEXT);
}

RULE(capture, free_without_a_context_destroys_captures, "captures_allow_unsafe_calls",
     "cuMemFree by a thread that captures in global mode is refused with no context current, too, and invalidates the "
     "capture: of plain memory, of a pool's, of no allocation and of 0") {
  Session session;
  Stream other;
  for (const CUdeviceptr address : {plain(8 * kMiB), pooled(other), CUdeviceptr{1}, CUdeviceptr{0}}) {
    Stream stream;
    CHECK_OK(cu.cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    CHECK_EQ(free_without_context(address), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    CHECK_EQ(capture_status(stream), CU_STREAM_CAPTURE_STATUS_INVALIDATED);
    CUgraph graph = nullptr;
    CHECK_EQ(cu.cuStreamEndCapture(stream, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    if (address > 1) CHECK_OK(free_without_context(address));
  }
}

RULE(pools, free_needs_no_context, "frees_of_pool_memory_wait",
     "cuMemFree of what a pool gave succeeds with no context current, once, and does not wait for a kernel") {
  Session session;
  Stream stream;
  const CUdeviceptr address = pooled(stream);
  Blocker blocker(stream);
  CHECK_OK(free_without_context(address));
  CHECK_EQ(free_without_context(address), CUDA_ERROR_INVALID_VALUE);
  blocker.release();
}

RULE(pools, streams_bring_their_context, "streams_need_a_context",
     "with no context current, memory is allocated and freed in the order of a created stream, but not in that of the "
     "default stream: CUDA_ERROR_INVALID_CONTEXT") {
  Session session;
  Stream stream;
  const CUdeviceptr plain_memory = plain(8 * kMiB);
  const NoContext none;
  CUdeviceptr address = 0;
  CHECK_EQ(cu.cuMemAllocAsync(&address, kMiB, nullptr), CUDA_ERROR_INVALID_CONTEXT);
  CHECK_OK(cu.cuMemAllocAsync(&address, kMiB, stream));
  CHECK_EQ(cu.cuMemFreeAsync(address, nullptr), CUDA_ERROR_INVALID_CONTEXT);
  CHECK_OK(cu.cuMemFreeAsync(address, stream));
  CHECK_OK(cu.cuMemFreeAsync(plain_memory, stream));
  CHECK_OK(cu.cuStreamSynchronize(stream));
}

RULE(
    streams, work_in_a_stream_needs_no_context, "streams_need_a_context",
    "with no context current, sets, copies, kernels, events and waits in a created stream do what they do with one; in "
    "the default stream they answer CUDA_ERROR_INVALID_CONTEXT") {
  Session session;
  Words words(session);
  Pinned pinned(256);
  Stream stream;
  Event event;
  {
    const NoContext none;
    CHECK_EQ(cu.cuMemsetD32Async(words.address(), 7, 32, nullptr), CUDA_ERROR_INVALID_CONTEXT);
    CHECK_EQ(words.fill(nullptr, 7), CUDA_ERROR_INVALID_CONTEXT);
    CHECK_EQ(cu.cuEventRecord(event, nullptr), CUDA_ERROR_INVALID_CONTEXT);
    CHECK_OK(cu.cuMemsetD32Async(words.address(), 7, 32, stream));
    CHECK_OK(cu.cuMemcpyDtoHAsync_v2(pinned.data(), words.address(), 4, stream));
    CHECK_OK(words.fill(stream, 9));
    CHECK_OK(cu.cuMemcpyDtoHAsync_v2(pinned.data() + 1, words.address(), 4, stream));
    CHECK_OK(cu.cuEventRecord(event, stream));
    CHECK_OK(cu.cuStreamWaitEvent(stream, event, 0));
    CHECK_OK(cu.cuStreamSynchronize(stream));
    CHECK_OK(cu.cuEventQuery(event));
  }
  CHECK_EQ(pinned.data()[0], 7U);
  CHECK_EQ(pinned.data()[1], 9U);
}

RULE(capture, a_stream_is_captured_without_a_context, "streams_need_a_context",
     "with no context current, the work of a created stream can be captured, and its graph launched there") {
  Session session;
  Words words(session);
  Stream stream;
  CUgraph graph = nullptr;
  {
    const NoContext none;
    CHECK_OK(cu.cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    CHECK_OK(words.fill(stream, 5));
    CHECK_OK(cu.cuStreamEndCapture(stream, &graph));
  }
  CUgraphExec executable = nullptr;
  CHECK_OK(cu.cuGraphInstantiateWithFlags(&executable, graph, 0));
  {
    const NoContext none;
    CHECK_EQ(cu.cuGraphLaunch(executable, nullptr), CUDA_ERROR_INVALID_CONTEXT);
    CHECK_OK(cu.cuGraphLaunch(executable, stream));
    CHECK_OK(cu.cuStreamSynchronize(stream));
  }
  CHECK_EQ(words.value(), 5U);
  CHECK_OK(cu.cuGraphExecDestroy(executable));
  CHECK_OK(cu.cuGraphDestroy(graph));
}
