// The core's time if a simulated GPU's time is stretched.
#include "scheduler/server/modelled_time.h"

#include <catch2/catch.hpp>

using namespace std::chrono_literals;
using rota::server::ModelledTime;

TEST_CASE("a stretched second of the core takes as many real seconds as the scale says") {
  for (const double scale : {0.001, 0.5, 1.0, 3.0, 50.0, 1e6}) {
    const std::chrono::nanoseconds start = 90h;
    const ModelledTime time(scale, start);
    CHECK(time.modelled(start) == start);
    const auto real = std::chrono::nanoseconds(static_cast<long>(100e6 * scale));
    CHECK(std::abs((time.modelled(start + real) - start - 100ms).count()) <= 1);
    CHECK(std::abs((time.real(start + 100ms) - start - real).count()) <= 1e3 + scale + 1);
  }
}

TEST_CASE("a timer set for a time of the core never goes off before it") {
  for (const double scale : {0.001, 0.37, 1.0, 7.3, 1e6}) {
    const ModelledTime time(scale, 1234567h);
    for (long step = 1; step < 1'000'000'000; step = step * 7 + 3) {
      const std::chrono::nanoseconds at = 1234567h + std::chrono::nanoseconds(step);
      CHECK(time.modelled(time.real(at)) >= at);
    }
  }
}

TEST_CASE("only a scale that simgpu takes too stretches time") {
  CHECK(ModelledTime::scale_of("50") == 50);
  CHECK(ModelledTime::scale_of("0.5") == 0.5);
  for (const char* text : {"", "0", "-1", "nan", "fast", "2x", "1e9"}) CHECK(ModelledTime::scale_of(text) == 1);
  CHECK(ModelledTime::scale_of(nullptr) == 1);
}
