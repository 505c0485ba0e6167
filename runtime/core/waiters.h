// Threads that wait for something that changes under a mutex, as with a condition variable, and that learn if a signal
// handler has run in them: a condition variable continues to wait and does not report it.
//
// A thread may never come back from its wait: a handler that runs there may leave it by siglongjmp, or go on elsewhere.
// So nothing of a wait lies on that thread's stack for others to find: all threads sleep on one futex word, and a count
// says how many there are. A woken thread counts until it continues, but only for kWakes: a thread that has left by
// such a jump is forgotten with the first wake and after that time.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>

#include "runtime/core/held_signals.h"

namespace rota {

// Sleeps for so long, unless a signal handler runs in this thread: returns whether one has. No cancellation point.
// `mask`: the thread's signal mask meanwhile; null: as it is.
bool interrupted_sleep(std::chrono::nanoseconds time, const sigset_t* mask = nullptr);

class Waiters {
 public:
  // How long a thread that has been woken counts as about to continue. Longer than the busiest machine leaves a thread
  // without a CPU; a judgment.
  static constexpr std::chrono::seconds kWakes{10};

  // A thread among those that wait, for as long as this lives. Its signals are held, except while it sleeps.
  class Place {
   public:
    Place(Waiters& all, std::mutex& mutex);
    ~Place();  // also if the thread is cancelled
    Place(const Place&) = delete;
    Place& operator=(const Place&) = delete;
    const HeldSignals& signals() const { return signals_; }
    // Under the mutex: this thread continues to wait, although all were woken.
    void count_again();

   private:
    HeldSignals signals_;
    Waiters& all_;
    std::mutex& mutex_;
    std::uint32_t wake_ = 0;  // the last one before this thread was counted
  };

  // Under the mutex: all threads check again.
  void wake_all();
  // Threads that wait, or have been woken and are about to continue. Needs no mutex.
  std::uint32_t count() const;

  // Returns true once `done`, which is called under the mutex, or false at the time limit. `interrupted` is called,
  // also under the mutex, whenever a handler has run in this thread before that. `lock` holds the mutex.
  template <typename Done, typename Interrupted>
  bool wait(Place& place, std::unique_lock<std::mutex>& lock, std::chrono::steady_clock::time_point until,
            const Done& done, const Interrupted& interrupted) {
    // Counted before the check: a thread that changes something need not wake anybody if no thread waits.
    while (place.count_again(), !done()) {
      const auto now = std::chrono::steady_clock::now();
      if (now >= until) return false;
      if (sleep(place.signals(), lock, until - now) && !done()) interrupted();
    }
    return true;
  }

 private:
  // Waits until woken, at most this long; may wake for nothing. True: a handler has run.
  bool sleep(const HeldSignals& signals, std::unique_lock<std::mutex>& lock, std::chrono::nanoseconds most);

  // Changed under the mutex.
  std::atomic<std::uint32_t> wakes_{0};  // how often all were woken; what they sleep on
  std::atomic<std::uint32_t> waiting_{0};
  std::atomic<std::uint32_t> woken_{0};
  std::atomic<std::chrono::steady_clock::time_point> woken_until_{};
};

}  // namespace rota
