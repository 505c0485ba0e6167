// Guard: a thread started while one exists never runs the program's signal handlers. Signals are for the program's
// threads: a handler may call the driver, or rely on state that only those threads have.
#pragma once

#include <pthread.h>
#include <signal.h>

namespace rota::sim {

class BlockedSignals {
 public:
  BlockedSignals() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~BlockedSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  BlockedSignals(const BlockedSignals&) = delete;
  BlockedSignals& operator=(const BlockedSignals&) = delete;

 private:
  sigset_t before_;
};

}  // namespace rota::sim
