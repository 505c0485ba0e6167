#include "runtime/driver/freed.h"

#include <chrono>
#include <thread>
#include <utility>

#include "generated/driver_real.h"

namespace rota::driver {

using namespace std::chrono_literals;

namespace {

// For a driver whose free memory does not change. A judgment.
constexpr auto kNoProgress = 200ms;

// 0 where no context is current to ask about.
std::size_t free_now() {
  std::size_t free = 0;
  std::size_t total = 0;
  return real::cuMemGetInfo_v2(&free, &total) == api::CUDA_SUCCESS ? free : 0;
}

}  // namespace

bool retry_while_freed(FunctionRef<bool()> again, FunctionRef<bool()> coming) {
  using Clock = std::chrono::steady_clock;
  std::size_t free = free_now();
  for (Clock::time_point last = Clock::now(); Clock::now() - last < kNoProgress;) {
    const bool more = coming();
    std::this_thread::sleep_for(1ms);
    if (again()) return true;
    const std::size_t now = free_now();
    if (std::exchange(free, now) < now || more) last = Clock::now();
  }
  return false;
}

}  // namespace rota::driver
