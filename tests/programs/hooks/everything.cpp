// Replaces dlsym, dlopen and cuInit at once, calls CUDA when it is loaded, and lets the loader's functions call each
// other, as sharing tools do that are preloaded themselves.
#include "tests/programs/hooks/hook.h"

namespace {

hook::Dlsym* real_dlsym() {
  static auto* const found = reinterpret_cast<hook::Dlsym*>(dlvsym(RTLD_NEXT, "dlsym", hook::kBase));
  return found;
}

}  // namespace

extern "C" int cuInit(unsigned flags) {
  hook::called("cuInit");
  auto* next = reinterpret_cast<int (*)(unsigned)>(real_dlsym()(RTLD_NEXT, "cuInit"));
  if (next == nullptr) {
    next = reinterpret_cast<int (*)(unsigned)>(real_dlsym()(dlopen("libcuda.so.1", RTLD_NOW), "cuInit"));
  }
  return next != nullptr && next != &cuInit ? next(flags) : 999;
}

extern "C" void* dlsym(void* handle, const char* name) noexcept {
  static void* const driver = dlopen("libcuda.so.1", RTLD_NOW);
  if (strcmp(name, "cuInit") == 0 && driver != nullptr) return reinterpret_cast<void*>(&cuInit);
  if (handle == RTLD_NEXT && strcmp(name, "dlopen") == 0) return reinterpret_cast<void*>(&dlopen);
  return real_dlsym()(handle, name);
}

extern "C" void* dlopen(const char* name, int mode) noexcept {
  static auto* const next = reinterpret_cast<hook::Dlopen*>(real_dlsym()(RTLD_NEXT, "dlopen"));
  return next(name, mode);
}

namespace {
[[gnu::constructor]] void begin() {
  const char* const wanted = getenv("HOOK_CALLS_CUDA");
  if (wanted != nullptr && *wanted != '\0') cuInit(0);
}
}  // namespace
