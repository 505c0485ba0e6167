// Rules of stream capture: which calls fail, which ones invalidate the capture, and which are unsafe during it.
#include "tests/simgpu/conformance/work.h"

namespace {

constexpr auto kGlobal = CU_STREAM_CAPTURE_MODE_GLOBAL;
constexpr auto kThreadLocal = CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
constexpr auto kRelaxed = CU_STREAM_CAPTURE_MODE_RELAXED;

void set_thread_mode(CUstreamCaptureMode mode) {
  CHECK_OK(cu.cuThreadExchangeStreamCaptureMode(&mode));
}

// A call that CUDA counts as potentially unsafe while a stream captures. It belongs to no stream.
CUresult unsafe_call() {
  CUdeviceptr address = 0;
  return cu.cuMemAlloc_v2(&address, 4096);
}

}  // namespace

RULE(capture, invalidated_captures_give_nothing, "invalidated_captures_give_graphs",
     "an invalidated capture ends with CUDA_ERROR_STREAM_CAPTURE_INVALIDATED and no graph, and the stream is usable "
     "again") {
  Session session;
  Words words(session);
  Stream stream;
  CHECK_OK(cu.cuStreamBeginCapture_v2(stream, kRelaxed));
  CHECK_EQ(cu.cuStreamQuery(stream), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  CHECK_EQ(capture_status(stream), CU_STREAM_CAPTURE_STATUS_INVALIDATED);
  CHECK_EQ(words.fill(stream, 1), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  auto graph = reinterpret_cast<CUgraph>(uintptr_t{8});
  CHECK_EQ(cu.cuStreamEndCapture(stream, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  CHECK(graph == nullptr);
  CHECK_OK(words.fill(stream, 1));
  CHECK_OK(cu.cuStreamSynchronize(stream));
}

RULE(capture, capturing_streams_are_not_waited_for, "capturing_streams_can_be_waited_for",
     "cuStreamSynchronize of a capturing stream answers CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED and invalidates the "
     "capture") {
  Session session;
  Stream stream;
  CHECK_OK(cu.cuStreamBeginCapture_v2(stream, kRelaxed));
  CHECK_EQ(cu.cuStreamSynchronize(stream), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  CHECK_EQ(capture_status(stream), CU_STREAM_CAPTURE_STATUS_INVALIDATED);
}

RULE(capture, asking_a_capturing_stream_for_its_id_destroys_the_capture, "capturing_streams_can_be_waited_for",
     "cuStreamGetId of a capturing stream answers CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED and invalidates the capture; "
     "cuStreamGetCtx does not") {
  Session session;
  Stream stream;
  Stream other;
  CUcontext context = nullptr;
  unsigned long long number = 0;
  CHECK_OK(cu.cuStreamBeginCapture_v2(stream, kRelaxed));
  CHECK_OK(cu.cuStreamGetId(other, &number));
  CHECK_OK(cu.cuStreamGetCtx(stream, &context));
  CHECK_EQ(capture_status(stream), CU_STREAM_CAPTURE_STATUS_ACTIVE);
  CHECK_EQ(cu.cuStreamGetId(stream, &number), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  CHECK_EQ(capture_status(stream), CU_STREAM_CAPTURE_STATUS_INVALIDATED);
}

RULE(capture, callbacks_are_not_captured, "capturing_streams_can_be_waited_for",
     "cuStreamAddCallback in a capturing stream answers CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED") {
  Session session;
  Stream stream;
  CHECK_OK(cu.cuStreamBeginCapture_v2(stream, kRelaxed));
  CHECK_EQ(cu.cuStreamAddCallback(
               stream, [](CUstream, CUresult, void*) {}, nullptr, 0),
           CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
}

RULE(capture, captures_do_not_wait_for_the_outside, "captures_are_not_isolated",
     "a capturing stream that waits for an event recorded outside of the capture gets "
     "CUDA_ERROR_STREAM_CAPTURE_ISOLATION") {
  Session session;
  Stream stream;
  Stream outside;
  Event event;
  CHECK_OK(cu.cuEventRecord(event, outside));
  CHECK_OK(cu.cuStreamBeginCapture_v2(stream, kRelaxed));
  CHECK_EQ(cu.cuStreamWaitEvent(stream, event, 0), CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
}

RULE(capture, captures_are_not_merged, "captures_merge",
     "a capturing stream that waits for an event of another capture gets CUDA_ERROR_STREAM_CAPTURE_MERGE") {
  Session session;
  Stream first;
  Stream second;
  Event event;
  CHECK_OK(cu.cuStreamBeginCapture_v2(first, kRelaxed));
  CHECK_OK(cu.cuStreamBeginCapture_v2(second, kRelaxed));
  CHECK_OK(cu.cuEventRecord(event, first));
  CHECK_EQ(cu.cuStreamWaitEvent(second, event, 0), CUDA_ERROR_STREAM_CAPTURE_MERGE);
}

RULE(capture, a_blocking_streams_capture_refuses_the_legacy_stream, "legacy_stream_ignores_captures",
     "submitting to the legacy stream fails with CUDA_ERROR_STREAM_CAPTURE_IMPLICIT while a blocking stream captures") {
  Session session;
  Words words(session);
  Stream stream(CU_STREAM_DEFAULT);
  CHECK_OK(cu.cuStreamBeginCapture_v2(stream, kRelaxed));
  CHECK_EQ(words.fill(CU_STREAM_LEGACY, 1), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
}

RULE(capture, a_nonblocking_streams_capture_leaves_the_legacy_stream_usable, "every_capture_stops_the_legacy_stream",
     "the legacy stream can be used while a non-blocking stream captures") {
  Session session;
  Words words(session);
  Stream stream(CU_STREAM_NON_BLOCKING);
  CHECK_OK(cu.cuStreamBeginCapture_v2(stream, kRelaxed));
  CHECK_OK(words.fill(CU_STREAM_LEGACY, 1));
  CHECK_EQ(capture_status(stream), CU_STREAM_CAPTURE_STATUS_ACTIVE);
}

RULE(capture, asking_the_legacy_stream_does_no_harm, "legacy_stream_ignores_captures",
     "while a blocking stream captures, cuStreamIsCapturing of the legacy stream answers "
     "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, and the capture survives") {
  Session session;
  Stream stream(CU_STREAM_DEFAULT);
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  CHECK_OK(cu.cuStreamBeginCapture_v2(stream, kRelaxed));
  CHECK_EQ(cu.cuStreamIsCapturing(CU_STREAM_LEGACY, &status), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
  CHECK_EQ(capture_status(stream), CU_STREAM_CAPTURE_STATUS_ACTIVE);
}

RULE(capture, captures_end_on_their_thread, "any_thread_ends_a_capture",
     "a capture that is not relaxed cannot be ended by another thread") {
  Session session;
  Stream stream;
  CHECK_OK(cu.cuStreamBeginCapture_v2(stream, kThreadLocal));
  CUgraph graph = nullptr;
  CHECK_EQ(on_other_thread(session, [&] { return cu.cuStreamEndCapture(stream, &graph); }),
           CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
}

RULE(capture, relaxed_captures_end_anywhere, "relaxed_captures_are_bound_to_threads",
     "a relaxed capture can be ended by another thread") {
  Session session;
  Stream stream;
  CHECK_OK(cu.cuStreamBeginCapture_v2(stream, kRelaxed));
  CUgraph graph = nullptr;
  CHECK_OK(on_other_thread(session, [&] { return cu.cuStreamEndCapture(stream, &graph); }));
  CHECK(graph != nullptr);
}

RULE(capture, captured_events_are_not_queried, "captured_events_can_be_queried",
     "cuEventQuery of an event recorded in a capture answers CUDA_ERROR_CAPTURED_EVENT, even in relaxed mode") {
  Session session;
  Stream stream;
  Event event;
  CHECK_OK(cu.cuStreamBeginCapture_v2(stream, kRelaxed));
  CHECK_OK(cu.cuEventRecord(event, stream));
  set_thread_mode(kRelaxed);
  CHECK_EQ(cu.cuEventQuery(event), CUDA_ERROR_CAPTURED_EVENT);
}

RULE(capture, captured_events_are_not_waited_for, "captured_events_can_be_queried",
     "cuEventSynchronize of an event recorded in a capture answers CUDA_ERROR_CAPTURED_EVENT") {
  Session session;
  Stream stream;
  Event event;
  CHECK_OK(cu.cuStreamBeginCapture_v2(stream, kRelaxed));
  CHECK_OK(cu.cuEventRecord(event, stream));
  CHECK_EQ(cu.cuEventSynchronize(event), CUDA_ERROR_CAPTURED_EVENT);
}

RULE(capture, unsafe_calls_destroy_captures, "captures_allow_unsafe_calls",
     "during a global capture, cuMemAlloc answers CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED and invalidates the capture") {
  Session session;
  Stream stream;
  CHECK_OK(cu.cuStreamBeginCapture_v2(stream, kGlobal));
  CHECK_EQ(unsafe_call(), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  CHECK_EQ(capture_status(stream), CU_STREAM_CAPTURE_STATUS_INVALIDATED);
}

RULE(capture, relaxed_threads_may_make_unsafe_calls, "relaxed_threads_are_refused",
     "a thread in relaxed mode may make unsafe calls while it captures, and the capture survives") {
  Session session;
  Stream stream;
  set_thread_mode(kRelaxed);
  CHECK_OK(cu.cuStreamBeginCapture_v2(stream, kGlobal));
  CHECK_OK(unsafe_call());
  CHECK_EQ(capture_status(stream), CU_STREAM_CAPTURE_STATUS_ACTIVE);
}

RULE(capture, relaxed_captures_allow_calls, "captures_are_all_global",
     "unsafe calls are allowed while the only capture is a relaxed one") {
  Session session;
  Stream stream;
  CHECK_OK(cu.cuStreamBeginCapture_v2(stream, kRelaxed));
  CHECK_OK(unsafe_call());
  CHECK_EQ(capture_status(stream), CU_STREAM_CAPTURE_STATUS_ACTIVE);
}

RULE(capture, global_captures_concern_all_threads, "captures_allow_unsafe_calls",
     "an unsafe call by another thread is refused during a global capture") {
  Session session;
  Stream stream;
  CHECK_OK(cu.cuStreamBeginCapture_v2(stream, kGlobal));
  CHECK_EQ(on_other_thread(session, unsafe_call), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
}

RULE(capture, local_captures_concern_one_thread, "captures_are_all_global",
     "an unsafe call by another thread is allowed during a thread-local capture") {
  Session session;
  Stream stream;
  CHECK_OK(cu.cuStreamBeginCapture_v2(stream, kThreadLocal));
  CHECK_OK(on_other_thread(session, unsafe_call));
  CHECK_EQ(capture_status(stream), CU_STREAM_CAPTURE_STATUS_ACTIVE);
}

RULE(capture, local_threads_ignore_global_captures, "thread_modes_do_not_matter",
     "a thread in thread-local mode may make unsafe calls while another thread has a global capture") {
  Session session;
  Stream stream;
  CHECK_OK(cu.cuStreamBeginCapture_v2(stream, kGlobal));
  CHECK_OK(on_other_thread(session, [] {
    set_thread_mode(kThreadLocal);
    return unsafe_call();
  }));
  CHECK_EQ(capture_status(stream), CU_STREAM_CAPTURE_STATUS_ACTIVE);
}

RULE(capture, modes_are_exchanged, "idle:cuThreadExchangeStreamCaptureMode",
     "cuThreadExchangeStreamCaptureMode gives the mode that the thread had, which is global at first") {
  Session session;
  CUstreamCaptureMode mode = kThreadLocal;
  CHECK_OK(cu.cuThreadExchangeStreamCaptureMode(&mode));
  CHECK_EQ(mode, kGlobal);
  mode = kRelaxed;
  CHECK_OK(cu.cuThreadExchangeStreamCaptureMode(&mode));
  CHECK_EQ(mode, kThreadLocal);
}

RULE(capture, context_records_destroy_captures, "context_events_ignore_captures",
     "cuCtxRecordEvent invalidates every capture of the context, even a relaxed one of a thread in relaxed mode") {
  Session session;
  SKIP_UNLESS(exported("cuCtxRecordEvent"), "needs cuCtxRecordEvent");
  Stream stream;
  Event event;
  set_thread_mode(kRelaxed);
  CHECK_OK(cu.cuStreamBeginCapture_v2(stream, kRelaxed));
  CHECK_EQ(cu.cuCtxRecordEvent(session.context(), event), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  CHECK_EQ(capture_status(stream), CU_STREAM_CAPTURE_STATUS_INVALIDATED);
}

RULE(capture, context_waits_destroy_captures, "context_events_ignore_captures",
     "cuCtxWaitEvent invalidates every capture of the context") {
  Session session;
  SKIP_UNLESS(exported("cuCtxWaitEvent"), "needs cuCtxWaitEvent");
  Stream stream;
  Event event;
  CHECK_OK(cu.cuEventRecord(event, CU_STREAM_LEGACY));
  set_thread_mode(kRelaxed);
  CHECK_OK(cu.cuStreamBeginCapture_v2(stream, kRelaxed));
  CHECK_EQ(cu.cuCtxWaitEvent(session.context(), event), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  CHECK_EQ(capture_status(stream), CU_STREAM_CAPTURE_STATUS_INVALIDATED);
}

RULE(capture, a_capture_refuses_context_synchronisation, "lenient:cuCtxSynchronize",
     "cuCtxSynchronize is refused while a stream of the context captures") {
  Session session;
  Stream stream;
  CHECK_OK(cu.cuStreamBeginCapture_v2(stream, kGlobal));
  CHECK_EQ(cu.cuCtxSynchronize(), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
}

RULE(capture, querying_an_event_outside_of_a_capture_is_unsafe, "captures_allow_unsafe_calls",
     "cuEventQuery of an event outside of the capture is an unsafe call: it invalidates a global capture") {
  Session session;
  Stream stream;
  Stream outside;
  Event event;
  CHECK_OK(cu.cuEventRecord(event, outside));
  CHECK_OK(cu.cuStreamBeginCapture_v2(stream, kGlobal));
  CHECK_EQ(cu.cuEventQuery(event), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  CHECK_EQ(capture_status(stream), CU_STREAM_CAPTURE_STATUS_INVALIDATED);
}
