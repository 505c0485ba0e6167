// Executable graphs: what a launch runs, in which order, and what later changes do to it.
#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "tests/simgpu/conformance/conformance.h"
#include "tests/simgpu/conformance/graphs_support.h"

namespace {

// The stream has work that must not get done while nobody lets it: looked at for a while, so that work which wrongly
// waits for nothing has time to get done.
void check_waits(CUstream stream) {
  auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(100);
  while (std::chrono::steady_clock::now() < until) {
    CHECK_EQ(cu.cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
    std::this_thread::yield();
  }
}

unsigned word(const Buffer& buffer, size_t index = 0) {
  return buffer.read<unsigned>(index + 1)[index];
}

void count_up(void* counter) {
  ++*static_cast<int*>(counter);
}

}  // namespace

RULE(executables, nodes_run_in_the_order_of_their_edges, "graph_ignores_edges",
     "a node runs after the nodes that it depends on") {
  Session session;
  Buffer source(64);
  Buffer first(64);
  Buffer second(64);
  Stream stream;
  Graph graph;
  CUgraphNode one = graph.set(source, 1, 16);
  CUgraphNode kept = graph.copy(first, source, 64, {one});
  CUgraphNode two = graph.set(source, 2, 16, {kept});
  graph.copy(second, source, 64, {two});
  Executable(graph).run(stream);
  CHECK_EQ(word(first, 15), 1);
  CHECK_EQ(word(second, 15), 2);
}

RULE(executables, branches_are_joined, "graph_ignores_edges",
     "a node with several dependencies runs after all of them") {
  Session session;
  Buffer parts(64);
  Buffer joined(64);
  Stream stream;
  Graph graph;
  CUgraphNode left = graph.set(parts, 3, 8);
  CUgraphNode right = graph.set(parts + 32, 4, 8);
  graph.copy(joined, parts, 64, {left, right});
  Executable(graph).run(stream);
  CHECK_EQ(word(joined, 0), 3);
  CHECK_EQ(word(joined, 8), 4);
}

RULE(executables, edges_added_later_count, "idle:cuGraphAddDependencies_v2",
     "a dependency that was added between two nodes orders them") {
  Session session;
  Buffer buffer(64);
  Buffer copied(64);
  Stream stream;
  CUfunction spin = session.function("spin");
  Graph graph;
  CUgraphNode last = graph.copy(copied, buffer, 64);
  CUgraphNode first = graph.kernel(spin, 1, 1, {}, 20'000'000UL);
  CUgraphNode middle = graph.set(buffer, 6, 16, {first});
  CHECK_OK(cu.cuGraphAddDependencies_v2(graph, &middle, &last, nullptr, 1));
  Executable(graph).run(stream);
  CHECK_EQ(word(copied), 6);
}

RULE(executables, kernels_run_with_their_arguments, "kernel_nodes_forget_arguments",
     "a kernel node runs with the argument values that it was added with") {
  Session session;
  Buffer buffer(64);
  Stream stream;
  CUfunction fill = session.function("fill");
  Graph graph;
  graph.kernel(fill, 1, 16, {}, buffer.address(), 16UL, 77U);
  Executable(graph).run(stream);
  CHECK_EQ(word(buffer, 15), 77);
}

RULE(executables, host_nodes_are_called_at_each_launch, "idle:cuGraphLaunch",
     "a host node's function is called once by every launch") {
  Session session;
  Stream stream;
  int counter = 0;
  Graph graph;
  graph.host(&count_up, &counter);
  Executable executable(graph);
  executable.run(stream);
  executable.run(stream);
  CHECK_EQ(counter, 2);
}

RULE(executables, child_graphs_run_inside, "graph_ignores_edges",
     "the nodes of a child graph run after the child graph node's dependencies and before its dependents") {
  Session session;
  Buffer buffer(64);
  Buffer inside(64);
  Buffer after(64);
  Stream stream;
  Graph child;
  CUgraphNode copied = child.copy(inside, buffer, 64);
  child.set(buffer, 2, 16, {copied});
  Graph graph;
  CUgraphNode set = graph.set(buffer, 1, 16);
  CUgraphNode embedded = graph.child(child, {set});
  graph.copy(after, buffer, 64, {embedded});
  Executable(graph).run(stream);
  CHECK_EQ(word(inside), 1);
  CHECK_EQ(word(after), 2);
}

RULE(executables, graphs_can_change_after_instantiation, "executables_share_their_nodes",
     "changing a graph's node does not change what was instantiated from the graph before") {
  Session session;
  Buffer buffer(64);
  Stream stream;
  Graph graph;
  CUgraphNode node = graph.set(buffer, 1, 16);
  Executable executable(graph);
  CUDA_MEMSET_NODE_PARAMS set = set_parameters(buffer, 2, 16);
  CHECK_OK(cu.cuGraphMemsetNodeSetParams(node, &set));
  executable.run(stream);
  CHECK_EQ(word(buffer), 1);
}

RULE(executables, graphs_can_end_before_their_executables, "idle:cuGraphLaunch",
     "an executable graph can be launched after the graph was destroyed") {
  Session session;
  Buffer buffer(64);
  buffer.write(std::vector<unsigned>(16, 0));
  Stream stream;
  Graph graph;
  graph.set(buffer, 5, 16);
  Executable executable(graph);
  CHECK_OK(cu.cuGraphDestroy(graph.release()));
  executable.run(stream);
  CHECK_EQ(word(buffer), 5);
}

RULE(executables, launches_follow_the_stream, "graph_launches_ignore_the_stream",
     "a launched graph runs after the work that was in the stream before") {
  Session session;
  Buffer buffer(64);
  Buffer copied(64);
  buffer.write(std::vector<unsigned>(16, 1));
  Stream stream;
  Graph graph;
  graph.copy(copied, buffer, 64);
  Executable executable(graph);
  executable.run(stream);
  {
    Blocker blocker(stream);
    CHECK_OK(cu.cuMemsetD32Async(buffer, 9, 16, stream));
    CHECK_OK(cu.cuGraphLaunch(executable, stream));
    check_waits(stream);
    blocker.release();
  }
  CHECK_OK(cu.cuStreamSynchronize(stream));
  CHECK_EQ(word(copied), 9);
}

RULE(executables, one_executable_runs_one_launch_at_a_time, "graph_launches_overlap",
     "a launch waits for earlier launches of the same executable graph in other streams") {
  Session session;
  Buffer buffer(64);
  Stream first;
  Stream second;
  Graph graph;
  graph.set(buffer, 1, 16);
  Executable executable(graph);
  executable.run(first);
  executable.run(second);
  Blocker blocker(first);
  CHECK_OK(cu.cuGraphLaunch(executable, first));
  CHECK_OK(cu.cuGraphLaunch(executable, second));
  check_waits(second);
  blocker.release();
  CHECK_OK(cu.cuStreamSynchronize(second));
}

RULE(executables, two_executables_do_not_wait_for_each_other, "launches_of_all_graphs_are_serial",
     "launches of two executable graphs of one graph in two streams do not wait for each other") {
  Session session;
  Buffer buffer(64);
  Stream first;
  Stream second;
  Graph graph;
  graph.set(buffer, 1, 16);
  Executable one(graph);
  Executable other(graph);
  one.run(first);
  other.run(second);
  Blocker blocker(first);
  CHECK_OK(cu.cuGraphLaunch(one, first));
  CHECK_OK(cu.cuGraphLaunch(other, second));
  CHECK_OK(cu.cuStreamSynchronize(second));
  CHECK_EQ(cu.cuStreamQuery(first), CUDA_ERROR_NOT_READY);
  blocker.release();
  CHECK_OK(cu.cuStreamSynchronize(first));
}

RULE(executables, destroyed_executables_finish, "destroyed_executables_are_cut_off",
     "a launch whose executable graph is destroyed before it runs still runs") {
  Session session;
  Buffer buffer(64);
  buffer.write(std::vector<unsigned>(16, 0));
  Stream stream;
  Graph graph;
  graph.set(buffer, 8, 16);
  Executable executable(graph);
  {
    Blocker blocker(stream);
    CHECK_OK(cu.cuGraphLaunch(executable, stream));
    CHECK_OK(cu.cuGraphExecDestroy(executable.release()));
    blocker.release();
  }
  CHECK_OK(cu.cuStreamSynchronize(stream));
  CHECK_EQ(word(buffer), 8);
}

RULE(executables, set_parameters_count_from_the_next_launch, "idle:cuGraphExecMemsetNodeSetParams",
     "parameters set on an executable graph's node are those of the next launch") {
  Session session;
  Buffer buffer(64);
  Stream stream;
  Graph graph;
  CUgraphNode node = graph.set(buffer, 1, 16);
  Executable executable(graph);
  CUDA_MEMSET_NODE_PARAMS set = set_parameters(buffer, 2, 16);
  CHECK_OK(cu.cuGraphExecMemsetNodeSetParams(executable, node, &set, session.context()));
  executable.run(stream);
  CHECK_EQ(word(buffer), 2);
}

RULE(executables, launches_keep_their_parameters, "launches_see_later_parameters",
     "parameters set after a launch do not change that launch, even if it has not run yet") {
  Session session;
  Buffer buffer(64);
  Stream stream;
  Graph graph;
  CUgraphNode node = graph.set(buffer, 1, 16);
  Executable executable(graph);
  executable.run(stream);
  CHECK_OK(cu.cuMemsetD32_v2(buffer, 0, 16));
  CHECK_OK(cu.cuCtxSynchronize());
  {
    Blocker blocker(stream);
    CHECK_OK(cu.cuGraphLaunch(executable, stream));
    CUDA_MEMSET_NODE_PARAMS set = set_parameters(buffer, 2, 16);
    CHECK_OK(cu.cuGraphExecMemsetNodeSetParams(executable, node, &set, session.context()));
    blocker.release();
  }
  CHECK_OK(cu.cuStreamSynchronize(stream));
  CHECK_EQ(word(buffer), 1);
}

RULE(executables, the_graph_keeps_its_own_parameters, "exec_setters_change_the_graph",
     "setting parameters on an executable graph's node does not change the graph's node") {
  Session session;
  Buffer buffer(64);
  Graph graph;
  CUgraphNode node = graph.set(buffer, 1, 16);
  Executable executable(graph);
  CUDA_MEMSET_NODE_PARAMS set = set_parameters(buffer, 2, 16);
  CHECK_OK(cu.cuGraphExecMemsetNodeSetParams(executable, node, &set, session.context()));
  CUDA_MEMSET_NODE_PARAMS told{};
  CHECK_OK(cu.cuGraphMemsetNodeGetParams(node, &told));
  CHECK_EQ(told.value, 1);
}

RULE(executables, kernel_arguments_can_be_set, "idle:cuGraphExecKernelNodeSetParams_v2",
     "a kernel node of an executable graph runs with the arguments that were set last") {
  Session session;
  Buffer buffer(64);
  Stream stream;
  CUfunction fill = session.function("fill");
  Graph graph;
  CUgraphNode node = graph.kernel(fill, 1, 16, {}, buffer.address(), 16UL, 1U);
  Executable executable(graph);
  CUdeviceptr words = buffer;
  unsigned long count = 16;
  unsigned value = 33;
  void* arguments[] = {&words, &count, &value};
  CUDA_KERNEL_NODE_PARAMS kernel = kernel_parameters(fill, 1, 16, arguments);
  CHECK_OK(cu.cuGraphExecKernelNodeSetParams_v2(executable, node, &kernel));
  executable.run(stream);
  CHECK_EQ(word(buffer, 15), 33);
}

RULE(executables, copies_can_be_set, "idle:cuGraphExecMemcpyNodeSetParams",
     "a one-dimensional copy node of an executable graph copies between the addresses that were set last") {
  Session session;
  Buffer from(64);
  Buffer first(64);
  Buffer second(64);
  from.write(std::vector<unsigned>(16, 12));
  second.write(std::vector<unsigned>(16, 0));
  Stream stream;
  Graph graph;
  CUgraphNode node = graph.copy(first, from, 64);
  Executable executable(graph);
  CUDA_MEMCPY3D copy = copy_parameters(second, from, 64);
  CHECK_OK(cu.cuGraphExecMemcpyNodeSetParams(executable, node, &copy, session.context()));
  executable.run(stream);
  CHECK_EQ(word(second), 12);
}

RULE(executables, parameters_are_set_by_the_graphs_own_node, "lenient:cuGraphExecMemsetNodeSetParams",
     "a node of another graph than the one that was instantiated names no node of the executable graph") {
  Session session;
  Buffer buffer(64);
  Graph graph;
  graph.set(buffer, 1, 16);
  Graph other;
  CUgraphNode foreign = other.set(buffer, 1, 16);
  Executable executable(graph);
  CUDA_MEMSET_NODE_PARAMS set = set_parameters(buffer, 2, 16);
  CHECK_EQ(cu.cuGraphExecMemsetNodeSetParams(executable, foreign, &set, session.context()), CUDA_ERROR_INVALID_VALUE);
}

RULE(executables, host_functions_can_be_set, "idle:cuGraphExecHostNodeSetParams",
     "a host node of an executable graph calls the function that was set last") {
  Session session;
  Stream stream;
  int first = 0;
  int second = 0;
  Graph graph;
  CUgraphNode node = graph.host(&count_up, &first);
  Executable executable(graph);
  CUDA_HOST_NODE_PARAMS host{&count_up, &second};
  CHECK_OK(cu.cuGraphExecHostNodeSetParams(executable, node, &host));
  executable.run(stream);
  CHECK_EQ(first, 0);
  CHECK_EQ(second, 1);
}

RULE(executables, child_graphs_can_be_set, "idle:cuGraphExecChildGraphNodeSetParams",
     "a child graph node of an executable graph takes over the parameters of a graph of the same shape") {
  Session session;
  Buffer buffer(64);
  Stream stream;
  Graph child;
  child.set(buffer, 1, 16);
  Graph graph;
  CUgraphNode node = graph.child(child);
  Executable executable(graph);
  Graph replacement;
  replacement.set(buffer, 2, 16);
  CHECK_OK(cu.cuGraphExecChildGraphNodeSetParams(executable, node, replacement));
  executable.run(stream);
  CHECK_EQ(word(buffer), 2);
}

RULE(executables, disabled_nodes_do_nothing, "disabled_nodes_run",
     "a node that was disabled does nothing, and does its work again when enabled") {
  Session session;
  Buffer buffer(64);
  buffer.write(std::vector<unsigned>(16, 0));
  Stream stream;
  Graph graph;
  CUgraphNode node = graph.set(buffer, 1, 16);
  Executable executable(graph);
  CHECK_OK(cu.cuGraphNodeSetEnabled(executable, node, 0));
  unsigned enabled = 1;
  CHECK_OK(cu.cuGraphNodeGetEnabled(executable, node, &enabled));
  CHECK_EQ(enabled, 0);
  executable.run(stream);
  CHECK_EQ(word(buffer), 0);
  CHECK_OK(cu.cuGraphNodeSetEnabled(executable, node, 1));
  executable.run(stream);
  CHECK_EQ(word(buffer), 1);
}

RULE(executables, nodes_after_a_disabled_one_keep_their_order, "graph_ignores_edges",
     "a disabled node still orders the nodes before it and after it") {
  Session session;
  Buffer buffer(64);
  Buffer copied(64);
  Stream stream;
  Graph graph;
  CUgraphNode first = graph.set(buffer, 4, 16);
  CUgraphNode middle = graph.set(buffer, 5, 16, {first});
  graph.copy(copied, buffer, 64, {middle});
  Executable executable(graph);
  CHECK_OK(cu.cuGraphNodeSetEnabled(executable, middle, 0));
  executable.run(stream);
  CHECK_EQ(word(copied), 4);
}

RULE(executables, host_nodes_cannot_be_disabled, "lenient:cuGraphNodeSetEnabled",
     "disabling a host node is an invalid value") {
  Session session;
  int counter = 0;
  Graph graph;
  CUgraphNode node = graph.host(&count_up, &counter);
  Executable executable(graph);
  CHECK_EQ(cu.cuGraphNodeSetEnabled(executable, node, 0), CUDA_ERROR_INVALID_VALUE);
}

RULE(executables, event_records_belong_to_the_launch, "graph_event_records_are_ignored",
     "after a launch an event of an event record node is complete only when that launch has got there") {
  Session session;
  Stream stream;
  Event event(CU_EVENT_DISABLE_TIMING);
  Graph graph;
  CUgraphNode node = nullptr;
  CHECK_OK(cu.cuGraphAddEventRecordNode(&node, graph, nullptr, 0, event));
  Executable executable(graph);
  executable.run(stream);
  CHECK_OK(cu.cuEventQuery(event));
  Blocker blocker(stream);
  CHECK_OK(cu.cuGraphLaunch(executable, stream));
  CHECK_EQ(cu.cuEventQuery(event), CUDA_ERROR_NOT_READY);
  blocker.release();
  CHECK_OK(cu.cuEventSynchronize(event));
}

RULE(executables, event_waits_wait, "graph_event_waits_are_ignored",
     "an event wait node waits for the work that its event stood for at the launch") {
  Session session;
  Stream stream;
  Stream other;
  Event event(CU_EVENT_DISABLE_TIMING);
  Graph graph;
  CUgraphNode node = nullptr;
  CHECK_OK(cu.cuGraphAddEventWaitNode(&node, graph, nullptr, 0, event));
  Executable executable(graph);
  executable.run(other);
  Blocker blocker(stream);
  CHECK_OK(cu.cuEventRecord(event, stream));
  CHECK_OK(cu.cuGraphLaunch(executable, other));
  check_waits(other);
  blocker.release();
  CHECK_OK(cu.cuStreamSynchronize(other));
}

RULE(executables, unknown_instantiation_flags_are_refused, "lenient:cuGraphInstantiateWithFlags",
     "instantiating with a flag that does not exist is an invalid value") {
  Session session;
  Graph graph;
  CUgraphExec executable = nullptr;
  CHECK_EQ(cu.cuGraphInstantiateWithFlags(&executable, graph, 1ULL << 40), CUDA_ERROR_INVALID_VALUE);
}

RULE(executables, flags_are_told_without_upload, "upload_flag_is_kept",
     "cuGraphExecGetFlags answers the flags of the instantiation, but not that of the upload") {
  Session session;
  Stream stream;
  Graph graph;
  graph.empty();
  CUDA_GRAPH_INSTANTIATE_PARAMS parameters{};
  parameters.flags = CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD | CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
  parameters.hUploadStream = stream;
  CUgraphExec executable = nullptr;
  CHECK_OK(cu.cuGraphInstantiateWithParams(&executable, graph, &parameters));
  CHECK_EQ(parameters.result_out, CUDA_GRAPH_INSTANTIATE_SUCCESS);
  CHECK(parameters.hErrNode_out == nullptr);
  cuuint64_t flags = 0;
  CHECK_OK(cu.cuGraphExecGetFlags(executable, &flags));
  CHECK_EQ(flags, CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH);
  CHECK_OK(cu.cuGraphExecDestroy(executable));
}

// Measured: driver 580.159 does not tell it, though no document says so.
RULE(executables, the_priority_flag_is_not_told, "priority_flag_is_told",
     "cuGraphExecGetFlags does not answer USE_NODE_PRIORITY") {
  Session session;
  Graph graph;
  graph.empty();
  Executable executable(graph, CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY);
  cuuint64_t flags = 77;
  CHECK_OK(cu.cuGraphExecGetFlags(executable, &flags));
  CHECK_EQ(flags, 0);
}

RULE(executables, two_dimensional_copies_cannot_be_set, "lenient:cuGraphExecMemcpyNodeSetParams",
     "a copy node of an executable graph cannot become two-dimensional") {
  Session session;
  Buffer from(1024);
  Buffer to(1024);
  Graph graph;
  CUgraphNode node = graph.copy(to, from, 64);
  Executable executable(graph);
  CUDA_MEMCPY3D copy = copy_parameters(to, from, 64);
  copy.Height = 2;
  copy.srcPitch = copy.dstPitch = 128;
  CHECK_EQ(cu.cuGraphExecMemcpyNodeSetParams(executable, node, &copy, session.context()), CUDA_ERROR_INVALID_VALUE);
}
