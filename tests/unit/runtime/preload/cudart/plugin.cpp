// Linked against libcudart and loaded RTLD_LOCAL by the program, as Python loads PyTorch.
#include "tests/unit/runtime/preload/cudart/fake.h"

extern "C" __attribute__((visibility("default"))) int work() {
  void* address = nullptr;
  const int first = cudaMalloc(&address, 100);
  const int null = cudaMalloc(nullptr, 100);
  const int large = cudaMalloc(&address, 5000);
  const Channels channels = cudaCreateChannelDesc(8, 16, 24, 32, 2);
  const int set = cudaMemset3D({address, 512, 3, 4}, 7, {10, 20, 30});
  void* arguments[1] = {&address};
  const int launched = cudaLaunchKernel(reinterpret_cast<void*>(&work), {2, 3, 4}, {5, 6, 7}, arguments, 99, nullptr);
  const char* const text = cudaGetErrorString(2);
  const long sum = __cudaRegisterUnifiedTable(1, 2, 3, 4, 5, 6, 7, 8, 9.5);
  char* const stream = static_cast<char*>(address) + 1;
#if FAKE_MAJOR >= 13
  const int prefetched = cudaMemPrefetchAsync(address, 77, {1, 5}, 0, stream);
#else
  const int prefetched = cudaMemPrefetchAsync(address, 77, 5, stream);
#endif
#if FAKE_MAJOR == 11
  if (cudaThreadSynchronize() != 0) return 1;
#endif
  const int freed = cudaFree(address);
  const bool right = first == 0 && null == 1 && large == 2 && channels.x == 8 && channels.w == 32 &&
                     channels.kind == 2 && set == 0 && launched == 0 && text[0] == 'o' && sum == 299 &&
                     prefetched == 0 && freed == 0;
  return right ? 0 : 1;
}
