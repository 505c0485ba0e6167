// The first NVML call of a process ends here: find the real libnvidia-ml.so.1, fill every slot, jump on.
//
// Any number of threads may come at once, one of them perhaps under the loader's lock. Each does it for itself, the
// loader gives all of them the same library, and they write the same values; no lock of ours is held.
#include <dlfcn.h>
#include <errno.h>
#include <stdint.h>
#include <string.h>

#include "runtime/preload/attachment.h"
#include "runtime/preload/nvml/library.h"
#include "runtime/preload/nvml/nvml.h"

extern "C" {
ROTA_HIDDEN extern void* rota_nvml_slots[rota::nvml::kSymbols + rota::thin::kSpareCount];
ROTA_HIDDEN void* rota_nvml_resolve(uint32_t index) noexcept;
}

namespace rota::nvml {
namespace {

using thin::foreign_symbol;
using thin::next_symbol;

void* real[kSymbols];
void* library;  // of dlopen; null without one

int library_not_found() noexcept {
  return kLibraryNotFound;
}
int function_not_found() noexcept {
  return kFunctionNotFound;
}
const char* no_text(int) noexcept {
  return "libnvidia-ml.so.1 not found";
}

// One after the other, each with a zero behind it: a table of pointers would cost every process relocations.
constexpr char kNames[] =
#define ROTA_SYMBOL(name) #name "\0"
#include "runtime/preload/nvml/symbols.inc"
#undef ROTA_SYMBOL
    ;

bool open_library(thin::Driver& found, void*) noexcept {
  using Dlopen = void*(const char*, int);
  auto* const open = reinterpret_cast<Dlopen*>(next_symbol("dlopen"));
  if (open == nullptr) return thin::refuse(found, "this process has no dlopen");
  void* const handle = open(found.path, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return thin::refuse(found, "the loader refuses it");
  if (foreign_symbol(handle, "nvmlInit_v2") == nullptr) {
    using Dlclose = int(void*);
    if (auto* const close = reinterpret_cast<Dlclose*>(next_symbol("dlclose"))) close(handle);
    return thin::refuse(found, thin::kNoNvmlInit);
  }
  found.handle = handle;
  return true;
}

// What is called instead of a function that does not exist.
void* absent(uint32_t index) noexcept {
  if (index == k_nvmlErrorString) return reinterpret_cast<void*>(&no_text);
  return reinterpret_cast<void*>(library == nullptr ? &library_not_found : &function_not_found);
}

void resolve_all() noexcept {
  thin::Driver found;
  thin::locate_library(found, thin::kNvml, {&open_library, nullptr, nullptr});
  __atomic_store_n(&library, found.handle, __ATOMIC_RELEASE);
  const char* name = kNames;
  for (uint32_t index = 0; index < kSymbols; ++index, name += strlen(name) + 1) {
    void* function = found.handle != nullptr ? foreign_symbol(found.handle, name) : nullptr;
    if (function == nullptr) function = absent(index);
    __atomic_store_n(&real[index], function, __ATOMIC_RELAXED);
  }
  for (uint32_t index = 0; index < kSymbols; ++index) {
    void* const override_function = override_of(static_cast<Symbol>(index));
    __atomic_store_n(&rota_nvml_slots[index], override_function != nullptr ? override_function : real[index],
                     __ATOMIC_RELEASE);
  }
}

// A function that rota does not know has the name that the fitted copy gave to its thunk.
void* resolve_spare(uint32_t index) noexcept {
  void* const handle = __atomic_load_n(&library, __ATOMIC_ACQUIRE);
  const char* const name = thin::name_at(thin::rota_thunks_begin + size_t{index} * thin::kThunkStride);
  void* function = handle != nullptr && name != nullptr ? foreign_symbol(handle, name) : nullptr;
  if (function == nullptr) function = absent(index);
  __atomic_store_n(&rota_nvml_slots[index], function, __ATOMIC_RELEASE);
  return function;
}

}  // namespace

void* real_function(Symbol symbol) noexcept {
  return __atomic_load_n(&real[symbol], __ATOMIC_RELAXED);
}

}  // namespace rota::nvml

// From a stub, by way of rota_resolver_entry: returns where the call goes on.
void* rota_nvml_resolve(uint32_t index) noexcept {
  const int saved = errno;
  static uint8_t resolved;
  if (__atomic_load_n(&resolved, __ATOMIC_ACQUIRE) == 0) {
    rota::nvml::resolve_all();
    __atomic_store_n(&resolved, 1, __ATOMIC_RELEASE);
  }
  void* const function = index < rota::nvml::kSymbols ? __atomic_load_n(&rota_nvml_slots[index], __ATOMIC_ACQUIRE)
                                                      : rota::nvml::resolve_spare(index);
  errno = saved;
  return function;
}
