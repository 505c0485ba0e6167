// Threads of rota's in the program's process.
#pragma once

#include <pthread.h>
#include <signal.h>

namespace rota {

// pthread_create() for a thread that runs none of the program's signal handlers: all signals are blocked in it.
inline int create_own_thread(pthread_t* thread, void* (*run)(void*), void* argument) {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  const int error = pthread_create(thread, nullptr, run, argument);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return error;
}

}  // namespace rota
