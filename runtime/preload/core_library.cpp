#include "runtime/preload/core_library.h"

#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>

#include "runtime/preload/cuda/thin.h"
#include "runtime/preload/standard_error.h"

namespace rota::thin {
namespace {

RotaStandardError standard_error;

__attribute__((constructor)) void keep_standard_error() noexcept {
  standard_error = standard_error_now();
}

const char* remedy(const char* why) noexcept {
  if (strstr(why, "version `GLIBC_") != nullptr) {
    return "this rota was built for a newer system: use rota's package, which runs from glibc 2.28 on";
  }
  if (strncmp(why, "libgcc_s.so", 11) == 0) return "install the compiler's run-time library (libgcc-s1 or libgcc)";
  return "install rota again (rota doctor says more)";
}

}  // namespace

const RotaStandardError* standard_error_at_start() noexcept {
  return &standard_error;
}

void* open_core_library(const char* path, int mode, const char*& why) noexcept {
  using Dlopen = void*(const char*, int);
  using Dlerror = char*();
  auto* const open = reinterpret_cast<Dlopen*>(next_symbol("dlopen"));
  // Before the call: looking it up afterwards would erase the error text.
  auto* const error = reinterpret_cast<Dlerror*>(next_symbol("dlerror"));
  void* const library = open != nullptr ? open(path, mode) : nullptr;
  if (library != nullptr) return library;
  const char* const words = open != nullptr && error != nullptr ? error() : nullptr;
  why = words != nullptr ? words : "the loader does not say why";
  return nullptr;
}

void say_core_unusable(const char* path, const char* why, const char* consequence) noexcept {
  const char* const level = secure_getenv("ROTA_LOG");
  if (level != nullptr && strcmp(level, "error") == 0) return;
  const char* const words[] = {"rota: ",    path, " cannot be loaded, so ", consequence, ": ", why, "; ",
                               remedy(why), "\n"};
  constexpr int kWords = sizeof words / sizeof *words;
  iovec parts[kWords];
  for (int index = 0; index < kWords; ++index) parts[index] = {const_cast<char*>(words[index]), strlen(words[index])};
  write_standard_error(&standard_error, parts, kWords);
}

}  // namespace rota::thin
