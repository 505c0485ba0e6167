// Whether other threads of the process run (runtime/monitor/other_threads.h).
#include "runtime/monitor/other_threads.h"

#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <thread>

namespace {

using namespace std::chrono_literals;
using rota::monitor::OtherThreads;

bool is_ever(OtherThreads& others, bool asleep, std::chrono::seconds within) {
  const auto until = std::chrono::steady_clock::now() + within;
  while (std::chrono::steady_clock::now() < until) {
    if (others.sleep() == asleep) return true;
    std::this_thread::sleep_for(1ms);
  }
  return false;
}

// Computes until it is destroyed; a wait of this number, or 0.
class Computes {
 public:
  Computes(OtherThreads& others, std::uint32_t wait)
      : thread_([this, &others, wait] {
          if (wait != 0) others.begin(wait);
          begun_ = true;
          while (!ends_) {
          }
        }) {
    while (!begun_) std::this_thread::yield();
  }
  ~Computes() {
    ends_ = true;
    thread_.join();
  }

 private:
  std::atomic<bool> begun_{false};
  std::atomic<bool> ends_{false};
  std::thread thread_;
};

}  // namespace

TEST_CASE("other threads sleep once none but those that wait has been seen running for a while") {
  OtherThreads others;
  others.begin(1);
  CHECK_FALSE(others.sleep());
  {
    const Computes computes(others, 0);
    CHECK_FALSE(is_ever(others, true, 1s));
  }
  CHECK(is_ever(others, true, 30s));
  SECTION("one that begins to run is seen") {
    const Computes computes(others, 0);
    CHECK(is_ever(others, false, 30s));
  }
  SECTION("one that waits may run") {
    const Computes computes(others, 2);
    CHECK_FALSE(is_ever(others, false, 1s));
    others.end(2);
    CHECK(is_ever(others, false, 30s));
  }
}
