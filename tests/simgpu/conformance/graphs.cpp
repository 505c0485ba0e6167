// Graphs: explicit nodes and edges, and what a graph tells about itself.
#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "tests/simgpu/conformance/conformance.h"
#include "tests/simgpu/conformance/graphs_support.h"

namespace {

CUgraphNodeType type_of(CUgraphNode node) {
  CUgraphNodeType type = CU_GRAPH_NODE_TYPE_EMPTY;
  CHECK_OK(cu.cuGraphNodeGetType(node, &type));
  return type;
}

std::vector<CUgraphNode> nodes_of(CUgraph graph) {
  size_t count = 0;
  CHECK_OK(cu.cuGraphGetNodes(graph, nullptr, &count));
  std::vector<CUgraphNode> nodes(count);
  if (count != 0) CHECK_OK(cu.cuGraphGetNodes(graph, nodes.data(), &count));
  return nodes;
}

std::vector<CUgraphNode> dependencies_of(CUgraphNode node) {
  size_t count = 0;
  CHECK_OK(cu.cuGraphNodeGetDependencies_v2(node, nullptr, nullptr, &count));
  std::vector<CUgraphNode> nodes(count);
  if (count != 0) CHECK_OK(cu.cuGraphNodeGetDependencies_v2(node, nodes.data(), nullptr, &count));
  return nodes;
}

bool has(const std::vector<CUgraphNode>& nodes, CUgraphNode node) {
  return std::count(nodes.begin(), nodes.end(), node) == 1;
}

void nothing(void*) {}

}  // namespace

RULE(graphs, a_new_graph_is_empty, "idle:cuGraphGetNodes", "a new graph has no nodes") {
  Session session;
  Graph graph;
  size_t count = 7;
  CHECK_OK(cu.cuGraphGetNodes(graph, nullptr, &count));
  CHECK_EQ(count, 0);
}

RULE(graphs, creation_flags_must_be_zero, "lenient:cuGraphCreate", "cuGraphCreate refuses flags") {
  Session session;
  CUgraph graph = nullptr;
  CHECK_EQ(cu.cuGraphCreate(&graph, 1), CUDA_ERROR_INVALID_VALUE);
}

RULE(graphs, a_node_lists_its_dependencies, "graph_forgets_dependencies",
     "a node's dependencies are those that it was added with") {
  Session session;
  Graph graph;
  CUgraphNode first = graph.empty();
  CUgraphNode second = graph.empty();
  CUgraphNode last = graph.empty({first, second});
  std::vector<CUgraphNode> found = dependencies_of(last);
  CHECK_EQ(found.size(), 2);
  CHECK(has(found, first));
  CHECK(has(found, second));
}

RULE(graphs, dependents_mirror_dependencies, "graph_forgets_dependencies",
     "the dependent nodes of a node are those that were added with it as a dependency") {
  Session session;
  Graph graph;
  CUgraphNode first = graph.empty();
  CUgraphNode second = graph.empty({first});
  CUgraphNode third = graph.empty({first});
  size_t count = 0;
  CHECK_OK(cu.cuGraphNodeGetDependentNodes_v2(first, nullptr, nullptr, &count));
  CHECK_EQ(count, 2);
  std::vector<CUgraphNode> found(count);
  CHECK_OK(cu.cuGraphNodeGetDependentNodes_v2(first, found.data(), nullptr, &count));
  CHECK(has(found, second));
  CHECK(has(found, third));
}

RULE(graphs, roots_have_no_dependencies, "graph_forgets_dependencies",
     "cuGraphGetRootNodes lists just the nodes without dependencies") {
  Session session;
  Graph graph;
  CUgraphNode first = graph.empty();
  graph.empty({first});
  CUgraphNode other = graph.empty();
  size_t count = 5;
  std::vector<CUgraphNode> found(count);
  CHECK_OK(cu.cuGraphGetRootNodes(graph, found.data(), &count));
  CHECK_EQ(count, 2);
  CHECK(has(found, first));
  CHECK(has(found, other));
}

RULE(graphs, too_much_room_is_filled_with_null, "node_lists_leave_the_rest",
     "cuGraphGetNodes sets the entries beyond the last node to null and the count to the number of nodes") {
  Session session;
  Graph graph;
  CUgraphNode node = graph.empty();
  auto* const garbage = reinterpret_cast<CUgraphNode>(uintptr_t{0x10});
  CUgraphNode found[3] = {garbage, garbage, garbage};
  size_t count = 3;
  CHECK_OK(cu.cuGraphGetNodes(graph, found, &count));
  CHECK_EQ(count, 1);
  CHECK_EQ(found[0], node);
  CHECK(found[1] == nullptr);
  CHECK(found[2] == nullptr);
}

