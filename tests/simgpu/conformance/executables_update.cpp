// Executable graphs: updates as a whole, memory that graphs allocate, and launches into a capturing stream.
#include <vector>

#include "tests/simgpu/conformance/conformance.h"
#include "tests/simgpu/conformance/graphs_support.h"

namespace {

constexpr size_t kBytes = size_t{4} << 20;

unsigned word(const Buffer& buffer) {
  return buffer.read<unsigned>(1)[0];
}
unsigned word_at(CUdeviceptr address) {
  unsigned value = 0;
  CHECK_OK(cu.cuMemcpyDtoH_v2(&value, address, sizeof value));
  return value;
}

CUgraphExecUpdateResultInfo failed_update(CUgraphExec executable, CUgraph graph) {
  CUgraphExecUpdateResultInfo info{};
  CHECK_EQ(cu.cuGraphExecUpdate_v2(executable, graph, &info), CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
  return info;
}

void nothing(void*) {}

uint64_t graph_memory(CUdevice device, CUgraphMem_attribute attribute) {
  cuuint64_t value = 0;
  CHECK_OK(cu.cuDeviceGetGraphMemAttribute(device, attribute, &value));
  return value;
}

}  // namespace

RULE(executables, updates_take_over_parameters, "idle:cuGraphExecUpdate_v2",
     "after an update with a graph of the same shape an executable graph runs with that graph's parameters") {
  Session session;
  Buffer buffer(64);
  Stream stream;
  Graph graph;
  graph.set(buffer, 1, 16);
  Executable executable(graph);
  Graph other;
  other.set(buffer, 2, 16);
  CUgraphExecUpdateResultInfo info{};
  info.result = CU_GRAPH_EXEC_UPDATE_ERROR;
  CHECK_OK(cu.cuGraphExecUpdate_v2(executable, other, &info));
  CHECK_EQ(info.result, CU_GRAPH_EXEC_UPDATE_SUCCESS);
  executable.run(stream);
  CHECK_EQ(word(buffer), 2);
}

RULE(executables, updates_keep_the_number_of_nodes, "updates_ignore_the_shape",
     "an update with a graph of more nodes fails as a change of topology, at no node in particular") {
  Session session;
  Graph graph;
  graph.empty();
  Executable executable(graph);
  Graph other;
  other.empty();
  other.empty();
  CUgraphExecUpdateResultInfo info = failed_update(executable, other);
  CHECK_EQ(info.result, CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED);
  CHECK(info.errorNode == nullptr);
}

RULE(executables, updates_keep_the_edges, "updates_ignore_the_shape",
     "an update with a graph of other dependencies fails as a change of topology") {
  Session session;
  Graph graph;
  CUgraphNode first = graph.empty();
  CUgraphNode second = graph.empty({first});
  graph.empty({second});
  Executable executable(graph);
  Graph other;
  CUgraphNode one = other.empty();
  CUgraphNode two = other.empty();
  other.empty({one, two});
  CHECK_EQ(failed_update(executable, other).result, CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED);
}

RULE(executables, updates_keep_the_types, "updates_ignore_types",
     "an update with a node of another type fails as a change of type, at that node") {
  Session session;
  Buffer buffer(64);
  Graph graph;
  graph.set(buffer, 1, 16);
  Executable executable(graph);
  Graph other;
  CUgraphNode node = other.host(&nothing, nullptr);
  CUgraphExecUpdateResultInfo info = failed_update(executable, other);
  CHECK_EQ(info.result, CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED);
  CHECK_EQ(info.errorNode, node);
}

RULE(executables, updates_keep_rectangles, "lenient:cuGraphExecUpdate_v2",
     "an update that changes the size of a two-dimensional set fails as a change of parameters, at that node") {
  Session session;
  Buffer buffer(1024);
  CUDA_MEMSET_NODE_PARAMS set = set_parameters(buffer, 1, 8);
  set.height = 4;
  set.pitch = 128;
  Graph graph;
  CUgraphNode node = nullptr;
  CHECK_OK(cu.cuGraphAddMemsetNode(&node, graph, nullptr, 0, &set, session.context()));
  Executable executable(graph);
  Graph other;
  set.height = 3;
  CHECK_OK(cu.cuGraphAddMemsetNode(&node, other, nullptr, 0, &set, session.context()));
  CUgraphExecUpdateResultInfo info = failed_update(executable, other);
  CHECK_EQ(info.result, CU_GRAPH_EXEC_UPDATE_ERROR_PARAMETERS_CHANGED);
  CHECK_EQ(info.errorNode, node);
}

RULE(executables, updates_that_fail_change_nothing, "updates_stop_half_way",
     "an update that fails at one node leaves the others' parameters as they were") {
  Session session;
  Buffer buffer(64);
  Stream stream;
  Graph graph;
  graph.set(buffer, 1, 16, {graph.empty()});
  Executable executable(graph);
  Graph other;
  other.set(buffer, 2, 16, {other.host(&nothing, nullptr)});
  failed_update(executable, other);
  executable.run(stream);
  CHECK_EQ(word(buffer), 1);
}

RULE(executables, the_first_form_of_the_update_names_the_node, "idle:cuGraphExecUpdate",
     "cuGraphExecUpdate's first form answers the node at which it failed and why") {
  Session session;
  Buffer buffer(64);
  Graph graph;
  graph.set(buffer, 1, 16);
  Executable executable(graph);
  Graph other;
  CUgraphNode node = other.empty();
  CUgraphNode failed = nullptr;
  CUgraphExecUpdateResult result = CU_GRAPH_EXEC_UPDATE_SUCCESS;
  CHECK_EQ(cu.cuGraphExecUpdate(executable, other, &failed, &result), CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
  CHECK_EQ(failed, node);
  CHECK_EQ(result, CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED);
}

RULE(executables, graphs_use_their_own_memory, "idle:cuGraphLaunch",
     "memory that a graph allocates can be used by its nodes before it frees it, at every launch") {
  Session session;
  Buffer copied(64);
  Stream stream;
  Graph graph;
  CUdeviceptr address = 0;
  CUgraphNode allocated = graph.allocation(session.device(), kBytes, &address);
  CUgraphNode set = graph.set(address, 21, 16, {allocated});
  CUgraphNode kept = graph.copy(copied, address, 64, {set});
  graph.free(address, {kept});
  Executable executable(graph);
  for (int round = 0; round < 2; ++round) {
    copied.write(std::vector<unsigned>(16, 0));
    executable.run(stream);
    CHECK_EQ(word(copied), 21);
  }
}

RULE(executables, unfreed_memory_outlives_the_launch, "idle:cuGraphLaunch",
     "memory that a graph allocates and does not free can be used after the launch, and freed by cuMemFree") {
  Session session;
  Stream stream;
  Graph graph;
  CUdeviceptr address = 0;
  CUgraphNode allocated = graph.allocation(session.device(), kBytes, &address);
  graph.set(address, 5, 16, {allocated});
  Executable executable(graph);
  executable.run(stream);
  CHECK_EQ(word_at(address), 5);
  CHECK_OK(cu.cuMemFree_v2(address));
}

RULE(executables, unfreed_memory_forbids_a_launch, "lenient:cuGraphLaunch",
     "a graph cannot be launched again while memory that it allocated is not freed") {
  Session session;
  Stream stream;
  Graph graph;
  CUdeviceptr address = 0;
  graph.allocation(session.device(), kBytes, &address);
  Executable executable(graph);
  executable.run(stream);
  CHECK_EQ(cu.cuGraphLaunch(executable, stream), CUDA_ERROR_INVALID_VALUE);
  CHECK_OK(cu.cuMemFree_v2(address));
}

RULE(executables, freed_memory_allows_a_launch, "freed_graph_memory_stays_allocated",
     "a graph can be launched again when the memory that it allocated was freed in stream order") {
  Session session;
  Stream stream;
  Graph graph;
  CUdeviceptr address = 0;
  graph.allocation(session.device(), kBytes, &address);
  Executable executable(graph);
  executable.run(stream);
  CHECK_OK(cu.cuMemFreeAsync(address, stream));
  CHECK_OK(cu.cuGraphLaunch(executable, stream));
  CHECK_OK(cu.cuMemFreeAsync(address, stream));
  CHECK_OK(cu.cuStreamSynchronize(stream));
}

RULE(executables, auto_free_allows_a_launch, "auto_free_is_forgotten",
     "a graph instantiated with AUTO_FREE_ON_LAUNCH can be launched again without freeing its memory") {
  Session session;
  Stream stream;
  Graph graph;
  CUdeviceptr address = 0;
  CUgraphNode allocated = graph.allocation(session.device(), kBytes, &address);
  graph.set(address, 3, 16, {allocated});
  Executable executable(graph, CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH);
  executable.run(stream);
  executable.run(stream);
  CHECK_EQ(word_at(address), 3);
  CHECK_OK(cu.cuMemFree_v2(address));
}

RULE(executables, another_graph_can_free, "freed_graph_memory_stays_allocated",
     "launching a graph with a free node frees the memory that another graph allocated") {
  Session session;
  Stream stream;
  Graph graph;
  CUdeviceptr address = 0;
  graph.allocation(session.device(), kBytes, &address);
  Graph freeing;
  freeing.free(address);
  Executable allocates(graph);
  Executable frees(freeing);
  for (int round = 0; round < 2; ++round) {
    allocates.run(stream);
    frees.run(stream);
  }
}

RULE(executables, memory_nodes_allow_one_executable, "lenient:cuGraphInstantiateWithFlags",
     "a graph with an allocation node has at most one executable graph at a time") {
  Session session;
  Graph graph;
  CUdeviceptr address = 0;
  CUgraphNode allocated = graph.allocation(session.device(), kBytes, &address);
  graph.free(address, {allocated});
  CUgraphExec first = nullptr;
  CUgraphExec second = nullptr;
  CHECK_OK(cu.cuGraphInstantiateWithFlags(&first, graph, 0));
  CHECK_NE(cu.cuGraphInstantiateWithFlags(&second, graph, 0), CUDA_SUCCESS);
  CHECK_OK(cu.cuGraphExecDestroy(first));
  CHECK_OK(cu.cuGraphInstantiateWithFlags(&second, graph, 0));
  CHECK_OK(cu.cuGraphExecDestroy(second));
}

RULE(executables, launches_use_graph_memory, "graph_memory_is_not_counted",
     "the memory that graphs use on a device includes what a launch allocated") {
  Session session;
  Stream stream;
  Graph graph;
  CUdeviceptr address = 0;
  graph.allocation(session.device(), kBytes, &address);
  Executable executable(graph);
  uint64_t before = graph_memory(session.device(), CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT);
  executable.run(stream);
  CHECK(graph_memory(session.device(), CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT) >= before + kBytes);
  CHECK(graph_memory(session.device(), CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT) >= before + kBytes);
  CHECK(graph_memory(session.device(), CU_GRAPH_MEM_ATTR_USED_MEM_HIGH) >= before + kBytes);
  CHECK_OK(cu.cuMemFree_v2(address));
}

RULE(executables, trimming_gives_graph_memory_back, "idle:cuDeviceGraphMemTrim",
     "cuDeviceGraphMemTrim gives back the memory of graphs that no launch uses any more") {
  Session session;
  Stream stream;
  {
    Graph graph;
    CUdeviceptr address = 0;
    CUgraphNode allocated = graph.allocation(session.device(), kBytes, &address);
    graph.free(address, {allocated});
    Executable executable(graph);
    executable.run(stream);
  }
  CHECK(graph_memory(session.device(), CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT) >= kBytes);
  CHECK_OK(cu.cuDeviceGraphMemTrim(session.device()));
  CHECK_EQ(graph_memory(session.device(), CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT), 0);
}

RULE(executables, freed_graph_memory_is_used_until_it_is_trimmed, "freed_graph_memory_is_not_used",
     "freed memory counts as used by graphs, without an executable graph too, until cuDeviceGraphMemTrim") {
  Session session;
  Stream stream;
  CHECK_OK(cu.cuDeviceGraphMemTrim(session.device()));
  uint64_t before = graph_memory(session.device(), CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT);
  {
    Graph graph;
    CUdeviceptr address = 0;
    graph.allocation(session.device(), kBytes, &address);
    Executable executable(graph);
    executable.run(stream);
    CHECK_OK(cu.cuMemFreeAsync(address, stream));
    CHECK_OK(cu.cuStreamSynchronize(stream));
  }
  CHECK(graph_memory(session.device(), CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT) >= before + kBytes);
  CHECK_OK(cu.cuDeviceGraphMemTrim(session.device()));
  CHECK_EQ(graph_memory(session.device(), CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT), before);
}

RULE(executables, graph_memory_outlives_its_context, "graph_memory_goes_with_the_context",
     "what a graph allocated is there after the context that it was launched in was destroyed, and can be freed") {
  Session session;
  CUcontext context = nullptr;
  CUdeviceptr address = 0;
  CHECK_OK(cu.cuCtxCreate_v2(&context, 0, session.device()));
  {
    Stream stream;
    Graph graph;
    graph.allocation(session.device(), kBytes, &address);
    Executable executable(graph);
    executable.run(stream);
  }
  CHECK_OK(cu.cuCtxDestroy_v2(context));
  CHECK_OK(cu.cuMemsetD32_v2(address, 5, 1));
  CHECK_EQ(word_at(address), 5);
  CHECK_OK(cu.cuMemFree_v2(address));
}

RULE(
    executables, refused_frees_leave_graph_memory, "refused_frees_take_the_memory",
    "graph memory whose free was refused, since a capture forbids work in the legacy stream, can be freed afterwards") {
  Session session;
  Stream stream(CU_STREAM_DEFAULT);
  Graph graph;
  CUdeviceptr address = 0;
  CUgraph captured = nullptr;
  graph.allocation(session.device(), kBytes, &address);
  Executable executable(graph);
  executable.run(stream);
  CHECK_OK(cu.cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  CHECK_EQ(cu.cuMemFreeAsync(address, nullptr), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
  CHECK_EQ(cu.cuStreamEndCapture(stream, &captured), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  CHECK_OK(cu.cuMemFreeAsync(address, stream));
  CHECK_EQ(cu.cuMemFreeAsync(address, stream), CUDA_ERROR_INVALID_VALUE);
}

RULE(executables, high_marks_are_only_reset_to_zero, "lenient:cuDeviceSetGraphMemAttribute",
     "a high mark of graph memory cannot be set to anything but zero") {
  Session session;
  cuuint64_t value = 4096;
  CHECK_EQ(cu.cuDeviceSetGraphMemAttribute(session.device(), CU_GRAPH_MEM_ATTR_USED_MEM_HIGH, &value),
           CUDA_ERROR_INVALID_VALUE);
  value = 0;
  CHECK_OK(cu.cuDeviceSetGraphMemAttribute(session.device(), CU_GRAPH_MEM_ATTR_USED_MEM_HIGH, &value));
}

// Measured: driver 580.159 refuses it in every mode of capture.
RULE(executables, launches_cannot_be_captured, "graph_launches_are_captured",
     "an executable graph cannot be launched into a capturing stream") {
  Session session;
  Buffer buffer(64);
  Stream stream;
  Graph graph;
  graph.set(buffer, 4, 16);
  Executable executable(graph);
  CHECK_OK(cu.cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  CHECK_EQ(cu.cuGraphLaunch(executable, stream), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
}

RULE(executables, a_refused_launch_ends_the_capture, "graph_launches_are_captured",
     "launching an executable graph into a capturing stream invalidates the capture") {
  Session session;
  Buffer buffer(64);
  Stream stream;
  Graph graph;
  graph.set(buffer, 4, 16);
  Executable executable(graph);
  CHECK_OK(cu.cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  cu.cuGraphLaunch(executable, stream);
  CUgraph captured = nullptr;
  CHECK_EQ(cu.cuStreamEndCapture(stream, &captured), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

RULE(executables, captured_allocations_are_memory_nodes, "idle:cuMemAllocAsync",
     "memory allocated and freed in a capturing stream becomes an allocation node and a free node") {
  Session session;
  Stream stream;
  CHECK_OK(cu.cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  CUdeviceptr address = 0;
  CHECK_OK(cu.cuMemAllocAsync(&address, kBytes, stream));
  CHECK_OK(cu.cuMemFreeAsync(address, stream));
  CUgraph captured = nullptr;
  CHECK_OK(cu.cuStreamEndCapture(stream, &captured));
  CUgraphNode nodes[2] = {};
  size_t count = 2;
  CHECK_OK(cu.cuGraphGetNodes(captured, nodes, &count));
  CHECK_EQ(count, 2);
  int allocations = 0;
  int frees = 0;
  for (CUgraphNode node : nodes) {
    CUgraphNodeType type = CU_GRAPH_NODE_TYPE_EMPTY;
    CHECK_OK(cu.cuGraphNodeGetType(node, &type));
    allocations += type == CU_GRAPH_NODE_TYPE_MEM_ALLOC ? 1 : 0;
    frees += type == CU_GRAPH_NODE_TYPE_MEM_FREE ? 1 : 0;
  }
  CHECK_EQ(allocations, 1);
  CHECK_EQ(frees, 1);
  Executable(captured).run(stream);
  CHECK_OK(cu.cuGraphDestroy(captured));
}

RULE(executables, captured_kernels_tell_their_parameters, "kernel_nodes_forget_arguments",
     "a kernel node of a capture tells its function, shape and argument values") {
  Session session;
  Buffer buffer(64);
  Stream stream;
  CUfunction fill = session.function("fill");
  CHECK_OK(cu.cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  CHECK_OK(launch(fill, 2, 8, stream, buffer.address(), 16UL, 6U));
  CUgraph captured = nullptr;
  CHECK_OK(cu.cuStreamEndCapture(stream, &captured));
  CUgraphNode node = nullptr;
  size_t count = 1;
  CHECK_OK(cu.cuGraphGetNodes(captured, &node, &count));
  CUDA_KERNEL_NODE_PARAMS told{};
  CHECK_OK(cu.cuGraphKernelNodeGetParams_v2(node, &told));
  CHECK_EQ(told.func, fill);
  CHECK_EQ(told.gridDimX, 2);
  CHECK_EQ(told.blockDimX, 8);
  CHECK(told.kernelParams != nullptr);
  CHECK_EQ(*static_cast<unsigned*>(told.kernelParams[2]), 6);
  CHECK_OK(cu.cuGraphDestroy(captured));
}

RULE(executables, memory_operations_run_in_graphs, "idle:cuGraphAddBatchMemOpNode",
     "a batch memory operation node writes its value when the graph runs") {
  Session session;
  Buffer buffer(64);
  buffer.write(std::vector<unsigned>(16, 0));
  Stream stream;
  CUstreamBatchMemOpParams operation{};
  operation.writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
  operation.writeValue.address = buffer;
  operation.writeValue.value = 44;
  CUDA_BATCH_MEM_OP_NODE_PARAMS batch{};
  batch.ctx = session.context();
  batch.count = 1;
  batch.paramArray = &operation;
  Graph graph;
  CUgraphNode node = nullptr;
  CHECK_OK(cu.cuGraphAddBatchMemOpNode(&node, graph, nullptr, 0, &batch));
  Executable(graph).run(stream);
  CHECK_EQ(word(buffer), 44);
}

RULE(executables, memory_nodes_refuse_a_second_executable_as_unsupported, "lenient:cuGraphInstantiateWithFlags",
     "instantiating a graph with an allocation node a second time is not supported") {
  Session session;
  Graph graph;
  CUdeviceptr address = 0;
  CUgraphNode allocated = graph.allocation(session.device(), kBytes, &address);
  graph.free(address, {allocated});
  Executable first(graph);
  CUgraphExec second = nullptr;
  CHECK_EQ(cu.cuGraphInstantiateWithFlags(&second, graph, 0), CUDA_ERROR_NOT_SUPPORTED);
}

RULE(executables, memory_is_freed_only_after_a_launch, "lenient:cuMemFree_v2",
     "memory of an allocation node that no launch allocated cannot be freed by cuMemFree") {
  Session session;
  Graph graph;
  CUdeviceptr address = 0;
  graph.allocation(session.device(), kBytes, &address);
  CHECK_EQ(cu.cuMemFree_v2(address), CUDA_ERROR_INVALID_VALUE);
}
