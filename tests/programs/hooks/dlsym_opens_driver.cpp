// Replaces dlsym, and opens the driver inside it: CUDA functions are looked up in the driver, whatever handle is given.
#include "tests/programs/hooks/hook.h"

extern "C" void* dlsym(void* handle, const char* name) noexcept {
  static auto* const real = reinterpret_cast<hook::Dlsym*>(dlvsym(RTLD_NEXT, "dlsym", hook::kBase));
  if (strncmp(name, "cu", 2) != 0 || strncmp(name, "cuda", 4) == 0) return real(handle, name);
  static void* const driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
  static const bool first = [] {
    hook::called("dlsym with the driver");
    return true;
  }();
  return real(first ? driver : handle, name);
}
