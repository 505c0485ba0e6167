// The real clock, and which clock the process has.
#include "tools/simgpu/state/clock.h"

#include <errno.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <utility>
#include <vector>

namespace rota::sim {
namespace {

class RealClock : public Clock {
 public:
  RealClock(double scale, int64_t epoch) : scale_(scale), epoch_(epoch) {}

  int64_t now() override {
    auto real = static_cast<double>(monotonic_nanoseconds() - epoch_);
    return static_cast<int64_t>(scale_ > 0 ? real / scale_ : real);
  }

  void sleep_until(int64_t when) override {
    if (scale_ == 0) return;
    int64_t real = epoch_ + static_cast<int64_t>(static_cast<double>(when) * scale_);
    timespec until{};
    until.tv_sec = real / 1'000'000'000;
    until.tv_nsec = real % 1'000'000'000;
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, nullptr) == EINTR) {
    }
  }

  void wait(const std::function<bool()>& predicate) override {
    if (predicate()) return;
    int64_t pause = 20'000;
    do {
      timespec between{0, pause};
      clock_nanosleep(CLOCK_MONOTONIC, 0, &between, nullptr);
      pause = std::min<int64_t>(pause * 3 / 2, 1'000'000);
    } while (!predicate());
    catch_up_timeline();
  }

  int64_t jitter() const override { return scale_ > 0 ? 1000 + static_cast<int64_t>(150'000 / scale_) : 1000; }

 private:
  const double scale_;
  const int64_t epoch_;
};

// The clock of a process without a simulated machine.
Clock* plain_clock() {
  static Clock* plain = make_real_clock(1, 0).release();
  return plain;
}

std::atomic<Clock*>& current() {
  static std::atomic<Clock*> clock{plain_clock()};
  return clock;
}

}  // namespace

int64_t monotonic_nanoseconds() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

std::unique_ptr<Clock> make_real_clock(double scale, int64_t epoch) {
  return std::make_unique<RealClock>(scale, epoch);
}

Clock& process_clock() {
  return *current().load(std::memory_order_acquire);
}

// The previous clock is not destroyed: a thread may be inside it. All stay reachable, so a leak checker reports none.
void set_process_clock(std::unique_ptr<Clock> clock) {
  static auto* mutex = new std::mutex;
  static auto* kept = new std::vector<std::unique_ptr<Clock>>;
  std::lock_guard lock(*mutex);
  kept->push_back(std::move(clock));
  current().store(kept->back().get(), std::memory_order_release);
}

void forget_process_clock() {
  current().store(plain_clock(), std::memory_order_release);
}

int64_t& thread_timeline() {
  thread_local int64_t time = 0;
  return time;
}

void catch_up_timeline() {
  int64_t& time = thread_timeline();
  if (time != 0) time = std::max(time, process_clock().now());
}

}  // namespace rota::sim
