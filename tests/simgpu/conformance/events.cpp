// Rules of events: what they stand for, waiting for them and measuring with them.
#include "tests/simgpu/conformance/work.h"

RULE(events, event_flags_are_known_ones, "lenient:cuEventCreate",
     "cuEventCreate refuses flags that do not exist with CUDA_ERROR_INVALID_VALUE") {
  Session session;
  CUevent event = nullptr;
  CHECK_EQ(cu.cuEventCreate(&event, 0x10), CUDA_ERROR_INVALID_VALUE);
}

RULE(events, interprocess_events_have_no_time, "lenient:cuEventCreate",
     "an interprocess event that has timing is refused with CUDA_ERROR_INVALID_VALUE") {
  Session session;
  CUevent event = nullptr;
  CHECK_EQ(cu.cuEventCreate(&event, CU_EVENT_INTERPROCESS), CUDA_ERROR_INVALID_VALUE);
}

RULE(events, event_needs_a_place, "lenient:cuEventCreate",
     "cuEventCreate without a place for the handle answers CUDA_ERROR_INVALID_VALUE") {
  Session session;
  CHECK_EQ(cu.cuEventCreate(nullptr, 0), CUDA_ERROR_INVALID_VALUE);
}

RULE(events, never_recorded_is_complete, "refuse:cuEventQuery",
     "an event that was never recorded is complete: cuEventQuery and cuEventSynchronize answer CUDA_SUCCESS at once") {
  Session session;
  Event event;
  CHECK_OK(cu.cuEventQuery(event));
  CHECK_OK(cu.cuEventSynchronize(event));
}

RULE(events, recorded_is_not_complete_at_once, "events_complete_at_once",
     "an event that was recorded behind running work is not complete until that work ends") {
  Session session;
  Stream stream;
  Event event;
  Blocker blocker(stream);
  CHECK_OK(cu.cuEventRecord(event, stream));
  CHECK_EQ(cu.cuEventQuery(event), CUDA_ERROR_NOT_READY);
  blocker.release();
  CHECK_OK(cu.cuEventSynchronize(event));
  CHECK_OK(cu.cuEventQuery(event));
}

RULE(events, later_work_does_not_matter, "events_stand_for_later_work",
     "an event stands for what was in the stream when it was recorded, not for what came later") {
  Session session;
  Stream stream;
  Event event;
  CHECK_OK(cu.cuEventRecord(event, stream));
  CHECK_OK(cu.cuEventSynchronize(event));
  Blocker blocker(stream);
  CHECK_OK(cu.cuEventQuery(event));
}

RULE(events, event_synchronize_waits, "event_synchronize_returns_at_once",
     "when cuEventSynchronize returns, what the event was recorded behind is over") {
  Session session;
  Stream stream;
  Event event;
  Steps steps;
  put_slow_work(session, stream, &steps);
  CHECK_OK(cu.cuEventRecord(event, stream));
  steps.go = true;
  CHECK_OK(cu.cuEventSynchronize(event));
  CHECK(steps.done.load());
}

RULE(events, blocking_synchronize_waits, "event_synchronize_returns_at_once",
     "waiting for an event with CU_EVENT_BLOCKING_SYNC waits like any other") {
  Session session;
  Stream stream;
  Event event(CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING);
  Steps steps;
  put_slow_work(session, stream, &steps);
  CHECK_OK(cu.cuEventRecord(event, stream));
  steps.go = true;
  CHECK_OK(cu.cuEventSynchronize(event));
  CHECK(steps.done.load());
}

RULE(events, recording_again_replaces, "records_are_not_replaced",
     "an event that is recorded again stands for the new record only") {
  Session session;
  Stream busy;
  Stream idle;
  Event event;
  CHECK_OK(cu.cuEventRecord(event, idle));
  CHECK_OK(cu.cuEventSynchronize(event));
  Blocker blocker(busy);
  CHECK_OK(cu.cuEventRecord(event, busy));
  CHECK_EQ(cu.cuEventQuery(event), CUDA_ERROR_NOT_READY);
  CHECK_OK(cu.cuEventRecord(event, idle));
  CHECK_OK(cu.cuEventSynchronize(event));
}

RULE(events, streams_wait_for_events, "stream_waits_are_ignored",
     "work put into a stream after cuStreamWaitEvent waits for what the event stands for") {
  Session session;
  Later later(session);
  Words words(session);
  Stream busy;
  Stream waiting;
  Event event;
  Blocker blocker(busy);
  CHECK_OK(cu.cuEventRecord(event, busy));
  CHECK_OK(cu.cuStreamWaitEvent(waiting, event, 0));
  CHECK_OK(words.fill(waiting, 5));
  later.wait();
  CHECK_EQ(cu.cuStreamQuery(waiting), CUDA_ERROR_NOT_READY);
  blocker.release();
  CHECK_OK(cu.cuStreamSynchronize(waiting));
  CHECK_EQ(words.value(), 5U);
}

