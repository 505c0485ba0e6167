// Legacy interprocess handles of events.
#include "tests/simgpu/conformance/pools.h"

namespace {

constexpr unsigned kShared = CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING;

CUipcEventHandle handle_of(CUevent event) {
  CUipcEventHandle handle{};
  CHECK_OK(cu.cuIpcGetEventHandle(&handle, event));
  return handle;
}

CUevent open_event(const CUipcEventHandle& handle) {
  CUevent event = nullptr;
  CHECK_OK(cu.cuIpcOpenEventHandle(&event, handle));
  return event;
}

void needs_events(const Session& session) {
  int supported = 0;
  CHECK_OK(cu.cuDeviceGetAttribute(&supported, CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED, session.device()));
  SKIP_UNLESS(supported != 0, "needs interprocess events");
}

}  // namespace

RULE(ipc, shared_events_have_no_times, "lenient:cuEventCreate",
     "An interprocess event must be made without timing: else CUDA_ERROR_INVALID_VALUE") {
  Session session;
  CUevent event = nullptr;
  CHECK_EQ(cu.cuEventCreate(&event, CU_EVENT_INTERPROCESS), CUDA_ERROR_INVALID_VALUE);
}

RULE(ipc, plain_events_have_no_handle, "lenient:cuIpcGetEventHandle",
     "cuIpcGetEventHandle of an event that is no interprocess event is refused") {
  Session session;
  Event event(CU_EVENT_DISABLE_TIMING);
  CUipcEventHandle handle{};
  CHECK_NE(cu.cuIpcGetEventHandle(&handle, event), CUDA_SUCCESS);
}

// Does what it is asked to with the event, one word per message, and tells the answer.
CHILD(ipc_event_user) {
  Session session;
  CUevent event = open_event(parent.receive_value<CUipcEventHandle>());
  Stream stream;
  for (;;) {
    std::string wish = parent.receive();
    if (wish == "end") break;
    CUresult answer = CUDA_SUCCESS;
    if (wish == "query") answer = cu.cuEventQuery(event);
    if (wish == "synchronize") answer = cu.cuEventSynchronize(event);
    if (wish == "record") answer = cu.cuEventRecord(event, stream);
    if (wish == "wait") answer = cu.cuStreamWaitEvent(stream, event, 0);
    if (wish == "query stream") answer = cu.cuStreamQuery(stream);
    if (wish == "synchronize stream") answer = cu.cuStreamSynchronize(stream);
    if (wish == "destroy") answer = cu.cuEventDestroy_v2(event);
    if (wish == "time") {
      float milliseconds = 0;
      answer = cu.cuEventElapsedTime_v2(&milliseconds, event, event);
    }
    parent.send_value(answer);
  }
}

namespace {

CUresult ask(Child& child, const char* wish) {
  child.send(wish);
  return child.receive_value<CUresult>();
}

}  // namespace

RULE(ipc, opened_event_never_recorded_is_complete, "idle:cuIpcOpenEventHandle",
     "An opened event that nobody has recorded is complete") {
  Session session;
  needs_events(session);
  Event event(kShared);
  Child child("ipc_event_user");
  child.send_value(handle_of(event));
  CHECK_OK(ask(child, "query"));
  child.send("end");
  child.finish();
}

RULE(ipc, opened_event_follows_the_exporters_work, "shared_events_are_always_complete",
     "Another process's query of an event answers CUDA_ERROR_NOT_READY while work before its record runs") {
  Session session;
  needs_events(session);
  Event event(kShared);
  Stream stream;
  Child child("ipc_event_user");
  child.send_value(handle_of(event));
  CHECK_OK(ask(child, "query"));
  Blocker blocker(stream);
  CHECK_OK(cu.cuEventRecord(event, stream));
  CHECK_EQ(ask(child, "query"), CUDA_ERROR_NOT_READY);
  blocker.release();
  CHECK_OK(cu.cuStreamSynchronize(stream));
  CHECK_OK(ask(child, "query"));
  child.send("end");
  child.finish();
}

