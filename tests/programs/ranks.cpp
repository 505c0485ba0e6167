// One rank of a job of several processes whose kernels wait for each other.
//
//   ranks --file FILE --rank R --ranks N [--device D] [--bytes B] [--steps S] [--ahead A] [--kernel-us U] [--pause-us
//   P]
//
// FILE holds the counters that the ranks share; the first creates it. Fills B bytes with a pattern. A step launches a
// kernel of U us and a collective kernel, which runs until those of all ranks have come to it; the stream is
// synchronized every A steps, and the program then pauses for up to P us, differently in each rank. Prints "ready"
// before the first step, and at the end checks its memory and prints {"steps":…,"seconds":…,"wrong":…}.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <random>
#include <thread>
#include <vector>

#include "tests/programs/program.h"

using namespace program;  // NOLINT

namespace {

constexpr std::size_t kPage = 4096;
constexpr unsigned kMappedForAll = 3;  // CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP

unsigned* shared_counters(const std::string& path) {
  const int file = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (file < 0 || ftruncate(file, kPage) != 0) fail("cannot make %s", path.c_str());
  void* mapped = mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (mapped == MAP_FAILED) fail("cannot map %s", path.c_str());
  close(file);
  return static_cast<unsigned*>(mapped);
}

}  // namespace

int main(int argc, char** argv) {
  Options options(argc, argv,
                  "ranks --file FILE --rank R --ranks N [--device D] [--bytes B] [--steps S] [--ahead A] [--kernel-us "
                  "U] [--pause-us P]");
  const std::string file = options.text("--file", "");
  auto rank = static_cast<unsigned>(options.number("--rank", 0));
  auto ranks = static_cast<unsigned>(options.number("--ranks", 1));
  const int device = static_cast<int>(options.number("--device", rank));
  const std::uint64_t bytes = options.bytes("--bytes", 8 << 20);
  const auto steps = static_cast<unsigned>(options.number("--steps", 100));
  const auto ahead = static_cast<unsigned>(options.number("--ahead", 10));
  auto nanoseconds = static_cast<unsigned long>(options.number("--kernel-us", 200) * 1000);
  const auto pause = static_cast<unsigned>(options.number("--pause-us", 0));
  options.end();
  if (file.empty() || ahead == 0) fail("--file is needed, and --ahead must not be 0");
  unsigned* const counters = shared_counters(file);
  start(device);
  auto* const register_host =
      reinterpret_cast<cuMemHostRegister_v2_fn*>(cuda().find("cuMemHostRegister_v2", "cuMemHostRegister", 6050, 0));
  auto* const device_pointer = reinterpret_cast<cuMemHostGetDevicePointer_v2_fn*>(
      cuda().find("cuMemHostGetDevicePointer_v2", "cuMemHostGetDevicePointer", 3020, 0));
  check(register_host(counters, kPage, kMappedForAll), "cuMemHostRegister");
  CUdeviceptr rounds = 0;
  check(device_pointer(&rounds, counters, 0), "cuMemHostGetDevicePointer");
  CUdeviceptr memory = 0;
  const std::uint32_t pattern = 0x5000U * (rank + 1) + static_cast<unsigned>(getpid() & 0xfff);
  CHECK(cuMemAlloc_v2(&memory, bytes));
  CHECK(cuMemsetD32_v2(memory, pattern, bytes / 4));
  CUstream stream = nullptr;
  CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  CUfunction spin = kernel("_Z4spinm");
  CUfunction meet = kernel("_Z18ncclDevKernel_meetPjjjj");
  CHECK(cuCtxSynchronize());
  std::printf("ready\n");
  std::fflush(stdout);
  std::mt19937 random(rank + 1);
  const double begin = seconds();
  for (unsigned step = 1; step <= steps; ++step) {
    void* spins[] = {&nanoseconds};
    CHECK(cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, stream, spins, nullptr));
    void* meets[] = {&rounds, &rank, &ranks, &step};
    CHECK(cuLaunchKernel(meet, 1, 1, 1, 1, 1, 1, 0, stream, meets, nullptr));
    if (step % ahead != 0 && step != steps) continue;
    CHECK(cuStreamSynchronize(stream));
    if (pause != 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % pause));
  }
  const double took = seconds() - begin;
  std::vector<std::uint32_t> words(bytes / 4);
  CHECK(cuMemcpyDtoH_v2(words.data(), memory, bytes));
  unsigned long wrong = 0;
  for (const std::uint32_t word : words) wrong += word != pattern;
  std::printf("{\"steps\":%u,\"seconds\":%.6f,\"wrong\":%lu}\n", steps, took, wrong);
  return wrong == 0 ? 0 : 3;
}
