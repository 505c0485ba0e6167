// Launches kernels of a given length, one after the other, for a while. Prints how many ran and how long each took from
// launch to completion (mean and longest), as "spinner ok: N kernels, mean M us, longest L us".
#include <algorithm>

#include "tests/programs/program.h"

using namespace program;  // NOLINT

int main(int argc, char** argv) {
  Options options(argc, argv, "spinner [--seconds S] [--kernel MICROSECONDS] [--name TEXT]");
  double duration = options.number("--seconds", 1);
  auto nanoseconds = static_cast<unsigned long>(options.number("--kernel", 100) * 1000);
  std::string name = options.text("--name", "spinner");
  options.end();
  start();
  CUfunction spin = kernel("_Z4spinm");
  void* parameters[] = {&nanoseconds};
  unsigned long count = 0;
  double longest = 0;
  double begin = seconds();
  double now = begin;
  while (now - begin < duration) {
    CHECK(cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, nullptr, parameters, nullptr));
    CHECK(cuCtxSynchronize());
    double after = seconds();
    longest = std::max(longest, after - now);
    now = after;
    ++count;
  }
  std::printf("%s ok: %lu kernels, mean %.1f us, longest %.1f us\n", name.c_str(), count,
              (now - begin) / static_cast<double>(count) * 1e6, longest * 1e6);
  return 0;
}
