// The loader's functions, without a reference that would tie us to a glibc release or to libdl.so.2.
//
// dlsym is taken with the version it has had from the start. glibc 2.34 and later define it in libc; before that it is
// in libdl, which a program that uses CUDA nearly always has. The reference is weak, so that the many programs that
// have no libdl still start; should such a program call CUDA all the same (linked directly), libc's own entry for that
// case helps.
#include <dlfcn.h>

#include "runtime/preload/cuda/thin.h"

#if defined(__x86_64__)
#define ROTA_GLIBC_BASE "GLIBC_2.2.5"
#else
#define ROTA_GLIBC_BASE "GLIBC_2.17"
#endif

extern "C" {
void* rota_libc_dlsym(void* handle, const char* name) __attribute__((weak));
asm(".symver rota_libc_dlsym, dlsym@" ROTA_GLIBC_BASE);
// Gone since 2.34, where the reference above always succeeds.
void* __libc_dlopen_mode(const char* name, int mode) __attribute__((weak));
void* __libc_dlsym(void* handle, const char* name) __attribute__((weak));
}

namespace rota::thin {
namespace {

using Dlsym = void*(void*, const char*);

void* from_libdl(const char* name) noexcept {
  if (__libc_dlopen_mode == nullptr || __libc_dlsym == nullptr) return nullptr;
  constexpr int kInternal = static_cast<int>(0x80000000U);  // __RTLD_DLOPEN: what libdl's own dlopen adds
  void* libdl = __libc_dlopen_mode("libdl.so.2", RTLD_NOW | kInternal);
  return libdl != nullptr ? __libc_dlsym(libdl, name) : nullptr;
}

}  // namespace

void* next_symbol(const char* name) noexcept {
  if (rota_libc_dlsym != nullptr) {
    // Later in the search order than this library: another preload's dlopen, a sanitizer's, or the C library's.
    if (void* found = rota_libc_dlsym(RTLD_NEXT, name); found != nullptr) return found;
  }
  return from_libdl(name);
}

void* foreign_symbol(void* handle, const char* name) noexcept {
  Dlsym* dlsym_function = rota_libc_dlsym;
  if (dlsym_function == nullptr) dlsym_function = reinterpret_cast<Dlsym*>(from_libdl("dlsym"));
  if (dlsym_function == nullptr) return nullptr;
  char* found = static_cast<char*>(dlsym_function(handle, name));
  return found >= rota_thunks_begin && found < rota_thunks_end ? nullptr : found;
}

const char* name_at(const char* thunk) noexcept {
  using Dladdr = int(const void*, Dl_info*);
  auto* dladdr_function = reinterpret_cast<Dladdr*>(next_symbol("dladdr"));
  Dl_info info;
  if (dladdr_function == nullptr || dladdr_function(thunk, &info) == 0 || info.dli_saddr != thunk) return nullptr;
  return info.dli_sname;
}

}  // namespace rota::thin
