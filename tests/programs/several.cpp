// Has contexts and memory on several GPUs and works on some of them.
//
//   several [--touch N] [--work LIST] [--bytes B] [--kernel-us U] [--seconds S] [--steps N] [--pause-us U] [--cross N]
//           [--peers] [--chain] [--graphs KIND] [--hold]
//
// Touches GPUs 0 to N-1 (2): B bytes of a pattern on each. A step launches a kernel of U us on each GPU of LIST ("0" or
// "0,1"; "-" none) and waits for them. --cross N: every N steps, and at least once, a block is copied from the first
// GPU to the second and back, and its contents are checked. --peers: peer access both ways first. Prints "ready" before
// the first step, and at the end checks all patterns and prints one line of JSON: {"steps":…,"seconds":…,"wrong":…}.
// --chain: the kernel on the first GPU of LIST waits until those on the others have run. --graphs: a step launches
// graphs instead of kernels. KIND "own": a graph for each GPU, captured there; "both": graphs that begin on a GPU and
// go on on the other one; "child": on a GPU, with a child graph on the other one; "changed": with a copy on a GPU,
// which is then changed to be made in the other one's context. --hold continues until stdin closes.
#include <unistd.h>

#include <cstdio>
#include <thread>
#include <vector>

#include "tests/programs/program.h"
#include "tests/programs/several_graphs.h"

using namespace program;  // NOLINT

namespace {

// How many words of the first and last block are not the pattern.
unsigned long wrong_words(const Gpu& gpu, std::uint64_t bytes) {
  constexpr std::uint64_t kBlock = 1 << 16;
  std::vector<std::uint32_t> words(kBlock / 4);
  unsigned long wrong = 0;
  use(gpu);
  for (const std::uint64_t at : {std::uint64_t{0}, bytes - kBlock}) {
    CHECK(cuMemcpyDtoH_v2(words.data(), gpu.memory + at, kBlock));
    for (const std::uint32_t word : words) wrong += word != gpu.pattern;
  }
  return wrong;
}

}  // namespace

