// What the files of the thin preload share. It is loaded by every process of a session, so: C++ as a better C, no
// libstdc++, nothing that runs at exit and at load only what running_test.cpp and core_library.cpp keep, no relocated
// tables of pointers where a string of strings does, and of glibc only what 2.28 had
// (tests/unit/runtime/preload/elf_test.py looks at the result).
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "runtime/preload/attachment.h"
#include "runtime/preload/cuda/locate.h"

namespace rota::thin {

enum : uint32_t {
#define ROTA_SYMBOL(name) kIndex_##name,
#include "generated/driver_symbols.inc"
#undef ROTA_SYMBOL
  kSymbolCount
};

// Thunks behind those of the known functions: see spares.inc.
inline constexpr uint32_t kSpareCount = 0
#define ROTA_SYMBOL(name) +1
#include "runtime/preload/cuda/spares.inc"
#undef ROTA_SYMBOL
    ;

// The distance of two thunks in bytes: the alignment in thunks.S.
#if defined(__x86_64__)
inline constexpr uint32_t kThunkStride = 16;
#else
inline constexpr uint32_t kThunkStride = 32;
#endif

extern "C" {
extern ROTA_HIDDEN void* rota_slots[kSymbolCount + kSpareCount];
extern ROTA_HIDDEN char rota_thunks_begin[];
extern ROTA_HIDDEN char rota_thunks_end[];
}

// Symbols of the C library that are not taken by an ordinary reference: the loader's functions moved from libdl to libc
// in glibc 2.34, and dlopen is a name that we export ourselves. Null if the process has none. Any thread may call.
ROTA_HIDDEN void* next_symbol(const char* name) noexcept;
// The same by the C library only, whatever other preloads precede or follow this one.
ROTA_HIDDEN void* own_symbol(const char* name) noexcept;
// dlsym on a handle; null if there is none, or if what was found is one of our own thunks (a library that has no such
// function itself may depend on libcuda.so.1, which is us).
ROTA_HIDDEN void* foreign_symbol(void* handle, const char* name) noexcept;
// The name under which a thunk of ours is exported: that of a spare, a fitted copy has changed. Null if it has none.
ROTA_HIDDEN const char* name_at(const char* thunk) noexcept;

// Finds and opens the real driver, never a copy of this library. Any number of threads may call at once, since the
// loader gives each the same handle.
ROTA_HIDDEN void find_driver(Driver& driver) noexcept;
// Whether this thread is in find_driver. An address inside the driver that was found, or null before that. Both for the
// dlopen hook, which any thread may call.
ROTA_HIDDEN bool this_thread_opens_driver() noexcept;
ROTA_HIDDEN const void* driver_code() noexcept;
// Where the dlopen hook finds what the core wants to have called before each dlopen.
ROTA_HIDDEN RotaBeforeLoad** before_load_callback() noexcept;

}  // namespace rota::thin
