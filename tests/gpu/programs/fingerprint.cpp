// The kernel by which rota tells what has changed, on a GPU: its sums are those that the same function gives on the
// host, for memory that is random, zero, or ends within a chunk; and how fast it reads.
//
//   fingerprint        one line, "ok: …" or what is wrong; 77 where there is no GPU
#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

#include "generated/driver_functions.h"
#include "tests/unit/runtime/memory/fingerprint_on_host.h"

extern "C" const char rota_fingerprint_image[];

namespace {

using namespace rota::api;                  // NOLINT(google-build-using-namespace): the names are CUDA's own
using namespace rota::memory::fingerprint;  // NOLINT(google-build-using-namespace)

template <typename Function>
Function* function(void* library, const char* name) {
  auto* found = reinterpret_cast<Function*>(dlsym(library, name));
  if (found == nullptr) std::exit(77);
  return found;
}

void check(CUresult result, const char* what) {
  if (result == CUDA_SUCCESS) return;
  std::printf("%s: error %d\n", what, static_cast<int>(result));
  std::exit(1);
}

}  // namespace

int main() {
  void* library = dlopen("libcuda.so.1", RTLD_NOW);
  if (library == nullptr) return 77;
#define FUNCTION(name) auto* const name = function<name##_fn>(library, #name)
  FUNCTION(cuInit);
  FUNCTION(cuDevicePrimaryCtxRetain);
  FUNCTION(cuCtxSetCurrent);
  FUNCTION(cuModuleLoadData);
  FUNCTION(cuModuleGetFunction);
  FUNCTION(cuMemHostAlloc);
  FUNCTION(cuMemAlloc_v2);
  FUNCTION(cuMemcpyHtoD_v2);
  FUNCTION(cuLaunchKernel);
  FUNCTION(cuCtxSynchronize);
#undef FUNCTION
  if (cuInit(0) != CUDA_SUCCESS) return 77;
  CUcontext context = nullptr;
  check(cuDevicePrimaryCtxRetain(&context, 0), "cuDevicePrimaryCtxRetain");
  check(cuCtxSetCurrent(context), "cuCtxSetCurrent");
  const auto begun = std::chrono::steady_clock::now();
  CUmodule module = nullptr;
  check(cuModuleLoadData(&module, rota_fingerprint_image), "cuModuleLoadData");
  const auto load_us = std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now() - begun);
  CUfunction kernel = nullptr;
  check(cuModuleGetFunction(&kernel, module, "rota_fingerprint"), "cuModuleGetFunction");
  void* host = nullptr;
  constexpr unsigned kDeviceMap = 2;  // CU_MEMHOSTALLOC_DEVICEMAP, a macro in cuda.h
  check(cuMemHostAlloc(&host, kMostChunks * sizeof(Print), kDeviceMap), "cuMemHostAlloc");
  const Print* prints = static_cast<const Print*>(host);  // the GPU sees them at the same address

  Keys keys = drawn(std::random_device{}());
  // Random chunks, one of zeros, and a last one that ends early.
  constexpr std::uint64_t kChunks = 40;
  std::vector<Vector> memory((kChunks - 1) * kChunkVectors + 12345);
  std::mt19937 random(1);
  for (Vector& vector : memory) {
    for (std::uint32_t& word : vector.words) word = static_cast<std::uint32_t>(random());
  }
  std::fill_n(memory.begin() + 3 * kChunkVectors, kChunkVectors, Vector{});
  CUdeviceptr address = 0;
  std::uint64_t bytes = memory.size() * sizeof(Vector);
  check(cuMemAlloc_v2(&address, bytes), "cuMemAlloc");
  check(cuMemcpyHtoD_v2(address, memory.data(), bytes), "cuMemcpyHtoD");
  const auto launch = [&](CUdeviceptr from, std::uint64_t length, unsigned first) {
    const auto blocks = static_cast<unsigned>((length + kChunkBytes - 1) / kChunkBytes);
    const Print* to = prints + first;
    void* arguments[] = {&from, &length, &to, &keys};
    check(cuLaunchKernel(kernel, blocks, 1, 1, kThreads, 1, 1, 0, nullptr, arguments, nullptr), "cuLaunchKernel");
  };
  launch(address, bytes, 7);
  check(cuCtxSynchronize(), "cuCtxSynchronize");
  const std::vector<Print> seen(prints + 7, prints + 7 + kChunks);
  for (std::uint64_t chunk = 0; chunk < kChunks; ++chunk) {
    const std::uint64_t begin = chunk * kChunkVectors;
    const Print expected =
        print_of(keys, memory.data() + begin, std::min<std::uint64_t>(kChunkVectors, memory.size() - begin));
    const Print& print = seen[chunk];
    if (print.sums[0] == expected.sums[0] && print.sums[1] == expected.sums[1] &&
        (print.any != 0) == (expected.any != 0))
      continue;
    std::printf("chunk %llu: the GPU's sums are not the host's\n", static_cast<unsigned long long>(chunk));
    return 1;
  }
  if (seen[3].any != 0 || seen[2].any == 0) {
    std::printf("zeros are not known as zeros\n");
    return 1;
  }

  // As rota does it: extents of 128 MiB, one launch each.
  constexpr std::uint64_t kExtent = std::uint64_t{128} << 20;
  constexpr int kExtents = 8;
  CUdeviceptr large = 0;
  check(cuMemAlloc_v2(&large, kExtents * kExtent), "cuMemAlloc");
  double best = 0;
  for (int round = 0; round < 20; ++round) {
    const auto from = std::chrono::steady_clock::now();
    for (int extent = 0; extent < kExtents; ++extent) {
      launch(large + extent * kExtent, kExtent, static_cast<unsigned>(extent) * 256);
    }
    check(cuCtxSynchronize(), "cuCtxSynchronize");
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - from;
    best = std::max(best, kExtents * kExtent / took.count() / 1e9);
  }
  std::printf("ok: %llu chunks as on the host; the kernel is loaded in %lld us and reads %.0f GB/s\n",
              static_cast<unsigned long long>(kChunks), static_cast<long long>(load_us.count()), best);
  return 0;
}
