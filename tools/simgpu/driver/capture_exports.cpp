// Stream capture: begin, end, what a capture looks like from outside, and the calling thread's mode.
#include "tools/simgpu/driver/driver.h"

using namespace rota::sim;  // NOLINT: the exported functions are all in the global namespace

namespace {

CUresult begin_capture(CUstream handle, CUstreamCaptureMode mode, Form form) {
  ROTA_SIM_CONTEXT(context);
  StreamPointer stream;
  if (mode < CU_STREAM_CAPTURE_MODE_GLOBAL || mode > CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_ERROR_INVALID_VALUE;
  ROTA_SIM_CHECK(driver().stream_of(handle, form, context, &stream));
  if (stream == stream->context->legacy) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  std::lock_guard lock(driver().captures.mutex);
  return driver().captures.begin(*stream, mode, std::make_shared<Graph>());
}

CUresult end_capture(CUstream handle, CUgraph* out, Form form) {
  ROTA_SIM_CONTEXT(context);
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  StreamPointer stream;
  ROTA_SIM_CHECK(driver().stream_of(handle, form, context, &stream));
  GraphPointer graph;
  {
    std::lock_guard lock(driver().captures.mutex);
    CUresult result = driver().captures.end(*stream, &graph);
    *out = nullptr;
    if (result != CUDA_SUCCESS) return result;
  }
  *out = driver().graphs.add(std::move(graph));
  return CUDA_SUCCESS;
}

CUstreamCaptureStatus status_of(const Stream& stream) {
  if (!stream.capture) return CU_STREAM_CAPTURE_STATUS_NONE;
  return stream.capture->invalidated ? CU_STREAM_CAPTURE_STATUS_INVALIDATED : CU_STREAM_CAPTURE_STATUS_ACTIVE;
}

struct CaptureQuery {
  CUstreamCaptureStatus* status = nullptr;
  cuuint64_t* id = nullptr;
  CUgraph* graph = nullptr;
  const CUgraphNode** dependencies = nullptr;
  size_t* count = nullptr;
};

CUresult capture_info(CUstream handle, const CaptureQuery& query, Form form) {
  ROTA_SIM_CONTEXT(context);
  if (query.status == nullptr) return CUDA_ERROR_INVALID_VALUE;
  StreamPointer stream;
  ROTA_SIM_CHECK(driver().stream_of(handle, form, context, &stream));
  std::lock_guard lock(driver().captures.mutex);
  if (stream == stream->context->legacy && driver().captures.has_blocking_capture(stream->context, false)) {
    return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  }
  *query.status = status_of(*stream);
  if (*query.status != CU_STREAM_CAPTURE_STATUS_ACTIVE) return CUDA_SUCCESS;
  if (query.id != nullptr) *query.id = stream->capture->id;
  if (query.graph != nullptr) *query.graph = stream->capture->graph->handle();
  if (query.dependencies != nullptr) {
    *query.dependencies = reinterpret_cast<const CUgraphNode*>(stream->capture_tail.data());
  }
  if (query.count != nullptr) *query.count = stream->capture_tail.size();
  return CUDA_SUCCESS;
}

}  // namespace

ROTA_SIM_EXPORT(cuStreamBeginCapture)(CUstream stream) {
  return begin_capture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL, Form::kLegacy);
}
ROTA_SIM_EXPORT(cuStreamBeginCapture_ptsz)(CUstream stream) {
  return begin_capture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL, Form::kPerThread);
}
ROTA_SIM_EXPORT(cuStreamBeginCapture_v2)(CUstream stream, CUstreamCaptureMode mode) {
  return begin_capture(stream, mode, Form::kLegacy);
}
ROTA_SIM_EXPORT(cuStreamBeginCapture_v2_ptsz)(CUstream stream, CUstreamCaptureMode mode) {
  return begin_capture(stream, mode, Form::kPerThread);
}
ROTA_SIM_EXPORT(cuStreamEndCapture)(CUstream stream, CUgraph* graph) {
  return end_capture(stream, graph, Form::kLegacy);
}
ROTA_SIM_EXPORT(cuStreamEndCapture_ptsz)(CUstream stream, CUgraph* graph) {
  return end_capture(stream, graph, Form::kPerThread);
}
ROTA_SIM_EXPORT(cuStreamIsCapturing)(CUstream stream, CUstreamCaptureStatus* status) {
  return capture_info(stream, {.status = status}, Form::kLegacy);
}
ROTA_SIM_EXPORT(cuStreamIsCapturing_ptsz)(CUstream stream, CUstreamCaptureStatus* status) {
  return capture_info(stream, {.status = status}, Form::kPerThread);
}
ROTA_SIM_EXPORT(cuStreamGetCaptureInfo)(CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id) {
  return capture_info(stream, {.status = status, .id = id}, Form::kLegacy);
}
ROTA_SIM_EXPORT(cuStreamGetCaptureInfo_ptsz)(CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id) {
  return capture_info(stream, {.status = status, .id = id}, Form::kPerThread);
}
ROTA_SIM_EXPORT(cuStreamGetCaptureInfo_v2)
(CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id, CUgraph* graph, const CUgraphNode** dependencies,
 size_t* count) {
  return capture_info(stream, {status, id, graph, dependencies, count}, Form::kLegacy);
}
ROTA_SIM_EXPORT(cuStreamGetCaptureInfo_v2_ptsz)
(CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id, CUgraph* graph, const CUgraphNode** dependencies,
 size_t* count) {
  return capture_info(stream, {status, id, graph, dependencies, count}, Form::kPerThread);
}
ROTA_SIM_EXPORT(cuStreamGetCaptureInfo_v3)
(CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id, CUgraph* graph, const CUgraphNode** dependencies,
 const CUgraphEdgeData** edges, size_t* count) {
  if (edges != nullptr) *edges = nullptr;  // plain edges only
  return capture_info(stream, {status, id, graph, dependencies, count}, Form::kLegacy);
}
ROTA_SIM_EXPORT(cuStreamGetCaptureInfo_v3_ptsz)
(CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id, CUgraph* graph, const CUgraphNode** dependencies,
 const CUgraphEdgeData** edges, size_t* count) {
  if (edges != nullptr) *edges = nullptr;
  return capture_info(stream, {status, id, graph, dependencies, count}, Form::kPerThread);
}
ROTA_SIM_EXPORT(cuThreadExchangeStreamCaptureMode)(CUstreamCaptureMode* mode) {
  ROTA_SIM_READY();
  if (mode == nullptr || *mode < CU_STREAM_CAPTURE_MODE_GLOBAL || *mode > CU_STREAM_CAPTURE_MODE_RELAXED) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  std::swap(*mode, Driver::thread_capture_mode());
  return CUDA_SUCCESS;
}
