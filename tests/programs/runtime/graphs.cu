// Graphs: captured ones, explicit nodes of every common kind, changes before and after instantiation, clones, updates,
// memory nodes, user objects.
#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "tests/programs/runtime/runtime_program.h"

namespace {

constexpr unsigned long kCount = 4096;

struct Memory {
  unsigned* words = nullptr;
  cudaStream_t stream;
  Memory() {
    CHECK(cudaMalloc(&words, kCount * sizeof *words));
    CHECK(cudaMemset(words, 0, kCount * sizeof *words));
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CHECK(cudaDeviceSynchronize());
  }
  ~Memory() {
    CHECK(cudaStreamDestroy(stream));
    CHECK(cudaFree(words));
  }
  unsigned last() const {
    unsigned value = 0;
    CHECK(cudaMemcpy(&value, words + kCount - 1, sizeof value, cudaMemcpyDeviceToHost));
    return value;
  }
  void run(cudaGraphExec_t executable) const {
    CHECK(cudaGraphLaunch(executable, stream));
    CHECK(cudaStreamSynchronize(stream));
  }
};

void captured() {
  Memory memory;
  cudaStream_t side;
  cudaEvent_t fork, join;
  CHECK(cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking));
  CHECK(cudaEventCreateWithFlags(&fork, cudaEventDisableTiming));
  CHECK(cudaEventCreateWithFlags(&join, cudaEventDisableTiming));
  cudaStreamCaptureStatus status;
  unsigned long long id = 0;
  CHECK(cudaStreamBeginCapture(memory.stream, cudaStreamCaptureModeThreadLocal));
  LAUNCH(fill, 4, 64, 0, memory.stream, memory.words, kCount, 1U);
  CHECK(cudaEventRecord(fork, memory.stream));
  CHECK(cudaStreamWaitEvent(side, fork, 0));
  CHECK(cudaStreamIsCapturing(side, &status));
  REQUIRE(status == cudaStreamCaptureStatusActive);
  LAUNCH(fill, 4, 64, 0, side, memory.words, kCount, 2U);
  CHECK(cudaEventRecord(join, side));
  CHECK(cudaStreamWaitEvent(memory.stream, join, 0));
  CHECK(cudaStreamGetCaptureInfo(memory.stream, &status, &id));
  REQUIRE(status == cudaStreamCaptureStatusActive && id != 0);
  EXPECT(cudaStreamSynchronize(memory.stream), cudaErrorStreamCaptureUnsupported);
  cudaGraph_t graph = nullptr;
  REQUIRE(cudaStreamEndCapture(memory.stream, &graph) == cudaErrorStreamCaptureInvalidated);
  cudaGetLastError();

  CHECK(cudaStreamBeginCapture(memory.stream, cudaStreamCaptureModeGlobal));
  LAUNCH(fill, 4, 64, 0, memory.stream, memory.words, kCount, 1U);
  CHECK(cudaEventRecord(fork, memory.stream));
  CHECK(cudaStreamWaitEvent(side, fork, 0));
  LAUNCH(fill, 4, 64, 0, side, memory.words, kCount, 2U);
  CHECK(cudaEventRecord(join, side));
  CHECK(cudaStreamWaitEvent(memory.stream, join, 0));
  LAUNCH(fill, 4, 64, 0, memory.stream, memory.words, kCount, 3U);
  CHECK(cudaStreamEndCapture(memory.stream, &graph));
  EQUAL(memory.last(), 0);  // captured work has not run
  size_t nodes = 0;
  size_t edges = 0;
  CHECK(cudaGraphGetNodes(graph, nullptr, &nodes));
  CHECK(cudaGraphGetEdges(graph, nullptr, nullptr, nullptr, &edges));
  EQUAL(nodes, 3);
  EQUAL(edges, 3);
  cudaGraphExec_t executable;
  CHECK(cudaGraphInstantiate(&executable, graph, 0));
  for (int round = 0; round < 3; ++round) {
    CHECK(cudaMemsetAsync(memory.words, 0, kCount * sizeof(unsigned), memory.stream));
    memory.run(executable);
    EQUAL(memory.last(), 3);
  }
  CHECK(cudaGraphExecDestroy(executable));
  CHECK(cudaGraphDestroy(graph));
  CHECK(cudaEventDestroy(fork));
  CHECK(cudaEventDestroy(join));
  CHECK(cudaStreamDestroy(side));
}

