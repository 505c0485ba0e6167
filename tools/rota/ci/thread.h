// Threads in addition to the one that waits for the job.
#pragma once

#include <pthread.h>
#include <signal.h>

#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "scheduler/base/result.h"

namespace rota::ci {

// Starts a thread that takes no signals: the main thread waits for them and passes them on to the job. The error says
// that the system allows no more threads, but not what the thread was for.
template <typename Work>
Result<std::thread> without_signals(Work work) {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  Result<std::thread> started = Error{""};
  try {
    started = std::thread(std::move(work));
  } catch (const std::system_error& error) {
    started = Error{"cannot start a thread: " + error.code().message()};
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return started;
}

}  // namespace rota::ci
