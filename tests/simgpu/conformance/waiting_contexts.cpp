// Whose work cuMemFree and cuMemHostUnregister wait for, and whose captures cuMemAlloc and cuMemFree see, where there
// are several contexts and GPUs.
#include <cstdlib>
#include <optional>

#include "tests/simgpu/conformance/managed.h"
#include "tests/simgpu/conformance/release.h"
#include "tests/simgpu/conformance/work.h"

namespace {

CUdeviceptr plain_memory() {
  CUdeviceptr address = 0;
  CHECK_OK(cu.cuMemAlloc_v2(&address, kMiB));
  return address;
}

CUdeviceptr managed_memory() {
  CUdeviceptr address = 0;
  CHECK_OK(cu.cuMemAllocManaged(&address, kMiB, CU_MEM_ATTACH_GLOBAL));
  return address;
}

// A context of its own, current from here on. It stays until the process ends: a Blocker's flag is its memory.
CUcontext another_context(const Session& session) {
  CUcontext context = nullptr;
  CHECK_OK(cu.cuCtxCreate_v2(&context, 0, session.device()));
  return context;
}

void free_behind(CUstream stream, CUdeviceptr address) {
  Blocker blocker(stream);
  CHECK_OK(cu.cuMemFree_v2(address));
  blocker.release();
}

// Memory of the host's, registered in the current context.
class Registered {
 public:
  Registered() : pages_(std::aligned_alloc(4096, kMiB)) { CHECK_OK(cu.cuMemHostRegister_v2(pages_, kMiB, 0)); }
  ~Registered() { std::free(pages_); }
  Registered(const Registered&) = delete;
  Registered& operator=(const Registered&) = delete;
  void unregister() { CHECK_OK(cu.cuMemHostUnregister(pages_)); }

 private:
  void* pages_;
};

// Two GPUs, each of which may use the other's memory. The first's context is current.
struct Peers {
  Peers() : first(0) {
    SKIP_UNLESS(first.devices() >= 2, "needs two GPUs");
    int possible = 0;
    CHECK_OK(cu.cuDeviceCanAccessPeer(&possible, 0, 1));
    SKIP_UNLESS(possible != 0, "needs peer access");
    second.emplace(1);
    CHECK_OK(cu.cuCtxEnablePeerAccess(first.context(), 0));
    CHECK_OK(cu.cuCtxSetCurrent(first.context()));
    CHECK_OK(cu.cuCtxEnablePeerAccess(second->context(), 0));
  }
  Session first;
  std::optional<Session> second;
};

}  // namespace

RULE(waiting, freeing_waits_for_no_other_context, "frees_wait_for_every_context",
     "cuMemFree of plain memory returns while a kernel of another context of the same GPU runs, whichever is current") {
  Session session;
  CUdeviceptr first = plain_memory();
  CUdeviceptr second = plain_memory();
  another_context(session);
  Stream stream;
  free_behind(stream, first);
  Blocker blocker(stream);
  CHECK_OK(cu.cuCtxSetCurrent(session.context()));
  CHECK_OK(cu.cuMemFree_v2(second));
  blocker.release();
}

RULE(waiting, freeing_waits_for_the_memorys_context, "free_does_not_wait",
     "cuMemFree of plain memory waits for the kernels of the memory's context, also with another context current") {
  Session session;
  Stream stream;
  CUdeviceptr address = plain_memory();
  Blocker blocker(stream);
  another_context(session);
  std::thread releasing = release_soon(blocker);
  CHECK_OK(cu.cuMemFree_v2(address));
  CUresult state = cu.cuStreamQuery(stream);
  releasing.join();
  CHECK_EQ(state, CUDA_SUCCESS);
}

RULE(waiting, freeing_managed_memory_waits_for_no_other_context, "frees_wait_for_every_context",
     "cuMemFree of managed memory returns while a kernel of another context of the same GPU runs") {
  Session session;
  CUdeviceptr address = managed_memory();
  another_context(session);
  Stream stream;
  free_behind(stream, address);
}

RULE(waiting, freeing_waits_for_no_other_gpu, "frees_wait_for_every_context",
     "cuMemFree of plain memory returns while a kernel runs on a GPU that has no access to it") {
  Session session(0);
  SKIP_UNLESS(session.devices() >= 2, "needs two GPUs");
  CUdeviceptr address = plain_memory();
  Session second(1);
  Stream stream;
  free_behind(stream, address);
}

