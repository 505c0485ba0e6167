// Graphs: copies of graphs, child graphs, memory nodes before any launch, user objects, and the newer general forms.
#include <atomic>
#include <chrono>
#include <climits>
#include <cstdio>
#include <string>
#include <thread>

#include "tests/simgpu/conformance/conformance.h"
#include "tests/simgpu/conformance/graphs_support.h"

namespace {

std::atomic<int> destructions{0};
void count_destruction(void*) {
  destructions.fetch_add(1);
  destructions.notify_all();
}

CUuserObject user_object(unsigned references) {
  CUuserObject object = nullptr;
  CHECK_OK(cu.cuUserObjectCreate(&object, nullptr, &count_destruction, references, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
  return object;
}

// The destructor is called by a thread of the driver's, some time after the last reference has gone. A driver that does
// not call it makes the rule run into its time limit.
void wait_for_destruction() {
  auto patience = std::chrono::steady_clock::now() + std::chrono::seconds(5);
  while (destructions.load() == 0 && std::chrono::steady_clock::now() < patience) std::this_thread::yield();
  CHECK_EQ(destructions.load(), 1);
}

size_t count_of(CUgraph graph) {
  size_t count = 0;
  CHECK_OK(cu.cuGraphGetNodes(graph, nullptr, &count));
  return count;
}

// Four words to 3, by a node of the general kind, with no context given.
CUgraphNodeParams node_that_sets(CUdeviceptr address) {
  CUgraphNodeParams parameters{};
  parameters.type = CU_GRAPH_NODE_TYPE_MEMSET;
  parameters.memset.dst = address;
  parameters.memset.value = 3;
  parameters.memset.elementSize = 4;
  parameters.memset.width = 4;
  parameters.memset.height = 1;
  return parameters;
}

}  // namespace

RULE(graphs, clones_are_of_their_own, "clones_share_their_nodes",
     "nodes added to a clone do not appear in the original") {
  Session session;
  Graph graph;
  graph.empty();
  CUgraph clone = nullptr;
  CHECK_OK(cu.cuGraphClone(&clone, graph));
  CUgraphNode node = nullptr;
  CHECK_OK(cu.cuGraphAddEmptyNode(&node, clone, nullptr, 0));
  CHECK_EQ(count_of(clone), 2);
  CHECK_EQ(count_of(graph), 1);
  CHECK_OK(cu.cuGraphDestroy(clone));
}

RULE(graphs, clones_keep_parameters, "clones_share_their_nodes",
     "changing a node of the original leaves its clone's parameters alone") {
  Session session;
  Buffer buffer(64);
  Graph graph;
  CUgraphNode node = graph.set(buffer, 1, 4);
  CUgraph clone = nullptr;
  CHECK_OK(cu.cuGraphClone(&clone, graph));
  CUDA_MEMSET_NODE_PARAMS set = set_parameters(buffer, 2, 4);
  CHECK_OK(cu.cuGraphMemsetNodeSetParams(node, &set));
  CUgraphNode twin = nullptr;
  CHECK_OK(cu.cuGraphNodeFindInClone(&twin, node, clone));
  CUDA_MEMSET_NODE_PARAMS told{};
  CHECK_OK(cu.cuGraphMemsetNodeGetParams(twin, &told));
  CHECK_EQ(told.value, 1);
  CHECK_OK(cu.cuGraphDestroy(clone));
}

RULE(graphs, clone_twins_differ, "clones_share_their_nodes",
     "cuGraphNodeFindInClone answers another node than the original, of the same type") {
  Session session;
  Graph graph;
  CUgraphNode first = graph.empty();
  CUgraphNode second = graph.empty({first});
  CUgraph clone = nullptr;
  CHECK_OK(cu.cuGraphClone(&clone, graph));
  CUgraphNode twin = nullptr;
  CHECK_OK(cu.cuGraphNodeFindInClone(&twin, second, clone));
  CHECK_NE(twin, second);
  CUgraphNode before = nullptr;
  size_t count = 1;
  CHECK_OK(cu.cuGraphNodeGetDependencies_v2(twin, &before, nullptr, &count));
  CHECK_EQ(count, 1);
  CUgraphNode first_twin = nullptr;
  CHECK_OK(cu.cuGraphNodeFindInClone(&first_twin, first, clone));
  CHECK_EQ(before, first_twin);
  CHECK_OK(cu.cuGraphDestroy(clone));
}

RULE(graphs, only_clones_have_twins, "lenient:cuGraphNodeFindInClone",
     "looking for a node in a graph that is no clone of its graph is an invalid value") {
  Session session;
  Graph graph;
  Graph other;
  CUgraphNode node = graph.empty();
  other.empty();
  CUgraphNode twin = nullptr;
  CHECK_EQ(cu.cuGraphNodeFindInClone(&twin, node, other), CUDA_ERROR_INVALID_VALUE);
}

RULE(graphs, child_graphs_are_copies, "child_graphs_are_not_copied",
     "nodes added to a graph after it was made a child graph do not appear in the child graph") {
  Session session;
  Graph inner;
  inner.empty();
  Graph outer;
  CUgraphNode node = outer.child(inner);
  inner.empty();
  CUgraph embedded = nullptr;
  CHECK_OK(cu.cuGraphChildGraphNodeGetGraph(node, &embedded));
  CHECK_NE(embedded, static_cast<CUgraph>(inner));
  CHECK_EQ(count_of(embedded), 1);
}

RULE(graphs, embedded_graphs_can_change, "idle:cuGraphChildGraphNodeGetGraph",
     "nodes added to the graph of a child graph node belong to the node") {
  Session session;
  Graph inner;
  Graph outer;
  CUgraphNode node = outer.child(inner);
  CUgraph embedded = nullptr;
  CHECK_OK(cu.cuGraphChildGraphNodeGetGraph(node, &embedded));
  CUgraphNode added = nullptr;
  CHECK_OK(cu.cuGraphAddEmptyNode(&added, embedded, nullptr, 0));
  CUgraph again = nullptr;
  CHECK_OK(cu.cuGraphChildGraphNodeGetGraph(node, &again));
  CHECK_EQ(again, embedded);
  CHECK_EQ(count_of(again), 1);
}

RULE(graphs, allocation_nodes_fix_an_address, "idle:cuGraphMemAllocNodeGetParams",
     "an allocation node's address is known when it is added, and told later") {
  Session session;
  Graph graph;
  CUdeviceptr address = 0;
  CUgraphNode node = graph.allocation(session.device(), 1 << 16, &address);
  CHECK_NE(address, 0);
  CUDA_MEM_ALLOC_NODE_PARAMS told{};
  CHECK_OK(cu.cuGraphMemAllocNodeGetParams(node, &told));
  CHECK_EQ(told.dptr, address);
  CHECK_EQ(told.bytesize, 1 << 16);
}

RULE(graphs, allocation_nodes_need_a_size, "lenient:cuGraphAddMemAllocNode",
     "an allocation node of no bytes is an invalid value") {
  Session session;
  Graph graph;
  CUDA_MEM_ALLOC_NODE_PARAMS allocation = allocation_parameters(session.device(), 0);
  CUgraphNode node = nullptr;
  CHECK_EQ(cu.cuGraphAddMemAllocNode(&node, graph, nullptr, 0, &allocation), CUDA_ERROR_INVALID_VALUE);
}

RULE(graphs, allocations_are_freed_once, "lenient:cuGraphAddMemFreeNode",
     "a second free node for one allocation in its graph is an invalid value") {
  Session session;
  Graph graph;
  CUdeviceptr address = 0;
  CUgraphNode node = graph.allocation(session.device(), 1 << 16, &address);
  CUgraphNode freed = graph.free(address, {node});
  CUgraphNode again = nullptr;
  CHECK_EQ(cu.cuGraphAddMemFreeNode(&again, graph, &freed, 1, address), CUDA_ERROR_INVALID_VALUE);
}

RULE(graphs, only_graph_memory_has_free_nodes, "lenient:cuGraphAddMemFreeNode",
     "a free node for memory of cuMemAlloc is an invalid value") {
  Session session;
  Buffer buffer(64);
  Graph graph;
  CUgraphNode node = nullptr;
  CHECK_EQ(cu.cuGraphAddMemFreeNode(&node, graph, nullptr, 0, buffer), CUDA_ERROR_INVALID_VALUE);
}

RULE(graphs, memory_freed_by_its_graph_is_not_freed_by_another, "lenient:cuGraphAddMemFreeNode",
     "no other graph can free an allocation that its own graph frees") {
  Session session;
  Graph graph;
  CUdeviceptr address = 0;
  CUgraphNode node = graph.allocation(session.device(), 1 << 16, &address);
  graph.free(address, {node});
  Graph other;
  CUgraphNode freed = nullptr;
  CHECK_NE(cu.cuGraphAddMemFreeNode(&freed, other, nullptr, 0, address), CUDA_SUCCESS);
}

RULE(graphs, graphs_with_memory_nodes_are_not_cloned, "lenient:cuGraphClone",
     "a graph with an allocation node cannot be cloned") {
  Session session;
  Graph graph;
  CUdeviceptr address = 0;
  graph.allocation(session.device(), 1 << 16, &address);
  CUgraph clone = nullptr;
  CHECK_EQ(cu.cuGraphClone(&clone, graph), CUDA_ERROR_NOT_SUPPORTED);
}

RULE(graphs, nodes_beside_memory_nodes_stay, "lenient:cuGraphDestroyNode",
     "nodes of a graph with an allocation node cannot be destroyed") {
  Session session;
  Graph graph;
  CUgraphNode node = graph.empty();
  CUdeviceptr address = 0;
  graph.allocation(session.device(), 1 << 16, &address);
  CHECK_NE(cu.cuGraphDestroyNode(node), CUDA_SUCCESS);
  CHECK_EQ(count_of(graph), 2);
}

RULE(graphs, user_objects_end_with_their_last_reference, "user_objects_are_never_destroyed",
     "a user object's destructor is called once its last reference was released") {
  Session session;
  CUuserObject object = user_object(1);
  CHECK_OK(cu.cuUserObjectRetain(object, 2));
  CHECK_OK(cu.cuUserObjectRelease(object, 2));
  CHECK_EQ(destructions.load(), 0);
  CHECK_OK(cu.cuUserObjectRelease(object, 1));
  wait_for_destruction();
}

RULE(graphs, graphs_hold_user_objects, "user_objects_are_never_destroyed",
     "a reference moved to a graph is released when the graph is destroyed") {
  Session session;
  CUuserObject object = user_object(1);
  Graph graph;
  CHECK_OK(cu.cuGraphRetainUserObject(graph, object, 1, CU_GRAPH_USER_OBJECT_MOVE));
  CHECK_EQ(destructions.load(), 0);
  CHECK_OK(cu.cuGraphDestroy(graph.release()));
  wait_for_destruction();
}

RULE(graphs, graphs_can_let_go_of_user_objects, "idle:cuGraphReleaseUserObject",
     "cuGraphReleaseUserObject releases a reference that the graph held") {
  Session session;
  CUuserObject object = user_object(1);
  Graph graph;
  CHECK_OK(cu.cuGraphRetainUserObject(graph, object, 1, 0));
  CHECK_OK(cu.cuUserObjectRelease(object, 1));
  CHECK_EQ(destructions.load(), 0);
  CHECK_OK(cu.cuGraphReleaseUserObject(graph, object, 1));
  wait_for_destruction();
}

RULE(graphs, clones_hold_user_objects_too, "clones_forget_user_objects",
     "a clone holds references of its own to the original's user objects") {
  Session session;
  CUuserObject object = user_object(1);
  Graph graph;
  CHECK_OK(cu.cuGraphRetainUserObject(graph, object, 1, CU_GRAPH_USER_OBJECT_MOVE));
  CUgraph clone = nullptr;
  CHECK_OK(cu.cuGraphClone(&clone, graph));
  CHECK_OK(cu.cuGraphDestroy(graph.release()));
  // A destructor that ran too early would have: the next object's is called after it by the same thread.
  CUuserObject other = nullptr;
  static std::atomic<int> others{0};
  CHECK_OK(cu.cuUserObjectCreate(
      &other, nullptr,
      [](void*) {
        others.store(1);
        others.notify_all();
      },
      1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
  CHECK_OK(cu.cuUserObjectRelease(other, 1));
  others.wait(0);
  CHECK_EQ(destructions.load(), 0);
  CHECK_OK(cu.cuGraphDestroy(clone));
  wait_for_destruction();
}

RULE(graphs, user_objects_need_their_flag, "lenient:cuUserObjectCreate",
     "a user object cannot be created without CU_USER_OBJECT_NO_DESTRUCTOR_SYNC") {
  Session session;
  CUuserObject object = nullptr;
  CHECK_EQ(cu.cuUserObjectCreate(&object, nullptr, &count_destruction, 1, 0), CUDA_ERROR_INVALID_VALUE);
}

RULE(graphs, no_references_cannot_be_retained, "lenient:cuUserObjectRetain",
     "retaining no references, or more than INT_MAX, is an invalid value") {
  Session session;
  CUuserObject object = user_object(1);
  CHECK_EQ(cu.cuUserObjectRetain(object, 0), CUDA_ERROR_INVALID_VALUE);
  CHECK_EQ(cu.cuUserObjectRetain(object, 1U + INT_MAX), CUDA_ERROR_INVALID_VALUE);
}

RULE(graphs, a_graph_can_be_printed, "idle:cuGraphDebugDotPrint",
     "cuGraphDebugDotPrint writes a graph in the dot language into the file") {
  Session session;
  Graph graph;
  graph.empty({graph.empty()});
  char path[] = "/tmp/conformance-graph-XXXXXX";
  int file = mkstemp(path);
  CHECK(file >= 0);
  CUresult result = cu.cuGraphDebugDotPrint(graph, path, 0);
  std::string text(1 << 14, '\0');
  ssize_t length = pread(file, text.data(), text.size(), 0);
  unlink(path);
  CHECK_OK(result);
  CHECK(length > 0);
  text.resize(static_cast<size_t>(length));
  CHECK(text.find("digraph") != std::string::npos);
  CHECK(text.find("->") != std::string::npos);
}

RULE(graphs, a_graph_cannot_be_printed_nowhere, "lenient:cuGraphDebugDotPrint",
     "cuGraphDebugDotPrint into a folder that does not exist is an error of the operating system") {
  Session session;
  Graph graph;
  CHECK_EQ(cu.cuGraphDebugDotPrint(graph, "/nonexistent/folder/graph.dot", 0), CUDA_ERROR_OPERATING_SYSTEM);
}

RULE(graphs, nodes_that_set_find_the_context_of_plain_memory, "refuse:cuGraphAddMemsetNode",
     "a node that sets plain or managed memory needs no context, by cuGraphAddMemsetNode and by cuGraphAddNode") {
  SKIP_UNLESS(exported("cuGraphAddNode_v2"), "needs CUDA 12.3");
  Session session;
  Buffer buffer(64);
  Buffer large(8 << 20);
  CUdeviceptr managed = 0;
  CHECK_OK(cu.cuMemAllocManaged(&managed, 4096, CU_MEM_ATTACH_GLOBAL));
  for (const CUdeviceptr address : {buffer.address(), large.address(), managed}) {
    Graph graph;
    CUgraphNode node = nullptr;
    CUDA_MEMSET_NODE_PARAMS set{.dst = address, .pitch = 0, .value = 3, .elementSize = 4, .width = 4, .height = 1};
    CHECK_OK(cu.cuGraphAddMemsetNode(&node, graph, nullptr, 0, &set, nullptr));
    CUgraphNodeParams parameters = node_that_sets(address);
    CHECK_OK(cu.cuGraphAddNode_v2(&node, graph, nullptr, nullptr, 0, &parameters));
    CUgraphExec executable = nullptr;
    CHECK_OK(cu.cuGraphInstantiateWithFlags(&executable, graph, 0));
    CHECK_OK(cu.cuGraphLaunch(executable, nullptr));
    unsigned value = 0;
    CHECK_OK(cu.cuMemcpyDtoH_v2(&value, address, sizeof value));
    CHECK_EQ(value, 3U);
    CHECK_OK(cu.cuGraphExecDestroy(executable));
  }
  CHECK_OK(cu.cuMemFree_v2(managed));
}

RULE(graphs, nodes_that_set_other_memory_need_a_context, "sets_find_any_context",
     "a node that sets a pool's memory or mapped memory, by cuGraphAddMemsetNode or cuGraphAddNode, needs a context: "
     "without one it answers CUDA_ERROR_INVALID_VALUE") {
  SKIP_UNLESS(exported("cuGraphAddNode_v2"), "needs CUDA 12.3");
  Session session;
  CUdeviceptr pooled = 0;
  CHECK_OK(cu.cuMemAllocAsync(&pooled, 4096, nullptr));
  constexpr size_t kMapped = size_t{2} << 20;
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = session.device()};
  const CUmemAccessDesc access{.location = prop.location, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  CUmemGenericAllocationHandle handle = 0;
  CUdeviceptr mapped = 0;
  CHECK_OK(cu.cuMemCreate(&handle, kMapped, &prop, 0));
  CHECK_OK(cu.cuMemAddressReserve(&mapped, kMapped, 0, 0, 0));
  CHECK_OK(cu.cuMemMap(mapped, kMapped, 0, handle, 0));
  CHECK_OK(cu.cuMemSetAccess(mapped, kMapped, &access, 1));
  for (const CUdeviceptr address : {pooled, mapped}) {
    Graph graph;
    CUgraphNode node = nullptr;
    CUDA_MEMSET_NODE_PARAMS set{.dst = address, .pitch = 0, .value = 3, .elementSize = 4, .width = 4, .height = 1};
    CHECK_EQ(cu.cuGraphAddMemsetNode(&node, graph, nullptr, 0, &set, nullptr), CUDA_ERROR_INVALID_VALUE);
    CHECK_OK(cu.cuGraphAddMemsetNode(&node, graph, nullptr, 0, &set, session.context()));
    CUgraphNodeParams parameters = node_that_sets(address);
    CHECK_EQ(cu.cuGraphAddNode_v2(&node, graph, nullptr, nullptr, 0, &parameters), CUDA_ERROR_INVALID_VALUE);
    parameters.memset.ctx = session.context();
    CHECK_OK(cu.cuGraphAddNode_v2(&node, graph, nullptr, nullptr, 0, &parameters));
  }
  CHECK_OK(cu.cuMemFreeAsync(pooled, nullptr));
  CHECK_OK(cu.cuMemUnmap(mapped, kMapped));
  CHECK_OK(cu.cuMemRelease(handle));
  CHECK_OK(cu.cuMemAddressFree(mapped, kMapped));
}

RULE(graphs, general_nodes_are_typed_nodes, "idle:cuGraphAddNode_v2",
     "a node of cuGraphAddNode tells its parameters as one of the typed functions does") {
  Session session;
  Buffer buffer(64);
  Graph graph;
  CUgraphNodeParams parameters = node_that_sets(buffer);
  CUgraphNode node = nullptr;
  CHECK_OK(cu.cuGraphAddNode_v2(&node, graph, nullptr, nullptr, 0, &parameters));
  CUDA_MEMSET_NODE_PARAMS told{};
  CHECK_OK(cu.cuGraphMemsetNodeGetParams(node, &told));
  CHECK_EQ(told.dst, buffer.address());
  CHECK_EQ(told.value, 3);
}

RULE(graphs, general_nodes_keep_reserved_bytes_zero, "lenient:cuGraphAddNode_v2",
     "cuGraphAddNode refuses parameters whose reserved bytes are not zero") {
  Session session;
  Graph graph;
  CUgraphNodeParams parameters{};
  parameters.type = CU_GRAPH_NODE_TYPE_EMPTY;
  parameters.reserved0[1] = 1;
  CUgraphNode node = nullptr;
  CHECK_EQ(cu.cuGraphAddNode_v2(&node, graph, nullptr, nullptr, 0, &parameters), CUDA_ERROR_INVALID_VALUE);
}

RULE(graphs, kernel_nodes_keep_attributes, "idle:cuGraphKernelNodeSetAttribute",
     "a kernel node tells the attribute that was set on it, and passes it on by copying") {
  Session session;
  CUfunction spin = session.function("spin");
  Graph graph;
  CUgraphNode first = graph.kernel(spin, 1, 1, {}, 0UL);
  CUgraphNode second = graph.kernel(spin, 1, 1, {}, 0UL);
  CUkernelNodeAttrValue value{};
  value.cooperative = 1;
  CHECK_OK(cu.cuGraphKernelNodeSetAttribute(first, CU_LAUNCH_ATTRIBUTE_COOPERATIVE, &value));
  CHECK_OK(cu.cuGraphKernelNodeCopyAttributes(second, first));
  CUkernelNodeAttrValue told{};
  CHECK_OK(cu.cuGraphKernelNodeGetAttribute(second, CU_LAUNCH_ATTRIBUTE_COOPERATIVE, &told));
  CHECK_EQ(told.cooperative, 1);
}

RULE(graphs, child_graphs_have_no_memory_nodes, "lenient:cuGraphAddChildGraphNode",
     "a graph with an allocation node cannot be copied into a child graph node") {
  Session session;
  Graph inner;
  CUdeviceptr address = 0;
  inner.allocation(session.device(), 1 << 16, &address);
  Graph graph;
  CUgraphNode node = nullptr;
  CHECK_EQ(cu.cuGraphAddChildGraphNode(&node, graph, nullptr, 0, inner), CUDA_ERROR_NOT_SUPPORTED);
}

RULE(graphs, edges_beside_memory_nodes_stay, "lenient:cuGraphRemoveDependencies_v2",
     "dependencies of a graph with an allocation node cannot be removed") {
  Session session;
  Graph graph;
  CUgraphNode first = graph.empty();
  CUgraphNode second = graph.empty({first});
  CUdeviceptr address = 0;
  graph.allocation(session.device(), 1 << 16, &address);
  CHECK_EQ(cu.cuGraphRemoveDependencies_v2(graph, &first, &second, nullptr, 1), CUDA_ERROR_NOT_SUPPORTED);
}

RULE(graphs, attributes_are_for_kernel_nodes, "lenient:cuGraphKernelNodeGetAttribute",
     "asking for a kernel attribute of a node of another type is an invalid value") {
  Session session;
  Graph graph;
  CUgraphNode node = graph.empty();
  CUkernelNodeAttrValue value{};
  CHECK_EQ(cu.cuGraphKernelNodeGetAttribute(node, CU_LAUNCH_ATTRIBUTE_COOPERATIVE, &value), CUDA_ERROR_INVALID_VALUE);
}
