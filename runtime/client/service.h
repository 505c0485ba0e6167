// Whether a rotad serves this process on each GPU: what serves an allocation depends on it, so a thread that allocates
// waits a moment for rotad's answer rather than guess. With ROTA_WAIT=1 it waits until a rotad serves the GPU.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>

#include "runtime/client/waiting.h"
#include "runtime/core/devices.h"

namespace rota::client {

class Service {
 public:
  // `waits_for_rotad`: ROTA_WAIT=1.
  explicit Service(bool waits_for_rotad) : waits_for_rotad_(waits_for_rotad) {}

  // --- the monitor's thread
  void serves(int device);
  // For now; `why` is rotad's reason.
  void refuses(int device, const std::string& why);
  // There is no rotad (any more) that could answer: threads that wait for an answer go on.
  void nobody_answers();
  // No thread waits from now on: the process ends, or runs without a rotad from now on.
  void give_up();

  // --- any thread
  // Whether this process is to wait for a rotad and none has served it so far.
  bool waits() const { return waits_for_rotad_ && !was_served_.load(std::memory_order_acquire); }
  bool waits_for_rotad() const { return waits_for_rotad_; }
  // Why the process waits, for the user; empty: there is no reason yet.
  void set_reason(const std::string& why);
  std::string reason() const;
  // Returns once rotad has said whether it serves the process there. `waiting` says so if that takes long.
  void wait_until_known(int device, Waiting& waiting);

 private:
  enum class Known : std::uint8_t { kNothing, kServed, kRefused };
  void set(int device, Known known);
  bool is_known(int device) const;

  const bool waits_for_rotad_;
  std::atomic<bool> was_served_{false};
  std::atomic<bool> given_up_{false};
  std::array<std::atomic<Known>, kMaxDevices> known_{};
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::string reason_;  // under the lock
};

}  // namespace rota::client
