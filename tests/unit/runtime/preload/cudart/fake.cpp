// A libcudart of one major for one test: CUDA's version node and signatures, answers that show what arrived, and a
// driver call inside, found as the real one does.
#include "tests/unit/runtime/preload/cudart/fake.h"

#include <dlfcn.h>

#define EXPORT __attribute__((visibility("default")))

namespace {
char memory[16];
}

extern "C" {
EXPORT int cudaMalloc(void** address, std::size_t bytes) {
  if (address == nullptr) return 1;
  void* const driver = dlopen("libcuda.so.1", RTLD_NOW);
  if (driver != nullptr) {
    if (auto* const init = reinterpret_cast<int (*)(unsigned)>(dlsym(driver, "cuInit"))) init(0);
  }
  *address = memory;
  return bytes > 1000 ? 2 : 0;
}
EXPORT int cudaFree(void* address) {
  return address == memory ? 0 : 1;
}
EXPORT const char* cudaGetErrorString(int error) {
  return error == 2 ? "out of memory" : "no error";
}
EXPORT Channels cudaCreateChannelDesc(int x, int y, int z, int w, unsigned kind) {
  return {x, y, z, w, kind};
}
EXPORT int cudaMemset3D(Pitched target, int value, Extent extent) {
  return target.pitch == 512 && target.y == 4 && value == 7 && extent.depth == 30 ? 0 : 1;
}
EXPORT int cudaLaunchKernel(const void*, Dimensions grid, Dimensions block, void**, std::size_t shared, void*) {
  return grid.x == 2 && grid.z == 4 && block.y == 6 && shared == 99 ? 0 : 9;
}
#if FAKE_MAJOR >= 13
EXPORT int cudaMemPrefetchAsync(const void*, std::size_t bytes, Location location, unsigned flags, void* stream) {
  return bytes == 77 && location.kind == 1 && location.id == 5 && flags == 0 && stream == &memory[1] ? 0 : 1;
}
#else
EXPORT int cudaMemPrefetchAsync(const void*, std::size_t bytes, int device, void* stream) {
  return bytes == 77 && device == 5 && stream == &memory[1] ? 0 : 1;
}
#endif
#if FAKE_MAJOR == 11
EXPORT int cudaThreadSynchronize() {
  return 0;
}
#endif
EXPORT long __cudaRegisterUnifiedTable(long a, long b, long c, long d, long e, long f, long g, long h, double i) {
  return a + 2 * b + 3 * c + 4 * d + 5 * e + 6 * f + 7 * g + 8 * h + static_cast<long>(i * 10);
}
}
