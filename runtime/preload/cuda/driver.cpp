// Opens the real driver where locate.h finds it.
#include <dlfcn.h>

#include "runtime/preload/cuda/thin.h"

namespace rota::thin {
namespace {

bool open_driver(Driver& driver, void*) noexcept {
  using Dlopen = void*(const char*, int);
  auto* dlopen_function = reinterpret_cast<Dlopen*>(next_symbol("dlopen"));
  if (dlopen_function == nullptr) return refuse(driver, "this process has no dlopen");
  void* handle = dlopen_function(driver.path, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    using Dlerror = char*();
    auto* dlerror_function = reinterpret_cast<Dlerror*>(next_symbol("dlerror"));
    const char* text = dlerror_function != nullptr ? dlerror_function() : nullptr;
    return refuse(driver, text != nullptr ? text : "the loader refuses it");
  }
  if (foreign_symbol(handle, "cuInit") == nullptr) {
    using Dlclose = int(void*);
    if (auto* dlclose_function = reinterpret_cast<Dlclose*>(next_symbol("dlclose"))) dlclose_function(handle);
    return refuse(driver, kNoCuInit);
  }
  driver.handle = handle;
  return true;
}

}  // namespace

void find_driver(Driver& driver) noexcept {
  locate_driver(driver, {&open_driver, nullptr, nullptr});
}

}  // namespace rota::thin