RULE(events, waiting_for_nothing_does_not_hold, "refuse:cuStreamWaitEvent",
     "a stream that waits for an event that was never recorded is not held") {
  Session session;
  Words words(session);
  Stream stream;
  Event event;
  CHECK_OK(cu.cuStreamWaitEvent(stream, event, 0));
  CHECK_OK(words.fill(stream, 5));
  CHECK_OK(cu.cuStreamSynchronize(stream));
}

RULE(events, waits_are_for_the_record_then, "waits_follow_the_latest_record",
     "a stream waits for what the event stood for when cuStreamWaitEvent was called, though it is recorded again") {
  Session session;
  Later later(session);
  Words words(session);
  Stream busy;
  Stream idle;
  Stream waiting;
  Event event;
  Blocker blocker(busy);
  CHECK_OK(cu.cuEventRecord(event, busy));
  CHECK_OK(cu.cuStreamWaitEvent(waiting, event, 0));
  CHECK_OK(cu.cuEventRecord(event, idle));
  CHECK_OK(words.fill(waiting, 5));
  later.wait();
  CHECK(ends(event));
  CHECK_EQ(cu.cuStreamQuery(waiting), CUDA_ERROR_NOT_READY);
  blocker.release();
  CHECK_OK(cu.cuStreamSynchronize(waiting));
}

RULE(events, destroyed_events_still_hold, "destroyed_events_let_go",
     "a stream that waits for an event goes on waiting when the event is destroyed") {
  Session session;
  Later later(session);
  Words words(session);
  Stream busy;
  Stream waiting;
  Event event;
  Blocker blocker(busy);
  CHECK_OK(cu.cuEventRecord(event, busy));
  CHECK_OK(cu.cuStreamWaitEvent(waiting, event, 0));
  CHECK_OK(words.fill(waiting, 5));
  CHECK_OK(cu.cuEventDestroy_v2(event.release()));
  later.wait();
  CHECK_EQ(cu.cuStreamQuery(waiting), CUDA_ERROR_NOT_READY);
  blocker.release();
  CHECK_OK(cu.cuStreamSynchronize(waiting));
}

