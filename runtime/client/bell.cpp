#include "runtime/client/bell.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace rota::client {

namespace {

// <linux/futex.h> of older distributions does not have them; the numbers are the kernel's interface.
constexpr long kFutexWaitv = 449;
constexpr std::uint32_t kFutex32 = 2;
constexpr std::uint32_t kFutexPrivate = 128;
struct Waiter {
  std::uint64_t value;
  std::uint64_t address;
  std::uint32_t flags;
  std::uint32_t reserved;
};

constexpr std::chrono::nanoseconds kLook = std::chrono::milliseconds(20);

std::uint32_t* address(std::atomic<std::uint32_t>& word) {
  return reinterpret_cast<std::uint32_t*>(&word);
}

timespec to_timespec(std::chrono::nanoseconds time) {
  return {.tv_sec = static_cast<time_t>(time.count() / 1'000'000'000),
          .tv_nsec = static_cast<long>(time.count() % 1'000'000'000)};
}

void wait_for_one(std::atomic<std::uint32_t>& word, std::uint32_t seen, int operation, std::chrono::nanoseconds time) {
  const timespec limit = to_timespec(time);
  syscall(SYS_futex, address(word), operation, seen, &limit, nullptr, 0);
}

}  // namespace

void Bell::ring() {
  word_.fetch_add(1, std::memory_order_release);
  syscall(SYS_futex, address(word_), FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
}

void Bell::wait(std::uint32_t heard, std::atomic<std::uint32_t>* event, std::uint32_t event_seen,
                std::chrono::nanoseconds timeout) {
  if (timeout <= std::chrono::nanoseconds::zero()) return;
  if (event == nullptr) {
    wait_for_one(word_, heard, FUTEX_WAIT_PRIVATE, timeout);
    return;
  }
  if (both_) {
    Waiter waiters[2] = {
        {heard, reinterpret_cast<std::uintptr_t>(&word_), kFutex32 | kFutexPrivate, 0},
        {event_seen, reinterpret_cast<std::uintptr_t>(event), kFutex32, 0},
    };
    timespec until{};
    clock_gettime(CLOCK_MONOTONIC, &until);
    until = to_timespec(std::chrono::seconds(until.tv_sec) + std::chrono::nanoseconds(until.tv_nsec) + timeout);
    if (syscall(kFutexWaitv, waiters, 2, 0, &until, CLOCK_MONOTONIC) >= 0) return;
    if (errno == EAGAIN || errno == EINTR || errno == ETIMEDOUT) return;
    both_ = false;
  }
  if (word_.load(std::memory_order_acquire) != heard) return;
  wait_for_one(*event, event_seen, FUTEX_WAIT, std::min(timeout, kLook));
}

}  // namespace rota::client
