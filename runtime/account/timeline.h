// Writes the timeline of an account (format.h): steps of waiting and work that begin short and are merged in pairs when
// they run out, and the memory in use with the times of its changes, of which those are merged that matter least. So
// any length of run fits the same space.
#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>
#include <new>

#include "runtime/account/format.h"

namespace rota::account {

class Timeline {
 public:
  // The first steps' length: a test of a second has a hundred of them.
  static constexpr std::uint64_t kFirstStepNs = 10'000'000;

  static void begin(Header& header) { header.timeline_step_ns.store(kFirstStepNs); }
  // In the child of a fork: another thread may have held the lock.
  void forget() { new (&mutex_) std::mutex; }

  // At this moment (CLOCK_MONOTONIC) the process has so much on all GPUs together.
  void used(Header& header, std::int64_t now_ns, std::uint64_t bytes);
  // So much time has passed like this up to this moment.
  void waited(Header& header, std::int64_t now_ns, std::chrono::nanoseconds time);
  void busy(Header& header, std::int64_t now_ns, std::chrono::nanoseconds time);

 private:
  static Step& at(Header& header, std::int64_t now_ns);
  static void spread(Header& header, std::int64_t now_ns, std::chrono::nanoseconds time,
                     std::atomic<std::uint32_t> Step::* field);

  std::mutex mutex_;
};

}  // namespace rota::account
