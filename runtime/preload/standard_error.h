// Messages on standard error, from inside someone else's program. Not every file with number 2 is standard error: a
// program that closes 2, as a daemon may, gets that number for whatever it opens next, and a line of ours in the middle
// would damage it. So 2 must be what it was when the process began, or a terminal, or something that a program
// deliberately puts there: a pipe, or the file that is its standard output as well. And a line is only ever added to a
// file. No libstdc++ in here, and of glibc only what 2.28 had.
#pragma once

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <termios.h>
#include <unistd.h>

#include "runtime/preload/attachment.h"

namespace rota::thin {

// A reader who reads nothing at all for that long does not read this message: the program would not have waited for it.
inline constexpr int kMessagePatienceMs = 100;

// Not by fstat, whose symbol is newer.
inline bool look_at(int descriptor, struct stat& found) noexcept {
  return syscall(SYS_fstat, descriptor, &found) == 0;
}

// Whether a line would replace bytes that are in the file: then it is no log, whoever gave it that number.
inline bool would_overwrite(int descriptor, const struct stat& found) noexcept {
  const int flags = fcntl(descriptor, F_GETFL);
  return S_ISREG(found.st_mode) && (flags & O_APPEND) == 0 && lseek(descriptor, 0, SEEK_CUR) < found.st_size;
}

inline RotaStandardError standard_error_now() noexcept {
  struct stat found;
  if (!look_at(STDERR_FILENO, found)) return {kRotaStandardErrorClosed, 0, 0};
  return {kRotaStandardErrorOpen, found.st_dev, found.st_ino};
}

// `began`: what it was when the process began; null if nobody knows.
inline bool is_standard_error(const RotaStandardError* began) noexcept {
  struct stat now;
  if (!look_at(STDERR_FILENO, now) || would_overwrite(STDERR_FILENO, now)) return false;
  if (began == nullptr || began->state == kRotaStandardErrorUnknown) return true;
  const bool was_open = began->state == kRotaStandardErrorOpen;
  if (was_open && now.st_dev == began->device && now.st_ino == began->file) return true;
  termios terminal;
  if (S_ISCHR(now.st_mode) && ioctl(STDERR_FILENO, TCGETS, &terminal) == 0) return true;
  if (S_ISFIFO(now.st_mode)) return was_open;
  struct stat output;
  return S_ISREG(now.st_mode) && look_at(STDOUT_FILENO, output) && output.st_dev == now.st_dev &&
         output.st_ino == now.st_ino;
}

// Dropped if it cannot be written; the program gets no signal for it. errno is left as it was.
inline void write_standard_error(const RotaStandardError* began, const iovec* parts, int count) noexcept {
  const int saved = errno;
  pollfd writable{STDERR_FILENO, POLLOUT, 0};
  if (is_standard_error(began) && poll(&writable, 1, kMessagePatienceMs) > 0) {
    // Those of a pipe without a reader, of a file that may not grow, and of a terminal that stops background jobs.
    constexpr int kRaised[] = {SIGPIPE, SIGXFSZ, SIGTTOU};
    sigset_t signals;
    sigset_t pending;
    sigset_t before;
    sigemptyset(&signals);
    for (const int number : kRaised) sigaddset(&signals, number);
    sigpending(&pending);
    sigprocmask(SIG_BLOCK, &signals, &before);
    if (writev(STDERR_FILENO, parts, count) < 0) {
      for (const int number : kRaised) {
        if (sigismember(&pending, number) != 0) sigdelset(&signals, number);
      }
      const timespec now{};
      while (sigtimedwait(&signals, nullptr, &now) > 0) {
      }
    }
    sigprocmask(SIG_SETMASK, &before, nullptr);
  }
  errno = saved;
}

}  // namespace rota::thin
