// Exports for graphs: creating, copying and destroying them, their nodes and edges, and queries.
#include <algorithm>

#include "tools/simgpu/driver/graph/dot.h"
#include "tools/simgpu/driver/graph/state.h"

using namespace rota::sim;  // NOLINT: the exported functions are all in the global namespace

namespace {

// Measured on driver 580.159: the count becomes the number written, at most the capacity given; unused entries become
// null.
CUresult tell_nodes(const std::vector<GraphNode*>& nodes, CUgraphNode* out, size_t* count) {
  if (count == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (out == nullptr) {
    *count = nodes.size();
    return CUDA_SUCCESS;
  }
  size_t end = *count;
  if (mutated(Mutation::node_lists_ignore_the_room)) end = std::max(end, nodes.size());
  if (mutated(Mutation::node_lists_leave_the_rest)) end = std::min(end, nodes.size());
  for (size_t index = 0; index < end; ++index) out[index] = index < nodes.size() ? nodes[index]->handle() : nullptr;
  *count = std::min(*count, nodes.size());
  return CUDA_SUCCESS;
}

CUresult tell_plain_edges(CUgraphEdgeData* data, const void* nodes, const size_t* count) {
  if (data == nullptr) return CUDA_SUCCESS;
  if (nodes == nullptr || count == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::fill(data, data + *count, CUgraphEdgeData{});
  return CUDA_SUCCESS;
}

CUresult get_nodes(CUgraph handle, CUgraphNode* out, size_t* count, bool roots) {
  ROTA_SIM_READY();
  GraphPointer graph;
  ROTA_SIM_CHECK(find_graph(handle, &graph));
  std::lock_guard lock(graph_state().mutex);
  std::vector<GraphNode*> nodes;
  for (const GraphNodePointer& node : graph->nodes) {
    if (!roots || node->after.empty()) nodes.push_back(node.get());
  }
  return tell_nodes(nodes, out, count);
}

CUresult get_edges(CUgraph handle, CUgraphNode* from, CUgraphNode* to, CUgraphEdgeData* data, size_t* count) {
  ROTA_SIM_READY();
  GraphPointer graph;
  ROTA_SIM_CHECK(find_graph(handle, &graph));
  if (count == nullptr || (from == nullptr) != (to == nullptr)) return CUDA_ERROR_INVALID_VALUE;
  ROTA_SIM_CHECK(tell_plain_edges(data, from, count));
  std::lock_guard lock(graph_state().mutex);
  std::vector<GraphNode*> starts;
  std::vector<GraphNode*> ends;
  for (const GraphNodePointer& node : graph->nodes) {
    for (GraphNode* earlier : node->after) {
      starts.push_back(earlier);
      ends.push_back(node.get());
    }
  }
  size_t room = *count;
  ROTA_SIM_CHECK(tell_nodes(starts, from, count));
  return tell_nodes(ends, to, &room);
}

CUresult get_neighbours(CUgraphNode handle, CUgraphNode* out, CUgraphEdgeData* data, size_t* count, bool later) {
  ROTA_SIM_READY();
  GraphNodePointer node;
  GraphPointer graph;
  ROTA_SIM_CHECK(find_node(handle, &node, &graph));
  ROTA_SIM_CHECK(tell_plain_edges(data, out, count));
  std::lock_guard lock(graph_state().mutex);
  return tell_nodes(later ? graph->dependents(node.get()) : node->after, out, count);
}

// The pairs of nodes named by two arrays of handles.
CUresult find_pairs(const Graph& graph, const CUgraphNode* from, const CUgraphNode* to, size_t count,
                    std::vector<std::pair<GraphNode*, GraphNode*>>* pairs) {
  if (count != 0 && (from == nullptr || to == nullptr)) return CUDA_ERROR_INVALID_VALUE;
  for (size_t index = 0; index < count; ++index) {
    GraphNodePointer start = graph_state().nodes.find(from[index]);
    GraphNodePointer end = graph_state().nodes.find(to[index]);
    if (!start || !end || !graph.holds(start.get()) || !graph.holds(end.get())) return CUDA_ERROR_INVALID_VALUE;
    pairs->emplace_back(start.get(), end.get());
  }
  return CUDA_SUCCESS;
}

CUresult add_edges(CUgraph handle, const CUgraphNode* from, const CUgraphNode* to, const CUgraphEdgeData* data,
                   size_t count) {
  ROTA_SIM_READY();
  GraphPointer graph;
  ROTA_SIM_CHECK(find_graph(handle, &graph));
  ROTA_SIM_CHECK(check_edge_data(data, count));
  std::lock_guard lock(graph_state().mutex);
  std::vector<std::pair<GraphNode*, GraphNode*>> pairs;
  ROTA_SIM_CHECK(find_pairs(*graph, from, to, count, &pairs));
  size_t added = 0;
  for (auto [start, end] : pairs) {
    bool there = std::find(end->after.begin(), end->after.end(), start) != end->after.end();
    // Measured on driver 580.159: a cycle of several nodes is accepted, and detected when the graph is instantiated.
    if (there || start == end) break;
    end->after.push_back(start);
    ++added;
  }
  if (added == count) return CUDA_SUCCESS;
  while (added-- > 0) std::erase(pairs[added].second->after, pairs[added].first);
  return CUDA_ERROR_INVALID_VALUE;
}

CUresult remove_edges(CUgraph handle, const CUgraphNode* from, const CUgraphNode* to, const CUgraphEdgeData* data,
                      size_t count) {
  ROTA_SIM_READY();
  GraphPointer graph;
  ROTA_SIM_CHECK(find_graph(handle, &graph));
  ROTA_SIM_CHECK(check_edge_data(data, count));
  std::lock_guard lock(graph_state().mutex);
  if (count != 0 && graph->has_memory_nodes()) return CUDA_ERROR_NOT_SUPPORTED;
  std::vector<std::pair<GraphNode*, GraphNode*>> pairs;
  ROTA_SIM_CHECK(find_pairs(*graph, from, to, count, &pairs));
  std::vector<std::pair<GraphNode*, GraphNode*>> sorted = pairs;
  std::sort(sorted.begin(), sorted.end());
  if (std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end()) return CUDA_ERROR_INVALID_VALUE;
  for (auto [start, end] : pairs) {
    if (std::find(end->after.begin(), end->after.end(), start) == end->after.end()) return CUDA_ERROR_INVALID_VALUE;
  }
  for (auto [start, end] : pairs) std::erase(end->after, start);
  return CUDA_SUCCESS;
}

// f(node, graph) under the mutex, after the usual look-up.
template <class Use>
CUresult with_node(CUgraphNode handle, const void* out, Use use) {
  ROTA_SIM_READY();
  GraphNodePointer node;
  GraphPointer graph;
  ROTA_SIM_CHECK(find_node(handle, &node, &graph));
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(graph_state().mutex);
  return use(*node, *graph);
}

}  // namespace

ROTA_SIM_EXPORT(cuGraphCreate)(CUgraph* out, unsigned flags) {
  ROTA_SIM_READY();
  if (out == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  *out = driver().graphs.add(std::make_shared<Graph>());
  return CUDA_SUCCESS;
}
ROTA_SIM_EXPORT(cuGraphDestroy)(CUgraph handle) {
  ROTA_SIM_READY();
  GraphPointer graph;
  ROTA_SIM_CHECK(find_graph(handle, &graph));
  {
    std::lock_guard lock(graph_state().mutex);
    if (graph->owned || graph->captures.load() != 0) return CUDA_ERROR_INVALID_VALUE;
  }
  return driver().graphs.remove(handle) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
ROTA_SIM_EXPORT(cuGraphClone)(CUgraph* out, CUgraph handle) {
  ROTA_SIM_READY();
  GraphPointer graph;
  ROTA_SIM_CHECK(find_graph(handle, &graph));
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(graph_state().mutex);
  if (graph->has_memory_nodes()) return CUDA_ERROR_NOT_SUPPORTED;
  *out = driver().graphs.add(mutated(Mutation::clones_share_their_nodes) ? graph : graph->clone(true));
  return CUDA_SUCCESS;
}
ROTA_SIM_EXPORT(cuGraphNodeFindInClone)(CUgraphNode* out, CUgraphNode handle, CUgraph clone_handle) {
  GraphPointer clone;
  return with_node(handle, out, [&](const GraphNode& node, const Graph& graph) {
    ROTA_SIM_CHECK(find_graph(clone_handle, &clone));
    if (clone.get() == &graph) {  // only a mutation creates such a clone
      *out = handle;
      return CUDA_SUCCESS;
    }
    if (clone->cloned_from != graph.serial) return CUDA_ERROR_INVALID_VALUE;
    for (const GraphNodePointer& each : clone->nodes) {
      if (each->cloned_from != node.serial) continue;
      *out = each->handle();
      return CUDA_SUCCESS;
    }
    return CUDA_ERROR_INVALID_VALUE;
  });
}

ROTA_SIM_EXPORT(cuGraphGetNodes)(CUgraph graph, CUgraphNode* nodes, size_t* count) {
  return get_nodes(graph, nodes, count, false);
}
ROTA_SIM_EXPORT(cuGraphGetRootNodes)(CUgraph graph, CUgraphNode* nodes, size_t* count) {
  return get_nodes(graph, nodes, count, true);
}
ROTA_SIM_EXPORT(cuGraphGetEdges)(CUgraph graph, CUgraphNode* from, CUgraphNode* to, size_t* count) {
  return get_edges(graph, from, to, nullptr, count);
}
ROTA_SIM_EXPORT(cuGraphGetEdges_v2)
(CUgraph graph, CUgraphNode* from, CUgraphNode* to, CUgraphEdgeData* data, size_t* count) {
  return get_edges(graph, from, to, data, count);
}
ROTA_SIM_EXPORT(cuGraphNodeGetDependencies)(CUgraphNode node, CUgraphNode* nodes, size_t* count) {
  return get_neighbours(node, nodes, nullptr, count, false);
}
ROTA_SIM_EXPORT(cuGraphNodeGetDependencies_v2)
(CUgraphNode node, CUgraphNode* nodes, CUgraphEdgeData* data, size_t* count) {
  return get_neighbours(node, nodes, data, count, false);
}
ROTA_SIM_EXPORT(cuGraphNodeGetDependentNodes)(CUgraphNode node, CUgraphNode* nodes, size_t* count) {
  return get_neighbours(node, nodes, nullptr, count, true);
}
ROTA_SIM_EXPORT(cuGraphNodeGetDependentNodes_v2)
(CUgraphNode node, CUgraphNode* nodes, CUgraphEdgeData* data, size_t* count) {
  return get_neighbours(node, nodes, data, count, true);
}
ROTA_SIM_EXPORT(cuGraphAddDependencies)
(CUgraph graph, const CUgraphNode* from, const CUgraphNode* to, size_t count) {
  return add_edges(graph, from, to, nullptr, count);
}
ROTA_SIM_EXPORT(cuGraphAddDependencies_v2)
(CUgraph graph, const CUgraphNode* from, const CUgraphNode* to, const CUgraphEdgeData* data, size_t count) {
  return add_edges(graph, from, to, data, count);
}
ROTA_SIM_EXPORT(cuGraphRemoveDependencies)
(CUgraph graph, const CUgraphNode* from, const CUgraphNode* to, size_t count) {
  return remove_edges(graph, from, to, nullptr, count);
}
ROTA_SIM_EXPORT(cuGraphRemoveDependencies_v2)
(CUgraph graph, const CUgraphNode* from, const CUgraphNode* to, const CUgraphEdgeData* data, size_t count) {
  return remove_edges(graph, from, to, data, count);
}

ROTA_SIM_EXPORT(cuGraphNodeGetType)(CUgraphNode handle, CUgraphNodeType* type) {
  return with_node(handle, type, [&](const GraphNode& node, const Graph&) {
    *type = node.type();
    return CUDA_SUCCESS;
  });
}
ROTA_SIM_EXPORT(cuGraphDestroyNode)(CUgraphNode handle) {
  return with_node(handle, handle, [&](GraphNode& node, Graph& graph) {
    if (graph.has_memory_nodes()) return CUDA_ERROR_NOT_SUPPORTED;
    if (graph.captures.load() != 0) return CUDA_ERROR_INVALID_VALUE;
    if (!node.erased) graph.erase(&node);
    return CUDA_SUCCESS;
  });
}
ROTA_SIM_EXPORT(cuGraphNodeGetContainingGraph)(CUgraphNode handle, CUgraph* out) {
  return with_node(handle, out, [&](const GraphNode&, Graph& graph) {
    *out = graph.handle();
    return CUDA_SUCCESS;
  });
}
ROTA_SIM_EXPORT(cuGraphNodeGetLocalId)(CUgraphNode handle, unsigned* id) {
  return with_node(handle, id, [&](const GraphNode& node, const Graph&) {
    *id = node.id;
    return CUDA_SUCCESS;
  });
}
ROTA_SIM_EXPORT(cuGraphNodeGetToolsId)(CUgraphNode handle, unsigned long long* id) {
  return with_node(handle, id, [&](const GraphNode& node, const Graph& graph) {
    *id = (static_cast<unsigned long long>(graph.id) << 32) | node.id;
    return CUDA_SUCCESS;
  });
}
ROTA_SIM_EXPORT(cuGraphGetId)(CUgraph handle, unsigned* id) {
  ROTA_SIM_READY();
  GraphPointer graph;
  ROTA_SIM_CHECK(find_graph(handle, &graph));
  if (id == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *id = graph->id;
  return CUDA_SUCCESS;
}
ROTA_SIM_EXPORT(cuGraphDebugDotPrint)(CUgraph handle, const char* path, unsigned flags) {
  ROTA_SIM_READY();
  GraphPointer graph;
  ROTA_SIM_CHECK(find_graph(handle, &graph));
  if (path == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::string text;
  {
    std::lock_guard lock(graph_state().mutex);
    text = dot_text(*graph, flags);
  }
  return write_dot(text, path) ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM;
}

// Device-side control of graphs is not simulated.
ROTA_SIM_EXPORT(cuGraphConditionalHandleCreate)
(CUgraphConditionalHandle* out, CUgraph handle, CUcontext, unsigned, unsigned flags) {
  ROTA_SIM_READY();
  GraphPointer graph;
  ROTA_SIM_CHECK(find_graph(handle, &graph));
  if (out == nullptr || flags > 1) return CUDA_ERROR_INVALID_VALUE;
  return CUDA_ERROR_NOT_SUPPORTED;
}
