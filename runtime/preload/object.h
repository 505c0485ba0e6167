// Which loaded file an address lies in. For both preloads, which must find themselves, and for the dlopen hook, which
// must know its caller. Not by dladdr, which glibc 2.34 moved to another library (see cuda/loader.cpp). No libstdc++ in
// here.
#pragma once

#include <stddef.h>

namespace rota::thin {

// As PATH_MAX, which counts the final zero too.
inline constexpr size_t kPathBytes = 4096;

// The name by which the loader knows the file that contains `address`, which is "" for the program itself; null if none
// does. `also`, if given, is set to whether that file contains that address as well. The name lives as long as the file
// stays loaded. Takes the loader's lock, as dlopen does.
__attribute__((visibility("hidden"))) const char* file_of(const void* address, const void* also = nullptr,
                                                          bool* holds_also = nullptr) noexcept;

// The path of the file `name` in this library's folder; links to this library are followed. False if it cannot be
// determined or is too long. Does not check whether the file exists.
__attribute__((visibility("hidden"))) bool path_beside_us(const char* name, char (&path)[kPathBytes]) noexcept;

}  // namespace rota::thin
