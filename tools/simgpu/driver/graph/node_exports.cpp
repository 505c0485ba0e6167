// Nodes of each type: adding them, and getting and setting their parameters.
#include <algorithm>
#include <cstring>

#include "tools/simgpu/driver/graph/exec.h"
#include "tools/simgpu/driver/graph/nodes.h"
#include "tools/simgpu/driver/graph/state.h"

using namespace rota::sim;  // NOLINT: the exported functions are all in the global namespace

namespace {

// Calls make(graph, operation), then adds the node.
template <class Make>
CUresult add(CUgraphNode* out, CUgraph handle, const CUgraphNode* dependencies, size_t count, Make make) {
  ROTA_SIM_READY();
  GraphPointer graph;
  ROTA_SIM_CHECK(find_graph(handle, &graph));
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Operation operation;
  ROTA_SIM_CHECK(make(graph, &operation));
  return add_node(graph, std::move(operation), dependencies, count, out);
}

CUresult add_allocation(CUgraphNode* out, CUgraph handle, const CUgraphNode* dependencies, size_t count,
                        CUDA_MEM_ALLOC_NODE_PARAMS* parameters) {
  if (parameters == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return add(out, handle, dependencies, count, [parameters](const GraphPointer& graph, Operation* operation) {
    ROTA_SIM_CHECK(make_graph_allocation(parameters, operation));
    std::lock_guard lock(graph_state().mutex);
    if (graph->owned) return CUDA_ERROR_NOT_SUPPORTED;
    std::get<AllocationParameters>(operation->parameters).memory->owner = graph->serial;
    return CUDA_SUCCESS;
  });
}

CUresult add_free(CUgraphNode* out, CUgraph handle, const CUgraphNode* dependencies, size_t count,
                  CUdeviceptr address) {
  GraphPointer marked;
  std::shared_ptr<GraphAllocation> memory;
  CUresult result = add(out, handle, dependencies, count, [&](const GraphPointer& graph, Operation* operation) {
    std::lock_guard lock(graph_state().mutex);
    if (graph->owned) return CUDA_ERROR_NOT_SUPPORTED;
    ROTA_SIM_CHECK(make_graph_free(*graph, address, operation));
    marked = graph;
    memory = std::get<FreeParameters>(operation->parameters).memory;
    return CUDA_SUCCESS;
  });
  // Refused because of its dependencies.
  if (result != CUDA_SUCCESS && memory) undo_graph_free(*marked, *memory);
  return result;
}

CUresult add_child(CUgraphNode* out, CUgraph handle, const CUgraphNode* dependencies, size_t count, CUgraph child,
                   CUgraphChildGraphNodeOwnership ownership) {
  bool move = ownership == CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE;
  if (!move && ownership != CU_GRAPH_CHILD_GRAPH_OWNERSHIP_CLONE) return CUDA_ERROR_INVALID_VALUE;
  CUgraph copy = nullptr;
  CUresult result = add(out, handle, dependencies, count, [&](const GraphPointer& graph, Operation* operation) {
    ROTA_SIM_CHECK(make_child_node(graph, child, move, operation));
    copy = std::get<ChildParameters>(operation->parameters).graph->handle();
    return CUDA_SUCCESS;
  });
  if (result == CUDA_SUCCESS || copy == nullptr) return result;
  // Refused because of its dependencies: a copy is dropped, a graph to be moved remains the program's.
  if (!move) {
    driver().graphs.remove(copy);
  } else if (GraphPointer graph = driver().graphs.find(copy)) {
    std::lock_guard lock(graph_state().mutex);
    graph->owned = false;
  }
  return result;
}

CUresult add_any(CUgraphNode* out, CUgraph graph, const CUgraphNode* dependencies, const CUgraphEdgeData* edges,
                 size_t count, CUgraphNodeParams* parameters, bool strict) {
  ROTA_SIM_READY();
  if (parameters == nullptr || !well_formed(*parameters)) return CUDA_ERROR_INVALID_VALUE;
  if (count != 0 && dependencies == nullptr) return CUDA_ERROR_INVALID_VALUE;
  ROTA_SIM_CHECK(check_edge_data(edges, count));
  switch (parameters->type) {
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC: {
      CUDA_MEM_ALLOC_NODE_PARAMS allocation;
      static_assert(sizeof allocation == sizeof parameters->alloc);
      std::memcpy(&allocation, &parameters->alloc, sizeof allocation);
      CUresult result = add_allocation(out, graph, dependencies, count, &allocation);
      parameters->alloc.dptr = allocation.dptr;
      return result;
    }
    case CU_GRAPH_NODE_TYPE_MEM_FREE:
      return add_free(out, graph, dependencies, count, parameters->free.dptr);
    case CU_GRAPH_NODE_TYPE_GRAPH:
      return add_child(out, graph, dependencies, count, parameters->graph.graph, parameters->graph.ownership);
    default:
      return add(out, graph, dependencies, count, [&](const GraphPointer&, Operation* operation) {
        if (strict) ROTA_SIM_CHECK(check_kernel_context(*parameters));
        CUgraphNodeParams found = *parameters;
        if (found.type == CU_GRAPH_NODE_TYPE_MEMSET) {
          ROTA_SIM_CHECK(find_set_context(found.memset.dst, &found.memset.ctx));
        }
        return make_node(found, operation);
      });
  }
}

// Calls f(node) under the mutex if the node has this type.
template <class Use>
CUresult ask(CUgraphNode handle, CUgraphNodeType type, const void* out, Use use) {
  ROTA_SIM_READY();
  GraphNodePointer node;
  GraphPointer graph;
  ROTA_SIM_CHECK(find_node(handle, &node, &graph));
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(graph_state().mutex);
  if (node->type() != type || node->operation->parameters.index() == 0) return CUDA_ERROR_INVALID_VALUE;
  use(*node);
  return CUDA_SUCCESS;
}

// make(operation) provides the node's new work. The node keeps its context and attributes.
template <class Make>
CUresult set(CUgraphNode handle, CUgraphNodeType type, Make make) {
  ROTA_SIM_READY();
  GraphNodePointer node;
  GraphPointer graph;
  ROTA_SIM_CHECK(find_node(handle, &node, &graph));
  std::shared_ptr<const Operation> before;
  {
    std::lock_guard lock(graph_state().mutex);
    before = node->operation;
  }
  if (before->type != type) return CUDA_ERROR_INVALID_VALUE;
  CUcontext home = nullptr;
  if (ContextPointer context = before->home.lock()) home = context->handle();
  auto after = std::make_shared<Operation>();
  ROTA_SIM_CHECK(make(home, after.get()));
  keep(*before, after.get());
  std::lock_guard lock(graph_state().mutex);
  if (mutated(Mutation::executables_share_their_nodes)) {
    driver().graph_execs.remove_if([&](const GraphExec& executable) {
      if (GraphNode* twin = executable.find(*node)) twin->operation = after;
      return false;
    });
  }
  node->operation = std::move(after);
  return CUDA_SUCCESS;
}

CUresult set_any(CUgraphNode handle, const CUgraphNodeParams* parameters, bool strict) {
  if (parameters == nullptr || !well_formed(*parameters)) return CUDA_ERROR_INVALID_VALUE;
  bool memory = parameters->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC || parameters->type == CU_GRAPH_NODE_TYPE_MEM_FREE;
  return set(handle, parameters->type, [&](CUcontext, Operation* operation) {
    if (memory || parameters->type == CU_GRAPH_NODE_TYPE_GRAPH) return CUDA_ERROR_NOT_SUPPORTED;
    if (strict) ROTA_SIM_CHECK(check_kernel_context(*parameters));
    return make_node(*parameters, operation);
  });
}

CUresult get_kernel(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS_v1* out) {
  return ask(node, CU_GRAPH_NODE_TYPE_KERNEL, out, [out](GraphNode& of) {
    CUDA_KERNEL_NODE_PARAMS answer = describe_kernel(of);
    std::memcpy(out, &answer, sizeof *out);
    out->func = of.get<KernelParameters>()->function->handle();
  });
}

CUresult set_kernel(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS* parameters) {
  if (parameters == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return set(node, CU_GRAPH_NODE_TYPE_KERNEL,
             [parameters](CUcontext, Operation* operation) { return make_kernel_node(*parameters, operation); });
}

CUresult add_event(CUgraphNode* out, CUgraph graph, const CUgraphNode* dependencies, size_t count, CUgraphNodeType type,
                   CUevent event) {
  return add(out, graph, dependencies, count,
             [=](const GraphPointer&, Operation* operation) { return make_event_node(type, event, operation); });
}
CUresult get_event(CUgraphNode node, CUgraphNodeType type, CUevent* out) {
  return ask(node, type, out, [out](const GraphNode& of) { *out = of.get<EventParameters>()->handle; });
}
CUresult set_event(CUgraphNode node, CUgraphNodeType type, CUevent event) {
  return set(node, type, [=](CUcontext, Operation* operation) { return make_event_node(type, event, operation); });
}

}  // namespace

#define NODE_PLACE CUgraphNode *out, CUgraph graph, const CUgraphNode *dependencies, size_t count

ROTA_SIM_EXPORT(cuGraphAddKernelNode)(NODE_PLACE, const CUDA_KERNEL_NODE_PARAMS_v1* parameters) {
  if (parameters == nullptr) return CUDA_ERROR_INVALID_VALUE;
  CUDA_KERNEL_NODE_PARAMS wide = widened(*parameters);
  return add(out, graph, dependencies, count,
             [&wide](const GraphPointer&, Operation* operation) { return make_kernel_node(wide, operation); });
}
ROTA_SIM_EXPORT(cuGraphAddKernelNode_v2)(NODE_PLACE, const CUDA_KERNEL_NODE_PARAMS* parameters) {
  if (parameters == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return add(out, graph, dependencies, count, [parameters](const GraphPointer&, Operation* operation) {
    return make_kernel_node(*parameters, operation);
  });
}
ROTA_SIM_EXPORT(cuGraphKernelNodeGetParams)(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS_v1* out) {
  return get_kernel(node, out);
}
ROTA_SIM_EXPORT(cuGraphKernelNodeGetParams_v2)(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS* out) {
  return ask(node, CU_GRAPH_NODE_TYPE_KERNEL, out, [out](GraphNode& of) { *out = describe_kernel(of); });
}
ROTA_SIM_EXPORT(cuGraphKernelNodeSetParams)(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS_v1* parameters) {
  if (parameters == nullptr) return CUDA_ERROR_INVALID_VALUE;
  CUDA_KERNEL_NODE_PARAMS wide = widened(*parameters);
  return set_kernel(node, &wide);
}
ROTA_SIM_EXPORT(cuGraphKernelNodeSetParams_v2)(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS* parameters) {
  return set_kernel(node, parameters);
}

ROTA_SIM_EXPORT(cuGraphAddMemcpyNode)(NODE_PLACE, const CUDA_MEMCPY3D* copy, CUcontext context) {
  if (copy == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return add(out, graph, dependencies, count,
             [=](const GraphPointer&, Operation* operation) { return make_copy_node(*copy, context, operation); });
}
ROTA_SIM_EXPORT(cuGraphMemcpyNodeGetParams)(CUgraphNode node, CUDA_MEMCPY3D* out) {
  return ask(node, CU_GRAPH_NODE_TYPE_MEMCPY, out,
             [out](const GraphNode& of) { *out = of.get<CopyParameters>()->copy; });
}
ROTA_SIM_EXPORT(cuGraphMemcpyNodeSetParams)(CUgraphNode node, const CUDA_MEMCPY3D* copy) {
  if (copy == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return set(node, CU_GRAPH_NODE_TYPE_MEMCPY,
             [copy](CUcontext home, Operation* operation) { return make_copy_node(*copy, home, operation); });
}

ROTA_SIM_EXPORT(cuGraphAddMemsetNode)(NODE_PLACE, const CUDA_MEMSET_NODE_PARAMS* parameters, CUcontext context) {
  if (parameters == nullptr) return CUDA_ERROR_INVALID_VALUE;
  ROTA_SIM_CHECK(find_set_context(parameters->dst, &context));
  return add(out, graph, dependencies, count,
             [=](const GraphPointer&, Operation* operation) { return make_set_node(*parameters, context, operation); });
}
ROTA_SIM_EXPORT(cuGraphMemsetNodeGetParams)(CUgraphNode node, CUDA_MEMSET_NODE_PARAMS* out) {
  return ask(node, CU_GRAPH_NODE_TYPE_MEMSET, out, [out](const GraphNode& of) { *out = of.get<SetParameters>()->set; });
}
ROTA_SIM_EXPORT(cuGraphMemsetNodeSetParams)(CUgraphNode node, const CUDA_MEMSET_NODE_PARAMS* parameters) {
  if (parameters == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return set(node, CU_GRAPH_NODE_TYPE_MEMSET, [parameters](CUcontext home, Operation* operation) {
    return make_set_node(*parameters, home, operation);
  });
}

ROTA_SIM_EXPORT(cuGraphAddHostNode)(NODE_PLACE, const CUDA_HOST_NODE_PARAMS* parameters) {
  if (parameters == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return add(out, graph, dependencies, count, [parameters](const GraphPointer&, Operation* operation) {
    return make_host_node(parameters->fn, parameters->userData, operation);
  });
}
ROTA_SIM_EXPORT(cuGraphHostNodeGetParams)(CUgraphNode node, CUDA_HOST_NODE_PARAMS* out) {
  return ask(node, CU_GRAPH_NODE_TYPE_HOST, out, [out](const GraphNode& of) {
    const auto& host = *of.get<HostParameters>();
    *out = {host.function, host.data};
  });
}
ROTA_SIM_EXPORT(cuGraphHostNodeSetParams)(CUgraphNode node, const CUDA_HOST_NODE_PARAMS* parameters) {
  if (parameters == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return set(node, CU_GRAPH_NODE_TYPE_HOST, [parameters](CUcontext, Operation* operation) {
    return make_host_node(parameters->fn, parameters->userData, operation);
  });
}

ROTA_SIM_EXPORT(cuGraphAddEmptyNode)(NODE_PLACE) {
  return add(out, graph, dependencies, count, [](const GraphPointer&, Operation*) { return CUDA_SUCCESS; });
}

ROTA_SIM_EXPORT(cuGraphAddChildGraphNode)(NODE_PLACE, CUgraph child) {
  return add_child(out, graph, dependencies, count, child, CU_GRAPH_CHILD_GRAPH_OWNERSHIP_CLONE);
}
ROTA_SIM_EXPORT(cuGraphChildGraphNodeGetGraph)(CUgraphNode node, CUgraph* out) {
  return ask(node, CU_GRAPH_NODE_TYPE_GRAPH, out,
             [out](const GraphNode& of) { *out = of.get<ChildParameters>()->graph->handle(); });
}

ROTA_SIM_EXPORT(cuGraphAddEventRecordNode)(NODE_PLACE, CUevent event) {
  return add_event(out, graph, dependencies, count, CU_GRAPH_NODE_TYPE_EVENT_RECORD, event);
}
ROTA_SIM_EXPORT(cuGraphEventRecordNodeGetEvent)(CUgraphNode node, CUevent* out) {
  return get_event(node, CU_GRAPH_NODE_TYPE_EVENT_RECORD, out);
}
ROTA_SIM_EXPORT(cuGraphEventRecordNodeSetEvent)(CUgraphNode node, CUevent event) {
  return set_event(node, CU_GRAPH_NODE_TYPE_EVENT_RECORD, event);
}
ROTA_SIM_EXPORT(cuGraphAddEventWaitNode)(NODE_PLACE, CUevent event) {
  return add_event(out, graph, dependencies, count, CU_GRAPH_NODE_TYPE_WAIT_EVENT, event);
}
ROTA_SIM_EXPORT(cuGraphEventWaitNodeGetEvent)(CUgraphNode node, CUevent* out) {
  return get_event(node, CU_GRAPH_NODE_TYPE_WAIT_EVENT, out);
}
ROTA_SIM_EXPORT(cuGraphEventWaitNodeSetEvent)(CUgraphNode node, CUevent event) {
  return set_event(node, CU_GRAPH_NODE_TYPE_WAIT_EVENT, event);
}

ROTA_SIM_EXPORT(cuGraphAddBatchMemOpNode)(NODE_PLACE, const CUDA_BATCH_MEM_OP_NODE_PARAMS* parameters) {
  if (parameters == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return add(out, graph, dependencies, count, [parameters](const GraphPointer&, Operation* operation) {
    return make_batch_node(*parameters, operation);
  });
}
ROTA_SIM_EXPORT(cuGraphBatchMemOpNodeGetParams)(CUgraphNode node, CUDA_BATCH_MEM_OP_NODE_PARAMS* out) {
  return ask(node, CU_GRAPH_NODE_TYPE_BATCH_MEM_OP, out, [out](const GraphNode& of) { *out = describe_batch(of); });
}
ROTA_SIM_EXPORT(cuGraphBatchMemOpNodeSetParams)(CUgraphNode node, const CUDA_BATCH_MEM_OP_NODE_PARAMS* parameters) {
  if (parameters == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return set(node, CU_GRAPH_NODE_TYPE_BATCH_MEM_OP,
             [parameters](CUcontext, Operation* operation) { return make_batch_node(*parameters, operation); });
}

ROTA_SIM_EXPORT(cuGraphAddMemAllocNode)(NODE_PLACE, CUDA_MEM_ALLOC_NODE_PARAMS* parameters) {
  return add_allocation(out, graph, dependencies, count, parameters);
}
ROTA_SIM_EXPORT(cuGraphMemAllocNodeGetParams)(CUgraphNode node, CUDA_MEM_ALLOC_NODE_PARAMS* out) {
  return ask(node, CU_GRAPH_NODE_TYPE_MEM_ALLOC, out, [out](const GraphNode& of) { *out = describe_allocation(of); });
}
ROTA_SIM_EXPORT(cuGraphAddMemFreeNode)(NODE_PLACE, CUdeviceptr address) {
  return add_free(out, graph, dependencies, count, address);
}
ROTA_SIM_EXPORT(cuGraphMemFreeNodeGetParams)(CUgraphNode node, CUdeviceptr* out) {
  return ask(node, CU_GRAPH_NODE_TYPE_MEM_FREE, out,
             [out](const GraphNode& of) { *out = of.get<FreeParameters>()->address; });
}

ROTA_SIM_EXPORT(cuGraphAddNode)(NODE_PLACE, CUgraphNodeParams* parameters) {
  return add_any(out, graph, dependencies, nullptr, count, parameters, false);
}
#undef NODE_PLACE
ROTA_SIM_EXPORT(cuGraphAddNode_v2)
(CUgraphNode* out, CUgraph graph, const CUgraphNode* dependencies, const CUgraphEdgeData* edges, size_t count,
 CUgraphNodeParams* parameters) {
  return add_any(out, graph, dependencies, edges, count, parameters, false);
}
ROTA_SIM_EXPORT(cuGraphAddNode_v3)
(CUgraphNode* out, CUgraph graph, const CUgraphNode* dependencies, const CUgraphEdgeData* edges, size_t count,
 CUgraphNodeParams* parameters) {
  return add_any(out, graph, dependencies, edges, count, parameters, true);
}
ROTA_SIM_EXPORT(cuGraphNodeSetParams)(CUgraphNode node, CUgraphNodeParams* parameters) {
  return set_any(node, parameters, false);
}
ROTA_SIM_EXPORT(cuGraphNodeSetParams_v2)(CUgraphNode node, CUgraphNodeParams* parameters) {
  return set_any(node, parameters, true);
}
ROTA_SIM_EXPORT(cuGraphNodeGetParams)(CUgraphNode handle, CUgraphNodeParams* out) {
  ROTA_SIM_READY();
  GraphNodePointer node;
  GraphPointer graph;
  ROTA_SIM_CHECK(find_node(handle, &node, &graph));
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(graph_state().mutex);
  return describe(*node, out);
}

ROTA_SIM_EXPORT(cuGraphKernelNodeSetAttribute)
(CUgraphNode handle, CUkernelNodeAttrID attribute, const CUkernelNodeAttrValue* value) {
  ROTA_SIM_READY();
  GraphNodePointer node;
  GraphPointer graph;
  ROTA_SIM_CHECK(find_node(handle, &node, &graph));
  if (value == nullptr || !kernel_attribute(attribute)) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(graph_state().mutex);
  if (node->get<KernelParameters>() == nullptr) return CUDA_ERROR_INVALID_VALUE;
  auto after = std::make_shared<Operation>(*node->operation);
  std::get<KernelParameters>(after->parameters).attributes[attribute] = *value;
  node->operation = std::move(after);
  return CUDA_SUCCESS;
}
ROTA_SIM_EXPORT(cuGraphKernelNodeGetAttribute)
(CUgraphNode handle, CUkernelNodeAttrID attribute, CUkernelNodeAttrValue* out) {
  if (!kernel_attribute(attribute)) return CUDA_ERROR_INVALID_VALUE;
  return ask(handle, CU_GRAPH_NODE_TYPE_KERNEL, out, [&](const GraphNode& of) {
    const auto& attributes = of.get<KernelParameters>()->attributes;
    auto found = attributes.find(attribute);
    *out = found == attributes.end() ? CUkernelNodeAttrValue{} : found->second;
  });
}
ROTA_SIM_EXPORT(cuGraphKernelNodeCopyAttributes)(CUgraphNode to, CUgraphNode from) {
  ROTA_SIM_READY();
  GraphNodePointer nodes[2];
  GraphPointer graphs[2];
  ROTA_SIM_CHECK(find_node(to, &nodes[0], &graphs[0]));
  ROTA_SIM_CHECK(find_node(from, &nodes[1], &graphs[1]));
  std::lock_guard lock(graph_state().mutex);
  const auto* source = nodes[1]->get<KernelParameters>();
  if (source == nullptr || nodes[0]->get<KernelParameters>() == nullptr) return CUDA_ERROR_INVALID_VALUE;
  auto after = std::make_shared<Operation>(*nodes[0]->operation);
  std::get<KernelParameters>(after->parameters).attributes = source->attributes;
  nodes[0]->operation = std::move(after);
  return CUDA_SUCCESS;
}
