// Streams: creating, destroying, waiting and querying; functions of the program that they call.
#include <algorithm>

#include "tools/simgpu/driver/driver.h"
#include "tools/simgpu/driver/entry/mutations.h"

using namespace rota::sim;  // NOLINT: the exported functions are all in the global namespace

namespace {

CUresult create_stream(CUstream* out, unsigned flags, int priority) {
  ROTA_SIM_CONTEXT(context);
  if (out == nullptr || (flags & ~unsigned{CU_STREAM_NON_BLOCKING}) != 0) return CUDA_ERROR_INVALID_VALUE;
  if (mutated(Mutation::all_streams_are_blocking)) flags = CU_STREAM_DEFAULT;
  if (!mutated(Mutation::priorities_are_not_clamped)) {
    priority = std::clamp(priority, kGreatestStreamPriority, kLeastStreamPriority);
  }
  auto stream = std::make_shared<Stream>(context.get(), flags, priority);
  driver().streams.add(stream);
  *out = stream->handle();
  std::vector<StreamPointer> over;  // joined outside the lock
  {
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
    context->streams.insert(stream);
  }
  return wait_as_context_does(stream);
}

CUresult destroy_stream(CUstream handle) {
  ROTA_SIM_READY();
  StreamPointer stream = driver().streams.find(handle);
  if (!stream) return CUDA_ERROR_INVALID_HANDLE;
  ContextPointer owner = driver().owner_of(*stream);
  {
    std::lock_guard lock(driver().captures.mutex);
    driver().captures.leave(*stream);
  }
  if (!driver().streams.remove(handle) || !owner) return CUDA_ERROR_INVALID_HANDLE;
  if (mutated(Mutation::destroying_a_stream_waits)) {
    if (TaskPointer last = stream->last()) last->wait();
  }
  // Queued work still runs; the call does not wait for it.
  std::lock_guard lock(owner->mutex);
  stream->destroyed = true;
  owner->streams.erase(stream);
  TaskPointer last = stream->last();
  if (last && !last->done()) owner->ending.insert(stream);
  return CUDA_SUCCESS;
}

// A stream that the call only queries or waits for: it must not be capturing.
CUresult idle_stream(CUstream handle, Form form, StreamPointer* stream, ContextPointer* owner) {
  ROTA_SIM_CONTEXT_FOR(handle, context);
  ROTA_SIM_CHECK(driver().stream_of(handle, form, context, stream));
  *owner = driver().owner_of(**stream);
  if (!*owner) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  if (!driver().captures.any()) return CUDA_SUCCESS;
  {
    std::lock_guard lock(driver().captures.mutex);
    if ((*stream)->capture && !mutated(Mutation::capturing_streams_can_be_waited_for)) {
      (*stream)->capture->invalidated = true;
      return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    bool legacy = *stream == (*owner)->legacy;
    if (legacy && driver().captures.has_blocking_capture(owner->get(), true)) {
      return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    }
  }
  return driver().check_unsafe_call();
}

// The last tasks of a stream, and for the legacy stream those of all blocking streams, with which it is ordered.
std::vector<TaskPointer> last_tasks(const StreamPointer& stream, const ContextPointer& owner) {
  std::vector<TaskPointer> tasks;
  if (TaskPointer last = stream->last()) tasks.push_back(std::move(last));
  std::lock_guard lock(owner->mutex);
  bool all = mutated(Mutation::stream_synchronize_waits_for_all);
  bool legacy = stream == owner->legacy && !mutated(Mutation::legacy_stream_stands_alone);
  if (!legacy && !all) return tasks;
  for (const StreamPointer& other : owner->all_streams()) {
    if (!other->blocking() && !all) continue;
    if (TaskPointer last = other->last()) tasks.push_back(std::move(last));
  }
  return tasks;
}

CUresult wait_for_stream(CUstream handle, Form form) {
  StreamPointer stream;
  ContextPointer owner;
  ROTA_SIM_CHECK(idle_stream(handle, form, &stream, &owner));
  if (!mutated(Mutation::stream_synchronize_returns_at_once)) {
    for (const TaskPointer& task : last_tasks(stream, owner)) task->wait();
  }
  driver().pools_synchronised();
  return static_cast<CUresult>(owner->sticky.load(std::memory_order_acquire));
}

CUresult query_stream(CUstream handle, Form form) {
  StreamPointer stream;
  ContextPointer owner;
  ROTA_SIM_CHECK(idle_stream(handle, form, &stream, &owner));
  for (const TaskPointer& task : last_tasks(stream, owner)) {
    if (!task->done() && !mutated(Mutation::streams_are_always_idle)) return CUDA_ERROR_NOT_READY;
  }
  return static_cast<CUresult>(owner->sticky.load(std::memory_order_acquire));
}

CUresult launch_host_function(CUstream handle, CUhostFn function, void* data, unsigned sync_mode, Form form) {
  ROTA_SIM_CONTEXT_FOR(handle, context);
  if (function == nullptr || sync_mode > CU_HOST_TASK_SPINWAIT) return CUDA_ERROR_INVALID_VALUE;
  StreamPointer stream;
  ROTA_SIM_CHECK(driver().stream_of(handle, form, context, &stream));
  Operation operation;
  operation.type = CU_GRAPH_NODE_TYPE_HOST;
  operation.parameters = HostParameters{function, data};
  operation.despite_errors = mutated(Mutation::host_functions_run_after_errors);
  operation.run = [function, data](Context&) { run_host_function(function, data); };
  if (mutated(Mutation::host_functions_run_early)) {
    operation.run(*context);
    return CUDA_SUCCESS;
  }
  return driver().submit(stream, std::move(operation));
}

CUresult add_callback(CUstream handle, CUstreamCallback callback, void* data, unsigned flags, Form form) {
  StreamPointer stream;
  ContextPointer owner;
  if (callback == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  ROTA_SIM_CHECK(idle_stream(handle, form, &stream, &owner));  // callbacks cannot be captured
  Operation operation;
  operation.type = CU_GRAPH_NODE_TYPE_HOST;
  operation.despite_errors = !mutated(Mutation::callbacks_are_lost_after_errors);
  operation.run = [handle, callback, data](Context& running) {
    run_host_code([&] { callback(handle, static_cast<CUresult>(running.sticky.load()), data); });
  };
  return driver().submit(stream, std::move(operation), nullptr, Driver::kNoCapture);
}

// Calls f(stream, its context) after the usual look-up.
template <class Use>
CUresult with_stream(CUstream handle, Form form, Use use) {
  ROTA_SIM_CONTEXT_FOR(handle, context);
  StreamPointer stream;
  ROTA_SIM_CHECK(driver().stream_of(handle, form, context, &stream));
  ContextPointer owner = driver().owner_of(*stream);
  return owner ? use(*stream, *owner) : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

template <class Value>
CUresult tell(Value* out, Value value) {
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *out = value;
  return CUDA_SUCCESS;
}

// Unlike the stream's other attributes, which are always returned.
CUresult tell_id(Stream& stream, unsigned long long* id) {
  {
    const std::lock_guard lock(driver().captures.mutex);
    if (stream.capture && !mutated(Mutation::capturing_streams_can_be_waited_for)) {
      stream.capture->invalidated = true;
      return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
  }
  return tell(id, static_cast<unsigned long long>(stream.id));
}

CUresult tell_contexts(CUcontext* context, CUgreenCtx* green, Context& owner) {
  if (context == nullptr || green == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *context = owner.handle();
  *green = nullptr;
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

ROTA_SIM_EXPORT_FORMS(cuStreamSynchronize, _ptsz, (CUstream stream), wait_for_stream(stream, form))
ROTA_SIM_EXPORT_FORMS(cuStreamQuery, _ptsz, (CUstream stream), query_stream(stream, form))
ROTA_SIM_EXPORT_FORMS(cuLaunchHostFunc, _ptsz, (CUstream stream, CUhostFn function, void* data),
                      launch_host_function(stream, function, data, CU_HOST_TASK_BLOCKING, form))
ROTA_SIM_EXPORT_FORMS(cuLaunchHostFunc_v2, _ptsz, (CUstream stream, CUhostFn function, void* data, unsigned sync_mode),
                      launch_host_function(stream, function, data, sync_mode, form))
ROTA_SIM_EXPORT_FORMS(cuStreamAddCallback, _ptsz,
                      (CUstream stream, CUstreamCallback callback, void* data, unsigned flags),
                      add_callback(stream, callback, data, flags, form))
#define TELL(field) with_stream(stream, form, [&](Stream& of, Context& in) { return tell(out, field); })
ROTA_SIM_EXPORT_FORMS(cuStreamGetFlags, _ptsz, (CUstream stream, unsigned* out), TELL(of.flags))
ROTA_SIM_EXPORT_FORMS(cuStreamGetPriority, _ptsz, (CUstream stream, int* out), TELL(of.priority.load()))
ROTA_SIM_EXPORT_FORMS(cuStreamGetId, _ptsz, (CUstream stream, unsigned long long* out),
                      with_stream(stream, form, [&](Stream& of, Context&) { return tell_id(of, out); }))
ROTA_SIM_EXPORT_FORMS(cuStreamGetCtx, _ptsz, (CUstream stream, CUcontext* out), TELL(in.handle()))
ROTA_SIM_EXPORT_FORMS(cuStreamGetDevice, _ptsz, (CUstream stream, CUdevice* out), TELL(in.gpu))
#undef TELL
ROTA_SIM_EXPORT_FORMS(cuStreamGetCtx_v2, _ptsz, (CUstream stream, CUcontext* context, CUgreenCtx* green),
                      with_stream(stream, form,
                                  [&](Stream&, Context& in) { return tell_contexts(context, green, in); }))