int main(int argc, char** argv) {
  Options options(argc, argv,
                  "several [--touch N] [--work LIST] [--bytes B] [--kernel-us U] [--seconds S] [--steps N] [--pause-us "
                  "U] [--cross N] [--peers] [--chain] [--graphs KIND] [--hold]");
  const int touch = static_cast<int>(options.number("--touch", 2));
  const std::string work = options.text("--work", "0");
  const std::uint64_t bytes = options.bytes("--bytes", 8 << 20);
  auto nanoseconds = static_cast<unsigned long>(options.number("--kernel-us", 1000) * 1000);
  const double duration = options.number("--seconds", 1);
  const auto most = static_cast<unsigned long>(options.number("--steps", 0));
  const auto pause = static_cast<unsigned>(options.number("--pause-us", 0));
  const auto cross = static_cast<unsigned long>(options.number("--cross", 0));
  const bool peers = options.flag("--peers");
  const bool chain = options.flag("--chain");
  const std::string graphs = options.text("--graphs", "");
  const bool hold = options.flag("--hold");
  options.end();
  start();
  auto* const copy = reinterpret_cast<cuMemcpyDtoD_v2_fn*>(cuda().find("cuMemcpyDtoD_v2", "cuMemcpyDtoD", 3020, 0));
  auto* const copy_async = reinterpret_cast<cuMemcpyAsync_fn*>(cuda().find("cuMemcpyAsync", "cuMemcpyAsync", 4000, 0));
  auto* const enable = reinterpret_cast<cuCtxEnablePeerAccess_fn*>(
      cuda().find("cuCtxEnablePeerAccess", "cuCtxEnablePeerAccess", 4000, 0));
  std::vector<Gpu> gpus(static_cast<std::size_t>(touch));
  for (int number = 0; number < touch; ++number) {
    Gpu& gpu = gpus[static_cast<std::size_t>(number)];
    CUdevice device = 0;
    CHECK(cuDeviceGet(&device, number));
    CHECK(cuDevicePrimaryCtxRetain(&gpu.context, device));
    use(gpu);
    gpu.pattern = 0x1000U * static_cast<unsigned>(number + 1) + static_cast<unsigned>(getpid() & 0xfff);
    CHECK(cuMemAlloc_v2(&gpu.memory, bytes));
    CHECK(cuMemsetD32_v2(gpu.memory, gpu.pattern, bytes / 4));
    CHECK(cuCtxSynchronize());
    CHECK(cuStreamCreate(&gpu.stream, CU_STREAM_NON_BLOCKING));
    gpu.spin = kernel("_Z4spinm");
    gpu.spin_until = kernel("_Z10spin_untilPj");
  }
  for (const Gpu& one : gpus) {
    use(one);
    for (const Gpu& other : gpus) {
      if (peers && &one != &other) check(enable(other.context, 0), "cuCtxEnablePeerAccess");
    }
  }
  for (std::size_t number = 0; number < gpus.size() && !graphs.empty(); ++number) {
    gpus[number].graph = make_graph(graphs, gpus[number], gpus[(number + 1) % gpus.size()], nanoseconds);
  }
  std::vector<const Gpu*> workers;
  for (const char letter : work) {
    if (letter >= '0' && letter < '0' + touch) workers.push_back(&gpus[static_cast<std::size_t>(letter - '0')]);
  }
  unsigned long wrong = 0;
  const auto across = [&] {
    use(gpus[0]);
    check(copy(gpus[1].memory, gpus[0].memory, 1 << 16), "cuMemcpyDtoD");
    CHECK(cuCtxSynchronize());  // such a copy may still be on its way
    std::vector<std::uint32_t> words(1 << 14);
    use(gpus[1]);
    CHECK(cuMemcpyDtoH_v2(words.data(), gpus[1].memory, 1 << 16));
    for (const std::uint32_t word : words) wrong += word != gpus[0].pattern;
    CHECK(cuMemsetD32_v2(gpus[1].memory, gpus[1].pattern, 1 << 14));
    CHECK(cuCtxSynchronize());
    // And in the other direction, in the stream.
    check(copy_async(gpus[0].memory, gpus[1].memory, 1 << 16, gpus[1].stream), "cuMemcpyAsync");
    CHECK(cuStreamSynchronize(gpus[1].stream));
    use(gpus[0]);
    CHECK(cuMemcpyDtoH_v2(words.data(), gpus[0].memory, 1 << 16));
    for (const std::uint32_t word : words) wrong += word != gpus[1].pattern;
    CHECK(cuMemsetD32_v2(gpus[0].memory, gpus[0].pattern, 1 << 14));
    CHECK(cuCtxSynchronize());
  };
  void* pinned = nullptr;
  CHECK(cuMemHostAlloc(&pinned, sizeof(unsigned), 3));  // for all GPUs
  auto* const flag = static_cast<volatile unsigned*>(pinned);
  if (cross != 0) across();
  std::printf("ready\n");
  std::fflush(stdout);
  const double begin = seconds();
  unsigned long steps = 0;
  double longest = 0;
  for (;; ++steps) {
    const double step_begins = seconds();
    if (hold ? stdin_closed() : most != 0 ? steps >= most : step_begins - begin >= duration) break;
    *flag = 0;
    for (const Gpu* gpu : workers) {
      use(*gpu);
      if (gpu->graph != nullptr) {
        CHECK(cuGraphLaunch(gpu->graph, gpu->stream));
        continue;
      }
      const bool waits = chain && gpu == workers.front();
      void* parameters[] = {waits ? static_cast<void*>(&pinned) : &nanoseconds};
      CHECK(cuLaunchKernel(waits ? gpu->spin_until : gpu->spin, 1, 1, 1, 1, 1, 1, 0, gpu->stream, parameters, nullptr));
    }
    for (const Gpu* gpu : workers) {
      if (chain && gpu != workers.front()) CHECK(cuStreamSynchronize(gpu->stream));
    }
    *flag = 1;
    for (const Gpu* gpu : workers) CHECK(cuStreamSynchronize(gpu->stream));
    if (cross != 0 && (steps + 1) % cross == 0) across();
    if (pause != 0 || workers.empty())
      std::this_thread::sleep_for(std::chrono::microseconds(pause != 0 ? pause : 1000));
    longest = std::max(longest, seconds() - step_begins);
  }
  const double took = seconds() - begin;
  for (const Gpu& gpu : gpus) wrong += wrong_words(gpu, bytes);
  std::printf("{\"steps\":%lu,\"seconds\":%.6f,\"wrong\":%lu,\"longest_s\":%.6f}\n", steps, took, wrong, longest);
  return wrong == 0 ? 0 : 3;
}
