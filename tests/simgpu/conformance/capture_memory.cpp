// Rules of stream capture: allocating and freeing meanwhile, and captures that span contexts.
#include "tests/simgpu/conformance/work.h"

namespace {

constexpr auto kGlobal = CU_STREAM_CAPTURE_MODE_GLOBAL;
constexpr auto kThreadLocal = CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
constexpr auto kRelaxed = CU_STREAM_CAPTURE_MODE_RELAXED;

CUresult allocate() {
  CUdeviceptr address = 0;
  return cu.cuMemAlloc_v2(&address, 4096);
}

// Made before anything captures.
CUdeviceptr memory_to_free() {
  CUdeviceptr address = 0;
  CHECK_OK(cu.cuMemAlloc_v2(&address, 4096));
  return address;
}

// A capture that began in a stream of the first context and that a stream of the second has joined. The first context
// is current.
struct Spanning {
  explicit Spanning(const Session& session, CUstreamCaptureMode mode = kGlobal) {
    SKIP_UNLESS(exported("cuCtxRecordEvent"), "needs cuCtxRecordEvent");
    CHECK_OK(cu.cuCtxCreate_v2(&second, 0, session.device()));
    CHECK_OK(cu.cuStreamCreate(&joined, CU_STREAM_NON_BLOCKING));
    CHECK_OK(cu.cuEventCreate(&event_of_second, CU_EVENT_DISABLE_TIMING));
    CHECK_OK(cu.cuCtxSetCurrent(session.context()));
    CHECK_OK(cu.cuStreamCreate(&origin, CU_STREAM_NON_BLOCKING));
    CHECK_OK(cu.cuEventCreate(&event_of_first, CU_EVENT_DISABLE_TIMING));
    CUevent fork = nullptr;
    CHECK_OK(cu.cuEventCreate(&fork, CU_EVENT_DISABLE_TIMING));
    CHECK_OK(cu.cuStreamBeginCapture_v2(origin, mode));
    CHECK_OK(cu.cuEventRecord(fork, origin));
    CHECK_OK(cu.cuCtxSetCurrent(second));
    CHECK_OK(cu.cuStreamWaitEvent(joined, fork, 0));
    CHECK_EQ(capture_status(joined), CU_STREAM_CAPTURE_STATUS_ACTIVE);
    CHECK_OK(cu.cuCtxSetCurrent(session.context()));
  }
  CUcontext second = nullptr;
  CUstream origin = nullptr;
  CUstream joined = nullptr;
  CUevent event_of_first = nullptr;
  CUevent event_of_second = nullptr;
};

}  // namespace

