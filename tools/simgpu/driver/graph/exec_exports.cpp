// Exports for executable graphs: instantiating, launching, and changing what later launches do.
#include <algorithm>
#include <cstring>

#include "tools/simgpu/driver/graph/exec.h"
#include "tools/simgpu/driver/graph/nodes.h"
#include "tools/simgpu/driver/graph/state.h"

using namespace rota::sim;  // NOLINT: the exported functions are all in the global namespace

namespace {

CUresult find_exec(CUgraphExec handle, GraphExecPointer* executable) {
  *executable = driver().graph_execs.find(handle);
  return *executable ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult instantiate_handle(CUgraphExec* out, CUgraph handle, unsigned long long flags, InstantiateFailure* failure) {
  ROTA_SIM_READY();
  GraphPointer graph;
  failure->result = CUDA_GRAPH_INSTANTIATE_ERROR;
  ROTA_SIM_CHECK(find_graph(handle, &graph));
  return instantiate(graph, flags, out, failure);
}

CUresult instantiate_logged(CUgraphExec* out, CUgraph graph, CUgraphNode* node, char* log, size_t log_bytes) {
  InstantiateFailure failure;
  CUresult result = instantiate_handle(out, graph, 0, &failure);
  if (node != nullptr) *node = failure.node;
  if (log != nullptr && log_bytes > 0) log[0] = '\0';
  return result;
}

CUresult upload(CUgraphExec handle, CUstream stream_handle, Form form) {
  ROTA_SIM_CONTEXT_FOR(stream_handle, context);
  GraphExecPointer executable;
  StreamPointer stream;
  ROTA_SIM_CHECK(find_exec(handle, &executable));
  ROTA_SIM_CHECK(driver().stream_of(stream_handle, form, context, &stream));
  return upload_graph(executable, stream);
}

CUresult instantiate_with_parameters(CUgraphExec* out, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS* parameters,
                                     Form form) {
  if (parameters == nullptr) return CUDA_ERROR_INVALID_VALUE;
  InstantiateFailure failure;
  CUresult result = instantiate_handle(out, graph, parameters->flags, &failure);
  if (result == CUDA_SUCCESS && (parameters->flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD) != 0) {
    result = upload(*out, parameters->hUploadStream, form);
    if (result != CUDA_SUCCESS) {
      driver().graph_execs.remove(*out);
      failure.result = CUDA_GRAPH_INSTANTIATE_ERROR;
    }
  }
  parameters->result_out = failure.result;
  parameters->hErrNode_out = failure.node;
  return result;
}

CUresult launch(CUgraphExec handle, CUstream stream_handle, Form form) {
  ROTA_SIM_CONTEXT_FOR(stream_handle, context);
  GraphExecPointer executable;
  StreamPointer stream;
  ROTA_SIM_CHECK(find_exec(handle, &executable));
  ROTA_SIM_CHECK(driver().stream_of(stream_handle, form, context, &stream));
  return launch_graph(executable, stream);
}

struct ExecNode {
  GraphExecPointer executable;
  GraphNodePointer original;
  GraphPointer graph;
  GraphNode* node = nullptr;  // the executable graph's
};

CUresult find_exec_node(CUgraphExec exec_handle, CUgraphNode handle, ExecNode* found) {
  ROTA_SIM_READY();
  ROTA_SIM_CHECK(find_exec(exec_handle, &found->executable));
  ROTA_SIM_CHECK(find_node(handle, &found->original, &found->graph));
  std::lock_guard lock(graph_state().mutex);
  found->node = found->executable->find(*found->original);
  return found->node != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

// Copies and sets can be changed only if they are a single row.
bool changeable(const Operation& operation) {
  if (const auto* copied = std::get_if<CopyParameters>(&operation.parameters)) {
    return copied->copy.Height <= 1 && copied->copy.Depth <= 1 && copied->copy.WidthInBytes != 0;
  }
  const auto* set = std::get_if<SetParameters>(&operation.parameters);
  return set == nullptr || (set->set.width != 0 && set->set.height != 0);
}

// make(home, operation): what the node does in later launches.
template <class Make>
CUresult set(CUgraphExec exec_handle, CUgraphNode handle, CUgraphNodeType type, Make make) {
  ExecNode found;
  ROTA_SIM_CHECK(find_exec_node(exec_handle, handle, &found));
  std::shared_ptr<const Operation> before;
  {
    std::lock_guard lock(graph_state().mutex);
    before = found.node->operation;
  }
  if (before->type != type) return CUDA_ERROR_INVALID_VALUE;
  CUcontext home = nullptr;
  if (ContextPointer context = before->home.lock()) home = context->handle();
  auto after = std::make_shared<Operation>();
  ROTA_SIM_CHECK(make(home, after.get()));
  keep(*before, after.get());
  std::lock_guard lock(graph_state().mutex);
  if (!changeable(*before) || !changeable(*after)) return CUDA_ERROR_INVALID_VALUE;
  if (check_change(*before, *after, found.executable->flags) != CU_GRAPH_EXEC_UPDATE_SUCCESS) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (mutated(Mutation::exec_setters_change_the_graph)) found.original->operation = after;
  found.node->operation = std::move(after);
  return CUDA_SUCCESS;
}

CUresult set_kernel(CUgraphExec executable, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS* parameters) {
  if (parameters == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return set(executable, node, CU_GRAPH_NODE_TYPE_KERNEL,
             [parameters](CUcontext, Operation* operation) { return make_kernel_node(*parameters, operation); });
}

CUresult set_event(CUgraphExec executable, CUgraphNode node, CUgraphNodeType type, CUevent event) {
  return set(executable, node, type,
             [=](CUcontext, Operation* operation) { return make_event_node(type, event, operation); });
}

CUresult set_child(CUgraphExec exec_handle, CUgraphNode handle, CUgraph child_handle) {
  ExecNode found;
  GraphPointer child;
  ROTA_SIM_CHECK(find_exec_node(exec_handle, handle, &found));
  ROTA_SIM_CHECK(find_graph(child_handle, &child));
  std::lock_guard lock(graph_state().mutex);
  const auto* own = found.node->get<ChildParameters>();
  if (own == nullptr) return CUDA_ERROR_INVALID_VALUE;
  CUgraphExecUpdateResultInfo info{};
  for (bool apply : {false, true}) {
    if (update_nodes(*own->graph, *child, found.executable->flags, apply, &info) != CU_GRAPH_EXEC_UPDATE_SUCCESS) {
      return CUDA_ERROR_INVALID_VALUE;
    }
  }
  return CUDA_SUCCESS;
}

CUresult set_any(CUgraphExec executable, CUgraphNode node, const CUgraphNodeParams* parameters) {
  if (parameters == nullptr || !well_formed(*parameters)) return CUDA_ERROR_INVALID_VALUE;
  if (parameters->type == CU_GRAPH_NODE_TYPE_GRAPH) return set_child(executable, node, parameters->graph.graph);
  return set(executable, node, parameters->type, [parameters](CUcontext, Operation* operation) {
    bool memory = parameters->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC || parameters->type == CU_GRAPH_NODE_TYPE_MEM_FREE;
    return memory ? CUDA_ERROR_NOT_SUPPORTED : make_node(*parameters, operation);
  });
}

CUresult update_exec(CUgraphExec exec_handle, CUgraph handle, CUgraphExecUpdateResultInfo* info) {
  ROTA_SIM_READY();
  GraphExecPointer executable;
  GraphPointer graph;
  *info = {};
  info->result = CU_GRAPH_EXEC_UPDATE_ERROR;
  ROTA_SIM_CHECK(find_exec(exec_handle, &executable));
  ROTA_SIM_CHECK(find_graph(handle, &graph));
  return update(*executable, *graph, info);
}

// Kernels, copies and sets can be disabled.
bool can_be_disabled(const GraphNode& node) {
  return node.type() == CU_GRAPH_NODE_TYPE_KERNEL || node.type() == CU_GRAPH_NODE_TYPE_MEMCPY ||
         node.type() == CU_GRAPH_NODE_TYPE_MEMSET;
}

}  // namespace

ROTA_SIM_EXPORT(cuGraphInstantiate)(CUgraphExec* out, CUgraph graph, CUgraphNode* node, char* log, size_t log_bytes) {
  return instantiate_logged(out, graph, node, log, log_bytes);
}
ROTA_SIM_EXPORT(cuGraphInstantiate_v2)
(CUgraphExec* out, CUgraph graph, CUgraphNode* node, char* log, size_t log_bytes) {
  return instantiate_logged(out, graph, node, log, log_bytes);
}
ROTA_SIM_EXPORT(cuGraphInstantiateWithFlags)(CUgraphExec* out, CUgraph graph, unsigned long long flags) {
  InstantiateFailure failure;
  return instantiate_handle(out, graph, flags, &failure);
}
ROTA_SIM_EXPORT_FORMS(cuGraphInstantiateWithParams, _ptsz,
                      (CUgraphExec * out, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS* parameters),
                      instantiate_with_parameters(out, graph, parameters, form))
ROTA_SIM_EXPORT(cuGraphExecDestroy)(CUgraphExec handle) {
  ROTA_SIM_READY();
  GraphExecPointer executable = driver().graph_execs.remove(handle);
  if (!executable) return CUDA_ERROR_INVALID_VALUE;
  executable->destroyed.store(true);  // a launch in progress still holds it
  return CUDA_SUCCESS;
}
ROTA_SIM_EXPORT(cuGraphExecGetFlags)(CUgraphExec handle, cuuint64_t* flags) {
  ROTA_SIM_READY();
  GraphExecPointer executable;
  ROTA_SIM_CHECK(find_exec(handle, &executable));
  if (flags == nullptr) return CUDA_ERROR_INVALID_VALUE;
  // Measured on driver 580.159: not reported either, although it counts.
  *flags = executable->flags & ~cuuint64_t{CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY};
  if (mutated(Mutation::priority_flag_is_told)) *flags = executable->flags;
  return CUDA_SUCCESS;
}
ROTA_SIM_EXPORT(cuGraphExecGetId)(CUgraphExec handle, unsigned* id) {
  ROTA_SIM_READY();
  GraphExecPointer executable;
  ROTA_SIM_CHECK(find_exec(handle, &executable));
  if (id == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *id = executable->id;
  return CUDA_SUCCESS;
}

ROTA_SIM_EXPORT_FORMS(cuGraphLaunch, _ptsz, (CUgraphExec executable, CUstream stream), launch(executable, stream, form))
ROTA_SIM_EXPORT_FORMS(cuGraphUpload, _ptsz, (CUgraphExec executable, CUstream stream), upload(executable, stream, form))

ROTA_SIM_EXPORT(cuGraphExecUpdate_v2)(CUgraphExec executable, CUgraph graph, CUgraphExecUpdateResultInfo* out) {
  CUgraphExecUpdateResultInfo info{};
  CUresult result = update_exec(executable, graph, &info);
  if (out != nullptr) *out = info;
  return result;
}
ROTA_SIM_EXPORT(cuGraphExecUpdate)
(CUgraphExec executable, CUgraph graph, CUgraphNode* node, CUgraphExecUpdateResult* out) {
  CUgraphExecUpdateResultInfo info{};
  CUresult result = update_exec(executable, graph, &info);
  if (node != nullptr) *node = info.errorNode;
  if (out != nullptr) *out = info.result;
  return result;
}

ROTA_SIM_EXPORT(cuGraphExecKernelNodeSetParams)
(CUgraphExec executable, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS_v1* parameters) {
  if (parameters == nullptr) return CUDA_ERROR_INVALID_VALUE;
  CUDA_KERNEL_NODE_PARAMS wide = widened(*parameters);
  return set_kernel(executable, node, &wide);
}
ROTA_SIM_EXPORT(cuGraphExecKernelNodeSetParams_v2)
(CUgraphExec executable, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS* parameters) {
  return set_kernel(executable, node, parameters);
}
ROTA_SIM_EXPORT(cuGraphExecMemcpyNodeSetParams)
(CUgraphExec executable, CUgraphNode node, const CUDA_MEMCPY3D* copy, CUcontext context) {
  if (copy == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return set(executable, node, CU_GRAPH_NODE_TYPE_MEMCPY,
             [=](CUcontext, Operation* operation) { return make_copy_node(*copy, context, operation); });
}
ROTA_SIM_EXPORT(cuGraphExecMemsetNodeSetParams)
(CUgraphExec executable, CUgraphNode node, const CUDA_MEMSET_NODE_PARAMS* parameters, CUcontext context) {
  if (parameters == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return set(executable, node, CU_GRAPH_NODE_TYPE_MEMSET,
             [=](CUcontext, Operation* operation) { return make_set_node(*parameters, context, operation); });
}
ROTA_SIM_EXPORT(cuGraphExecHostNodeSetParams)
(CUgraphExec executable, CUgraphNode node, const CUDA_HOST_NODE_PARAMS* parameters) {
  if (parameters == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return set(executable, node, CU_GRAPH_NODE_TYPE_HOST, [parameters](CUcontext, Operation* operation) {
    return make_host_node(parameters->fn, parameters->userData, operation);
  });
}
ROTA_SIM_EXPORT(cuGraphExecChildGraphNodeSetParams)(CUgraphExec executable, CUgraphNode node, CUgraph child) {
  return set_child(executable, node, child);
}
ROTA_SIM_EXPORT(cuGraphExecEventRecordNodeSetEvent)(CUgraphExec executable, CUgraphNode node, CUevent event) {
  return set_event(executable, node, CU_GRAPH_NODE_TYPE_EVENT_RECORD, event);
}
ROTA_SIM_EXPORT(cuGraphExecEventWaitNodeSetEvent)(CUgraphExec executable, CUgraphNode node, CUevent event) {
  return set_event(executable, node, CU_GRAPH_NODE_TYPE_WAIT_EVENT, event);
}
ROTA_SIM_EXPORT(cuGraphExecBatchMemOpNodeSetParams)
(CUgraphExec executable, CUgraphNode node, const CUDA_BATCH_MEM_OP_NODE_PARAMS* parameters) {
  if (parameters == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return set(executable, node, CU_GRAPH_NODE_TYPE_BATCH_MEM_OP,
             [parameters](CUcontext, Operation* operation) { return make_batch_node(*parameters, operation); });
}
ROTA_SIM_EXPORT(cuGraphExecNodeSetParams)(CUgraphExec executable, CUgraphNode node, CUgraphNodeParams* parameters) {
  return set_any(executable, node, parameters);
}

ROTA_SIM_EXPORT(cuGraphNodeSetEnabled)(CUgraphExec executable, CUgraphNode node, unsigned enabled) {
  ExecNode found;
  ROTA_SIM_CHECK(find_exec_node(executable, node, &found));
  std::lock_guard lock(graph_state().mutex);
  if (!can_be_disabled(*found.node)) return CUDA_ERROR_INVALID_VALUE;
  found.node->enabled = enabled != 0;
  return CUDA_SUCCESS;
}
ROTA_SIM_EXPORT(cuGraphNodeGetEnabled)(CUgraphExec executable, CUgraphNode node, unsigned* enabled) {
  ExecNode found;
  ROTA_SIM_CHECK(find_exec_node(executable, node, &found));
  std::lock_guard lock(graph_state().mutex);
  if (enabled == nullptr || !can_be_disabled(*found.node)) return CUDA_ERROR_INVALID_VALUE;
  *enabled = found.node->enabled ? 1 : 0;
  return CUDA_SUCCESS;
}

// ---- the memory of a device's graphs --------------------------------------------------------------------------------

ROTA_SIM_EXPORT(cuDeviceGraphMemTrim)(CUdevice device) {
  ROTA_SIM_READY();
  if (device < 0 || device >= driver().state().gpus()) return CUDA_ERROR_INVALID_DEVICE;
  graph_state().memory.trim(device);
  return CUDA_SUCCESS;
}
ROTA_SIM_EXPORT(cuDeviceGetGraphMemAttribute)(CUdevice device, CUgraphMem_attribute attribute, void* value) {
  ROTA_SIM_READY();
  if (device < 0 || device >= driver().state().gpus()) return CUDA_ERROR_INVALID_DEVICE;
  if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  GraphMemory::Use use = graph_state().memory.use(device);
  const uint64_t answers[] = {use.used, use.used_high, use.reserved, use.reserved_high};
  if (attribute > CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH) return CUDA_ERROR_INVALID_VALUE;
  *static_cast<cuuint64_t*>(value) = answers[attribute];
  return CUDA_SUCCESS;
}
ROTA_SIM_EXPORT(cuDeviceSetGraphMemAttribute)(CUdevice device, CUgraphMem_attribute attribute, void* value) {
  ROTA_SIM_READY();
  if (device < 0 || device >= driver().state().gpus()) return CUDA_ERROR_INVALID_DEVICE;
  bool high = attribute == CU_GRAPH_MEM_ATTR_USED_MEM_HIGH || attribute == CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH;
  if (value == nullptr || !high || *static_cast<cuuint64_t*>(value) != 0) return CUDA_ERROR_INVALID_VALUE;
  graph_state().memory.reset_high(device, attribute == CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH);
  return CUDA_SUCCESS;
}
