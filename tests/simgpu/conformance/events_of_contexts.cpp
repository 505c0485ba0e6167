// Rules of events that stand for a whole context, or that a whole context waits for.
#include "tests/simgpu/conformance/work.h"

RULE(events, context_records_cover_all_streams, "context_events_miss_non_blocking_streams",
     "an event recorded for a context stands for the work of its non-blocking streams too") {
  Session session;
  SKIP_UNLESS(exported("cuCtxRecordEvent"), "needs cuCtxRecordEvent");
  Later later(session);
  Stream stream(CU_STREAM_NON_BLOCKING);
  Event event;
  Blocker blocker(stream);
  CHECK_OK(cu.cuCtxRecordEvent(session.context(), event));
  later.wait();
  CHECK_EQ(cu.cuEventQuery(event), CUDA_ERROR_NOT_READY);
  blocker.release();
  CHECK_OK(cu.cuEventSynchronize(event));
}

RULE(events, context_records_stay_in_their_context, "lenient:cuCtxRecordEvent",
     "an event of another context cannot be recorded for a context") {
  Session session;
  SKIP_UNLESS(exported("cuCtxRecordEvent"), "needs cuCtxRecordEvent");
  Event event;
  SecondContext other(session);
  CHECK_EQ(cu.cuCtxRecordEvent(other.context(), event), CUDA_ERROR_INVALID_HANDLE);
}

RULE(events, context_records_end, "refuse:cuCtxRecordEvent",
     "what is submitted after cuCtxRecordEvent does not delay the event") {
  Session session;
  SKIP_UNLESS(exported("cuCtxRecordEvent"), "needs cuCtxRecordEvent");
  Stream stream;
  Event event;
  CHECK_OK(cu.cuCtxRecordEvent(session.context(), event));
  Blocker blocker(stream);
  CHECK_OK(cu.cuEventSynchronize(event));
}

RULE(events, contexts_wait_for_events, "idle:cuCtxWaitEvent",
     "after cuCtxWaitEvent the context's streams wait for what the event stands for, and the caller does not") {
  Session session;
  SKIP_UNLESS(exported("cuCtxWaitEvent"), "needs cuCtxWaitEvent");
  Words words(session);
  Stream waiting;
  CUcontext other = nullptr;
  CHECK_OK(cu.cuCtxCreate_v2(&other, 0, session.device()));
  Later later(session);
  Stream busy;
  Event event;
  Blocker blocker(busy);
  CHECK_OK(cu.cuEventRecord(event, busy));
  CHECK_OK(cu.cuCtxWaitEvent(session.context(), event));
  CHECK_OK(cu.cuCtxPushCurrent_v2(session.context()));
  CHECK_OK(words.fill(waiting, 5));
  CHECK_OK(cu.cuCtxPopCurrent_v2(nullptr));
  later.wait();
  CHECK_OK(cu.cuCtxPushCurrent_v2(session.context()));
  CHECK_EQ(cu.cuStreamQuery(waiting), CUDA_ERROR_NOT_READY);
  blocker.release();
  CHECK_OK(cu.cuStreamSynchronize(waiting));
  CHECK_EQ(words.value(), 5U);
}

RULE(events, contexts_wait_with_later_streams_too, "context_waits_miss_new_streams",
     "after cuCtxWaitEvent streams that are made later wait too") {
  Session session;
  SKIP_UNLESS(exported("cuCtxWaitEvent"), "needs cuCtxWaitEvent");
  Words words(session);
  CUcontext other = nullptr;
  CHECK_OK(cu.cuCtxCreate_v2(&other, 0, session.device()));
  Later later(session);
  Stream busy;
  Event event;
  Blocker blocker(busy);
  CHECK_OK(cu.cuEventRecord(event, busy));
  CHECK_OK(cu.cuCtxWaitEvent(session.context(), event));
  CHECK_OK(cu.cuCtxPushCurrent_v2(session.context()));
  CUstream made = nullptr;
  CHECK_OK(cu.cuStreamCreate(&made, CU_STREAM_NON_BLOCKING));
  CHECK_OK(words.fill(made, 5));
  CHECK_OK(cu.cuCtxPopCurrent_v2(nullptr));
  later.wait();
  CHECK_OK(cu.cuCtxPushCurrent_v2(session.context()));
  CHECK_EQ(cu.cuStreamQuery(made), CUDA_ERROR_NOT_READY);
  blocker.release();
  CHECK_OK(cu.cuStreamSynchronize(made));
}