void explicit_nodes() {
  Memory memory;
  unsigned long* sum = nullptr;
  CHECK(cudaMalloc(&sum, sizeof *sum));
  unsigned long result = 0;
  std::atomic<int> called{0};

  cudaGraph_t graph;
  CHECK(cudaGraphCreate(&graph, 0));
  cudaGraphNode_t set, kernel, copy, host, empty;
  cudaMemsetParams set_parameters{};
  set_parameters.dst = memory.words;
  set_parameters.value = 1;
  set_parameters.elementSize = sizeof(unsigned);
  set_parameters.width = kCount;
  set_parameters.height = 1;
  CHECK(cudaGraphAddMemsetNode(&set, graph, nullptr, 0, &set_parameters));
  unsigned long count = kCount;
  const unsigned* words = memory.words;
  void* arguments[] = {&words, &count, &sum};
  cudaKernelNodeParams kernel_parameters{};
  kernel_parameters.func = const_cast<void*>(stub(reduce));
  kernel_parameters.gridDim = dim3(1);
  kernel_parameters.blockDim = dim3(1);
  kernel_parameters.kernelParams = arguments;
  CHECK(cudaGraphAddKernelNode(&kernel, graph, &set, 1, &kernel_parameters));
  CHECK(cudaGraphAddMemcpyNode1D(&copy, graph, &kernel, 1, &result, sum, sizeof result, cudaMemcpyDeviceToHost));
  CHECK(cudaGraphAddEmptyNode(&empty, graph, nullptr, 0));
  cudaHostNodeParams host_parameters{};
  host_parameters.fn = [](void* data) { ++*static_cast<std::atomic<int>*>(data); };
  host_parameters.userData = &called;
  cudaGraphNode_t before[] = {copy, empty};
  CHECK(cudaGraphAddHostNode(&host, graph, before, 2, &host_parameters));

  cudaGraphNodeType type;
  CHECK(cudaGraphNodeGetType(kernel, &type));
  REQUIRE(type == cudaGraphNodeTypeKernel);
  cudaKernelNodeParams has{};
  CHECK(cudaGraphKernelNodeGetParams(kernel, &has));
  REQUIRE(has.func == kernel_parameters.func && has.gridDim.x == 1);
  size_t roots = 0;
  CHECK(cudaGraphGetRootNodes(graph, nullptr, &roots));
  EQUAL(roots, 2);
  size_t dependencies = 2;
  cudaGraphNode_t found[2];
  CHECK(cudaGraphNodeGetDependencies(host, found, nullptr, &dependencies));
  EQUAL(dependencies, 2);

  cudaGraphExec_t executable;
  CHECK(cudaGraphInstantiate(&executable, graph, 0));
  memory.run(executable);
  EQUAL(result, kCount);
  EQUAL(called, 1);

  // The executable's own parameters; the graph keeps its own.
  set_parameters.value = 5;
  CHECK(cudaGraphExecMemsetNodeSetParams(executable, set, &set_parameters));
  memory.run(executable);
  EQUAL(result, 5 * kCount);
  EQUAL(called, 2);
  count = 10;
  CHECK(cudaGraphExecKernelNodeSetParams(executable, kernel, &kernel_parameters));
  memory.run(executable);
  EQUAL(result, 50);
  CHECK(cudaGraphNodeSetEnabled(executable, kernel, 0));
  set_parameters.value = 6;
  CHECK(cudaGraphExecMemsetNodeSetParams(executable, set, &set_parameters));
  memory.run(executable);
  EQUAL(result, 50);
  EQUAL(memory.last(), 6);

  // A clone that changes, and an update of the executable from it.
  cudaGraph_t clone;
  cudaGraphNode_t cloned_set;
  CHECK(cudaGraphClone(&clone, graph));
  CHECK(cudaGraphNodeFindInClone(&cloned_set, set, clone));
  set_parameters.value = 9;
  CHECK(cudaGraphMemsetNodeSetParams(cloned_set, &set_parameters));
  cudaGraphExecUpdateResultInfo info;
  CHECK(cudaGraphExecUpdate(executable, clone, &info));
  REQUIRE(info.result == cudaGraphExecUpdateSuccess);
  memory.run(executable);
  EQUAL(memory.last(), 9);
  CHECK(cudaGraphDestroy(clone));

  // One graph within another, and a node removed.
  cudaGraph_t outer;
  cudaGraphNode_t child;
  CHECK(cudaGraphCreate(&outer, 0));
  CHECK(cudaGraphAddChildGraphNode(&child, outer, nullptr, 0, graph));
  cudaGraphExec_t outer_executable;
  CHECK(cudaGraphInstantiate(&outer_executable, outer, 0));
  memory.run(outer_executable);
  EQUAL(memory.last(), 1);
  EQUAL(result, kCount);
  CHECK(cudaGraphExecDestroy(outer_executable));
  CHECK(cudaGraphDestroy(outer));
  CHECK(cudaGraphDestroyNode(host));
  EXPECT(cudaGraphExecUpdate(executable, graph, &info), cudaErrorGraphExecUpdateFailure);
  REQUIRE(info.result == cudaGraphExecUpdateErrorTopologyChanged);
  CHECK(cudaGraphExecDestroy(executable));
  CHECK(cudaGraphDestroy(graph));
  CHECK(cudaFree(sum));
}

