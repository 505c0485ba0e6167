#include "tools/rota/try/copies.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>

#include "tools/rota/try/processes.h"

namespace rota::attempt {
namespace {

using Clock = std::chrono::steady_clock;

// How long a process that was asked to end may take before it is killed.
constexpr int kPatienceMs = 2000;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// The copies are in sessions of their own, so none of them has received the signal. False: the signal has to end all of
// them.
bool passed_on(const siginfo_t& signal, const std::vector<pid_t>& copies) {
  const auto send = [&](int number) {
    for (const pid_t copy : copies) {
      if (copy > 0) kill(number == SIGSTOP || number == SIGCONT ? -copy : copy, number);
    }
  };
  struct sigaction inherited{};
  sigaction(signal.si_signo, nullptr, &inherited);
  if (inherited.sa_handler == SIG_IGN) return true;
  switch (signal.si_signo) {
    case SIGPIPE:
    case SIGXFSZ:
      if (signal.si_pid != getpid()) send(signal.si_signo);  // else a write of this process has raised it
      return true;
    case SIGINT:
    case SIGTERM:
    case SIGHUP:
    case SIGQUIT:
      return false;
    case SIGTSTP:
    case SIGTTIN:
    case SIGTTOU:
      send(SIGSTOP);
      tool::stop_as(signal.si_signo);
      send(SIGCONT);
      return true;
    default:
      send(signal.si_signo);
      return true;
  }
}

[[noreturn]] void become(const SignalsTaken& signals, pid_t parent, int output, const std::function<int()>& program) {
  // If this tool is killed, its copies are killed, too.
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);
  setsid();  // without the terminal: a program that reads from it would be stopped
  const int nothing = open("/dev/null", O_RDONLY);
  dup2(nothing, 0);
  dup2(output, 1);
  dup2(output, 2);
  if (nothing > 2) close(nothing);
  signals.hand_on();
  _exit(program());
}

}  // namespace

Together run_copies(const SignalsTaken& signals, unsigned copies, const std::string& stem,
                    const std::function<int()>& program, const std::function<void()>& started,
                    const std::function<void()>& ended) {
  Together all;
  std::vector<pid_t> running;
  const pid_t self = getpid();
  const auto begin = Clock::now();
  for (unsigned number = 1; number <= copies; ++number) {
    CopyEnd copy{.code = 0, .signal = 0, .seconds = 0, .output = fmt::format("{}-{}.log", stem, number)};
    const int output = open(copy.output.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0600);
    const int open_error = errno;
    const pid_t child = output < 0 ? -1 : fork();
    if (child == 0) become(signals, self, output, program);
    if (child < 0) {
      all.problem = output < 0 ? fmt::format("cannot write {}: {}", copy.output, strerror(open_error))
                               : fmt::format("cannot start copy {}: {}", number, strerror(errno));
    }
    if (output >= 0) close(output);
    if (child < 0) break;
    running.push_back(child);
    all.copies.push_back(copy);
  }
  if (all.problem.empty()) started();
  std::size_t left = all.problem.empty() ? running.size() : 0;
  while (left != 0) {
    siginfo_t signal;
    if (sigwaitinfo(&signals.all(), &signal) < 0) continue;
    if (signal.si_signo != SIGCHLD) {
      all.interrupted = passed_on(signal, running) ? 0 : signal.si_signo;
      if (all.interrupted != 0) break;
    }
    int status = 0;
    // One signal may mean several children, including adopted ones.
    for (pid_t child; (child = waitpid(-1, &status, WNOHANG)) > 0;) {
      const auto found = std::find(running.begin(), running.end(), child);
      if (found == running.end()) continue;
      CopyEnd& copy = all.copies[static_cast<std::size_t>(found - running.begin())];
      copy.signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
      copy.code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
      copy.seconds = seconds_since(begin);
      *found = 0;  // its pid may have been reused
      --left;
    }
  }
  all.seconds = seconds_since(begin);
  if (all.problem.empty() && all.interrupted == 0) ended();
  end_descendants(kPatienceMs);
  return all;
}

}  // namespace rota::attempt
