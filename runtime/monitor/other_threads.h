// Whether a process may yet free memory although each of its threads that has used a GPU waits for some: another thread
// runs, which may use one next. What sleeps cannot be foreseen. Linux only; where /proc is missing nothing
// runs, and what cannot be read otherwise counts as running.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <mutex>

namespace rota::monitor {

class OtherThreads {
 public:
  using Clock = std::chrono::steady_clock;
  // This many samples in a row have to show that all others sleep. kBetween lies between two of them, or more where a
  // sample takes more than a twentieth of that, in a process with very many threads. Judgments.
  static constexpr int kSamples = 8;
  static constexpr std::chrono::milliseconds kBetween{20};

  // The calling thread waits; end() may be called by another one. `number`: of the wait.
  void begin(std::uint32_t number);
  void end(std::uint32_t number);
  // Whether all others have slept for a while. Takes a sample if one is due: to be called again and again while any
  // thread waits. Any thread.
  bool sleep();

 private:
  bool any_runs() const;

  std::mutex mutex_;
  std::map<std::uint32_t, pid_t> waiting_;
  Clock::time_point next_{};
  std::atomic<int> asleep_{0};  // samples in a row
};

}  // namespace rota::monitor
