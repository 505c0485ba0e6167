// Times kernels of a given length with pairs of events, as autotuners do, and prints the result.
//
//   timer [--pairs N] [--rounds R] [--kernel-us U] [--kernels K] [--queued] [--unread] [--hold]
//
// In each of R rounds N pairs are recorded, each around K kernels (1) that wait for one another on the host, and each
// pair is waited for and read before the next; or, with --queued, all of them are recorded first, except one that is
// read before, as in Triton's do_bench. --unread: does not query the time between events, and reports the host's time.
// --hold: begins when a line arrives on stdin. Prints "ready" after a first kernel, and one line of JSON at the end:
// {"pairs":…,"median_us":…,"seconds":…}.
#include <unistd.h>

#include <algorithm>
#include <vector>

#include "tests/programs/program.h"

using namespace program;  // NOLINT

int main(int argc, char** argv) {
  Options options(argc, argv,
                  "timer [--pairs N] [--rounds R] [--kernel-us U] [--kernels K] [--queued] [--unread] [--hold]");
  const auto pairs = static_cast<std::size_t>(options.number("--pairs", 10));
  const auto rounds = static_cast<std::size_t>(options.number("--rounds", 1));
  auto nanoseconds = static_cast<unsigned long>(options.number("--kernel-us", 1000) * 1000);
  const auto kernels = static_cast<std::size_t>(options.number("--kernels", 1));
  const bool queued = options.flag("--queued");
  const bool unread = options.flag("--unread");
  const bool hold = options.flag("--hold");
  options.end();
  start();
  CUfunction spin = kernel("_Z4spinm");
  CUstream stream = nullptr;
  CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  const auto launch = [&] {
    void* parameters[] = {&nanoseconds};
    CHECK(cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, stream, parameters, nullptr));
  };
  launch();
  CHECK(cuStreamSynchronize(stream));
  struct Pair {
    CUevent begin = nullptr;
    CUevent end = nullptr;
  };
  std::vector<Pair> all(queued ? pairs : 1);
  for (Pair& pair : all) {
    CHECK(cuEventCreate(&pair.begin, CU_EVENT_DEFAULT));
    CHECK(cuEventCreate(&pair.end, CU_EVENT_DEFAULT));
  }
  std::printf("ready\n");
  std::fflush(stdout);
  char line = 0;
  if (hold && read(STDIN_FILENO, &line, 1) != 1) return 1;
  std::vector<double> times;
  const auto read_pair = [&](const Pair& pair) {
    if (unread) return;
    float milliseconds = 0;
    CHECK(cuEventElapsedTime(&milliseconds, pair.begin, pair.end));
    times.push_back(1000 * static_cast<double>(milliseconds));
  };
  const auto record = [&](const Pair& pair) {
    CHECK(cuEventRecord(pair.begin, stream));
    for (std::size_t number = 0; number < kernels; ++number) {
      if (number != 0) CHECK(cuStreamSynchronize(stream));
      launch();
    }
    CHECK(cuEventRecord(pair.end, stream));
  };
  const double begun = seconds();
  if (queued) {
    record(all[0]);
    CHECK(cuStreamSynchronize(stream));
    read_pair(all[0]);
  }
  for (std::size_t round = 0; round < rounds; ++round) {
    for (std::size_t i = 0; i < pairs; ++i) {
      const Pair& pair = all[queued ? i : 0];
      const double before = seconds();
      record(pair);
      if (queued) continue;
      CHECK(cuEventSynchronize(pair.end));
      if (unread) times.push_back(1e6 * (seconds() - before));
      read_pair(pair);
    }
    if (!queued) continue;
    CHECK(cuStreamSynchronize(stream));
    for (const Pair& pair : all) read_pair(pair);
  }
  const double took = seconds() - begun;
  for (const Pair& pair : all) {
    CHECK(cuEventDestroy_v2(pair.begin));
    CHECK(cuEventDestroy_v2(pair.end));
  }
  CHECK(cuStreamDestroy_v2(stream));
  std::sort(times.begin(), times.end());
  const double median = times.empty() ? 0 : times[times.size() / 2];
  std::printf("{\"pairs\":%zu,\"median_us\":%.1f,\"seconds\":%.6f}\n", times.size(), median, took);
  return 0;
}
