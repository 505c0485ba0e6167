#include "runtime/monitor/timing.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <climits>

#include "runtime/core/counted.h"

namespace rota::monitor {

namespace {

std::uint32_t* futex_of(std::atomic<std::uint32_t>& word) {
  return reinterpret_cast<std::uint32_t*>(&word);
}

}  // namespace

constinit std::atomic<bool> Timing::has_events_{false};
constinit std::atomic<bool> Timing::matters_{false};

Timing::Timing() {
  has_events_.store(false);
  matters_.store(false);
}

Timing::~Timing() {
  has_events_.store(false);
  matters_.store(false);
}

// What is read without the lock.
void Timing::publish() {
  open_pairs_.store(pairs_.open_pairs(), std::memory_order_release);
  has_events_.store(pairs_.has_events(), std::memory_order_relaxed);
  matters_.store(pairs_.matter(), std::memory_order_relaxed);
}

template <typename Change>
auto Timing::change(const Change& change) {
  const std::lock_guard lock(mutex_);
  if constexpr (std::is_void_v<decltype(change())>) {
    change();
    publish();
  } else {
    const auto result = change();
    publish();
    return result;
  }
}

void Timing::made(api::CUevent event, bool timing) {
  change([&] { pairs_.made(event, timing); });
}

void Timing::ended(api::CUevent event) {
  change([&] { pairs_.ended(event); });
}

void Timing::read(api::CUevent first, api::CUevent second, turn::Time took, turn::Time now) {
  change([&] { pairs_.read(first, second, took, now); });
}

bool Timing::has_time(api::CUevent event) const {
  const std::lock_guard lock(mutex_);
  return pairs_.has_time(event);
}

Timing::Place Timing::place(api::CUevent event, const Key& stream, turn::Time now) const {
  const std::lock_guard lock(mutex_);
  return pairs_.place(event, stream, now);
}

Timing::Opens Timing::open(api::CUevent event, const Key& stream, turn::Time now) {
  return change([&] { return pairs_.open(event, stream, now); });
}

void Timing::recorded(api::CUevent event, const Key& stream, Place place, bool done, turn::Time now) {
  change([&] { pairs_.recorded(event, stream, place, done, now); });
}

void Timing::forget(api::CUevent event) {
  change([&] { pairs_.forget(event); });
}

void Timing::context_ended() {
  change([&] { pairs_.context_ended(); });
}

bool Timing::in_flight() const {
  const std::lock_guard lock(mutex_);
  return pairs_.in_flight();
}

void Timing::wait(std::uint32_t seen) {
  const Counted waiting(waiting_);
  const timespec limit{.tv_sec = 0, .tv_nsec = 10'000'000};
  syscall(SYS_futex, futex_of(changes_), FUTEX_WAIT_PRIVATE, seen, &limit, nullptr, 0);
}

void Timing::wake() {
  changes_.fetch_add(1, std::memory_order_release);
  if (waiting_.load() != 0) {
    syscall(SYS_futex, futex_of(changes_), FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
  }
}

}  // namespace rota::monitor
