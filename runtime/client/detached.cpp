#include "runtime/client/detached.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <utility>

namespace rota::client {

namespace {

// For the few calls that each of the two makes.
constexpr std::size_t kStackBytes = std::size_t{64} << 10;

// In the memory of this process, which is not copied. ThreadSanitizer takes each clone() for a fork() and would spoil
// its own there.
#ifdef __SANITIZE_THREAD__
constexpr int kInPlace = CLONE_VFORK;
#else
constexpr int kInPlace = CLONE_VM | CLONE_VFORK;
#endif

struct Start {
  char* const* arguments;
  char* const* environment;
  int output;
  void* stack;  // of the second process
};

std::vector<char*> pointers_to(const std::vector<std::string>& texts) {
  std::vector<char*> all;
  for (const std::string& text : texts) all.push_back(const_cast<char*>(text.c_str()));
  all.push_back(nullptr);
  return all;
}

void complain(int output, std::string_view text) {
  [[maybe_unused]] const ssize_t written = write(output, text.data(), text.size());
}

// Both of these run in the memory of this process, whose calling thread is stopped meanwhile (as vfork() does), with
// descriptors of their own. What they return is the process's exit status; they call no exit handlers.
int become_command(void* argument) {
  const Start& start = *static_cast<const Start*>(argument);
  // The program may have no descriptor left: first what it has is closed. Where the kernel knows no close_range, what
  // is not close-on-exec stays open until the command closes it.
  if (dup2(start.output, STDERR_FILENO) < 0) return 127;
  syscall(SYS_close_range, static_cast<unsigned>(STDERR_FILENO + 1), ~0U, 0U);
  close(STDIN_FILENO);
  const int nothing = open("/dev/null", O_RDWR);
  if (nothing < 0 || dup2(nothing, STDIN_FILENO) < 0 || dup2(nothing, STDOUT_FILENO) < 0) {
    complain(STDERR_FILENO, "/dev/null cannot be opened");
    return 127;
  }
  execve(start.arguments[0], start.arguments, start.environment);
  complain(STDERR_FILENO, "it cannot be executed");
  return 127;
}

int leave_parent(void* argument) {
  const Start& start = *static_cast<const Start*>(argument);
  setsid();
  if (clone(become_command, start.stack, kInPlace | SIGCHLD, argument) < 0) {
    complain(start.output, "no process can be started");
  }
  return 0;
}

}  // namespace

int start_detached(const std::vector<std::string>& arguments, const std::vector<std::string>& environment, int output) {
  const std::vector<char*> argv = pointers_to(arguments);
  const std::vector<char*> envp = pointers_to(environment);
  std::vector<std::max_align_t> stacks(2 * kStackBytes / sizeof(std::max_align_t));
  const std::span<std::max_align_t> all(stacks);
  Start start{argv.data(), envp.data(), output, &all[all.size() / 2]};
  // No signal at its end: only who asks for such children (__WCLONE) is told of it.
  const int middle = clone(leave_parent, stacks.data() + stacks.size(), kInPlace, &start);
  if (middle < 0) return errno;
  while (waitpid(middle, nullptr, __WCLONE) < 0 && errno == EINTR) {
  }
  return 0;
}

std::optional<std::string> Heard::first_line() {
  constexpr std::size_t kMost = 4096;  // of a line: far more than any has
  char piece[512];
  while (from_) {
    const ssize_t length = read(from_.get(), piece, sizeof piece);
    if (length < 0 && errno == EINTR) continue;
    if (length < 0 && errno == EAGAIN) return std::nullopt;
    if (length > 0) text_.append(piece, static_cast<std::size_t>(length));
    const std::size_t end = text_.find('\n');
    if (length > 0 && end == std::string::npos && text_.size() < kMost) continue;
    from_ = Descriptor();
    return std::exchange(text_, {}).substr(0, end);
  }
  return std::nullopt;
}

}  // namespace rota::client