RULE(graphs, too_little_room_is_not_exceeded, "node_lists_ignore_the_room",
     "cuGraphGetNodes writes at most as many nodes as there is room for") {
  Session session;
  Graph graph;
  graph.empty();
  graph.empty();
  auto* const garbage = reinterpret_cast<CUgraphNode>(uintptr_t{0x10});
  CUgraphNode found[2] = {garbage, garbage};
  size_t count = 1;
  CHECK_OK(cu.cuGraphGetNodes(graph, found, &count));
  CHECK_NE(found[0], garbage);
  CHECK_EQ(found[1], garbage);
}

RULE(graphs, edges_are_pairs, "graph_forgets_dependencies",
     "cuGraphGetEdges lists every dependency with its start and its end at one index") {
  Session session;
  Graph graph;
  CUgraphNode first = graph.empty();
  CUgraphNode second = graph.empty({first});
  CUgraphNode third = graph.empty({first, second});
  size_t count = 0;
  CHECK_OK(cu.cuGraphGetEdges_v2(graph, nullptr, nullptr, nullptr, &count));
  CHECK_EQ(count, 3);
  std::vector<CUgraphNode> from(count);
  std::vector<CUgraphNode> to(count);
  CHECK_OK(cu.cuGraphGetEdges_v2(graph, from.data(), to.data(), nullptr, &count));
  auto has_edge = [&](CUgraphNode start, CUgraphNode end) {
    for (size_t index = 0; index < count; ++index) {
      if (from[index] == start && to[index] == end) return true;
    }
    return false;
  };
  CHECK(has_edge(first, second));
  CHECK(has_edge(first, third));
  CHECK(has_edge(second, third));
}

RULE(graphs, plain_edges_have_zero_data, "idle:cuGraphGetEdges_v2", "the edge data of plain dependencies is zeroed") {
  Session session;
  Graph graph;
  CUgraphNode first = graph.empty();
  graph.empty({first});
  CUgraphNode from = nullptr;
  CUgraphNode to = nullptr;
  CUgraphEdgeData data;
  std::memset(&data, 0x55, sizeof data);
  size_t count = 1;
  CHECK_OK(cu.cuGraphGetEdges_v2(graph, &from, &to, &data, &count));
  CHECK_EQ(from, first);
  CUgraphEdgeData zero{};
  CHECK_EQ(std::memcmp(&data, &zero, sizeof data), 0);
}

RULE(graphs, edges_can_be_added_and_removed, "idle:cuGraphRemoveDependencies_v2",
     "cuGraphAddDependencies adds a dependency and cuGraphRemoveDependencies takes it away") {
  Session session;
  Graph graph;
  CUgraphNode first = graph.empty();
  CUgraphNode second = graph.empty();
  CHECK_OK(cu.cuGraphAddDependencies_v2(graph, &first, &second, nullptr, 1));
  CHECK_EQ(dependencies_of(second).size(), 1);
  CHECK_OK(cu.cuGraphRemoveDependencies_v2(graph, &first, &second, nullptr, 1));
  CHECK_EQ(dependencies_of(second).size(), 0);
}

RULE(graphs, an_edge_cannot_be_added_twice, "lenient:cuGraphAddDependencies_v2",
     "adding a dependency that exists is an invalid value") {
  Session session;
  Graph graph;
  CUgraphNode first = graph.empty();
  CUgraphNode second = graph.empty({first});
  CHECK_EQ(cu.cuGraphAddDependencies_v2(graph, &first, &second, nullptr, 1), CUDA_ERROR_INVALID_VALUE);
}

RULE(graphs, a_missing_edge_cannot_be_removed, "lenient:cuGraphRemoveDependencies_v2",
     "removing a dependency that does not exist is an invalid value") {
  Session session;
  Graph graph;
  CUgraphNode first = graph.empty();
  CUgraphNode second = graph.empty({first});
  CHECK_EQ(cu.cuGraphRemoveDependencies_v2(graph, &second, &first, nullptr, 1), CUDA_ERROR_INVALID_VALUE);
}

RULE(graphs, no_node_depends_on_itself, "lenient:cuGraphAddDependencies_v2",
     "a dependency of a node on itself is an invalid value") {
  Session session;
  Graph graph;
  CUgraphNode node = graph.empty();
  CHECK_EQ(cu.cuGraphAddDependencies_v2(graph, &node, &node, nullptr, 1), CUDA_ERROR_INVALID_VALUE);
}

// Measured: driver 580.159 lets the edge in that closes the cycle, and finds it here.
RULE(graphs, cycles_do_not_become_executable, "cycles_are_let_in",
     "instantiating a graph whose dependencies form a cycle is an invalid value") {
  Session session;
  Graph graph;
  CUgraphNode first = graph.empty();
  CUgraphNode second = graph.empty({first});
  CUgraphNode third = graph.empty({second});
  CHECK_OK(cu.cuGraphAddDependencies_v2(graph, &third, &first, nullptr, 1));
  CUgraphExec executable = nullptr;
  CHECK_EQ(cu.cuGraphInstantiateWithFlags(&executable, graph, 0), CUDA_ERROR_INVALID_VALUE);
}

