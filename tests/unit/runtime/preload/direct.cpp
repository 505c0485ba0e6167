// A program linked with libcuda.so.1: prints what cuInit says and which file answered.
#include <dlfcn.h>
#include <cstdio>

extern "C" int cuInit(unsigned);
extern "C" int cuDeviceGetCount(int*);

int main() {
  int count = -1;
  const int result = cuInit(0);
  const int counted = cuDeviceGetCount(&count);
  Dl_info info{};
  dladdr(dlsym(RTLD_DEFAULT, "cuInit"), &info);
  std::printf("%d %d %d %s\n", result, counted, count, info.dli_fname);
  return 0;
}
