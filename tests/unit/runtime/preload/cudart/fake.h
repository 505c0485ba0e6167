// The few runtime functions of the small libcudarts below, with CUDA's signatures but no CUDA header. FAKE_MAJOR: 11,
// 12 or 13, whose signatures differ.
#pragma once

#include <cstddef>

extern "C" {
struct Dimensions {
  unsigned x, y, z;
};  // dim3
struct Extent {
  std::size_t width, height, depth;
};  // cudaExtent
struct Pitched {
  void* address;
  std::size_t pitch, x, y;
};  // cudaPitchedPtr
struct Location {
  int kind, id;
};  // cudaMemLocation
struct Channels {
  int x, y, z, w;
  unsigned kind;
};  // cudaChannelFormatDesc

int cudaMalloc(void** address, std::size_t bytes);
int cudaFree(void* address);
const char* cudaGetErrorString(int error);
Channels cudaCreateChannelDesc(int x, int y, int z, int w, unsigned kind);
int cudaMemset3D(Pitched target, int value, Extent extent);
int cudaLaunchKernel(const void* function, Dimensions grid, Dimensions block, void** arguments, std::size_t shared,
                     void* stream);
#if FAKE_MAJOR >= 13
int cudaMemPrefetchAsync(const void* address, std::size_t bytes, Location location, unsigned flags, void* stream);
#else
int cudaMemPrefetchAsync(const void* address, std::size_t bytes, int device, void* stream);
#endif
#if FAKE_MAJOR == 11
int cudaThreadSynchronize();  // gone since 13
#endif
// No header declares it: it must be passed on whatever its signature is.
long __cudaRegisterUnifiedTable(long a, long b, long c, long d, long e, long f, long g, long h, double i);
}
