// Launches kernels of a given length and waits for each, from one thread or several.
//
//   spinner [--seconds S | --launches N | --hold] [--kernel-us U] [--threads N]
//
// --hold continues until stdin closes. Prints "ready" after the first launch has run and one line of JSON at the end:
// {"launches":…,"seconds":…,"longest_wait_s":…}; the wait is the time from a launch to its completion.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

#include "tests/programs/program.h"

using namespace program;  // NOLINT

int main(int argc, char** argv) {
  Options options(argc, argv, "spinner [--seconds S | --launches N | --hold] [--kernel-us U] [--threads N]");
  auto launches = static_cast<unsigned long>(options.number("--launches", 0));
  double duration = options.number("--seconds", launches == 0 ? 1 : 0);
  auto nanoseconds = static_cast<unsigned long>(options.number("--kernel-us", 100) * 1000);
  auto threads = static_cast<unsigned>(options.number("--threads", 1));
  bool hold = options.flag("--hold");
  options.end();
  start();
  CUcontext context = nullptr;
  CUdevice device = 0;
  CHECK(cuDeviceGet(&device, 0));
  CHECK(cuDevicePrimaryCtxRetain(&context, device));
  CUfunction spin = kernel("_Z4spinm");
  auto launch = [&](CUstream stream) {
    unsigned long length = nanoseconds;
    void* parameters[] = {&length};
    CHECK(cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, stream, parameters, nullptr));
    CHECK(cuStreamSynchronize(stream));
  };
  double begin = seconds();
  launch(nullptr);
  double first_wait = seconds() - begin;
  std::printf("ready\n");
  std::fflush(stdout);
  std::atomic<unsigned long> count{1};
  std::atomic<bool> ended{false};
  std::vector<double> longest(threads, first_wait);
  std::vector<std::thread> workers;
  for (unsigned number = 0; number < threads; ++number) {
    workers.emplace_back([&, number] {
      CHECK(cuCtxSetCurrent(context));
      CUstream stream = nullptr;
      CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
      for (;;) {
        double now = seconds();
        if (hold ? ended.load() : launches > 0 ? count.fetch_add(1) >= launches : now - begin >= duration) break;
        if (launches == 0) count.fetch_add(1);
        launch(stream);
        longest[number] = std::max(longest[number], seconds() - now);
      }
      CHECK(cuStreamDestroy_v2(stream));
    });
  }
  char ignored = 0;
  while (hold && read(STDIN_FILENO, &ignored, 1) > 0) {
  }
  ended = true;
  for (std::thread& worker : workers) worker.join();
  double took = seconds() - begin;
  unsigned long total = launches > 0 ? launches : count.load();
  std::printf("{\"launches\":%lu,\"seconds\":%.6f,\"longest_wait_s\":%.6f}\n", total, took,
              *std::max_element(longest.begin(), longest.end()));
  return 0;
}
