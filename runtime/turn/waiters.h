// Threads that wait for something that changes under a mutex, as with a condition variable, and that learn if a signal
// handler has run in them: a condition variable continues to wait and does not report it.
//
// Each waits on its own semaphore in sem_timedwait: a futex wait that a handler interrupts, even one with SA_RESTART,
// since the kernel does not restart a wait with a time limit; and it is a cancellation point.
#pragma once

#include <semaphore.h>

#include <chrono>
#include <mutex>

namespace rota::gate {

// Sleeps for so long, unless a signal handler runs in this thread: returns whether one has. No cancellation point.
bool interrupted_sleep(std::chrono::nanoseconds time);

class Waiters {
 public:
  // Under the mutex: all threads check again.
  void wake_all() {
    for (Waiter* waiter = first_; waiter != nullptr; waiter = waiter->next_) sem_post(&waiter->semaphore_);
  }

  // Returns true once `done`, which is called under the mutex, or false at the time limit. `interrupted` is called,
  // also under the mutex, whenever a handler has run in this thread before that. `lock` holds the mutex.
  template <typename Done, typename Interrupted>
  bool wait(std::unique_lock<std::mutex>& lock, std::chrono::steady_clock::time_point until, const Done& done,
            const Interrupted& interrupted) {
    Waiter own(*this, lock);
    while (!done()) {
      const auto now = std::chrono::steady_clock::now();
      if (now >= until) return false;
      if (own.sleep(until - now) && !done()) interrupted();
    }
    return true;
  }

 private:
  class Waiter {
   public:
    Waiter(Waiters& all, std::unique_lock<std::mutex>& lock);
    ~Waiter();  // also if the thread is cancelled
    Waiter(const Waiter&) = delete;
    Waiter& operator=(const Waiter&) = delete;
    // Waits until woken, at most this long. True: a handler has run.
    bool sleep(std::chrono::nanoseconds most);

   private:
    friend class Waiters;
    Waiters& all_;
    std::unique_lock<std::mutex>& lock_;
    sem_t semaphore_;
    Waiter* previous_ = nullptr;
    Waiter* next_ = nullptr;
  };

  Waiter* first_ = nullptr;
};

}  // namespace rota::gate
