// Threads beside the one that waits for the job.
#pragma once

#include <pthread.h>
#include <signal.h>

#include <thread>
#include <utility>

namespace rota::ci {

// Starts a thread that takes no signals: the main thread waits for them, and passes them on to the job.
template <typename Work>
std::thread without_signals(Work work) {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread thread(std::move(work));
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return thread;
}

}  // namespace rota::ci
