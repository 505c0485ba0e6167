// Events: creating, recording, waiting and measuring, also for a whole context.
#include "tools/simgpu/driver/driver.h"
#include "tools/simgpu/driver/entry/mutations.h"
#include "tools/simgpu/driver/ipc/ipc.h"

using namespace rota::sim;  // NOLINT: the exported functions are all in the global namespace

namespace {

constexpr unsigned kEventFlags = CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS;

CUresult create(CUevent* out, unsigned flags) {
  ROTA_SIM_CONTEXT(context);
  if (out == nullptr || (flags & ~kEventFlags) != 0) return CUDA_ERROR_INVALID_VALUE;
  bool interprocess = (flags & CU_EVENT_INTERPROCESS) != 0;
  if (interprocess && (flags & CU_EVENT_DISABLE_TIMING) == 0) return CUDA_ERROR_INVALID_VALUE;
  auto event = std::make_shared<Event>(flags, context->handle());
  if (interprocess) {
    event->shared = make_interprocess_event();
    if (!event->shared) return CUDA_ERROR_OUT_OF_MEMORY;
  }
  *out = driver().events.add(std::move(event));
  return CUDA_SUCCESS;
}

CUresult destroy(CUevent event) {
  ROTA_SIM_READY();
  // A stream that waits for a record keeps that record alive.
  EventPointer removed = driver().events.remove(event);
  if (!removed) return CUDA_ERROR_INVALID_HANDLE;
  if (mutated(Mutation::destroying_an_event_waits)) current_record(*removed).wait();
  if (mutated(Mutation::destroyed_events_let_go) && removed->recorded) removed->recorded->finish();
  return CUDA_SUCCESS;
}

// Other processes see a record once its stream has accepted it; the stream may reach it before that.
class InterprocessRecord {
 public:
  explicit InterprocessRecord(std::shared_ptr<InterprocessEvent> event) : event_(std::move(event)) {}
  void begin() {
    std::lock_guard lock(mutex_);
    number_ = event_->begin();
    if (over_) event_->end(number_);
  }
  void end() {
    std::lock_guard lock(mutex_);
    over_ = true;
    if (number_ != 0) event_->end(number_);
  }

