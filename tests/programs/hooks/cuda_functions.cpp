// Stands in front of CUDA functions, and forwards each to the next library that has it; without one, to the driver that
// it opens. Also of cuGetProcAddress, through which it hands itself out.
#include "tests/programs/hooks/hook.h"

namespace {

void* next(const char* name) {
  if (void* found = dlsym(RTLD_NEXT, name)) return found;
  return dlsym(dlopen("libcuda.so.1", RTLD_NOW), name);
}

}  // namespace

extern "C" int cuInit(unsigned flags) {
  hook::called("cuInit");
  return reinterpret_cast<int (*)(unsigned)>(next("cuInit"))(flags);
}

extern "C" int cuMemAlloc_v2(unsigned long long* address, size_t bytes) {
  hook::called("cuMemAlloc_v2");
  return reinterpret_cast<int (*)(unsigned long long*, size_t)>(next("cuMemAlloc_v2"))(address, bytes);
}

extern "C" int cuGetProcAddress_v2(const char* name, void** function, int version, unsigned long long flags,
                                   void* status) {
  hook::called("cuGetProcAddress_v2");
  using Get = int(const char*, void**, int, unsigned long long, void*);
  const int result = reinterpret_cast<Get*>(next("cuGetProcAddress_v2"))(name, function, version, flags, status);
  if (result == 0 && function != nullptr && strcmp(name, "cuInit") == 0) *function = reinterpret_cast<void*>(&cuInit);
  return result;
}
