// The loader's functions, without a reference that would tie us to a glibc release or to libdl.so.2.
//
// dlsym is the C library's own, whoever else defines one (loaded_symbol.h). glibc 2.34 and later have it in libc;
// before that it is in libdl, which a program that uses CUDA nearly always has. Should one without libdl call CUDA all
// the same (linked directly), libc's own entry for that case helps.
#include <dlfcn.h>

#include "runtime/preload/cuda/loaded_symbol.h"
#include "runtime/preload/cuda/thin.h"

extern "C" {
// Absent since 2.34, where libc has the loader's functions.
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

Dlsym* own_dlsym() noexcept {
  static void* known;
  void* found = __atomic_load_n(&known, __ATOMIC_RELAXED);
  if (found != nullptr) return reinterpret_cast<Dlsym*>(found);
  found = own_symbol("dlsym");
  __atomic_store_n(&known, found, __ATOMIC_RELAXED);
  return reinterpret_cast<Dlsym*>(found);
}

}  // namespace

void* own_symbol(const char* name) noexcept {
  constexpr const char* kLibraries[] = {"libc.so.6", "libdl.so.2"};
  for (const char* library : kLibraries) {
    if (void* found = loaded_symbol(library, name); found != nullptr) return found;
  }
  return from_libdl(name);
}

void* next_symbol(const char* name) noexcept {
  if (Dlsym* const dlsym_function = own_dlsym(); dlsym_function != nullptr) {
    // Later in the search order than this library: another preload's dlopen, a sanitizer's, or the C library's.
    if (void* found = dlsym_function(RTLD_NEXT, name); found != nullptr) return found;
  }
  return from_libdl(name);
}

void* foreign_symbol(void* handle, const char* name) noexcept {
  Dlsym* const dlsym_function = own_dlsym();
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
