#include "tools/rota/run/output.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <csignal>
#include <cstring>
#include <string>

#include "runtime/preload/standard_error.h"

namespace rota::tool {
namespace {

// A writable pipe or terminal takes this much at once; a longer write could block in the middle.
constexpr std::size_t kAtOnce = PIPE_BUF;

// The signals that end a process that writes where nobody reads, or beyond the limit of a file's size.
sigset_t write_errors() {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : {SIGPIPE, SIGXFSZ}) sigaddset(&signals, signal);
  return signals;
}

// If they are blocked, takes those away that this thread's own write has raised, unless one was pending before.
void take_back(const sigset_t& pending_before) {
  sigset_t raised = write_errors();
  for (const int signal : {SIGPIPE, SIGXFSZ}) {
    if (sigismember(&pending_before, signal) != 0) sigdelset(&raised, signal);
  }
  const timespec now{};
  while (sigtimedwait(&raised, nullptr, &now) > 0 || errno == EINTR) {
  }
}

bool can_be_written(int descriptor, int patience_ms) {
  pollfd writable{descriptor, POLLOUT, 0};
  return poll(&writable, 1, patience_ms) > 0;
}

}  // namespace

void occupy_standard_descriptors() {
  for (int number = 0; number <= STDERR_FILENO; ++number) {
    if (fcntl(number, F_GETFD) != -1 || errno != EBADF) continue;
    // Such a descriptor refuses what a closed one refuses, with the same error. It gets this number, the lowest free
    // one.
    const int occupied = open("/", O_PATH | O_CLOEXEC);
    if (occupied > STDERR_FILENO) close(occupied);
  }
}

void write_message(std::string_view text, std::chrono::milliseconds patience) {
  const int saved = errno;
  if (!thin::is_standard_error(nullptr)) text = {};
  sigset_t signals = write_errors();
  sigaddset(&signals, SIGTTOU);  // of a terminal that stops a background job that writes to it
  sigset_t pending;
  sigset_t before;
  sigpending(&pending);
  pthread_sigmask(SIG_BLOCK, &signals, &before);
  while (!text.empty() && can_be_written(STDERR_FILENO, static_cast<int>(patience.count()))) {
    const ssize_t written = write(STDERR_FILENO, text.data(), std::min(text.size(), kAtOnce));
    if (written >= 0) {
      text.remove_prefix(static_cast<std::size_t>(written));
    } else if (errno != EINTR && errno != EAGAIN) {
      take_back(pending);
      break;
    }
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  errno = saved;
}

bool write_all(int descriptor, std::string_view text) {
  sigset_t pending;
  sigpending(&pending);
  while (!text.empty()) {
    const ssize_t written = write(descriptor, text.data(), text.size());
    if (written > 0) {
      text.remove_prefix(static_cast<std::size_t>(written));
    } else if (written == 0) {
      errno = ENOSPC;
      return false;
    } else if (errno == EAGAIN) {
      can_be_written(descriptor, -1);
    } else if (errno != EINTR) {
      const int error = errno;
      take_back(pending);
      errno = error;
      return false;
    }
  }
  return true;
}

bool print(std::string_view command, std::string_view text) {
  if (write_all(STDOUT_FILENO, text)) return true;
  if (errno == EPIPE) return false;  // a program that SIGPIPE ends prints no line either
  write_message(fmt::format("{}: cannot write to standard output: {}\n", command, std::strerror(errno)));
  return false;
}

}  // namespace rota::tool