RULE(graphs, dependencies_are_of_the_same_graph, "lenient:cuGraphAddEmptyNode",
     "a node cannot depend on a node of another graph") {
  Session session;
  Graph graph;
  Graph other;
  CUgraphNode foreign = other.empty();
  CUgraphNode node = nullptr;
  CHECK_EQ(cu.cuGraphAddEmptyNode(&node, graph, &foreign, 1), CUDA_ERROR_INVALID_VALUE);
}

RULE(graphs, dependencies_have_no_duplicates, "lenient:cuGraphAddEmptyNode",
     "a node cannot be added with one dependency twice") {
  Session session;
  Graph graph;
  CUgraphNode first = graph.empty();
  CUgraphNode twice[] = {first, first};
  CUgraphNode node = nullptr;
  CHECK_EQ(cu.cuGraphAddEmptyNode(&node, graph, twice, 2), CUDA_ERROR_INVALID_VALUE);
}

RULE(graphs, a_destroyed_node_takes_its_edges_along, "idle:cuGraphDestroyNode",
     "destroying a node severs the dependencies on it") {
  Session session;
  Graph graph;
  CUgraphNode first = graph.empty();
  CUgraphNode second = graph.empty({first});
  CUgraphNode third = graph.empty({second});
  CHECK_OK(cu.cuGraphDestroyNode(second));
  CHECK_EQ(nodes_of(graph).size(), 2);
  CHECK_EQ(dependencies_of(third).size(), 0);
}

RULE(graphs, nodes_know_their_type, "idle:cuGraphNodeGetType", "cuGraphNodeGetType tells what a node does") {
  Session session;
  Buffer buffer(64);
  Event event;
  Graph graph;
  CHECK_EQ(type_of(graph.empty()), CU_GRAPH_NODE_TYPE_EMPTY);
  CHECK_EQ(type_of(graph.set(buffer, 1, 4)), CU_GRAPH_NODE_TYPE_MEMSET);
  CHECK_EQ(type_of(graph.host(&nothing, nullptr)), CU_GRAPH_NODE_TYPE_HOST);
  CUgraphNode node = nullptr;
  CHECK_OK(cu.cuGraphAddEventRecordNode(&node, graph, nullptr, 0, event));
  CHECK_EQ(type_of(node), CU_GRAPH_NODE_TYPE_EVENT_RECORD);
  CHECK_OK(cu.cuGraphAddEventWaitNode(&node, graph, nullptr, 0, event));
  CHECK_EQ(type_of(node), CU_GRAPH_NODE_TYPE_WAIT_EVENT);
  Graph child;
  CHECK_OK(cu.cuGraphAddChildGraphNode(&node, graph, nullptr, 0, child));
  CHECK_EQ(type_of(node), CU_GRAPH_NODE_TYPE_GRAPH);
}

RULE(graphs, kernel_nodes_copy_their_arguments, "kernel_nodes_forget_arguments",
     "a kernel node keeps the argument values of the moment when it was added") {
  Session session;
  Buffer buffer(64);
  CUfunction fill = session.function("fill");
  CUdeviceptr words = buffer;
  unsigned long count = 16;
  unsigned value = 7;
  void* arguments[] = {&words, &count, &value};
  CUDA_KERNEL_NODE_PARAMS kernel = kernel_parameters(fill, 1, 16, arguments);
  Graph graph;
  CUgraphNode node = nullptr;
  CHECK_OK(cu.cuGraphAddKernelNode_v2(&node, graph, nullptr, 0, &kernel));
  value = 9;
  CUDA_KERNEL_NODE_PARAMS told{};
  CHECK_OK(cu.cuGraphKernelNodeGetParams_v2(node, &told));
  CHECK_EQ(told.func, fill);
  CHECK_EQ(told.gridDimX, 1);
  CHECK_EQ(told.blockDimX, 16);
  CHECK(told.kernelParams != nullptr);
  CHECK_EQ(*static_cast<unsigned*>(told.kernelParams[2]), 7);
  CHECK_EQ(*static_cast<unsigned long*>(told.kernelParams[1]), 16);
}

RULE(graphs, kernel_nodes_have_arguments_in_one_way, "lenient:cuGraphAddKernelNode_v2",
     "a kernel node with both kernelParams and extra is an invalid value") {
  Session session;
  CUfunction spin = session.function("spin");
  unsigned long nanoseconds = 0;
  size_t bytes = sizeof nanoseconds;
  void* arguments[] = {&nanoseconds};
  void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &nanoseconds, CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes,
                   CU_LAUNCH_PARAM_END};
  CUDA_KERNEL_NODE_PARAMS kernel = kernel_parameters(spin, 1, 1, arguments);
  kernel.extra = extra;
  Graph graph;
  CUgraphNode node = nullptr;
  CHECK_EQ(cu.cuGraphAddKernelNode_v2(&node, graph, nullptr, 0, &kernel), CUDA_ERROR_INVALID_VALUE);
}

