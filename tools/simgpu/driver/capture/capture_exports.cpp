// Stream capture: begin, end, queries, and the calling thread's mode.
#include <algorithm>
#include <cstring>

#include "tools/simgpu/driver/driver.h"
#include "tools/simgpu/driver/entry/mutations.h"
#include "tools/simgpu/driver/graph/state.h"
#include "tools/simgpu/thread_object.h"

using namespace rota::sim;  // NOLINT: the exported functions are all in the global namespace

namespace {

bool is_mode(CUstreamCaptureMode mode) {
  return mode >= CU_STREAM_CAPTURE_MODE_GLOBAL && mode <= CU_STREAM_CAPTURE_MODE_RELAXED;
}

// Resolves node handles; false: one is not a node of the graph.
bool find_nodes(const Graph& graph, const CUgraphNode* handles, size_t count, std::vector<GraphNode*>* nodes) {
  std::lock_guard lock(graph_state().mutex);
  for (size_t index = 0; index < count; ++index) {
    auto found = std::find_if(graph.nodes.begin(), graph.nodes.end(), [&](const auto& node) {
      return reinterpret_cast<CUgraphNode>(node.get()) == handles[index];
    });
    if (found == graph.nodes.end()) return false;
    if (std::find(nodes->begin(), nodes->end(), found->get()) == nodes->end()) nodes->push_back(found->get());
  }
  return true;
}

CUresult begin(CUstream handle, CUstreamCaptureMode mode, const GraphPointer& into, std::vector<GraphNode*> tail,
               Form form) {
  ROTA_SIM_CONTEXT_FOR(handle, context);
  StreamPointer stream;
  ROTA_SIM_CHECK(driver().stream_of(handle, form, context, &stream));
  ContextPointer owner = driver().owner_of(*stream);
  if (!owner) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  if (stream == owner->legacy) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  auto capture = std::make_shared<Capture>();
  capture->mode = mode;
  capture->own_graph = !into;
  capture->graph = into ? into : std::make_shared<Graph>();
  {
    std::lock_guard lock(driver().captures.mutex);
    ROTA_SIM_CHECK(driver().captures.begin(*stream, capture, std::move(tail)));
  }
  // From now on the program may query the graph (cuStreamGetCaptureInfo) and add nodes.
  if (capture->own_graph) driver().graphs.add(capture->graph);
  return CUDA_SUCCESS;
}

CUresult begin_capture(CUstream stream, CUstreamCaptureMode mode, Form form) {
  ROTA_SIM_READY();
  return is_mode(mode) ? begin(stream, mode, nullptr, {}, form) : CUDA_ERROR_INVALID_VALUE;
}

CUresult begin_capture_to_graph(CUstream stream, CUgraph handle, const CUgraphNode* dependencies,
                                const CUgraphEdgeData* edges, size_t count, CUstreamCaptureMode mode, Form form) {
  ROTA_SIM_READY();
  GraphPointer graph = driver().graphs.find(handle);
  if (!graph || !is_mode(mode) || (count != 0 && dependencies == nullptr)) return CUDA_ERROR_INVALID_VALUE;
  ROTA_SIM_CHECK(check_edge_data(edges, count));
  std::vector<GraphNode*> tail;
  if (!find_nodes(*graph, dependencies, count, &tail)) return CUDA_ERROR_INVALID_VALUE;
  return begin(stream, mode, graph, std::move(tail), form);
}

CUresult end_capture(CUstream handle, CUgraph* out, Form form) {
  ROTA_SIM_CONTEXT_FOR(handle, context);
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  StreamPointer stream;
  ROTA_SIM_CHECK(driver().stream_of(handle, form, context, &stream));
  std::shared_ptr<Capture> ended;
  CUresult result = CUDA_SUCCESS;
  {
    std::lock_guard lock(driver().captures.mutex);
    result = driver().captures.end(*stream, &ended);
  }
  *out = result == CUDA_SUCCESS ? ended->graph->handle() : nullptr;
  if (result != CUDA_SUCCESS && ended && ended->own_graph) driver().graphs.remove(ended->graph->handle());
  return result;
}

CUresult update_dependencies(CUstream handle, CUgraphNode* dependencies, const CUgraphEdgeData* edges, size_t count,
                             unsigned flags, Form form) {
  ROTA_SIM_CONTEXT_FOR(handle, context);
  StreamPointer stream;
  ROTA_SIM_CHECK(driver().stream_of(handle, form, context, &stream));
  if (flags > CU_STREAM_SET_CAPTURE_DEPENDENCIES || (count != 0 && dependencies == nullptr)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  ROTA_SIM_CHECK(check_edge_data(edges, count));
  std::lock_guard lock(driver().captures.mutex);
  if (!stream->capture) return CUDA_ERROR_ILLEGAL_STATE;
  if (stream->capture->invalidated) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  std::vector<GraphNode*> tail;
  bool add = flags == CU_STREAM_ADD_CAPTURE_DEPENDENCIES || mutated(Mutation::capture_dependencies_are_only_added);
  if (add) tail = stream->capture_tail;
  if (!find_nodes(*stream->capture->graph, dependencies, count, &tail)) return CUDA_ERROR_INVALID_VALUE;
  stream->capture_tail = std::move(tail);
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
  const CUgraphEdgeData** edges = nullptr;
  size_t* count = nullptr;
};

CUresult capture_info(CUstream handle, const CaptureQuery& query, Form form) {
  ROTA_SIM_CONTEXT_FOR(handle, context);
  if (query.status == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (query.edges != nullptr && query.dependencies == nullptr) return CUDA_ERROR_INVALID_VALUE;
  StreamPointer stream;
  ROTA_SIM_CHECK(driver().stream_of(handle, form, context, &stream));
  ContextPointer owner = driver().owner_of(*stream);
  if (!owner) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  std::lock_guard lock(driver().captures.mutex);
  if (stream == owner->legacy && driver().captures.has_blocking_capture(owner.get(), false)) {
    return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  }
  *query.status = status_of(*stream);
  if (*query.status != CU_STREAM_CAPTURE_STATUS_ACTIVE) return CUDA_SUCCESS;
  if (query.id != nullptr) *query.id = stream->capture->id;
  if (query.graph != nullptr) *query.graph = stream->capture->graph->handle();
  if (query.dependencies != nullptr) {
    *query.dependencies = reinterpret_cast<const CUgraphNode*>(stream->capture_tail.data());
  }
  if (query.edges != nullptr) {
    auto& edges = ThreadObject<std::vector<CUgraphEdgeData>>::get();
    edges.assign(stream->capture_tail.size(), CUgraphEdgeData{});
    *query.edges = edges.data();
  }
  if (query.count != nullptr) *query.count = stream->capture_tail.size();
  return CUDA_SUCCESS;
}

}  // namespace

ROTA_SIM_EXPORT_FORMS(cuStreamBeginCapture, _ptsz, (CUstream stream),
                      begin_capture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL, form))
ROTA_SIM_EXPORT_FORMS(cuStreamBeginCapture_v2, _ptsz, (CUstream stream, CUstreamCaptureMode mode),
                      begin_capture(stream, mode, form))
ROTA_SIM_EXPORT_FORMS(cuStreamEndCapture, _ptsz, (CUstream stream, CUgraph* graph), end_capture(stream, graph, form))
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
  return capture_info(stream, {status, id, graph, dependencies, nullptr, count}, Form::kLegacy);
}
ROTA_SIM_EXPORT(cuStreamGetCaptureInfo_v2_ptsz)
(CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id, CUgraph* graph, const CUgraphNode** dependencies,
 size_t* count) {
  return capture_info(stream, {status, id, graph, dependencies, nullptr, count}, Form::kPerThread);
}
ROTA_SIM_EXPORT(cuStreamGetCaptureInfo_v3)
(CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id, CUgraph* graph, const CUgraphNode** dependencies,
 const CUgraphEdgeData** edges, size_t* count) {
  return capture_info(stream, {status, id, graph, dependencies, edges, count}, Form::kLegacy);
}
ROTA_SIM_EXPORT(cuStreamGetCaptureInfo_v3_ptsz)
(CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id, CUgraph* graph, const CUgraphNode** dependencies,
 const CUgraphEdgeData** edges, size_t* count) {
  return capture_info(stream, {status, id, graph, dependencies, edges, count}, Form::kPerThread);
}
ROTA_SIM_EXPORT(cuThreadExchangeStreamCaptureMode)(CUstreamCaptureMode* mode) {
  ROTA_SIM_READY();
  if (mode == nullptr) return CUDA_ERROR_INVALID_VALUE;  // the mode itself is not checked (driver 580.159)
  std::swap(*mode, Driver::thread_capture_mode());
  return CUDA_SUCCESS;
}

ROTA_SIM_EXPORT_FORMS(cuStreamBeginCaptureToGraph, _ptsz,
                      (CUstream stream, CUgraph graph, const CUgraphNode* dependencies, const CUgraphEdgeData* edges,
                       size_t count, CUstreamCaptureMode mode),
                      begin_capture_to_graph(stream, graph, dependencies, edges, count, mode, form))
ROTA_SIM_EXPORT_FORMS(cuStreamUpdateCaptureDependencies, _ptsz,
                      (CUstream stream, CUgraphNode* dependencies, size_t count, unsigned flags),
                      update_dependencies(stream, dependencies, nullptr, count, flags, form))
ROTA_SIM_EXPORT_FORMS(cuStreamUpdateCaptureDependencies_v2, _ptsz,
                      (CUstream stream, CUgraphNode* dependencies, const CUgraphEdgeData* edges, size_t count,
                       unsigned flags),
                      update_dependencies(stream, dependencies, edges, count, flags, form))
