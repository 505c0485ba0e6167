// Compiled with --default-stream per-thread: the default stream is the calling thread's own.
#include <thread>
#include <vector>

#include "tests/programs/runtime/runtime_program.h"

namespace {

constexpr unsigned long kCount = 1 << 14;

// Work in one thread's default stream does not wait for another's.
void threads_do_not_wait_for_each_other() {
  unsigned* flag = nullptr;
  CHECK(cudaMallocHost(&flag, sizeof *flag));
  __atomic_store_n(flag, 0U, __ATOMIC_SEQ_CST);
  LAUNCH(spin_until, 1, 1, 0, nullptr, flag);
  REQUIRE_LAUNCHED();
  std::thread([] {
    unsigned* words = nullptr;
    std::vector<unsigned> back(kCount, 0);
    CHECK(cudaMallocAsync(&words, kCount * sizeof *words, nullptr));
    LAUNCH(fill, 4, 64, 0, nullptr, words, kCount, 8U);
    REQUIRE_LAUNCHED();
    CHECK(cudaMemcpyAsync(back.data(), words, kCount * sizeof *words, cudaMemcpyDeviceToHost, nullptr));
    CHECK(cudaStreamSynchronize(nullptr));
    REQUIRE(back.back() == 8);
    CHECK(cudaMemcpy(back.data(), words, sizeof *words, cudaMemcpyDeviceToHost));
    CHECK(cudaMemset(words, 0, kCount * sizeof *words));
    CHECK(cudaFreeAsync(words, nullptr));
    CHECK(cudaStreamSynchronize(nullptr));
  }).join();
  REQUIRE(cudaStreamQuery(nullptr) == cudaErrorNotReady);  // this thread's own stream is still blocked
  cudaGetLastError();
  __atomic_store_n(flag, 1U, __ATOMIC_SEQ_CST);
  CHECK(cudaStreamSynchronize(nullptr));
  CHECK(cudaFreeHost(flag));
}

// The forms of this build, once each.
void forms() {
  unsigned* words = nullptr;
  unsigned long* sum = nullptr;
  unsigned long result = 0;
  CHECK(cudaMalloc(&words, kCount * sizeof *words));
  CHECK(cudaMalloc(&sum, sizeof *sum));
  cudaEvent_t begun, ended;
  CHECK(cudaEventCreate(&begun));
  CHECK(cudaEventCreate(&ended));
  CHECK(cudaEventRecord(begun, nullptr));
  CHECK(cudaMemset2DAsync(words, 64, 1, 64, kCount / 16, nullptr));
  CHECK(cudaMemsetAsync(words, 0, kCount * sizeof *words, nullptr));
  LAUNCH(fill, 4, 64, 0, nullptr, words, kCount, 2U);
  CHECK(cudaStreamWaitEvent(nullptr, begun, 0));
  LAUNCH(reduce, 1, 1, 0, cudaStreamPerThread, words, kCount, sum);
  REQUIRE_LAUNCHED();
  CHECK(cudaMemcpy2DAsync(&result, sizeof result, sum, sizeof *sum, sizeof result, 1, cudaMemcpyDeviceToHost, nullptr));
  CHECK(cudaEventRecord(ended, nullptr));
  CHECK(cudaEventSynchronize(ended));
  REQUIRE(result == 2 * kCount);
  float milliseconds = -1;
  CHECK(cudaEventElapsedTime(&milliseconds, begun, ended));
  bool called = false;
  CHECK(cudaLaunchHostFunc(nullptr, [](void* data) { *static_cast<bool*>(data) = true; }, &called));
  CHECK(cudaStreamSynchronize(nullptr));
  REQUIRE(called);
  unsigned flags = 0;
  CHECK(cudaStreamGetFlags(nullptr, &flags));
  unsigned start = 40;
  CHECK(cudaMemcpyToSymbol(symbol(counter), &start, sizeof start, 0, cudaMemcpyHostToDevice));
  LAUNCH(count_up, 1, 2, 0, nullptr, 1U);
  CHECK(cudaMemcpyFromSymbol(&start, symbol(counter), sizeof start, 0, cudaMemcpyDeviceToHost));
  REQUIRE(start == 42);
  void* function = nullptr;
  void* legacy = nullptr;
  cudaDriverEntryPointQueryResult found;
  CHECK(cudaGetDriverEntryPointByVersion("cuStreamQuery", &function, 7000, cudaEnableDefault, &found));
  CHECK(cudaGetDriverEntryPointByVersion("cuStreamQuery", &legacy, 7000, cudaEnableLegacyStream, &found));
  REQUIRE(function != nullptr && legacy != nullptr && function != legacy);

  // Capture of this thread's default stream.
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  CHECK(cudaStreamBeginCapture(cudaStreamPerThread, cudaStreamCaptureModeThreadLocal));
  LAUNCH(fill, 4, 64, 0, nullptr, words, kCount, 3U);
  CHECK(cudaStreamEndCapture(cudaStreamPerThread, &graph));
  CHECK(cudaGraphInstantiate(&executable, graph, 0));
  CHECK(cudaGraphLaunch(executable, nullptr));
  unsigned last = 0;
  CHECK(cudaMemcpy(&last, words + kCount - 1, sizeof last, cudaMemcpyDeviceToHost));
  REQUIRE(last == 3);
  CHECK(cudaGraphExecDestroy(executable));
  CHECK(cudaGraphDestroy(graph));
  CHECK(cudaEventDestroy(begun));
  CHECK(cudaEventDestroy(ended));
  CHECK(cudaFree(words));
  CHECK(cudaFree(sum));
}

}  // namespace

int main() {
  load_early();
  threads_do_not_wait_for_each_other();
  forms();
  return succeed();
}
