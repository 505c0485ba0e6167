// The lock and the flags around the pairs of timing events.
#include "runtime/monitor/timing.h"

#include <catch2/catch.hpp>

using namespace rota;
using namespace rota::monitor;
using namespace std::chrono_literals;

namespace {

api::CUevent event_of(int number) {
  return reinterpret_cast<api::CUevent>(std::uintptr_t{0x1000} + static_cast<std::uintptr_t>(number) * 16);
}

}  // namespace

TEST_CASE("where nobody makes timing events, or nobody else uses the GPU, records need not be told of") {
  Timing timing;
  const auto never = [](api::CUevent) { return false; };
  timing.look({.shared = true}, 1s, never);
  CHECK_FALSE(Timing::has_events());
  CHECK_FALSE(Timing::matters());
  timing.made(event_of(0), false);
  CHECK_FALSE(Timing::has_events());
  timing.made(event_of(0), true);
  CHECK(Timing::matters());
  timing.look({}, 1s, never);
  CHECK(Timing::has_events());
  CHECK_FALSE(Timing::matters());
}

TEST_CASE("nothing is sampled between the events of a pair") {
  Timing timing;
  bool passed = false;
  const auto look = [&] {
    return timing.look({.shared = true, .runs = true}, 1s, [&](api::CUevent) { return passed; });
  };
  for (int i = 0; i < 2; ++i) timing.made(event_of(i), true);
  look();
  const Timing::Key stream{};
  REQUIRE(timing.place(event_of(0), stream, 1s) == Timing::Place::kOpens);
  REQUIRE(timing.open(event_of(0), stream, 1s) == Timing::Opens::kFirst);
  timing.recorded(event_of(0), stream, Timing::Place::kOpens, true, 1s);
  CHECK(timing.inside());
  timing.recorded(event_of(1), stream, Timing::Place::kCloses, true, 1s);
  CHECK_FALSE(timing.inside());
  CHECK(look().measures);
  CHECK_FALSE(timing.unless_measuring([] { FAIL("in the middle of a pair"); }));
  passed = true;
  look();
  bool ran = false;
  CHECK(timing.unless_measuring([&] { ran = true; }));
  CHECK(ran);
}
