// Captures a set, a copy and a kernel into a graph, launches it several times and checks what it computed; captured
// work must not run before the launch. Prints "ok".
#include "tests/programs/program.h"

using namespace program;  // NOLINT

int main(int argc, char** argv) {
  Options options(argc, argv, "capture [--launches N]");
  auto launches = static_cast<unsigned>(options.number("--launches", 5));
  options.end();
  start();
  constexpr unsigned long kWords = 4096;
  CUfunction memtouch = kernel("_Z8memtouchPjmmjS_");
  CUfunction reduce = kernel("_Z6reducePKjmPm");
  CUdeviceptr words = 0;
  CUdeviceptr wrong = 0;
  CUdeviceptr sum = 0;
  CHECK(cuMemAlloc_v2(&words, kWords * sizeof(unsigned)));
  CHECK(cuMemAlloc_v2(&wrong, sizeof(unsigned)));
  CHECK(cuMemAlloc_v2(&sum, sizeof(unsigned long)));
  CHECK(cuMemsetD32_v2(words, 7, kWords));
  CHECK(cuMemsetD32_v2(wrong, 0, 1));
  CHECK(cuCtxSynchronize());

  void* pinned = nullptr;
  CHECK(cuMemHostAlloc(&pinned, sizeof(unsigned long), 0));
  auto* result = static_cast<unsigned long*>(pinned);
  *result = 0;
  CUstream stream = nullptr;
  CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  CHECK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  unsigned long count = kWords;
  unsigned long stride = 1;
  unsigned expected = 100;
  CHECK(cuMemsetD32Async(words, expected, kWords, stream));
  void* touch[] = {&words, &count, &stride, &expected, &wrong};
  CHECK(cuLaunchKernel(memtouch, 1, 1, 1, 256, 1, 1, 0, stream, touch, nullptr));
  void* add[] = {&words, &count, &sum};
  CHECK(cuLaunchKernel(reduce, 1, 1, 1, 1, 1, 1, 0, stream, add, nullptr));
  CHECK(cuMemcpyDtoHAsync_v2(result, sum, sizeof *result, stream));
  CUgraph graph = nullptr;
  CHECK(cuStreamEndCapture(stream, &graph));
  CHECK(cuCtxSynchronize());
  unsigned first = 0;
  CHECK(cuMemcpyDtoH_v2(&first, words, sizeof first));
  if (first != 7 || *result != 0) fail("captured work ran before the graph was launched");

  CUgraphExec executable = nullptr;
  check(instantiate(&executable, graph), "cuGraphInstantiate");
  CHECK(cuGraphDestroy(graph));
  for (unsigned launch = 0; launch < launches; ++launch) {
    *result = 0;
    CHECK(cuGraphLaunch(executable, stream));
    CHECK(cuStreamSynchronize(stream));
    if (*result != kWords * (expected + 1)) fail("launch %u computed %lu", launch, *result);
  }
  unsigned mismatches = 0;
  CHECK(cuMemcpyDtoH_v2(&mismatches, wrong, sizeof mismatches));
  if (mismatches != 0) fail("%u words were wrong inside the graph", mismatches);
  CHECK(cuGraphExecDestroy(executable));
  CHECK(cuStreamDestroy_v2(stream));
  CHECK(cuMemFreeHost(pinned));
  std::printf("ok\n");
  return 0;
}
