// Streams and host functions.
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

CUresult launch_host_function(CUstream handle, CUhostFn function, void* data, Form form) {
  ROTA_SIM_CONTEXT(context);
  if (function == nullptr) return CUDA_ERROR_INVALID_VALUE;
  StreamPointer stream;
  ROTA_SIM_CHECK(driver().stream_of(handle, form, context, &stream));
  Operation operation;
  operation.type = CU_GRAPH_NODE_TYPE_HOST;
  operation.parameters = HostParameters{function, data};
  operation.run = [function, data](Context&) { run_host_function(function, data); };
  return driver().submit(stream, std::move(operation));
}

CUresult add_callback(CUstream handle, CUstreamCallback callback, void* data, unsigned flags, Form form) {
  StreamPointer stream;
  if (callback == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  ROTA_SIM_CHECK(idle_stream(handle, form, &stream));  // callbacks cannot be captured
  Operation operation;
  operation.type = CU_GRAPH_NODE_TYPE_HOST;
  operation.run = [handle, callback, data](Context& running) {
    run_host_code([&] { callback(handle, static_cast<CUresult>(running.sticky.load()), data); });
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
