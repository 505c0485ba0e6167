// Many threads, each with its own stream, launch kernels into one context and check their own memory. Prints "ok N
// launches".
#include <thread>
#include <vector>

#include "tests/programs/program.h"

using namespace program;  // NOLINT

int main(int argc, char** argv) {
  Options options(argc, argv, "threads [--threads N] [--launches N]");
  auto threads = static_cast<int>(options.number("--threads", 8));
  auto launches = static_cast<unsigned>(options.number("--launches", 200));
  options.end();
  start();
  CUcontext context = nullptr;
  CUdevice device = 0;
  CHECK(cuDeviceGet(&device, 0));
  CHECK(cuDevicePrimaryCtxRetain(&context, device));
  CUfunction memtouch = kernel("_Z8memtouchPjmmjS_");
  std::vector<std::thread> workers;
  for (int number = 0; number < threads; ++number) {
    workers.emplace_back([=] {
      CHECK(cuCtxSetCurrent(context));
      CUstream stream = nullptr;
      CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
      constexpr unsigned long kWords = 1024;
      CUdeviceptr words = 0;
      CUdeviceptr wrong = 0;
      CHECK(cuMemAlloc_v2(&words, kWords * sizeof(unsigned)));
      CHECK(cuMemAlloc_v2(&wrong, sizeof(unsigned)));
      CHECK(cuMemsetD32Async(words, 0, kWords, stream));
      CHECK(cuMemsetD32Async(wrong, 0, 1, stream));
      unsigned long count = kWords;
      unsigned long stride = 1;
      CUdeviceptr words_address = words;
      CUdeviceptr wrong_address = wrong;
      for (unsigned launch = 0; launch < launches; ++launch) {
        unsigned expected = launch;
        void* parameters[] = {&words_address, &count, &stride, &expected, &wrong_address};
        CHECK(cuLaunchKernel(memtouch, 1, 1, 1, 256, 1, 1, 0, stream, parameters, nullptr));
      }
      unsigned mismatches = 1;
      CHECK(cuMemcpyDtoHAsync_v2(&mismatches, wrong, sizeof mismatches, stream));
      CHECK(cuStreamSynchronize(stream));
      if (mismatches != 0) fail("thread %d: launches were lost or reordered (%u words)", number, mismatches);
      CHECK(cuMemFree_v2(words));
      CHECK(cuMemFree_v2(wrong));
      CHECK(cuStreamDestroy_v2(stream));
    });
  }
  for (std::thread& worker : workers) worker.join();
  std::printf("ok %u launches\n", static_cast<unsigned>(threads) * launches);
  return 0;
}
