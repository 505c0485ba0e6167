// What wakes the monitor: its own bell, rung by the program's threads, and the event word of the lease page, changed by
// rotad. It sleeps on both at once (futex_waitv, Linux 5.16); where that is missing it sleeps on the lease page and
// polls the bell 50 times a second.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace rota::client {

class Bell {
 public:
  std::uint32_t heard() const { return word_.load(std::memory_order_acquire); }
  void ring();
  // Returns when the bell has rung since `heard`, when `event` (may be null) is no longer `event_seen`, or after
  // `timeout`; may also return spuriously.
  void wait(std::uint32_t heard, std::atomic<std::uint32_t>* event, std::uint32_t event_seen,
            std::chrono::nanoseconds timeout);

 private:
  std::atomic<std::uint32_t> word_{0};
  bool both_ = true;
};

}  // namespace rota::client
