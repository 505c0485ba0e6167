// The program's signals wait while rota's own code runs in one of its threads. A handler may never return (siglongjmp,
// pthread_exit, an exception, a switch to another coroutine), and what the thread was doing then stays undone for ever:
// a mutex would stay locked. So handlers run only where a thread that waits sleeps and holds nothing.
#pragma once

#include <pthread.h>
#include <signal.h>

namespace rota {

class HeldSignals {
 public:
  HeldSignals() {
    sigset_t held;
    sigfillset(&held);
    // Signals that the thread itself causes are not held: the kernel would end the process.
    for (const int caused : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS, SIGABRT}) sigdelset(&held, caused);
    pthread_sigmask(SIG_BLOCK, &held, &programs_);
    sigorset(&held_, &programs_, &held);
  }
  // What has waited is delivered here: its handler may leave by an exception, as pthread_exit() does.
  ~HeldSignals() noexcept(false) { let_in(); }
  HeldSignals(const HeldSignals&) = delete;
  HeldSignals& operator=(const HeldSignals&) = delete;

  // The thread's mask without this.
  const sigset_t& programs() const { return programs_; }
  void let_in() const { pthread_sigmask(SIG_SETMASK, &programs_, nullptr); }
  void hold_again() const { pthread_sigmask(SIG_SETMASK, &held_, nullptr); }

 private:
  sigset_t programs_;
  sigset_t held_;
};

}  // namespace rota