RULE(events, destroying_does_not_wait_for_events, "destroying_an_event_waits",
     "cuEventDestroy returns while what the event stands for still runs") {
  Session session;
  Stream stream;
  Event event;
  Blocker blocker(stream);
  CHECK_OK(cu.cuEventRecord(event, stream));
  CHECK_OK(cu.cuEventDestroy_v2(event.release()));
  CHECK_EQ(cu.cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
}

RULE(events, records_stay_in_their_context, "lenient:cuEventRecord",
     "an event cannot be recorded in a stream of another context") {
  Session session;
  Event event;
  SecondContext other(session);
  Stream stream;
  CHECK_EQ(cu.cuEventRecord(event, stream), CUDA_ERROR_INVALID_HANDLE);
}

RULE(events, waits_cross_contexts, "stream_waits_are_ignored", "a stream can wait for an event of another context") {
  Session session;
  Stream busy;
  Event event;
  Blocker blocker(busy);
  CHECK_OK(cu.cuEventRecord(event, busy));
  CUcontext context = nullptr;
  CHECK_OK(cu.cuCtxCreate_v2(&context, 0, session.device()));
  Later later(session);
  Stream waiting;
  CHECK_OK(cu.cuStreamWaitEvent(waiting, event, 0));
  later.wait();
  CHECK_EQ(cu.cuStreamQuery(waiting), CUDA_ERROR_NOT_READY);
  blocker.release();
  CHECK_OK(cu.cuStreamSynchronize(waiting));
}

RULE(events, external_records_are_for_captures, "lenient:cuEventRecordWithFlags",
     "CU_EVENT_RECORD_EXTERNAL outside of a capture is refused with CUDA_ERROR_ILLEGAL_STATE") {
  Session session;
  Stream stream;
  Event event;
  CHECK_EQ(cu.cuEventRecordWithFlags(event, stream, CU_EVENT_RECORD_EXTERNAL), CUDA_ERROR_ILLEGAL_STATE);
}

RULE(events, external_waits_are_for_captures, "lenient:cuStreamWaitEvent",
     "CU_EVENT_WAIT_EXTERNAL outside of a capture is refused with CUDA_ERROR_ILLEGAL_STATE") {
  Session session;
  Stream stream;
  Event event;
  CHECK_EQ(cu.cuStreamWaitEvent(stream, event, CU_EVENT_WAIT_EXTERNAL), CUDA_ERROR_ILLEGAL_STATE);
}

RULE(events, record_flags_are_known_ones, "lenient:cuEventRecordWithFlags",
     "cuEventRecordWithFlags and cuStreamWaitEvent refuse flags that do not exist") {
  Session session;
  Stream stream;
  Event event;
  CHECK_EQ(cu.cuEventRecordWithFlags(event, stream, 0x10), CUDA_ERROR_INVALID_VALUE);
  CHECK_EQ(cu.cuStreamWaitEvent(stream, event, 0x10), CUDA_ERROR_INVALID_VALUE);
}

RULE(events, legacy_records_see_blocking_streams, "legacy_stream_waits_for_nobody",
     "an event recorded in the legacy stream stands for the work of blocking streams too") {
  Session session;
  Later later(session);
  Stream stream(CU_STREAM_DEFAULT);
  Event event;
  Blocker blocker(stream);
  CHECK_OK(cu.cuEventRecord(event, CU_STREAM_LEGACY));
  later.wait();
  CHECK_EQ(cu.cuEventQuery(event), CUDA_ERROR_NOT_READY);
}

RULE(events, blocking_records_see_the_legacy_stream, "legacy_stream_holds_nobody",
     "an event recorded in a blocking stream, though nothing else is in it, stands for what was put into the legacy "
     "stream before") {
  Session session;
  Later later(session);
  Stream stream(CU_STREAM_DEFAULT);
  Event event;
  Blocker blocker(CU_STREAM_LEGACY);
  CHECK_OK(cu.cuEventRecord(event, stream));
  later.wait();
  CHECK_EQ(cu.cuEventQuery(event), CUDA_ERROR_NOT_READY);
  blocker.release();
  CHECK_OK(cu.cuEventSynchronize(event));
}

RULE(events, elapsed_time_needs_records, "lenient:cuEventElapsedTime",
     "the time to an event that was never recorded is refused with CUDA_ERROR_INVALID_HANDLE") {
  Session session;
  Stream stream;
  Event start;
  Event end;
  float milliseconds = 0;
  CHECK_OK(cu.cuEventRecord(start, stream));
  CHECK_OK(cu.cuStreamSynchronize(stream));
  CHECK_EQ(cu.cuEventElapsedTime(&milliseconds, start, end), CUDA_ERROR_INVALID_HANDLE);
}

RULE(events, elapsed_time_needs_timing, "lenient:cuEventElapsedTime",
     "the time between events one of which has no timing is refused with CUDA_ERROR_INVALID_HANDLE") {
  Session session;
  Stream stream;
  Event start;
  Event end(CU_EVENT_DISABLE_TIMING);
  float milliseconds = 0;
  CHECK_OK(cu.cuEventRecord(start, stream));
  CHECK_OK(cu.cuEventRecord(end, stream));
  CHECK_OK(cu.cuStreamSynchronize(stream));
  CHECK_EQ(cu.cuEventElapsedTime(&milliseconds, start, end), CUDA_ERROR_INVALID_HANDLE);
}

RULE(events, elapsed_time_needs_completion, "events_complete_at_once",
     "the time to an event that is not complete is CUDA_ERROR_NOT_READY") {
  Session session;
  Stream stream;
  Event start;
  Event end;
  float milliseconds = 0;
  CHECK_OK(cu.cuEventRecord(start, stream));
  Blocker blocker(stream);
  CHECK_OK(cu.cuEventRecord(end, stream));
  CHECK_EQ(cu.cuEventElapsedTime(&milliseconds, start, end), CUDA_ERROR_NOT_READY);
}

RULE(events, elapsed_time_needs_a_place, "lenient:cuEventElapsedTime",
     "cuEventElapsedTime without a place for the time answers CUDA_ERROR_INVALID_HANDLE") {
  Session session;
  Stream stream;
  Event event;
  CHECK_OK(cu.cuEventRecord(event, stream));
  CHECK_OK(cu.cuStreamSynchronize(stream));
  CHECK_EQ(cu.cuEventElapsedTime(nullptr, event, event), CUDA_ERROR_INVALID_HANDLE);
}

RULE(events, elapsed_time_is_that_of_the_work, "idle:cuEventElapsedTime",
     "the time between two events is at least that of a kernel between them, which measured itself") {
  Session session;
  CUfunction spin = session.function("spin");
  Stream stream;
  Event start;
  Event end;
  float milliseconds = -1;
  CHECK_OK(launch(spin, 1, 1, stream, 0UL));
  CHECK_OK(cu.cuEventRecord(start, stream));
  CHECK_OK(launch(spin, 1, 1, stream, 5'000'000UL));
  CHECK_OK(cu.cuEventRecord(end, stream));
  CHECK_OK(cu.cuEventSynchronize(end));
  CHECK_OK(cu.cuEventElapsedTime(&milliseconds, start, end));
  CHECK(milliseconds >= 4.5F);
}

RULE(events, elapsed_time_has_a_sign, "elapsed_time_has_no_sign",
     "the time from a later event to an earlier one is negative") {
  Session session;
  CUfunction spin = session.function("spin");
  Stream stream;
  Event first;
  Event second;
  float milliseconds = 1;
  CHECK_OK(cu.cuEventRecord(first, stream));
  CHECK_OK(launch(spin, 1, 1, stream, 5'000'000UL));
  CHECK_OK(cu.cuEventRecord(second, stream));
  CHECK_OK(cu.cuEventSynchronize(second));
  CHECK_OK(cu.cuEventElapsedTime(&milliseconds, second, first));
  CHECK(milliseconds < 0);
}
