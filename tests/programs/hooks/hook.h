// What the hook libraries share: the functions that follow them in the search order, found as such libraries find them.
// Each library says in the file that HOOK_LOG names that it was called, so that a test sees which hooks were reached.
#pragma once

#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

namespace hook {

#if defined(__x86_64__)
inline constexpr const char* kBase = "GLIBC_2.2.5";
#else
inline constexpr const char* kBase = "GLIBC_2.17";
#endif

using Dlsym = void*(void*, const char*);
using Dlopen = void*(const char*, int);

inline void called(const char* what) {
  const char* const path = getenv("HOOK_LOG");
  const int file = path != nullptr ? open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600) : -1;
  if (file < 0) return;
  char line[64];
  const size_t length = strnlen(what, sizeof line - 1);
  memcpy(line, what, length);
  line[length] = '\n';
  // A test that misses the line fails.
  [[maybe_unused]] const ssize_t written = write(file, line, length + 1);
  close(file);
}

}  // namespace hook
