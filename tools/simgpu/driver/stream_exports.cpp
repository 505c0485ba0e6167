// Streams, events and host functions.
#include <algorithm>

#include "tools/simgpu/driver/driver.h"

using namespace rota::sim;  // NOLINT: the exported functions are all in the global namespace

namespace {

CUresult create_stream(CUstream* out, unsigned flags, int priority) {
  ROTA_SIM_CONTEXT(context);
  if (out == nullptr || (flags & ~unsigned{CU_STREAM_NON_BLOCKING}) != 0) return CUDA_ERROR_INVALID_VALUE;
  auto stream = std::make_shared<Stream>(context.get(), flags, std::clamp(priority, -5, 0));
  driver().streams.add(stream);
  *out = stream->handle();
  std::vector<StreamPointer> over;  // joined outside the lock
  std::lock_guard lock(context->mutex);
  for (auto entry = context->ending.begin(); entry != context->ending.end();) {
    TaskPointer last = (*entry)->last();
    if (last && !last->done()) {
      ++entry;
      continue;
    }
    over.push_back(*entry);
    entry = context->ending.erase(entry);
  }
  context->streams.insert(std::move(stream));
  return CUDA_SUCCESS;
}

CUresult destroy_stream(CUstream handle) {
  ROTA_SIM_READY();
  StreamPointer stream = driver().streams.find(handle);
  if (!stream) return CUDA_ERROR_INVALID_HANDLE;
  {
    std::lock_guard lock(driver().captures.mutex);
    driver().captures.leave(*stream);
  }
  if (!driver().streams.remove(handle)) return CUDA_ERROR_INVALID_HANDLE;
  // What is queued still runs; the call does not wait for it.
  std::lock_guard lock(stream->context->mutex);
  stream->context->streams.erase(stream);
  TaskPointer last = stream->last();
  if (last && !last->done()) stream->context->ending.insert(stream);
  return CUDA_SUCCESS;
}

// A stream that the call only looks at or waits for: must not be capturing.
CUresult idle_stream(CUstream handle, Form form, StreamPointer* stream) {
  ROTA_SIM_CONTEXT(context);
  ROTA_SIM_CHECK(driver().stream_of(handle, form, context, stream));
  if (!driver().captures.any()) return CUDA_SUCCESS;
  std::lock_guard lock(driver().captures.mutex);
  if ((*stream)->capture) {
    (*stream)->capture->invalidated = true;
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  bool legacy = *stream == (*stream)->context->legacy;
  if (legacy && driver().captures.has_blocking_capture((*stream)->context, true)) {
    return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  }
  return CUDA_SUCCESS;
}

CUresult wait_for_stream(CUstream handle, Form form) {
  StreamPointer stream;
  ROTA_SIM_CHECK(idle_stream(handle, form, &stream));
  Context* context = stream->context;
  std::vector<TaskPointer> waited;
  {
    std::lock_guard lock(context->mutex);
    // The legacy stream is synchronised with the blocking ones.
    for (const StreamPointer& other : context->all_streams()) {
      if (other != stream && !(stream == context->legacy && other->blocking())) continue;
      if (TaskPointer last = other->last()) waited.push_back(std::move(last));
    }
  }
  if (TaskPointer last = stream->last()) waited.push_back(std::move(last));
  for (const TaskPointer& task : waited) task->wait();
  return static_cast<CUresult>(context->sticky.load());
}

CUresult query_stream(CUstream handle, Form form) {
  StreamPointer stream;
  ROTA_SIM_CHECK(idle_stream(handle, form, &stream));
  Context* context = stream->context;
  std::lock_guard lock(context->mutex);
  for (const StreamPointer& other : context->all_streams()) {
    if (other != stream && !(stream == context->legacy && other->blocking())) continue;
    TaskPointer last = other->last();
    if (last && !last->done()) return CUDA_ERROR_NOT_READY;
  }
  return static_cast<CUresult>(context->sticky.load());
}

CUresult record(CUevent event, CUstream handle, Form form) {
  ROTA_SIM_CONTEXT(context);
  EventPointer object = driver().events.find(event);
  StreamPointer stream;
  if (!object) return CUDA_ERROR_INVALID_HANDLE;
  ROTA_SIM_CHECK(driver().stream_of(handle, form, context, &stream));
  if (object->context != stream->context) return CUDA_ERROR_INVALID_HANDLE;
  if (driver().captures.any()) {
    std::lock_guard lock(driver().captures.mutex);
    if (stream->capture) {
      if (stream->capture->invalidated) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
      std::lock_guard lock_event(object->mutex);
      object->capture = stream->capture;
      object->capture_tail = stream->capture_tail;
      return CUDA_SUCCESS;
    }
  }
  TaskPointer task;
  ROTA_SIM_CHECK(driver().submit(stream, Operation{}, &task));
  std::lock_guard lock(object->mutex);
  object->recorded = std::move(task);
  object->capture.reset();
  return CUDA_SUCCESS;
}

CUresult wait_event(CUstream handle, CUevent event, unsigned flags, Form form) {
  ROTA_SIM_CONTEXT(context);
  EventPointer object = driver().events.find(event);
  StreamPointer stream;
  if (!object) return CUDA_ERROR_INVALID_HANDLE;
  if ((flags & ~1U) != 0) return CUDA_ERROR_INVALID_VALUE;
  ROTA_SIM_CHECK(driver().stream_of(handle, form, context, &stream));
  TaskPointer recorded;
  {
    std::lock_guard lock(driver().captures.mutex);
    std::lock_guard lock_event(object->mutex);
    if (object->capture) {
      if (object->capture->ended) return CUDA_ERROR_CAPTURED_EVENT;  // until it is recorded again
      if (object->capture->invalidated) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
      if (stream->capture && stream->capture != object->capture) return CUDA_ERROR_STREAM_CAPTURE_MERGE;
      if (stream == stream->context->legacy) return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
      driver().captures.join(*stream, object->capture, object->capture_tail);
      return CUDA_SUCCESS;
    }
    if (stream->capture) {  // waiting for work outside the capture
      stream->capture->invalidated = true;
      return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
    }
    recorded = object->recorded;
  }
  if (!recorded || recorded->done()) return CUDA_SUCCESS;
  return driver().submit_after(stream, {std::move(recorded)}, nullptr);
}

CUresult event_task(CUevent event, EventPointer* object, TaskPointer* task) {
  ROTA_SIM_READY();
  *object = driver().events.find(event);
  if (!*object) return CUDA_ERROR_INVALID_HANDLE;
  ROTA_SIM_CHECK(driver().check_unsafe_call());
  std::lock_guard lock(driver().captures.mutex);
  std::lock_guard lock_event((*object)->mutex);
  if ((*object)->capture) {
    (*object)->capture->invalidated = true;
    return CUDA_ERROR_CAPTURED_EVENT;
  }
  *task = (*object)->recorded;
  return CUDA_SUCCESS;
}

CUresult elapsed(float* milliseconds, CUevent start, CUevent end) {
  if (milliseconds == nullptr) return CUDA_ERROR_INVALID_VALUE;
  EventPointer events[2];
  TaskPointer tasks[2];
  ROTA_SIM_CHECK(event_task(start, &events[0], &tasks[0]));
  ROTA_SIM_CHECK(event_task(end, &events[1], &tasks[1]));
  for (int side = 0; side < 2; ++side) {
    bool timed = (events[side]->flags & CU_EVENT_DISABLE_TIMING) == 0;
    if (!timed || !tasks[side]) return CUDA_ERROR_INVALID_HANDLE;
  }
  if (!tasks[0]->done() || !tasks[1]->done()) return CUDA_ERROR_NOT_READY;
  double scale = driver().options.time_scale > 0 ? driver().options.time_scale : 1;
  *milliseconds = static_cast<float>(static_cast<double>(tasks[1]->finished_at - tasks[0]->finished_at) / scale / 1e6);
  return CUDA_SUCCESS;
}

CUresult launch_host_function(CUstream handle, CUhostFn function, void* data, Form form) {
  ROTA_SIM_CONTEXT(context);
  if (function == nullptr) return CUDA_ERROR_INVALID_VALUE;
  StreamPointer stream;
  ROTA_SIM_CHECK(driver().stream_of(handle, form, context, &stream));
  Operation operation;
  operation.type = CU_GRAPH_NODE_TYPE_HOST;
  operation.run = [function, data](Context&) { function(data); };
  return driver().submit(stream, std::move(operation));
}

CUresult add_callback(CUstream handle, CUstreamCallback callback, void* data, unsigned flags, Form form) {
  StreamPointer stream;
  if (callback == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  ROTA_SIM_CHECK(idle_stream(handle, form, &stream));  // callbacks cannot be captured
  Operation operation;
  operation.type = CU_GRAPH_NODE_TYPE_HOST;
  operation.run = [handle, callback, data](Context& running) {
    callback(handle, static_cast<CUresult>(running.sticky.load()), data);
  };
  return driver().submit(stream, std::move(operation));
}

// f(stream) after the usual look-up.
template <class Use>
CUresult with_stream(CUstream handle, Form form, Use use) {
  ROTA_SIM_CONTEXT(context);
  StreamPointer stream;
  ROTA_SIM_CHECK(driver().stream_of(handle, form, context, &stream));
  return use(*stream);
}

template <class Value>
CUresult tell(Value* out, Value value) {
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *out = value;
  return CUDA_SUCCESS;
}

}  // namespace

ROTA_SIM_EXPORT(cuStreamCreate)(CUstream* out, unsigned flags) {
  return create_stream(out, flags, 0);
}
ROTA_SIM_EXPORT(cuStreamCreateWithPriority)(CUstream* out, unsigned flags, int priority) {
  return create_stream(out, flags, priority);
}
ROTA_SIM_EXPORT(cuStreamDestroy_v2)(CUstream stream) {
  return destroy_stream(stream);
}
ROTA_SIM_EXPORT(cuStreamDestroy)(CUstream stream) {
  return destroy_stream(stream);
}

ROTA_SIM_EXPORT(cuEventCreate)(CUevent* out, unsigned flags) {
  ROTA_SIM_CONTEXT(context);
  if (out == nullptr || (flags & ~7U) != 0) return CUDA_ERROR_INVALID_VALUE;
  if ((flags & CU_EVENT_INTERPROCESS) != 0) return CUDA_ERROR_NOT_SUPPORTED;
  auto event = std::make_shared<Event>(flags);
  event->context = context.get();
  *out = driver().events.add(std::move(event));
  return CUDA_SUCCESS;
}
ROTA_SIM_EXPORT(cuEventDestroy_v2)(CUevent event) {
  ROTA_SIM_READY();
  return driver().events.remove(event) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}
ROTA_SIM_EXPORT(cuEventDestroy)(CUevent event) {
  ROTA_SIM_READY();
  return driver().events.remove(event) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}
ROTA_SIM_EXPORT(cuEventQuery)(CUevent event) {
  EventPointer object;
  TaskPointer task;
  ROTA_SIM_CHECK(event_task(event, &object, &task));
  return task && !task->done() ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}
ROTA_SIM_EXPORT(cuEventSynchronize)(CUevent event) {
  EventPointer object;
  TaskPointer task;
  ROTA_SIM_CHECK(event_task(event, &object, &task));
  if (task) task->wait();
  return CUDA_SUCCESS;
}
ROTA_SIM_EXPORT(cuEventElapsedTime)(float* milliseconds, CUevent start, CUevent end) {
  return elapsed(milliseconds, start, end);
}
ROTA_SIM_EXPORT(cuEventElapsedTime_v2)(float* milliseconds, CUevent start, CUevent end) {
  return elapsed(milliseconds, start, end);
}

// What takes a stream, in both forms.
#define BOTH_FORMS(name, parameters, legacy, per_thread) \
  ROTA_SIM_EXPORT(name) parameters {                     \
    return legacy;                                       \
  }                                                      \
  ROTA_SIM_EXPORT(name##_ptsz) parameters {              \
    return per_thread;                                   \
  }

BOTH_FORMS(cuStreamSynchronize, (CUstream stream), wait_for_stream(stream, Form::kLegacy),
           wait_for_stream(stream, Form::kPerThread))
BOTH_FORMS(cuStreamQuery, (CUstream stream), query_stream(stream, Form::kLegacy),
           query_stream(stream, Form::kPerThread))
BOTH_FORMS(cuStreamWaitEvent, (CUstream stream, CUevent event, unsigned flags),
           wait_event(stream, event, flags, Form::kLegacy), wait_event(stream, event, flags, Form::kPerThread))
BOTH_FORMS(cuEventRecord, (CUevent event, CUstream stream), record(event, stream, Form::kLegacy),
           record(event, stream, Form::kPerThread))
BOTH_FORMS(cuEventRecordWithFlags, (CUevent event, CUstream stream, unsigned flags),
           flags > 1 ? CUDA_ERROR_INVALID_VALUE : record(event, stream, Form::kLegacy),
           flags > 1 ? CUDA_ERROR_INVALID_VALUE : record(event, stream, Form::kPerThread))
BOTH_FORMS(cuLaunchHostFunc, (CUstream stream, CUhostFn function, void* data),
           launch_host_function(stream, function, data, Form::kLegacy),
           launch_host_function(stream, function, data, Form::kPerThread))
BOTH_FORMS(cuStreamAddCallback, (CUstream stream, CUstreamCallback callback, void* data, unsigned flags),
           add_callback(stream, callback, data, flags, Form::kLegacy),
           add_callback(stream, callback, data, flags, Form::kPerThread))
#define TELL(form, field) with_stream(stream, form, [&](Stream& of) { return tell(out, field); })
BOTH_FORMS(cuStreamGetFlags, (CUstream stream, unsigned* out), TELL(Form::kLegacy, of.flags),
           TELL(Form::kPerThread, of.flags))
BOTH_FORMS(cuStreamGetPriority, (CUstream stream, int* out), TELL(Form::kLegacy, of.priority),
           TELL(Form::kPerThread, of.priority))
BOTH_FORMS(cuStreamGetId, (CUstream stream, unsigned long long* out),
           TELL(Form::kLegacy, static_cast<unsigned long long>(of.id)),
           TELL(Form::kPerThread, static_cast<unsigned long long>(of.id)))
BOTH_FORMS(cuStreamGetCtx, (CUstream stream, CUcontext* out), TELL(Form::kLegacy, of.context->handle()),
           TELL(Form::kPerThread, of.context->handle()))
BOTH_FORMS(cuStreamGetDevice, (CUstream stream, CUdevice* out), TELL(Form::kLegacy, of.context->gpu),
           TELL(Form::kPerThread, of.context->gpu))
#undef TELL
#undef BOTH_FORMS