RULE(waiting, freeing_waits_for_no_peer, "frees_wait_for_every_context",
     "cuMemFree of plain memory returns while a kernel runs on a GPU whose context has access to it as a peer") {
  Peers peers;
  CUdeviceptr address = plain_memory();
  CHECK_OK(cu.cuCtxSetCurrent(peers.second->context()));
  Stream stream;
  free_behind(stream, address);
}

RULE(waiting, freeing_managed_memory_waits_for_no_other_gpu, "frees_wait_for_every_context",
     "cuMemFree of managed memory returns while a kernel runs on another GPU than its context's") {
  Session session(0);
  SKIP_UNLESS(session.devices() >= 2, "needs two GPUs");
  CUdeviceptr address = managed_memory();
  Session second(1);
  Stream stream;
  free_behind(stream, address);
}

RULE(waiting, registering_does_not_wait, "waits:cuMemHostRegister_v2",
     "cuMemHostRegister returns while a kernel runs") {
  Session session;
  Stream stream;
  Blocker blocker(stream);
  Registered memory;
  blocker.release();
  memory.unregister();
}

RULE(waiting, unregistering_waits_for_the_memorys_context, "unregistering_does_not_wait",
     "cuMemHostUnregister waits for the kernels of the context in which the memory was registered, also with another "
     "context current") {
  Session session;
  Stream stream;
  Registered memory;
  Blocker blocker(stream);
  another_context(session);
  std::thread releasing = release_soon(blocker);
  memory.unregister();
  CUresult state = cu.cuStreamQuery(stream);
  releasing.join();
  CHECK_EQ(state, CUDA_SUCCESS);
}

RULE(waiting, unregistering_waits_for_no_other_context, "unregistering_waits_for_every_context",
     "cuMemHostUnregister returns while a kernel of another context of the same GPU runs, whichever is current") {
  Session session;
  Registered first;
  Registered second;
  another_context(session);
  Stream stream;
  Blocker blocker(stream);
  first.unregister();
  CHECK_OK(cu.cuCtxSetCurrent(session.context()));
  second.unregister();
  blocker.release();
}

RULE(capture, allocations_of_other_contexts_destroy_global_captures, "captures_allow_unsafe_calls",
     "cuMemAlloc in another context answers CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED and invalidates a global capture") {
  Session session;
  Stream stream;
  another_context(session);
  CHECK_OK(cu.cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  CUdeviceptr address = 0;
  CHECK_EQ(cu.cuMemAlloc_v2(&address, 4096), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  CHECK_EQ(capture_status(stream), CU_STREAM_CAPTURE_STATUS_INVALIDATED);
}

RULE(capture, frees_of_other_contexts_destroy_global_captures, "captures_allow_unsafe_calls",
     "cuMemFree of another context's memory answers CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED and invalidates a global "
     "capture") {
  Session session;
  Stream stream;
  another_context(session);
  CUdeviceptr address = plain_memory();
  CHECK_OK(cu.cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  CHECK_EQ(cu.cuMemFree_v2(address), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  CHECK_EQ(capture_status(stream), CU_STREAM_CAPTURE_STATUS_INVALIDATED);
}

RULE(capture, allocations_of_other_threads_and_contexts_destroy_global_captures, "captures_allow_unsafe_calls",
     "cuMemAlloc in another context by another thread answers CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED and invalidates a "
     "global capture") {
  Session session;
  Stream stream;
  CUcontext other = another_context(session);
  CHECK_OK(cu.cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  CUresult result = on_other_thread(session, [&] {
    CHECK_OK(cu.cuCtxSetCurrent(other));
    CUdeviceptr address = 0;
    return cu.cuMemAlloc_v2(&address, 4096);
  });
  CHECK_EQ(result, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  CHECK_EQ(capture_status(stream), CU_STREAM_CAPTURE_STATUS_INVALIDATED);
}

RULE(capture, allocations_on_other_gpus_destroy_global_captures, "captures_allow_unsafe_calls",
     "cuMemAlloc on another GPU answers CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED and invalidates a global capture") {
  Session session(0);
  SKIP_UNLESS(session.devices() >= 2, "needs two GPUs");
  Stream stream;
  Session second(1);
  CHECK_OK(cu.cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  CUdeviceptr address = 0;
  CHECK_EQ(cu.cuMemAlloc_v2(&address, 4096), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  CHECK_EQ(capture_status(stream), CU_STREAM_CAPTURE_STATUS_INVALIDATED);
}
