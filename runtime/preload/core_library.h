// librota-core.so next to this library, what standard error was when the process began, and the line about a core that
// cannot be used: in a container with too old a C library, without the compiler's run-time library, or in half an
// installation. No libstdc++ in here.
#pragma once

#include "runtime/preload/attachment.h"

namespace rota::thin {

// Stored by this library's constructor.
__attribute__((visibility("hidden"))) const RotaStandardError* standard_error_at_start() noexcept;

// dlopen of `path`; where it fails `why` is set to the loader's words, which hold until this thread's next call of the
// loader.
__attribute__((visibility("hidden"))) void* open_core_library(const char* path, int mode, const char*& why) noexcept;

// On stderr, with the remedy, unless ROTA_LOG wants errors only. `consequence` says what becomes of the program. May be
// called from anywhere: it neither allocates nor asks the loader.
__attribute__((visibility("hidden"))) void say_core_unusable(const char* path, const char* why,
                                                             const char* consequence) noexcept;

}  // namespace rota::thin
