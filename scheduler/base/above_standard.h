// A descriptor inside a program that may have closed its standard streams: as number 2 it would receive the program's
// standard error output.
#pragma once

#include <fcntl.h>
#include <unistd.h>

namespace rota {

// The descriptor, under a number of 3 or more. It keeps its own if there is no other.
inline int above_standard(int descriptor) {
  if (descriptor < 0 || descriptor > STDERR_FILENO) return descriptor;
  const int moved = fcntl(descriptor, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
  if (moved < 0) return descriptor;
  close(descriptor);
  return moved;
}

}  // namespace rota