RULE(capture, local_captures_concern_their_thread, "captures_allow_unsafe_calls",
     "cuMemAlloc by a thread that captures in thread-local mode answers CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED and "
     "invalidates the capture") {
  Session session;
  Stream stream;
  CHECK_OK(cu.cuStreamBeginCapture_v2(stream, kThreadLocal));
  CHECK_EQ(allocate(), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  CHECK_EQ(capture_status(stream), CU_STREAM_CAPTURE_STATUS_INVALIDATED);
}

RULE(capture, other_threads_destroy_global_captures, "captures_allow_unsafe_calls",
     "cuMemAlloc by another thread invalidates a global capture") {
  Session session;
  Stream stream;
  CHECK_OK(cu.cuStreamBeginCapture_v2(stream, kGlobal));
  CHECK_EQ(on_other_thread(session, allocate), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  CHECK_EQ(capture_status(stream), CU_STREAM_CAPTURE_STATUS_INVALIDATED);
}

RULE(capture, frees_destroy_captures, "captures_allow_unsafe_calls",
     "cuMemFree by a thread that captures in global mode answers CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED and invalidates "
     "the capture, and the memory stays") {
  Session session;
  CUdeviceptr address = memory_to_free();
  Stream stream;
  CHECK_OK(cu.cuStreamBeginCapture_v2(stream, kGlobal));
  CHECK_EQ(cu.cuMemFree_v2(address), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  CHECK_EQ(capture_status(stream), CU_STREAM_CAPTURE_STATUS_INVALIDATED);
  CUgraph graph = nullptr;
  CHECK_EQ(cu.cuStreamEndCapture(stream, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  CHECK_OK(cu.cuMemFree_v2(address));
}

RULE(capture, frees_of_other_threads_destroy_global_captures, "captures_allow_unsafe_calls",
     "cuMemFree by another thread answers CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED and invalidates a global capture") {
  Session session;
  CUdeviceptr address = memory_to_free();
  Stream stream;
  CHECK_OK(cu.cuStreamBeginCapture_v2(stream, kGlobal));
  CHECK_EQ(on_other_thread(session, [&] { return cu.cuMemFree_v2(address); }), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  CHECK_EQ(capture_status(stream), CU_STREAM_CAPTURE_STATUS_INVALIDATED);
}

RULE(capture, frees_destroy_local_captures_of_their_thread, "captures_allow_unsafe_calls",
     "cuMemFree by a thread that captures in thread-local mode answers CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED and "
     "invalidates the capture") {
  Session session;
  CUdeviceptr address = memory_to_free();
  Stream stream;
  CHECK_OK(cu.cuStreamBeginCapture_v2(stream, kThreadLocal));
  CHECK_EQ(cu.cuMemFree_v2(address), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  CHECK_EQ(capture_status(stream), CU_STREAM_CAPTURE_STATUS_INVALIDATED);
}

RULE(capture, frees_of_other_threads_leave_local_captures, "captures_are_all_global",
     "cuMemFree by another thread succeeds beside a thread-local capture, which lives") {
  Session session;
  CUdeviceptr address = memory_to_free();
  Stream stream;
  CHECK_OK(cu.cuStreamBeginCapture_v2(stream, kThreadLocal));
  CHECK_OK(on_other_thread(session, [&] { return cu.cuMemFree_v2(address); }));
  CHECK_EQ(capture_status(stream), CU_STREAM_CAPTURE_STATUS_ACTIVE);
}

RULE(capture, frees_leave_relaxed_captures, "captures_are_all_global",
     "cuMemFree by a thread whose only capture is a relaxed one succeeds, and the capture lives") {
  Session session;
  CUdeviceptr address = memory_to_free();
  Stream stream;
  CHECK_OK(cu.cuStreamBeginCapture_v2(stream, kRelaxed));
  CHECK_OK(cu.cuMemFree_v2(address));
  CHECK_EQ(capture_status(stream), CU_STREAM_CAPTURE_STATUS_ACTIVE);
}

RULE(capture, records_of_the_first_context_destroy_spanning_captures, "context_events_ignore_captures",
     "cuCtxRecordEvent on the context where a capture began answers CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED and "
     "invalidates "
     "the capture, which a stream of another context has joined") {
  Session session;
  Spanning capture(session);
  CHECK_EQ(cu.cuCtxRecordEvent(session.context(), capture.event_of_first), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  CHECK_EQ(capture_status(capture.origin), CU_STREAM_CAPTURE_STATUS_INVALIDATED);
}

RULE(capture, records_of_the_second_context_destroy_spanning_captures, "context_events_see_origins_only",
     "cuCtxRecordEvent on a context whose stream has joined another context's capture answers "
     "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED and invalidates the capture") {
  Session session;
  Spanning capture(session);
  CHECK_EQ(cu.cuCtxRecordEvent(capture.second, capture.event_of_second), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  CHECK_EQ(capture_status(capture.origin), CU_STREAM_CAPTURE_STATUS_INVALIDATED);
}

RULE(capture, relaxed_threads_destroy_spanning_captures_too, "context_events_see_origins_only",
     "cuCtxRecordEvent on a context whose stream has joined another context's capture invalidates it also from a "
     "thread in "
     "relaxed mode") {
  Session session;
  Spanning capture(session, kRelaxed);
  CUresult result = on_other_thread(session, [&] {
    auto mode = kRelaxed;
    CHECK_OK(cu.cuThreadExchangeStreamCaptureMode(&mode));
    return cu.cuCtxRecordEvent(capture.second, capture.event_of_second);
  });
  CHECK_EQ(result, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  CHECK_EQ(capture_status(capture.origin), CU_STREAM_CAPTURE_STATUS_INVALIDATED);
}