void generic_and_symbol_nodes() {
  Memory memory;
  cudaGraph_t graph;
  CHECK(cudaGraphCreate(&graph, 0));
  cudaGraphNode_t kernel, to_symbol, count, from_symbol;
  unsigned start = 100;
  unsigned seen = 0;
  unsigned by = 1;
  void* arguments[] = {&by};
  cudaGraphNodeParams parameters{};
  CHECK(cudaGraphAddMemcpyNodeToSymbol(&to_symbol, graph, nullptr, 0, symbol(counter), &start, sizeof start, 0,
                                       cudaMemcpyHostToDevice));
  parameters.type = cudaGraphNodeTypeKernel;
  parameters.kernel.func = const_cast<void*>(stub(count_up));
  parameters.kernel.gridDim = dim3(1);
  parameters.kernel.blockDim = dim3(8);
  parameters.kernel.kernelParams = arguments;
  CHECK(cudaGraphAddNode(&count, graph, &to_symbol, nullptr, 1, &parameters));
  CHECK(cudaGraphAddMemcpyNodeFromSymbol(&from_symbol, graph, &count, 1, &seen, symbol(counter), sizeof seen, 0,
                                         cudaMemcpyDeviceToHost));
  unsigned long words = kCount;
  unsigned value = 4;
  void* fill_arguments[] = {&memory.words, &words, &value};
  parameters.kernel.func = const_cast<void*>(stub(fill));
  parameters.kernel.kernelParams = fill_arguments;
  CHECK(cudaGraphAddNode(&kernel, graph, nullptr, nullptr, 0, &parameters));
  cudaGraphExec_t executable;
  CHECK(cudaGraphInstantiateWithFlags(&executable, graph, 0));
  memory.run(executable);
  EQUAL(seen, 108);
  EQUAL(memory.last(), 4);
  value = 12;
  CHECK(cudaGraphExecNodeSetParams(executable, kernel, &parameters));
  memory.run(executable);
  EQUAL(memory.last(), 12);
  CHECK(cudaGraphExecDestroy(executable));
  CHECK(cudaGraphDestroy(graph));
}

void memory_nodes() {
  Memory memory;
  cudaGraph_t graph;
  CHECK(cudaGraphCreate(&graph, 0));
  cudaGraphNode_t allocate, set, copy, release;
  cudaMemAllocNodeParams wanted{};
  wanted.poolProps.allocType = cudaMemAllocationTypePinned;
  wanted.poolProps.location.type = cudaMemLocationTypeDevice;
  wanted.bytesize = kCount * sizeof(unsigned);
  CHECK(cudaGraphAddMemAllocNode(&allocate, graph, nullptr, 0, &wanted));
  REQUIRE(wanted.dptr != nullptr);
  cudaMemsetParams set_parameters{};
  set_parameters.dst = wanted.dptr;
  set_parameters.value = 77;
  set_parameters.elementSize = sizeof(unsigned);
  set_parameters.width = kCount;
  set_parameters.height = 1;
  CHECK(cudaGraphAddMemsetNode(&set, graph, &allocate, 1, &set_parameters));
  CHECK(cudaGraphAddMemcpyNode1D(&copy, graph, &set, 1, memory.words, wanted.dptr, wanted.bytesize,
                                 cudaMemcpyDeviceToDevice));
  CHECK(cudaGraphAddMemFreeNode(&release, graph, &copy, 1, wanted.dptr));
  cudaGraphExec_t executable;
  CHECK(cudaGraphInstantiate(&executable, graph, 0));
  memory.run(executable);
  memory.run(executable);
  EQUAL(memory.last(), 77);
  CHECK(cudaGraphExecDestroy(executable));
  CHECK(cudaGraphDestroy(graph));
  CHECK(cudaDeviceGraphMemTrim(0));
  unsigned long long used = 1;
  CHECK(cudaDeviceGetGraphMemAttribute(0, cudaGraphMemAttrUsedMemCurrent, &used));
  EQUAL(used, 0);
}

void events_and_user_objects() {
  Memory memory;
  cudaEvent_t event;
  CHECK(cudaEventCreate(&event));
  cudaGraph_t graph;
  CHECK(cudaGraphCreate(&graph, 0));
  cudaGraphNode_t record;
  CHECK(cudaGraphAddEventRecordNode(&record, graph, nullptr, 0, event));
  static std::atomic<int> destroyed{0};
  cudaUserObject_t object;
  CHECK(cudaUserObjectCreate(
      &object, &destroyed, [](void* data) { ++*static_cast<std::atomic<int>*>(data); }, 1,
      cudaUserObjectNoDestructorSync));
  CHECK(cudaGraphRetainUserObject(graph, object, 1, cudaGraphUserObjectMove));
  cudaGraphExec_t executable;
  CHECK(cudaGraphInstantiate(&executable, graph, 0));
  memory.run(executable);
  CHECK(cudaEventQuery(event));
  CHECK(cudaGraphDestroy(graph));
  EQUAL(destroyed, 0);  // the executable holds it too
  CHECK(cudaGraphExecDestroy(executable));
  // Called later, on a thread of the driver.
  auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (destroyed == 0 && std::chrono::steady_clock::now() < limit) std::this_thread::yield();
  EQUAL(destroyed, 1);
  CHECK(cudaEventDestroy(event));
}

}  // namespace

int main() {
  captured();
  explicit_nodes();
  generic_and_symbol_nodes();
  memory_nodes();
  events_and_user_objects();
  return succeed();
}