 private:
  const std::shared_ptr<InterprocessEvent> event_;
  std::mutex mutex_;
  uint64_t number_ = 0;
  bool over_ = false;
};

// The graph's execution performs the record, which becomes a node of its own instead of a point where other streams can
// join the capture.
CUresult capture_external_record(const StreamPointer& stream, const CapturePointer& capture, CUevent handle,
                                 const EventPointer& event) {
  Operation operation;
  operation.type = CU_GRAPH_NODE_TYPE_EVENT_RECORD;
  operation.parameters = EventParameters{handle, event};
  return driver().submit(stream, std::move(operation), nullptr, capture);
}

CUresult record(CUevent handle, CUstream stream_handle, unsigned flags, Form form) {
  ROTA_SIM_CONTEXT_FOR(stream_handle, current);
  StreamPointer stream;
  if (!driver().events.find(handle)) return CUDA_ERROR_INVALID_HANDLE;
  if ((flags & ~unsigned{CU_EVENT_RECORD_EXTERNAL}) != 0) return CUDA_ERROR_INVALID_VALUE;
  ROTA_SIM_CHECK(driver().stream_of(stream_handle, form, current, &stream));
  return record_in_stream(handle, stream, flags == CU_EVENT_RECORD_EXTERNAL);
}

CUresult capture_external_wait(const StreamPointer& stream, const CapturePointer& capture, CUevent handle,
                               const EventPointer& event) {
  Operation operation;
  operation.type = CU_GRAPH_NODE_TYPE_WAIT_EVENT;
  operation.parameters = EventParameters{handle, event};
  return driver().submit(stream, std::move(operation), nullptr, capture);
}

// A stream that waits for an event of a capture joins it; one that captures cannot wait for anything else.
CUresult wait_in_capture(const Context& current, const StreamPointer& stream, Event& event) {
  if (stream->capture && stream->capture->invalidated) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  if (!event.capture) {
    if (mutated(Mutation::captures_are_not_isolated)) return CUDA_SUCCESS;
    stream->capture->invalidated = true;
    return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
  }
  if (event.capture->ended) return CUDA_ERROR_CAPTURED_EVENT;  // until it is recorded again
  if (event.capture->invalidated) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  if (stream->capture && stream->capture != event.capture) {
    if (mutated(Mutation::captures_merge)) return CUDA_SUCCESS;
    stream->capture->invalidated = true;
    event.capture->invalidated = true;
    return CUDA_ERROR_STREAM_CAPTURE_MERGE;
  }
  if (stream == current.legacy) {
    event.capture->invalidated = true;
    return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  }
  if (!mutated(Mutation::waiting_does_not_join_the_capture)) {
    driver().captures.join(*stream, event.capture, event.capture_tail);
  }
  return CUDA_SUCCESS;
}

// Queues the wait for the record behind the stream's work.
CUresult submit_wait(const StreamPointer& stream, const Record& record) {
  if (record.done() || mutated(Mutation::stream_waits_are_ignored)) return CUDA_SUCCESS;
  if (!record.shared) return driver().submit_after(stream, {record.task}, nullptr);
  Operation operation;
  operation.run = [record](Context&) { record.wait(); };
  return driver().submit(stream, std::move(operation), nullptr, Driver::kNoCapture);
}

CUresult wait_event(CUstream stream_handle, CUevent handle, unsigned flags, Form form) {
  ROTA_SIM_CONTEXT_FOR(stream_handle, current);
  EventPointer event = driver().events.find(handle);
  StreamPointer stream;
  if (!event) return CUDA_ERROR_INVALID_HANDLE;
  if ((flags & ~unsigned{CU_EVENT_WAIT_EXTERNAL}) != 0) return CUDA_ERROR_INVALID_VALUE;
  ROTA_SIM_CHECK(driver().stream_of(stream_handle, form, current, &stream));
  bool external = flags == CU_EVENT_WAIT_EXTERNAL;
  {
    std::unique_lock lock(driver().captures.mutex);
    if (external) {
      CapturePointer capture = stream->capture;
      if (!capture) return CUDA_ERROR_ILLEGAL_STATE;
      lock.unlock();
      return capture_external_wait(stream, capture, handle, event);
    }
    std::lock_guard lock_event(event->mutex);
    if (stream->capture || event->capture) return wait_in_capture(*current, stream, *event);
    if (stream == current->legacy && driver().captures.has_blocking_capture(current.get(), true)) {
      return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    }
  }
  if (mutated(Mutation::waits_follow_the_latest_record)) {
    Operation operation;
    operation.run = [event](Context&) { current_record(*event).wait(); };
    return driver().submit(stream, std::move(operation));
  }
  return submit_wait(stream, current_record(*event));
}

// The common start of calls that query an event or wait for it.
CUresult look_at(CUevent handle, EventPointer* event, Record* found) {
  ROTA_SIM_READY();
  *event = driver().events.find(handle);
  if (!*event) return CUDA_ERROR_INVALID_HANDLE;
  {
    std::lock_guard lock(driver().captures.mutex);
    std::lock_guard lock_event((*event)->mutex);
    if ((*event)->capture && !mutated(Mutation::captured_events_can_be_queried)) {
      (*event)->capture->invalidated = true;
      return CUDA_ERROR_CAPTURED_EVENT;
    }
  }
  ROTA_SIM_CHECK(driver().check_unsafe_call());
  *found = current_record(**event);
  return CUDA_SUCCESS;
}

// The sticky error of the event's context, if there is one.
CUresult error_of(const Event& event) {
  ContextPointer context = driver().contexts.find(event.context);
  return context ? static_cast<CUresult>(context->sticky.load(std::memory_order_acquire)) : CUDA_SUCCESS;
}

CUresult query(CUevent handle) {
  EventPointer event;
  Record record;
  ROTA_SIM_CHECK(look_at(handle, &event, &record));
  if (!record.done()) return CUDA_ERROR_NOT_READY;
  return error_of(*event);
}

CUresult synchronize(CUevent handle) {
  EventPointer event;
  Record record;
  ROTA_SIM_CHECK(look_at(handle, &event, &record));
  record.wait();
  driver().pools_synchronised();
  return error_of(*event);
}

CUresult elapsed(float* milliseconds, CUevent start, CUevent end) {
  ROTA_SIM_READY();
  if (milliseconds == nullptr) return CUDA_ERROR_INVALID_HANDLE;  // as on driver 580.159
  CUevent handles[2] = {start, end};
  EventPointer events[2];
  Record records[2];
  for (int side = 0; side < 2; ++side) ROTA_SIM_CHECK(look_at(handles[side], &events[side], &records[side]));
  for (int side = 0; side < 2; ++side) {
    if (!events[side]->timed() || !records[side].task) return CUDA_ERROR_INVALID_HANDLE;
  }
  if (!records[0].done() || !records[1].done()) return CUDA_ERROR_NOT_READY;
  int64_t between = records[1].task->finished_at - records[0].task->finished_at;
  if (mutated(Mutation::elapsed_time_has_no_sign)) between = between < 0 ? -between : between;
  *milliseconds = static_cast<float>(static_cast<double>(between) / 1e6);
  return CUDA_SUCCESS;
}

// Measured on driver 580.159: fails and invalidates the capture, in every capture mode and thread mode.
CUresult check_nothing_captured(const Context& context) {
  if (!driver().captures.any() || mutated(Mutation::context_events_ignore_captures)) return CUDA_SUCCESS;
  std::lock_guard lock(driver().captures.mutex);
  return driver().captures.context_captures(&context, true) ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS;
}

CUresult record_context(CUcontext handle, CUevent event_handle) {
  ROTA_SIM_READY();
  ContextPointer context;
  ROTA_SIM_CHECK(driver().context_of(handle, &context));
  EventPointer event = driver().events.find(event_handle);
  if (!event || event->context != context->handle()) return CUDA_ERROR_INVALID_HANDLE;
  ROTA_SIM_CHECK(check_nothing_captured(*context));
  std::vector<TaskPointer> after;
  {
    std::lock_guard lock(context->mutex);
    for (const StreamPointer& stream : context->all_streams()) {
      if (mutated(Mutation::context_events_miss_non_blocking_streams) && !stream->blocking()) continue;
      TaskPointer last = stream->last();
      if (last && !last->done()) after.push_back(std::move(last));
    }
  }
  TaskPointer task;
  ROTA_SIM_CHECK(driver().submit_after(context->markers, std::move(after), &task));
  set_recorded(*event, std::move(task));
  return CUDA_SUCCESS;
}

CUresult wait_context(CUcontext handle, CUevent event_handle) {
  ROTA_SIM_READY();
  ContextPointer context;
  ROTA_SIM_CHECK(driver().context_of(handle, &context));
  EventPointer event = driver().events.find(event_handle);
  if (!event) return CUDA_ERROR_INVALID_HANDLE;
  {
    std::lock_guard lock(driver().captures.mutex);
    std::lock_guard lock_event(event->mutex);
    if (event->capture && !event->capture->ended) {
      event->capture->invalidated = true;
      return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
  }
  ROTA_SIM_CHECK(check_nothing_captured(*context));
  Record record = current_record(*event);
  if (record.done()) return CUDA_SUCCESS;
  std::vector<StreamPointer> streams;
  {
    std::lock_guard lock(context->mutex);
    streams = context->all_streams();
    // Streams created later wait too.
    std::erase_if(context->waits, [](const Record& earlier) { return earlier.done(); });
    if (!mutated(Mutation::context_waits_miss_new_streams)) context->waits.push_back(record);
  }
  for (const StreamPointer& stream : streams) ROTA_SIM_CHECK(submit_wait(stream, record));
  return CUDA_SUCCESS;
}

}  // namespace

CUresult rota::sim::record_in_stream(CUevent handle, const StreamPointer& stream, bool external) {
  EventPointer event = driver().events.find(handle);
  if (!event) return CUDA_ERROR_INVALID_HANDLE;
  ContextPointer owner = driver().contexts.find(event->context);
  if (!owner || owner.get() != stream->context) return CUDA_ERROR_INVALID_HANDLE;
  if (driver().captures.any()) {
    std::unique_lock lock(driver().captures.mutex);
    if (stream->capture) {
      if (stream->capture->invalidated) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
      if (external) {
        CapturePointer capture = stream->capture;
        lock.unlock();
        return capture_external_record(stream, capture, handle, event);
      }
      std::lock_guard lock_event(event->mutex);
      event->capture = stream->capture;
      event->capture_tail = stream->capture_tail;
      return CUDA_SUCCESS;
    }
  }
  if (external) return CUDA_ERROR_ILLEGAL_STATE;
  Operation operation;
  std::shared_ptr<InterprocessRecord> shared;
  if (event->shared) {
    shared = std::make_shared<InterprocessRecord>(event->shared);
    // Completes with the task, which runs nothing after a sticky error: other processes must not wait forever.
    std::shared_ptr<void> ending(nullptr, [shared](void*) { shared->end(); });
    operation.run = [ending](Context&) {};
  }
  TaskPointer task;
  ROTA_SIM_CHECK(driver().submit(stream, std::move(operation), &task, Driver::kNoCapture));
  if (shared) shared->begin();
  set_recorded(*event, std::move(task));
  if (mutated(Mutation::events_stand_for_later_work)) event->stream = stream;
  return CUDA_SUCCESS;
}

CUresult rota::sim::wait_as_context_does(const StreamPointer& stream) {
  std::vector<Record> waits;
  {
    std::lock_guard lock(stream->context->mutex);
    waits = stream->context->waits;
  }
  for (const Record& record : waits) ROTA_SIM_CHECK(submit_wait(stream, record));
  return CUDA_SUCCESS;
}

ROTA_SIM_EXPORT(cuEventCreate)(CUevent* out, unsigned flags) {
  return create(out, flags);
}
ROTA_SIM_EXPORT(cuEventDestroy_v2)(CUevent event) {
  return destroy(event);
}
ROTA_SIM_EXPORT(cuEventDestroy)(CUevent event) {
  return destroy(event);
}
ROTA_SIM_EXPORT(cuEventQuery)(CUevent event) {
  return query(event);
}
ROTA_SIM_EXPORT(cuEventSynchronize)(CUevent event) {
  return synchronize(event);
}
ROTA_SIM_EXPORT(cuEventElapsedTime)(float* milliseconds, CUevent start, CUevent end) {
  return elapsed(milliseconds, start, end);
}
ROTA_SIM_EXPORT(cuEventElapsedTime_v2)(float* milliseconds, CUevent start, CUevent end) {
  return elapsed(milliseconds, start, end);
}
ROTA_SIM_EXPORT_FORMS(cuEventRecord, _ptsz, (CUevent event, CUstream stream),
                      record(event, stream, CU_EVENT_RECORD_DEFAULT, form))
ROTA_SIM_EXPORT_FORMS(cuEventRecordWithFlags, _ptsz, (CUevent event, CUstream stream, unsigned flags),
                      record(event, stream, flags, form))
ROTA_SIM_EXPORT_FORMS(cuStreamWaitEvent, _ptsz, (CUstream stream, CUevent event, unsigned flags),
                      wait_event(stream, event, flags, form))
ROTA_SIM_EXPORT(cuCtxRecordEvent)(CUcontext context, CUevent event) {
  return record_context(context, event);
}
ROTA_SIM_EXPORT(cuCtxWaitEvent)(CUcontext context, CUevent event) {
  return wait_context(context, event);
}
