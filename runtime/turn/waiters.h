// Threads that wait for something that changes under a mutex, as at a condition variable, and that learn if a signal
// handler has run in them meanwhile: a condition variable goes on waiting then and says nothing of it.
//
// Each waits at a semaphore of its own, in sem_timedwait: that is a futex which a handler interrupts, one with
// SA_RESTART as well, since the kernel starts no wait again that has a time limit; and it is where a thread can be
// cancelled.
#pragma once

#include <semaphore.h>

#include <chrono>
#include <mutex>

namespace rota::gate {

class Waiters {
 public:
  // Under the mutex: everybody looks again.
  void wake_all() {
    for (Waiter* waiter = first_; waiter != nullptr; waiter = waiter->next_) sem_post(&waiter->semaphore_);
  }

  // Returns once `done`, which is asked under the mutex, or when it is time: false. `interrupted` is called, under the
  // mutex too, after each time that a handler has run in this thread before that. `lock` holds the mutex.
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
    ~Waiter();  // also where the thread is cancelled
    Waiter(const Waiter&) = delete;
    Waiter& operator=(const Waiter&) = delete;
    // Until woken, for so long at most. True: a handler has run.
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
