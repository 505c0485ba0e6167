// Rules of stream capture: begin and end, what is captured, forks and joins.
#include "tests/simgpu/conformance/work.h"

namespace {

constexpr auto kGlobal = CU_STREAM_CAPTURE_MODE_GLOBAL;
constexpr auto kThreadLocal = CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
constexpr auto kRelaxed = CU_STREAM_CAPTURE_MODE_RELAXED;

struct Info {
  CUstreamCaptureStatus status = static_cast<CUstreamCaptureStatus>(99);
  cuuint64_t id = 0;
  CUgraph graph = nullptr;
  const CUgraphNode* dependencies = nullptr;
  size_t count = 99;
};

Info capture_info(CUstream stream) {
  Info info;
  if (exported("cuStreamGetCaptureInfo_v2")) {
    CHECK_OK(
        cu.cuStreamGetCaptureInfo_v2(stream, &info.status, &info.id, &info.graph, &info.dependencies, &info.count));
  } else {
    CHECK_OK(cu.cuStreamGetCaptureInfo_v3(stream, &info.status, &info.id, &info.graph, &info.dependencies, nullptr,
                                          &info.count));
  }
  return info;
}

size_t nodes_of(CUgraph graph) {
  size_t count = 0;
  CHECK_OK(cu.cuGraphGetNodes(graph, nullptr, &count));
  return count;
}

// The type of a graph's only node.
CUgraphNodeType only_node(CUgraph graph) {
  CUgraphNode node = nullptr;
  size_t count = 1;
  CHECK_EQ(nodes_of(graph), 1U);
  CHECK_OK(cu.cuGraphGetNodes(graph, &node, &count));
  auto type = static_cast<CUgraphNodeType>(99);
  CHECK_OK(cu.cuGraphNodeGetType(node, &type));
  return type;
}

CUgraph end_capture(CUstream stream) {
  CUgraph graph = nullptr;
  CHECK_OK(cu.cuStreamEndCapture(stream, &graph));
  CHECK(graph != nullptr);
  return graph;
}

}  // namespace

RULE(capture, captured_work_does_not_run, "captured_work_runs_at_once",
     "work submitted to a capturing stream becomes a node of the graph and does not run") {
  Session session;
  Words words(session);
  Stream stream;
  CHECK_OK(cu.cuStreamBeginCapture_v2(stream, kRelaxed));
  CHECK_OK(words.fill(stream, 5));
  CUgraph graph = end_capture(stream);
  CHECK_OK(cu.cuCtxSynchronize());
  CHECK_EQ(words.value(), 0U);
  CHECK_EQ(only_node(graph), CU_GRAPH_NODE_TYPE_KERNEL);
}

RULE(capture, captured_work_runs_in_launches, "idle:cuGraphLaunch",
     "captured work runs each time its graph is launched") {
  Session session;
  Words words(session);
  Stream stream;
  CHECK_OK(cu.cuStreamBeginCapture_v2(stream, kRelaxed));
  CHECK_OK(words.fill(stream, 5));
  CUgraph graph = end_capture(stream);
  CUgraphExec executable = nullptr;
  CHECK_OK(cu.cuGraphInstantiateWithFlags(&executable, graph, 0));
  for (int round = 0; round < 2; ++round) {
    CHECK_OK(words.fill(stream, 1));
    CHECK_OK(cu.cuGraphLaunch(executable, stream));
    CHECK_OK(cu.cuStreamSynchronize(stream));
    CHECK_EQ(words.value(), 5U);
  }
}

RULE(capture, status_is_told, "idle:cuStreamIsCapturing",
     "cuStreamIsCapturing tells whether a stream captures, before, during and after") {
  Session session;
  Stream stream;
  CHECK_EQ(capture_status(stream), CU_STREAM_CAPTURE_STATUS_NONE);
  CHECK_OK(cu.cuStreamBeginCapture_v2(stream, kGlobal));
  CHECK_EQ(capture_status(stream), CU_STREAM_CAPTURE_STATUS_ACTIVE);
  end_capture(stream);
  CHECK_EQ(capture_status(stream), CU_STREAM_CAPTURE_STATUS_NONE);
}

