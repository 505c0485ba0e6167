// Threads of rota's in the program's process.
#pragma once

#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cstdint>

#include "scheduler/base/descriptor.h"

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

inline void ring(const Descriptor& bell) {
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t rung = write(bell.get(), &one, sizeof one);
}

// Creates `bell`, an eventfd, and a detached thread, which polls it; does nothing if there is a bell already. False:
// one of them could not be created, and there is neither.
inline bool create_own_thread(Descriptor& bell, void* (*run)(void*), void* argument) {
  if (bell) return true;
  bell = Descriptor(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  pthread_t thread{};
  if (bell && create_own_thread(&thread, run, argument) == 0) {
    pthread_detach(thread);
    return true;
  }
  bell = Descriptor();
  return false;
}

}  // namespace rota
