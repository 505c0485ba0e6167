// Waits for what has no event that a test could wait for.
#pragma once

#include <chrono>
#include <thread>

namespace rota::test {

// Calls `condition` repeatedly until it is true; returns false if it is still false after that time.
template <typename Condition>
bool eventually(Condition&& condition, std::chrono::nanoseconds patience = std::chrono::seconds(20)) {
  const auto until = std::chrono::steady_clock::now() + patience;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > until) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  return true;
}

}  // namespace rota::test