RULE(ipc, waiting_for_an_opened_event_ends, "refuse:cuEventSynchronize",
     "Another process's cuEventSynchronize of an event ends when the exporter's work is done") {
  Session session;
  needs_events(session);
  Event event(kShared);
  Stream stream;
  Child child("ipc_event_user");
  child.send_value(handle_of(event));
  CHECK_OK(ask(child, "query"));
  Blocker blocker(stream);
  CHECK_OK(cu.cuEventRecord(event, stream));
  child.send("synchronize");
  blocker.release();
  CHECK_OK(child.receive_value<CUresult>());
  CHECK_OK(cu.cuEventQuery(event));
  CHECK_OK(ask(child, "query"));
  child.send("end");
  child.finish();
}

RULE(ipc, streams_wait_for_opened_events, "shared_events_are_always_complete",
     "A stream of another process that waits for an opened event is not idle before the exporter's work is done") {
  Session session;
  needs_events(session);
  Event event(kShared);
  Stream stream;
  Child child("ipc_event_user");
  child.send_value(handle_of(event));
  CHECK_OK(ask(child, "query stream"));
  Blocker blocker(stream);
  CHECK_OK(cu.cuEventRecord(event, stream));
  CHECK_OK(ask(child, "wait"));
  CHECK_EQ(ask(child, "query stream"), CUDA_ERROR_NOT_READY);
  blocker.release();
  CHECK_OK(ask(child, "synchronize stream"));
  child.send("end");
  child.finish();
}

RULE(ipc, other_processes_record_too, "idle:cuEventRecord",
     "An event that another process records is complete for the exporter once that process's stream is done") {
  Session session;
  needs_events(session);
  Event event(kShared);
  Stream stream;
  Child child("ipc_event_user");
  child.send_value(handle_of(event));
  Blocker blocker(stream);
  CHECK_OK(cu.cuEventRecord(event, stream));
  CHECK_EQ(cu.cuEventQuery(event), CUDA_ERROR_NOT_READY);
  blocker.release();
  CHECK_OK(cu.cuEventSynchronize(event));
  CHECK_OK(ask(child, "record"));
  CHECK_OK(ask(child, "synchronize stream"));
  CHECK_OK(cu.cuEventSynchronize(event));
  child.send("end");
  child.finish();
}

RULE(ipc, opened_events_have_no_times, "lenient:cuEventElapsedTime_v2",
     "cuEventElapsedTime between opened events answers CUDA_ERROR_INVALID_HANDLE") {
  Session session;
  needs_events(session);
  Event event(kShared);
  CHECK_OK(cu.cuEventRecord(event, nullptr));
  CHECK_OK(cu.cuEventSynchronize(event));
  Child child("ipc_event_user");
  child.send_value(handle_of(event));
  CHECK_EQ(ask(child, "time"), CUDA_ERROR_INVALID_HANDLE);
  child.send("end");
  child.finish();
}

RULE(ipc, exporters_event_stays_when_others_destroy_theirs, "shared_events_are_always_complete",
     "Destroying an opened event leaves the exporter's event as it was") {
  Session session;
  needs_events(session);
  Event event(kShared);
  Stream stream;
  Child child("ipc_event_user");
  child.send_value(handle_of(event));
  CHECK_OK(ask(child, "destroy"));
  Blocker blocker(stream);
  CHECK_OK(cu.cuEventRecord(event, stream));
  CHECK_EQ(cu.cuEventQuery(event), CUDA_ERROR_NOT_READY);
  blocker.release();
  CHECK_OK(cu.cuEventSynchronize(event));
  CHECK_OK(cu.cuEventQuery(event));
  child.send("end");
  child.finish();
}

RULE(ipc, record_of_a_killed_process_is_over, "refuse:cuIpcOpenEventHandle",
     "Waiting for an event ends when the process that recorded it is killed with work before the record") {
  Session session;
  needs_events(session);
  Event event(kShared);
  Child child("ipc_event_user");
  child.send_value(handle_of(event));
  CHECK_OK(ask(child, "record"));
  child.kill();
  CHECK_OK(cu.cuEventSynchronize(event));
}
