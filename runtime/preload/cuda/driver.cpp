// Opens the real driver where locate.h finds it.
#include <dlfcn.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "runtime/preload/cuda/thin.h"

namespace rota::thin {
namespace {

// The threads that are opening the driver. Not thread_local, which in a preload is either slow or scarce. A thread that
// finds no free entry does without: that needs more simultaneous first calls than ever occur.
int opening[16];

const void* found_code;

int this_thread() noexcept {
  return static_cast<int>(syscall(SYS_gettid));
}

int* note_opening() noexcept {
  const int thread = this_thread();
  for (int& place : opening) {
    int nobody = 0;
    if (__atomic_compare_exchange_n(&place, &nobody, thread, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) return &place;
  }
  return nullptr;
}

bool open_driver_by(void* dlopen_address, Driver& driver) noexcept {
  using Dlopen = void*(const char*, int);
  auto* dlopen_function = reinterpret_cast<Dlopen*>(dlopen_address);
  if (dlopen_function == nullptr) return refuse(driver, "this process has no dlopen");
  void* handle = dlopen_function(driver.path, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    using Dlerror = char*();
    auto* dlerror_function = reinterpret_cast<Dlerror*>(next_symbol("dlerror"));
    const char* text = dlerror_function != nullptr ? dlerror_function() : nullptr;
    return refuse(driver, text != nullptr ? text : "the loader refuses it");
  }
  const void* code = foreign_symbol(handle, "cuInit");
  if (code == nullptr) {
    using Dlclose = int(void*);
    if (auto* dlclose_function = reinterpret_cast<Dlclose*>(next_symbol("dlclose"))) dlclose_function(handle);
    return refuse(driver, kNoCuInit);
  }
  driver.handle = handle;
  __atomic_store_n(&found_code, code, __ATOMIC_RELAXED);
  return true;
}

// Another preload's dlopen may have a driver of its own in mind: this library, when it asks for libcuda.so.1. Then the
// C library's own opens what was found.
bool open_driver(Driver& driver, void*) noexcept {
  void* const next = next_symbol("dlopen");
  if (open_driver_by(next, driver)) return true;
  void* const own = own_symbol("dlopen");
  return own != nullptr && own != next && open_driver_by(own, driver);
}

}  // namespace

void find_driver(Driver& driver) noexcept {
  int* place = note_opening();
  locate_driver(driver, {&open_driver, nullptr, nullptr});
  if (place != nullptr) __atomic_store_n(place, 0, __ATOMIC_RELAXED);
}

bool this_thread_opens_driver() noexcept {
  const int thread = this_thread();
  for (const int& place : opening) {
    if (__atomic_load_n(&place, __ATOMIC_RELAXED) == thread) return true;
  }
  return false;
}

const void* driver_code() noexcept {
  return __atomic_load_n(&found_code, __ATOMIC_RELAXED);
}

}  // namespace rota::thin