RULE(capture, legacy_stream_cannot_capture, "lenient:cuStreamBeginCapture_v2", "the legacy stream cannot capture") {
  Session session;
  CHECK_EQ(cu.cuStreamBeginCapture_v2(CU_STREAM_LEGACY, kGlobal), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  CHECK_EQ(cu.cuStreamBeginCapture_v2(nullptr, kGlobal), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
}

RULE(capture, per_thread_stream_can_capture, "refuse:cuStreamBeginCapture_v2_ptsz",
     "a thread's own stream can capture, as NULL of the _ptsz form too") {
  Session session;
  CHECK_OK(cu.cuStreamBeginCapture_v2_ptsz(nullptr, kThreadLocal));
  CHECK_EQ(capture_status(CU_STREAM_PER_THREAD), CU_STREAM_CAPTURE_STATUS_ACTIVE);
  end_capture(CU_STREAM_PER_THREAD);
}

RULE(capture, modes_are_known_ones, "lenient:cuStreamBeginCapture_v2",
     "a capture mode that does not exist is refused with CUDA_ERROR_INVALID_VALUE") {
  Session session;
  Stream stream;
  CHECK_EQ(cu.cuStreamBeginCapture_v2(stream, static_cast<CUstreamCaptureMode>(7)), CUDA_ERROR_INVALID_VALUE);
}

RULE(capture, one_capture_at_a_time, "lenient:cuStreamBeginCapture_v2",
     "a stream that captures cannot begin another capture, and goes on with its own") {
  Session session;
  Stream stream;
  CHECK_OK(cu.cuStreamBeginCapture_v2(stream, kRelaxed));
  CHECK_EQ(cu.cuStreamBeginCapture_v2(stream, kRelaxed), CUDA_ERROR_ILLEGAL_STATE);
  CHECK_EQ(capture_status(stream), CU_STREAM_CAPTURE_STATUS_ACTIVE);
}

RULE(capture, end_needs_a_begin, "lenient:cuStreamEndCapture",
     "ending the capture of a stream that does not capture answers CUDA_ERROR_ILLEGAL_STATE") {
  Session session;
  Stream stream;
  CUgraph graph = nullptr;
  CHECK_EQ(cu.cuStreamEndCapture(stream, &graph), CUDA_ERROR_ILLEGAL_STATE);
}

RULE(capture, captures_have_ids, "capture_ids_are_alike",
     "each capture has an id, the same for all its streams and another one than every other capture's") {
  Session session;
  Stream stream;
  Stream forked;
  Event event;
  CHECK_OK(cu.cuStreamBeginCapture_v2(stream, kRelaxed));
  CHECK_OK(cu.cuEventRecord(event, stream));
  CHECK_OK(cu.cuStreamWaitEvent(forked, event, 0));
  cuuint64_t first = capture_info(stream).id;
  CHECK_EQ(capture_info(forked).id, first);
  end_capture(stream);
  CHECK_OK(cu.cuStreamBeginCapture_v2(stream, kRelaxed));
  CHECK_NE(capture_info(stream).id, first);
}

RULE(capture, order_becomes_dependencies, "captured_nodes_have_no_order",
     "each node of a capturing stream depends on the one before it") {
  Session session;
  Words words(session);
  Stream stream;
  CHECK_OK(cu.cuStreamBeginCapture_v2(stream, kRelaxed));
  CHECK_OK(words.fill(stream, 1));
  CHECK_OK(words.fill(stream, 2));
  CHECK_OK(words.fill(stream, 3));
  CUgraph graph = end_capture(stream);
  size_t roots = 0;
  CHECK_OK(cu.cuGraphGetRootNodes(graph, nullptr, &roots));
  CHECK_EQ(nodes_of(graph), 3U);
  CHECK_EQ(roots, 1U);
}

RULE(capture, waiting_joins_the_capture, "waiting_does_not_join_the_capture",
     "a stream that waits for an event recorded in a capturing stream captures too, into the same graph") {
  Session session;
  Words words(session);
  Stream stream;
  Stream forked;
  Event fork;
  Event join;
  CHECK_OK(cu.cuStreamBeginCapture_v2(stream, kRelaxed));
  CHECK_OK(words.fill(stream, 1));
  CHECK_OK(cu.cuEventRecord(fork, stream));
  CHECK_OK(cu.cuStreamWaitEvent(forked, fork, 0));
  CHECK_EQ(capture_status(forked), CU_STREAM_CAPTURE_STATUS_ACTIVE);
  CHECK_OK(words.fill(forked, 2));
  CHECK_OK(cu.cuEventRecord(join, forked));
  CHECK_OK(cu.cuStreamWaitEvent(stream, join, 0));
  CUgraph graph = end_capture(stream);
  CHECK_EQ(nodes_of(graph), 2U);
  CHECK_EQ(capture_status(forked), CU_STREAM_CAPTURE_STATUS_NONE);
}

RULE(capture, forks_are_joined, "forks_need_not_be_joined",
     "ending a capture while work of a forked stream does not lead back answers CUDA_ERROR_STREAM_CAPTURE_UNJOINED") {
  Session session;
  Words words(session);
  Stream stream;
  Stream forked;
  Event fork;
  CHECK_OK(cu.cuStreamBeginCapture_v2(stream, kRelaxed));
  CHECK_OK(cu.cuEventRecord(fork, stream));
  CHECK_OK(cu.cuStreamWaitEvent(forked, fork, 0));
  CHECK_OK(words.fill(forked, 2));
  auto graph = reinterpret_cast<CUgraph>(uintptr_t{8});
  CHECK_EQ(cu.cuStreamEndCapture(stream, &graph), CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
  CHECK(graph == nullptr);
}

RULE(capture, ends_where_it_began, "any_stream_ends_a_capture",
     "a capture cannot be ended on a stream that only joined it") {
  Session session;
  Stream stream;
  Stream forked;
  Event fork;
  CHECK_OK(cu.cuStreamBeginCapture_v2(stream, kRelaxed));
  CHECK_OK(cu.cuEventRecord(fork, stream));
  CHECK_OK(cu.cuStreamWaitEvent(forked, fork, 0));
  CUgraph graph = nullptr;
  CHECK_EQ(cu.cuStreamEndCapture(forked, &graph), CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
}

RULE(capture, dependencies_are_told, "idle:cuStreamGetCaptureInfo_v2",
     "cuStreamGetCaptureInfo gives the graph and the nodes that the next one will depend on") {
  Session session;
  SKIP_UNLESS(exported("cuStreamGetCaptureInfo_v2"), "needs cuStreamGetCaptureInfo_v2");
  Words words(session);
  Stream stream;
  CHECK_OK(cu.cuStreamBeginCapture_v2(stream, kRelaxed));
  CHECK_EQ(capture_info(stream).count, 0U);
  CHECK_OK(words.fill(stream, 1));
  Info info = capture_info(stream);
  CHECK_EQ(info.count, 1U);
  CUgraphNode node = nullptr;
  size_t count = 1;
  CHECK_OK(cu.cuGraphGetNodes(info.graph, &node, &count));
  CHECK(node == info.dependencies[0]);
  CHECK(end_capture(stream) == info.graph);
}

RULE(capture, dependencies_can_be_replaced, "capture_dependencies_are_only_added",
     "with CU_STREAM_SET_CAPTURE_DEPENDENCIES the next node depends on the given nodes only") {
  Session session;
  Words words(session);
  Stream stream;
  CHECK_OK(cu.cuStreamBeginCapture_v2(stream, kRelaxed));
  CHECK_OK(words.fill(stream, 1));
  CHECK_OK(cu.cuStreamUpdateCaptureDependencies(stream, nullptr, 0, CU_STREAM_SET_CAPTURE_DEPENDENCIES));
  CHECK_OK(words.fill(stream, 2));
  CUgraph graph = end_capture(stream);
  size_t roots = 0;
  CHECK_OK(cu.cuGraphGetRootNodes(graph, nullptr, &roots));
  CHECK_EQ(roots, 2U);
}

RULE(capture, nodes_can_be_added_meanwhile, "idle:cuStreamUpdateCaptureDependencies",
     "a node added by hand to the graph of a capture can be made what the next captured node depends on") {
  Session session;
  Words words(session);
  Stream stream;
  CHECK_OK(cu.cuStreamBeginCapture_v2(stream, kRelaxed));
  CHECK_OK(words.fill(stream, 1));
  Info info = capture_info(stream);
  CUgraphNode mine = nullptr;
  CHECK_OK(cu.cuGraphAddEmptyNode(&mine, info.graph, info.dependencies, info.count));
  CHECK_OK(cu.cuStreamUpdateCaptureDependencies(stream, &mine, 1, CU_STREAM_SET_CAPTURE_DEPENDENCIES));
  CHECK_EQ(capture_info(stream).count, 1U);
  CHECK(capture_info(stream).dependencies[0] == mine);
  CHECK_EQ(nodes_of(end_capture(stream)), 2U);
}

RULE(capture, dependencies_need_a_capture, "lenient:cuStreamUpdateCaptureDependencies",
     "cuStreamUpdateCaptureDependencies of a stream that does not capture answers CUDA_ERROR_ILLEGAL_STATE") {
  Session session;
  Stream stream;
  CHECK_EQ(cu.cuStreamUpdateCaptureDependencies(stream, nullptr, 0, CU_STREAM_SET_CAPTURE_DEPENDENCIES),
           CUDA_ERROR_ILLEGAL_STATE);
}

RULE(capture, captures_go_into_graphs, "idle:cuStreamBeginCaptureToGraph",
     "cuStreamBeginCaptureToGraph puts its nodes into a graph that exists, behind the given ones") {
  Session session;
  SKIP_UNLESS(exported("cuStreamBeginCaptureToGraph"), "needs cuStreamBeginCaptureToGraph");
  Words words(session);
  Stream stream;
  CUgraph graph = nullptr;
  CUgraphNode first = nullptr;
  CHECK_OK(cu.cuGraphCreate(&graph, 0));
  CHECK_OK(cu.cuGraphAddEmptyNode(&first, graph, nullptr, 0));
  CHECK_OK(cu.cuStreamBeginCaptureToGraph(stream, graph, &first, nullptr, 1, kRelaxed));
  CHECK_OK(words.fill(stream, 1));
  CHECK(end_capture(stream) == graph);
  size_t roots = 0;
  CHECK_OK(cu.cuGraphGetRootNodes(graph, nullptr, &roots));
  CHECK_EQ(nodes_of(graph), 2U);
  CHECK_EQ(roots, 1U);
}

RULE(capture, external_records_are_nodes, "idle:cuEventRecordWithFlags",
     "an event recorded with CU_EVENT_RECORD_EXTERNAL in a capture becomes an event record node") {
  Session session;
  Stream stream;
  Event event;
  CHECK_OK(cu.cuStreamBeginCapture_v2(stream, kRelaxed));
  CHECK_OK(cu.cuEventRecordWithFlags(event, stream, CU_EVENT_RECORD_EXTERNAL));
  CHECK_EQ(only_node(end_capture(stream)), CU_GRAPH_NODE_TYPE_EVENT_RECORD);
}

RULE(capture, external_waits_are_nodes, "idle:cuStreamWaitEvent",
     "a wait with CU_EVENT_WAIT_EXTERNAL in a capture becomes an event wait node, whatever event it is") {
  Session session;
  Stream stream;
  Event event;
  CHECK_OK(cu.cuStreamBeginCapture_v2(stream, kRelaxed));
  CHECK_OK(cu.cuStreamWaitEvent(stream, event, CU_EVENT_WAIT_EXTERNAL));
  CHECK_EQ(only_node(end_capture(stream)), CU_GRAPH_NODE_TYPE_WAIT_EVENT);
}

RULE(capture, values_are_nodes, "idle:cuStreamWriteValue32_v2",
     "a captured stream memory operation becomes a batch memory operation node") {
  Session session;
  Buffer words(16);
  Stream stream;
  CHECK_OK(cu.cuStreamBeginCapture_v2(stream, kRelaxed));
  CHECK_OK(cu.cuStreamWriteValue32_v2(stream, words, 1, 0));
  CHECK_EQ(only_node(end_capture(stream)), CU_GRAPH_NODE_TYPE_BATCH_MEM_OP);
}

RULE(capture, host_functions_are_nodes, "idle:cuLaunchHostFunc", "a captured host function becomes a host node") {
  Session session;
  Steps steps;
  Stream stream;
  CHECK_OK(cu.cuStreamBeginCapture_v2(stream, kRelaxed));
  CHECK_OK(cu.cuLaunchHostFunc(stream, &Steps::finish, &steps));
  CHECK_EQ(only_node(end_capture(stream)), CU_GRAPH_NODE_TYPE_HOST);
  CHECK(!steps.done.load());
}
