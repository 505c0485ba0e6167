// The kernel's number of the calling thread. glibc has gettid() only since 2.30.
#pragma once

#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

namespace rota {

inline pid_t own_tid() {
  return static_cast<pid_t>(syscall(SYS_gettid));
}

}  // namespace rota
