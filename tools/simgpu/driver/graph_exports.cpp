// Stream capture and graphs: enough to capture work, instantiate it and launch it again and again.
#include <cstring>

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

CUresult instantiate(CUgraphExec* out, CUgraph handle, unsigned long long flags) {
  ROTA_SIM_READY();
  GraphPointer graph = driver().graphs.find(handle);
  if (out == nullptr || !graph) return CUDA_ERROR_INVALID_VALUE;
  auto executable = std::make_shared<GraphExec>();
  for (const auto& node : graph->nodes) executable->operations.push_back(node->operation);
  executable->flags = flags;
  *out = driver().graph_execs.add(std::move(executable));
  return CUDA_SUCCESS;
}

CUresult launch(CUgraphExec handle, CUstream stream_handle, Form form) {
  ROTA_SIM_CONTEXT(context);
  GraphExecPointer executable = driver().graph_execs.find(handle);
  if (!executable) return CUDA_ERROR_INVALID_VALUE;
  StreamPointer stream;
  ROTA_SIM_CHECK(driver().stream_of(stream_handle, form, context, &stream));
  Operation operation;
  operation.type = CU_GRAPH_NODE_TYPE_GRAPH;
  operation.run = [executable](Context& running) {
    for (const Operation& each : executable->operations) {
      if (each.run && running.sticky.load() == 0) each.run(running);
    }
  };
  return driver().submit(stream, std::move(operation));
}

CUresult upload(CUgraphExec handle, CUstream stream_handle, Form form) {
  ROTA_SIM_CONTEXT(context);
  if (!driver().graph_execs.find(handle)) return CUDA_ERROR_INVALID_VALUE;
  StreamPointer stream;
  ROTA_SIM_CHECK(driver().stream_of(stream_handle, form, context, &stream));
  return driver().submit(stream, Operation{});
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

ROTA_SIM_EXPORT(cuGraphCreate)(CUgraph* out, unsigned flags) {
  ROTA_SIM_READY();
  if (out == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  *out = driver().graphs.add(std::make_shared<Graph>());
  return CUDA_SUCCESS;
}
ROTA_SIM_EXPORT(cuGraphDestroy)(CUgraph graph) {
  ROTA_SIM_READY();
  return driver().graphs.remove(graph) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
ROTA_SIM_EXPORT(cuGraphGetNodes)(CUgraph handle, CUgraphNode* nodes, size_t* count) {
  ROTA_SIM_READY();
  GraphPointer graph = driver().graphs.find(handle);
  if (!graph || count == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (nodes == nullptr) {
    *count = graph->nodes.size();
    return CUDA_SUCCESS;
  }
  for (size_t index = 0; index < *count; ++index) {
    nodes[index] = index < graph->nodes.size() ? reinterpret_cast<CUgraphNode>(graph->nodes[index].get()) : nullptr;
  }
  if (*count > graph->nodes.size()) *count = graph->nodes.size();
  return CUDA_SUCCESS;
}
ROTA_SIM_EXPORT(cuGraphInstantiate)(CUgraphExec* out, CUgraph graph, CUgraphNode* node, char* log, size_t log_bytes) {
  if (node != nullptr) *node = nullptr;
  if (log != nullptr && log_bytes > 0) log[0] = '\0';
  return instantiate(out, graph, 0);
}
ROTA_SIM_EXPORT(cuGraphInstantiate_v2)
(CUgraphExec* out, CUgraph graph, CUgraphNode* node, char* log, size_t log_bytes) {
  if (node != nullptr) *node = nullptr;
  if (log != nullptr && log_bytes > 0) log[0] = '\0';
  return instantiate(out, graph, 0);
}
ROTA_SIM_EXPORT(cuGraphInstantiateWithFlags)(CUgraphExec* out, CUgraph graph, unsigned long long flags) {
  return instantiate(out, graph, flags);
}
ROTA_SIM_EXPORT(cuGraphInstantiateWithParams)
(CUgraphExec* out, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS* parameters) {
  if (parameters == nullptr) return CUDA_ERROR_INVALID_VALUE;
  CUresult result = instantiate(out, graph, parameters->flags);
  parameters->result_out = result == CUDA_SUCCESS ? CUDA_GRAPH_INSTANTIATE_SUCCESS : CUDA_GRAPH_INSTANTIATE_ERROR;
  return result;
}
ROTA_SIM_EXPORT(cuGraphExecDestroy)(CUgraphExec executable) {
  ROTA_SIM_READY();
  return driver().graph_execs.remove(executable) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
ROTA_SIM_EXPORT(cuGraphLaunch)(CUgraphExec executable, CUstream stream) {
  return launch(executable, stream, Form::kLegacy);
}
ROTA_SIM_EXPORT(cuGraphLaunch_ptsz)(CUgraphExec executable, CUstream stream) {
  return launch(executable, stream, Form::kPerThread);
}
ROTA_SIM_EXPORT(cuGraphUpload)(CUgraphExec executable, CUstream stream) {
  return upload(executable, stream, Form::kLegacy);
}
ROTA_SIM_EXPORT(cuGraphUpload_ptsz)(CUgraphExec executable, CUstream stream) {
  return upload(executable, stream, Form::kPerThread);
}
