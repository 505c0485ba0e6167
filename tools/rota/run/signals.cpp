#include "tools/rota/run/signals.h"

#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <initializer_list>

namespace rota::tool {
namespace {

// Drops the signals that are pending because a write of this process failed: they are not meant for the program.
void drop_own_writes_signals() {
  for (const int number : {SIGPIPE, SIGXFSZ}) {
    sigset_t only;
    sigemptyset(&only);
    sigaddset(&only, number);
    const timespec now{};
    siginfo_t signal{};
    if (sigtimedwait(&only, &signal, &now) == number && signal.si_pid != getpid()) kill(getpid(), number);
  }
}

}  // namespace

TakenSignals::TakenSignals() {
  sigfillset(&all_);
  sigprocmask(SIG_BLOCK, &all_, &before_);
  // If SIGCHLD is ignored, which is inherited, children leave no status and nobody is told of their end.
  struct sigaction usual{};
  usual.sa_handler = SIG_DFL;
  sigaction(SIGCHLD, &usual, &children_);
}

void TakenSignals::hand_on() const {
  drop_own_writes_signals();
  sigaction(SIGCHLD, &children_, nullptr);
  sigprocmask(SIG_SETMASK, &before_, nullptr);
}

void stop_as(int signal) {
  struct sigaction usual{};
  usual.sa_handler = SIG_DFL;
  struct sigaction before{};
  const bool is_set = sigaction(signal, &usual, &before) == 0;  // SIGSTOP has no other action
  sigset_t only;
  sigemptyset(&only);
  sigaddset(&only, signal);
  kill(getpid(), signal);
  sigprocmask(SIG_UNBLOCK, &only, nullptr);
  sigprocmask(SIG_BLOCK, &only, nullptr);
  if (is_set) sigaction(signal, &before, nullptr);
}

int ending_of(int wait_status) {
  return WIFSIGNALED(wait_status) ? ended_by(WTERMSIG(wait_status)) : WEXITSTATUS(wait_status);
}

int end_as(int ending) {
  if (ending < kSignalled) return ending;
  const int number = ending - kSignalled;
  // Only the program's core file is of interest. The limit is not enough: a handler of core files ignores it.
  const rlimit none{0, 0};
  setrlimit(RLIMIT_CORE, &none);
  prctl(PR_SET_DUMPABLE, 0);
  struct sigaction usual{};
  usual.sa_handler = SIG_DFL;
  sigaction(number, &usual, nullptr);  // fails for SIGKILL, which needs none
  kill(getpid(), number);
  sigset_t only;
  sigemptyset(&only);
  sigaddset(&only, number);
  sigprocmask(SIG_UNBLOCK, &only, nullptr);
  return shell_code(ending);
}

}  // namespace rota::tool
