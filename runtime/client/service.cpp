#include "runtime/client/service.h"

namespace rota::client {

using namespace std::chrono_literals;

namespace {

// A little more than rotad takes to refuse a GPU that it has to ask another rotad for (scheduler/core/claims.h).
// Without an answer by then the process has native memory there until there is one.
constexpr auto kAnswersWithin = 2500ms;
// How often a waiting thread checks whether it is time to log that.
constexpr auto kBetweenLines = 200ms;

}  // namespace

void Service::set(int device, Known known) {
  {
    const std::lock_guard lock(mutex_);
    known_[static_cast<std::size_t>(device)].store(known, std::memory_order_release);
  }
  changed_.notify_all();
}

void Service::serves(int device) {
  was_served_.store(true, std::memory_order_release);
  set(device, Known::kServed);
}

void Service::refuses(int device, const std::string& why) {
  set_reason(why);
  set(device, Known::kRefused);
}

void Service::nobody_answers() {
  {
    const std::lock_guard lock(mutex_);
    for (auto& known : known_) {
      Known nothing = Known::kNothing;
      known.compare_exchange_strong(nothing, Known::kRefused);
    }
  }
  changed_.notify_all();
}

void Service::give_up() {
  {
    const std::lock_guard lock(mutex_);
    given_up_.store(true, std::memory_order_release);
  }
  changed_.notify_all();
}

void Service::set_reason(const std::string& why) {
  const std::lock_guard lock(mutex_);
  reason_ = why;
}

std::string Service::reason() const {
  const std::lock_guard lock(mutex_);
  return reason_;
}

bool Service::is_known(int device) const {
  const Known known = known_[static_cast<std::size_t>(device)].load(std::memory_order_acquire);
  return known == Known::kServed || given_up_.load(std::memory_order_acquire) || (known == Known::kRefused && !waits());
}

void Service::wait_until_known(int device, Waiting& waiting) {
  if (is_known(device)) return;
  const auto begun = std::chrono::steady_clock::now();
  std::unique_lock lock(mutex_);
  if (!waits()) {
    if (changed_.wait_for(lock, kAnswersWithin, [&] { return is_known(device); })) return;
    // Later allocations do not wait again.
    Known nothing = Known::kNothing;
    known_[static_cast<std::size_t>(device)].compare_exchange_strong(nothing, Known::kRefused);
    return;
  }
  while (!changed_.wait_for(lock, kBetweenLines, [&] { return is_known(device); })) {
    lock.unlock();
    waiting.stands(std::chrono::steady_clock::now() - begun);
    lock.lock();
  }
}

}  // namespace rota::client
