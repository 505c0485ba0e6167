// What the scheduler's core takes, and what it ignores. How it decides, tests/scenarios tell.
#include "scheduler/core/core.h"

#include <catch2/catch.hpp>

namespace rota::scheduler {
namespace {

using namespace std::chrono_literals;

TEST_CASE("a context of unknown cost is taken for 500 MiB, in proportion on a small GPU") {
  CHECK(assumed_context(Bytes{141} << 30) == Bytes{500} << 20);
  CHECK(assumed_context(Bytes{1} << 30) == Bytes{64} << 20);
}

TEST_CASE("events about unknown clients, GPUs and grants are ignored") {
  Core core({.mode = Mode::kExclusive});
  const auto ignored = [&](const Event& event) { return core.step(event, 10s).empty(); };
  CHECK(ignored(event::Want{7, 1}));
  CHECK(ignored(event::GiveBack{7, 1}));
  CHECK(ignored(event::AddGpu{7, 0, 1, 1}));
  CHECK(ignored(event::Join{1}));
  CHECK(ignored(event::AddGpu{1, 0, 1000, 10}));
  CHECK(ignored(event::AddGpu{1, 64, 1, 1}));
  CHECK(ignored(event::Usage{1, 9, 1}));
  CHECK(ignored(event::GiveBack{1, 0}));
  REQUIRE_FALSE(ignored(event::Want{1, 1}));
  CHECK(ignored(event::GiveBack{1, 0}));
  CHECK(core.client(1)->held == 1);
}

TEST_CASE("modes and durations are read strictly") {
  CHECK(parse_mode("exclusive") == Mode::kExclusive);
  CHECK_FALSE(parse_mode("Exclusive"));
  CHECK(parse_duration("100ms") == 100ms);
  CHECK(parse_duration("2s") == 2s);
  CHECK(parse_duration("1.5s") == 1500ms);
  CHECK(parse_duration("1m") == 60s);
  for (const char* bad : {"", "0ms", "-1s", "5", "s", "1h2", "1e3s", "nans", "infs", "99999999m", "1 s", "0.1ns"}) {
    INFO(bad);
    CHECK_FALSE(parse_duration(bad));
  }
}

}  // namespace
}  // namespace rota::scheduler
