// Which events the scheduler's core accepts, and which it ignores. How it decides is in tests/scenarios.
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
  CHECK(ignored(event::Measured{protocol::kMaxGpus, 0, std::nullopt}));
  CHECK(ignored(event::Unmeasured{protocol::kMaxGpus}));
}

TEST_CASE("a holder that shares memory or events is told when a client that does so, too, waits for it") {
  Core core({.mode = Mode::kExclusive});
  for (const ClientId id : {1, 2}) {
    core.step(event::Join{id}, 10s);
    core.step(event::AddGpu{id, 0, 1000, 10}, 10s);
  }
  const auto shares = [&](ClientId id) { core.step(event::Activity{.client = id, .shares = true}, 10s); };
  const auto want = [&](ClientId id) { core.step(event::Want{id, 1}, 10s); };
  const auto anybody = [](ClientId) { return true; };
  want(1);
  SECTION("both do") {
    shares(1);
    shares(2);
    CHECK_FALSE(core.sharer_waits(1, anybody));
    want(2);
    CHECK(core.sharer_waits(1, anybody));
    CHECK_FALSE(core.sharer_waits(2, anybody));
    CHECK_FALSE(core.sharer_waits(1, [](ClientId id) { return id != 2; }));
    core.step(event::GiveBack{1, core.client(1)->grant}, 10s);
    CHECK_FALSE(core.sharer_waits(1, anybody));
    CHECK_FALSE(core.sharer_waits(2, anybody));
  }
  SECTION("only the holder does") {
    shares(1);
    want(2);
    CHECK_FALSE(core.sharer_waits(1, anybody));
  }
  SECTION("only the one that waits does") {
    shares(2);
    want(2);
    CHECK_FALSE(core.sharer_waits(1, anybody));
  }
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
