// Replaces dlsym, as tools do that hand out their own cuInit; the C library's own is found with dlvsym.
#include "tests/programs/hooks/hook.h"

namespace {

hook::Dlsym* real_dlsym() {
  static auto* const found = reinterpret_cast<hook::Dlsym*>(dlvsym(RTLD_NEXT, "dlsym", hook::kBase));
  return found;
}

int own_cuInit(unsigned flags) {
  hook::called("cuInit by dlsym");
  using CuInit = int(unsigned);
  // As long as nothing else is known, the next one in the search order.
  auto* next = reinterpret_cast<CuInit*>(real_dlsym()(RTLD_NEXT, "cuInit"));
  if (next == nullptr) next = reinterpret_cast<CuInit*>(real_dlsym()(dlopen("libcuda.so.1", RTLD_NOW), "cuInit"));
  return next(flags);
}

}  // namespace

extern "C" void* dlsym(void* handle, const char* name) noexcept {
  if (strcmp(name, "cuInit") == 0) return reinterpret_cast<void*>(&own_cuInit);
  return real_dlsym()(handle, name);
}
