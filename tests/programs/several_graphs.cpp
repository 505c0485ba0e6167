#include "tests/programs/several_graphs.h"

using namespace program;  // NOLINT

namespace {

template <typename Function>
Function* function(const char* symbol, const char* base, int version) {
  return reinterpret_cast<Function*>(cuda().find(symbol, base, version, 0));
}

void spin(const Gpu& gpu, unsigned long nanoseconds) {
  use(gpu);
  void* parameters[] = {&nanoseconds};
  CHECK(cuLaunchKernel(gpu.spin, 1, 1, 1, 1, 1, 1, 0, gpu.stream, parameters, nullptr));
}

// What is captured of this GPU's stream from now on waits for what has been captured of the other's.
void follow(const Gpu& gpu, const Gpu& other) {
  auto* const wait = function<cuStreamWaitEvent_fn>("cuStreamWaitEvent", "cuStreamWaitEvent", 3020);
  use(other);
  CUevent event = nullptr;
  CHECK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  CHECK(cuEventRecord(event, other.stream));
  use(gpu);
  check(wait(gpu.stream, event, 0), "cuStreamWaitEvent");
}

template <typename Submit>
CUgraph captured(const Gpu& gpu, const Submit& submit) {
  use(gpu);
  CHECK(cuStreamBeginCapture_v2(gpu.stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  submit();
  use(gpu);
  CUgraph graph = nullptr;
  CHECK(cuStreamEndCapture(gpu.stream, &graph));
  return graph;
}

// A copy within the GPU's memory that changes nothing.
CUDA_MEMCPY3D copy_on(const Gpu& gpu) {
  CUDA_MEMCPY3D copy{};
  copy.srcMemoryType = copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.srcDevice = gpu.memory;
  copy.dstDevice = gpu.memory + 4096;
  copy.WidthInBytes = 4096;
  copy.Height = copy.Depth = 1;
  return copy;
}

}  // namespace

CUgraphExec make_graph(const std::string& kind, const Gpu& gpu, const Gpu& other, unsigned long nanoseconds) {
  const auto own = [&] { spin(gpu, nanoseconds); };
  CUgraphNode node = nullptr;
  const CUgraph graph = captured(gpu, [&] {
    own();
    if (kind != "both") return;
    follow(other, gpu);
    spin(other, nanoseconds);
    follow(gpu, other);
  });
  if (kind == "child") {
    const CUgraph child = captured(other, [&] { spin(other, nanoseconds); });
    auto* const add =
        function<cuGraphAddChildGraphNode_fn>("cuGraphAddChildGraphNode", "cuGraphAddChildGraphNode", 10000);
    check(add(&node, graph, nullptr, 0, child), "cuGraphAddChildGraphNode");
    CHECK(cuGraphDestroy(child));
  }
  const CUDA_MEMCPY3D copy = copy_on(gpu);
  if (kind == "changed") {
    auto* const add = function<cuGraphAddMemcpyNode_fn>("cuGraphAddMemcpyNode", "cuGraphAddMemcpyNode", 10000);
    check(add(&node, graph, nullptr, 0, &copy, gpu.context), "cuGraphAddMemcpyNode");
  }
  CUgraphExec executable = nullptr;
  check(instantiate(&executable, graph), "cuGraphInstantiate");
  if (kind == "changed") {
    auto* const change = function<cuGraphExecMemcpyNodeSetParams_fn>("cuGraphExecMemcpyNodeSetParams",
                                                                     "cuGraphExecMemcpyNodeSetParams", 10020);
    check(change(executable, node, &copy, other.context), "cuGraphExecMemcpyNodeSetParams");
  }
  CHECK(cuGraphDestroy(graph));
  return executable;
}
