#include "runtime/driver/freed.h"

#include <chrono>
#include <optional>
#include <thread>
#include <utility>

#include "generated/driver_real.h"

namespace rota::driver {

using namespace std::chrono_literals;

namespace {

// How long the driver's free memory may stay as it is until nobody is taken to be freeing any, and how long is waited
// where nothing is known of it: what leaves a GPU for the first time goes at some 5 GB/s. Both are judgement.
constexpr auto kNoProgress = 200ms;
constexpr auto kUnknown = 2s;

std::optional<std::size_t> free_now() {
  std::size_t free = 0;
  std::size_t total = 0;
  if (real::cuMemGetInfo_v2(&free, &total) != api::CUDA_SUCCESS) return std::nullopt;
  return free;
}

}  // namespace

bool retry_while_freed(const std::function<bool()>& again) {
  using Clock = std::chrono::steady_clock;
  std::optional<std::size_t> free = free_now();
  const auto patience = free ? kNoProgress : kUnknown;
  for (Clock::time_point grown = Clock::now(); Clock::now() - grown < patience;) {
    std::this_thread::sleep_for(1ms);
    if (again()) return true;
    if (!free) continue;
    const std::optional<std::size_t> now = free_now();
    if (std::exchange(free, now) < now) grown = Clock::now();
  }
  return false;
}

}  // namespace rota::driver
