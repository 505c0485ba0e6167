#include "runtime/core/waiters.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>

namespace rota {

namespace {

// A thread that is cancelled while it sleeps ends after so long, where the C library sends it no signal for that (glibc
// before 2.34). The sleep itself is no cancellation point: those let a thread be cancelled at any instruction, and a
// handler that jumps out of one would leave it so.
constexpr std::chrono::nanoseconds kLongest = std::chrono::milliseconds(250);

timespec in_seconds(std::chrono::nanoseconds time) {
  return {.tv_sec = static_cast<time_t>(time / std::chrono::seconds(1)),
          .tv_nsec = static_cast<long>((time % std::chrono::seconds(1)).count())};
}

std::uint32_t* futex_of(std::atomic<std::uint32_t>& word) {
  static_assert(sizeof word == sizeof(std::uint32_t));
  return reinterpret_cast<std::uint32_t*>(&word);
}

}  // namespace

// A system call of its own: the libraries' functions sleep on, or are cancellation points.
bool interrupted_sleep(std::chrono::nanoseconds time, const sigset_t* mask) {
  constexpr std::size_t kMaskBytes = 8;  // the kernel's
  const int error = errno;               // the program's
  timespec wait = in_seconds(time);      // written to
  const bool interrupted = syscall(SYS_ppoll, nullptr, 0, &wait, mask, kMaskBytes) != 0 && errno == EINTR;
  errno = error;
  return interrupted;
}

Waiters::Place::Place(Waiters& all, std::mutex& mutex) : all_(all), mutex_(mutex) {
  const std::lock_guard lock(mutex_);
  wake_ = all_.wakes_.load();
  all_.waiting_.fetch_add(1);
}

Waiters::Place::~Place() {
  const std::lock_guard lock(mutex_);
  if (wake_ == all_.wakes_.load()) {
    all_.waiting_.fetch_sub(1);
  } else if (all_.woken_.load() != 0) {
    all_.woken_.fetch_sub(1);
  }
}

void Waiters::Place::count_again() {
  if (wake_ == all_.wakes_.load()) return;
  wake_ = all_.wakes_.load();
  all_.waiting_.fetch_add(1);
  if (all_.woken_.load() != 0) all_.woken_.fetch_sub(1);
}

void Waiters::wake_all() {
  const auto now = std::chrono::steady_clock::now();
  const std::uint32_t waiting = waiting_.load();
  const std::uint32_t late = now < woken_until_.load() ? woken_.load() : 0;
  woken_.store(late + waiting);
  if (waiting != 0) woken_until_.store(now + kWakes);
  waiting_.store(0);
  wakes_.fetch_add(1);
  if (late + waiting != 0) syscall(SYS_futex, futex_of(wakes_), FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

std::uint32_t Waiters::count() const {
  // In this order: a thread that is being woken is counted twice rather than not at all.
  const std::uint32_t waiting = waiting_.load();
  const std::uint32_t woken = woken_.load();
  return waiting + (woken != 0 && std::chrono::steady_clock::now() < woken_until_.load() ? woken : 0);
}

bool Waiters::sleep(const HeldSignals& signals, std::unique_lock<std::mutex>& lock, std::chrono::nanoseconds most) {
  const std::uint32_t seen = wakes_.load();
  lock.unlock();
  // Signals that have come meanwhile.
  bool interrupted = interrupted_sleep(std::chrono::nanoseconds{0}, &signals.programs());
  if (!interrupted) {
    const int error = errno;  // the program's
    const timespec limit = in_seconds(std::min(most, kLongest));
    signals.let_in();
    // A handler that the program has installed interrupts a wait with a time limit, even one with SA_RESTART.
    interrupted =
        syscall(SYS_futex, futex_of(wakes_), FUTEX_WAIT_PRIVATE, seen, &limit, nullptr, 0) != 0 && errno == EINTR;
    signals.hold_again();
    errno = error;
  }
  pthread_testcancel();
  lock.lock();
  return interrupted;
}

}  // namespace rota
