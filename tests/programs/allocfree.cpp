// Allocates, writes, checks and frees from several threads at once, by every route: plain, managed, stream-ordered, and
// plain memory freed in stream order. At the end all memory is free again. Prints "ok".
#include <thread>
#include <vector>

#include "tests/programs/program.h"

using namespace program;  // NOLINT

int main(int argc, char** argv) {
  Options options(argc, argv, "allocfree [--threads N] [--rounds N] [--bytes B]");
  auto threads = static_cast<int>(options.number("--threads", 4));
  auto rounds = static_cast<unsigned>(options.number("--rounds", 100));
  start();
  uint64_t bytes = options.bytes("--bytes", 64 << 10);
  options.end();
  CUcontext context = nullptr;
  CUdevice device = 0;
  CHECK(cuDeviceGet(&device, 0));
  CHECK(cuDevicePrimaryCtxRetain(&context, device));
  std::vector<std::thread> workers;
  for (int number = 0; number < threads; ++number) {
    workers.emplace_back([=] {
      CHECK(cuCtxSetCurrent(context));
      CUstream stream = nullptr;
      CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
      size_t words = bytes / sizeof(unsigned);
      for (unsigned round = 0; round < rounds; ++round) {
        CUdeviceptr address = 0;
        unsigned route = (round + static_cast<unsigned>(number)) % 4;
        if (route == 0 || route == 1) CHECK(cuMemAlloc_v2(&address, bytes));
        if (route == 2) CHECK(cuMemAllocManaged(&address, bytes, CU_MEM_ATTACH_GLOBAL));
        if (route == 3) CHECK(cuMemAllocAsync(&address, bytes, stream));
        unsigned value = round * 31 + static_cast<unsigned>(number);
        CHECK(cuMemsetD32Async(address, value, words, stream));
        unsigned last = 0;
        CHECK(cuMemcpyDtoHAsync_v2(&last, address + (words - 1) * sizeof(unsigned), sizeof last, stream));
        CHECK(cuStreamSynchronize(stream));
        if (last != value) fail("thread %d, round %u: read %u instead of %u", number, round, last, value);
        if (route == 1 || route == 3) {
          CHECK(cuMemFreeAsync(address, stream));
        } else {
          CHECK(cuMemFree_v2(address));
        }
      }
      CHECK(cuStreamSynchronize(stream));
      CHECK(cuStreamDestroy_v2(stream));
    });
  }
  for (std::thread& worker : workers) worker.join();
  std::printf("ok\n");
  return 0;
}
