// A libcuda.so.1 as WSL has it: not a driver but a loader, which opens the actual driver by its path and passes every
// call on to it. With TEST_LOADS_EARLY in the environment it does so while it is being loaded itself.
#include <dlfcn.h>
#include <cstdlib>

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

void* function_of(const char* name) {
  static void* const driver = dlopen(TEST_DRIVER, RTLD_NOW | RTLD_LOCAL);
  return driver != nullptr ? dlsym(driver, name) : nullptr;
}

}  // namespace

__attribute__((constructor)) static void load_early() {
  if (std::getenv("TEST_LOADS_EARLY") != nullptr) function_of("cuInit");
}

EXPORT int cuInit(unsigned flags) {
  // No tail call here, or the dynamic loader would see our caller.
  volatile int result = reinterpret_cast<int (*)(unsigned)>(function_of("cuInit"))(flags);
  return result;
}

EXPORT int cuDeviceGetCount(int* count) {
  volatile int result = reinterpret_cast<int (*)(int*)>(function_of("cuDeviceGetCount"))(count);
  return result;
}