RULE(graphs, set_nodes_tell_their_parameters, "idle:cuGraphMemsetNodeSetParams",
     "cuGraphMemsetNodeGetParams answers what cuGraphMemsetNodeSetParams set") {
  Session session;
  Buffer buffer(64);
  Graph graph;
  CUgraphNode node = graph.set(buffer, 1, 4);
  CUDA_MEMSET_NODE_PARAMS set = set_parameters(buffer, 5, 8);
  CHECK_OK(cu.cuGraphMemsetNodeSetParams(node, &set));
  CUDA_MEMSET_NODE_PARAMS told{};
  CHECK_OK(cu.cuGraphMemsetNodeGetParams(node, &told));
  CHECK_EQ(told.dst, buffer.address());
  CHECK_EQ(told.value, 5);
  CHECK_EQ(told.elementSize, 4);
  CHECK_EQ(told.width, 8);
  CHECK_EQ(told.height, 1);
}

RULE(graphs, set_nodes_have_elements_of_1_2_or_4_bytes, "lenient:cuGraphAddMemsetNode",
     "a memset node with elements of 3 bytes is an invalid value") {
  Session session;
  Buffer buffer(64);
  CUDA_MEMSET_NODE_PARAMS set = set_parameters(buffer, 5, 8);
  set.elementSize = 3;
  Graph graph;
  CUgraphNode node = nullptr;
  CHECK_EQ(cu.cuGraphAddMemsetNode(&node, graph, nullptr, 0, &set, session.context()), CUDA_ERROR_INVALID_VALUE);
}

RULE(graphs, copy_nodes_tell_their_parameters, "idle:cuGraphMemcpyNodeGetParams",
     "cuGraphMemcpyNodeGetParams answers the copy that the node was added with") {
  Session session;
  Buffer from(64);
  Buffer to(64);
  Graph graph;
  CUgraphNode node = graph.copy(to, from, 48);
  CUDA_MEMCPY3D told{};
  CHECK_OK(cu.cuGraphMemcpyNodeGetParams(node, &told));
  CHECK_EQ(told.srcDevice + told.srcXInBytes, from.address());
  CHECK_EQ(told.dstDevice + told.dstXInBytes, to.address());
  CHECK_EQ(told.WidthInBytes, 48);
}

RULE(graphs, host_nodes_tell_their_parameters, "idle:cuGraphHostNodeGetParams",
     "cuGraphHostNodeGetParams answers the function and its argument") {
  Session session;
  int data = 0;
  Graph graph;
  CUgraphNode node = graph.host(&nothing, &data);
  CUDA_HOST_NODE_PARAMS told{};
  CHECK_OK(cu.cuGraphHostNodeGetParams(node, &told));
  CHECK(told.fn == &nothing);
  CHECK_EQ(told.userData, &data);
}

RULE(graphs, host_nodes_need_a_function, "lenient:cuGraphAddHostNode",
     "a host node without a function is an invalid value") {
  Session session;
  Graph graph;
  CUDA_HOST_NODE_PARAMS host{};
  CUgraphNode node = nullptr;
  CHECK_EQ(cu.cuGraphAddHostNode(&node, graph, nullptr, 0, &host), CUDA_ERROR_INVALID_VALUE);
}

RULE(graphs, event_nodes_tell_their_event, "idle:cuGraphEventRecordNodeSetEvent",
     "cuGraphEventRecordNodeGetEvent answers the event that was set last") {
  Session session;
  Event first;
  Event second;
  Graph graph;
  CUgraphNode node = nullptr;
  CHECK_OK(cu.cuGraphAddEventRecordNode(&node, graph, nullptr, 0, first));
  CHECK_OK(cu.cuGraphEventRecordNodeSetEvent(node, second));
  CUevent told = nullptr;
  CHECK_OK(cu.cuGraphEventRecordNodeGetEvent(node, &told));
  CHECK_EQ(told, static_cast<CUevent>(second));
}

RULE(graphs, parameters_are_asked_for_by_type, "lenient:cuGraphHostNodeGetParams",
     "asking for a host node's parameters of a node of another type is an invalid value") {
  Session session;
  Graph graph;
  CUgraphNode node = graph.empty();
  CUDA_HOST_NODE_PARAMS told{};
  CHECK_EQ(cu.cuGraphHostNodeGetParams(node, &told), CUDA_ERROR_INVALID_VALUE);
}
