// Graphs: enough to instantiate captured work and launch it again and again.
#include "tools/simgpu/driver/driver.h"

using namespace rota::sim;  // NOLINT: the exported functions are all in the global namespace

namespace {

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
