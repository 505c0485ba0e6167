// A function of a loaded library by that library's own symbol table. For dlsym itself: another preload may stand in
// front of it under its name (tools that hand out their own CUDA functions do), and would then answer for a caller that
// it is itself, with what comes after it in the search order, which may be us.
#pragma once

namespace rota::thin {

// `library`: the name in the file's path, as libc.so.6. Null if no such library is loaded, or has no such function.
// Takes the loader's lock, as dlopen does.
__attribute__((visibility("hidden"))) void* loaded_symbol(const char* library, const char* name) noexcept;

}  // namespace rota::thin
