// y = a * x + y on the GPU, checked on the host. Prints "ok".
#include <vector>

#include "tests/programs/program.h"

using namespace program;  // NOLINT

int main(int argc, char** argv) {
  Options options(argc, argv, "saxpy [--count N] [--rounds N]");
  auto count = static_cast<int>(options.number("--count", 1 << 20));
  auto rounds = static_cast<int>(options.number("--rounds", 1));
  options.end();
  start();
  CUfunction saxpy = kernel("_Z5saxpyifPKfPf");
  size_t bytes = static_cast<size_t>(count) * sizeof(float);
  std::vector<float> x(static_cast<size_t>(count));
  std::vector<float> y(static_cast<size_t>(count));
  for (size_t i = 0; i < x.size(); ++i) {
    x[i] = static_cast<float>(i % 1000);
    y[i] = static_cast<float>(i % 7);
  }
  CUdeviceptr device_x = 0;
  CUdeviceptr device_y = 0;
  CHECK(cuMemAlloc_v2(&device_x, bytes));
  CHECK(cuMemAlloc_v2(&device_y, bytes));
  CHECK(cuMemcpyHtoD_v2(device_x, x.data(), bytes));
  CHECK(cuMemcpyHtoD_v2(device_y, y.data(), bytes));
  float a = 2.0F;
  void* parameters[] = {&count, &a, &device_x, &device_y};
  auto blocks = static_cast<unsigned>((count + 255) / 256);
  for (int round = 0; round < rounds; ++round) {
    CHECK(cuLaunchKernel(saxpy, blocks, 1, 1, 256, 1, 1, 0, nullptr, parameters, nullptr));
  }
  CHECK(cuCtxSynchronize());
  std::vector<float> result(static_cast<size_t>(count));
  CHECK(cuMemcpyDtoH_v2(result.data(), device_y, bytes));
  for (size_t i = 0; i < result.size(); ++i) {
    float expected = y[i];
    for (int round = 0; round < rounds; ++round) expected = a * x[i] + expected;
    if (result[i] != expected) {
      fail("element %zu is %g instead of %g", i, static_cast<double>(result[i]), static_cast<double>(expected));
    }
  }
  CHECK(cuMemFree_v2(device_x));
  CHECK(cuMemFree_v2(device_y));
  std::printf("ok\n");
  return 0;
}
