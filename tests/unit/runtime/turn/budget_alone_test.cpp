// The budget by itself, where the test is the monitor and rotad.
#include <atomic>
#include <catch2/catch.hpp>
#include <thread>

#include "runtime/turn/budget.h"
#include "tests/unit/runtime/eventually.h"
#include "tests/unit/runtime/fake_driver.h"

using namespace rota;
using namespace std::chrono_literals;

namespace {

constexpr std::uint64_t kMega = 1 << 20;

}  // namespace

TEST_CASE("what stays and what extents take are asked for each by itself, though all that is asked for is covered") {
  test::FakeDriver driver;
  memory::Ledger ledger;
  turn::Bell bell;
  turn::Budget budget(ledger, bell);
  std::atomic<std::uint64_t> extents{0};
  budget.set_program({.extents = [&](int) { return extents.load(); }, .may_wait = {}});
  budget.serve(true);
  budget.limit(0);
  const auto becomes_asked = [&] {
    std::optional<turn::Budget::Ask> ask;
    const auto until = std::chrono::steady_clock::now() + 20s;
    while (!(ask = budget.take_ask(0)) && std::chrono::steady_clock::now() < until) std::this_thread::yield();
    REQUIRE(ask);
    return *ask;
  };
  const auto answer = [&](const turn::Budget::Ask& ask, bool granted, const turn::Budget::Bytes& bytes) {
    budget.answer(0, {.gpu = 0,
                      .number = ask.number,
                      .device_bytes = bytes.device,
                      .movable_bytes = bytes.movable,
                      .granted = granted ? 1U : 0U,
                      .text = {},
                      .padding = 0,
                      .fixed_bytes = bytes.fixed,
                      .swapped_bytes = bytes.swapped});
  };
  bool covered = false;
  const auto covers = [&](std::uint64_t bytes, memory::Kind kind) {
    REQUIRE(ledger.reserve(0, bytes, kind));
    covered = budget.may_take(0, bytes, kind);
  };
  std::thread first([&] { covers(2 * kMega, memory::Kind::kConverted); });
  answer(becomes_asked(), true, {100 * kMega, 100 * kMega, 0, 0});
  first.join();
  CHECK(covered);
  // The total and the movable part are far within the grant.
  std::thread second([&] { covers(3 * kMega, memory::Kind::kPhysical); });
  const turn::Budget::Ask stays = becomes_asked();
  CHECK(stays.bytes.device == 5 * kMega);
  CHECK(stays.bytes.movable == 2 * kMega);
  CHECK(stays.bytes.fixed == 3 * kMega);
  CHECK(stays.bytes.swapped == 0);
  answer(stays, false, {100 * kMega, 100 * kMega, 0, 0});
  second.join();
  CHECK_FALSE(covered);
  CHECK(ledger.fixed_bytes(0) == 0);
  CHECK(ledger.live_bytes(0) == 2 * kMega);
  const auto more_extents = [&](std::uint64_t bytes) {
    extents += bytes;
    covered = budget.may_take_extents(0, bytes, 0, [&, bytes] { extents -= bytes; });
  };
  std::thread third([&] { more_extents(4 * kMega); });
  const turn::Budget::Ask takes = becomes_asked();
  CHECK(takes.bytes.swapped == 4 * kMega);
  CHECK(takes.bytes.device == 2 * kMega);
  answer(takes, true, {100 * kMega, 100 * kMega, 0, 6 * kMega});
  third.join();
  CHECK(covered);
  more_extents(2 * kMega);  // within the grant: nothing is asked
  CHECK(covered);
  std::thread fourth([&] { more_extents(kMega); });
  answer(becomes_asked(), false, {100 * kMega, 100 * kMega, 0, 6 * kMega});
  fourth.join();
  CHECK_FALSE(covered);
  CHECK(extents == 6 * kMega);
  // What is not needed is returned, of each kind.
  extents = kMega;
  const turn::Budget::Has has = budget.tighten(0);
  CHECK(has.bytes.swapped == kMega);
  CHECK(has.bytes.fixed == 0);
  CHECK(has.bytes.movable == 2 * kMega);
}

TEST_CASE("an allocation that needs an extent asks once for both") {
  memory::Ledger ledger;
  turn::Bell bell;
  turn::Budget budget(ledger, bell);
  std::atomic<std::uint64_t> extents{0};
  budget.set_program({.extents = [&](int) { return extents.load(); }, .may_wait = {}});
  budget.serve(true);
  budget.limit(0);
  std::atomic<bool> covered{false};
  std::thread thread([&] {
    extents = 4 * kMega;
    covered = budget.may_take_extents(0, 4 * kMega, 3 * kMega, [&] { extents = 0; });
    if (!covered) return;
    REQUIRE(ledger.reserve(0, 3 * kMega, memory::Kind::kConverted));
    covered = budget.may_take(0, 3 * kMega, memory::Kind::kConverted);
  });
  std::optional<turn::Budget::Ask> ask;
  CHECK(test::eventually([&] { return (ask = budget.take_ask(0)).has_value(); }));
  REQUIRE(ask);
  CHECK(ask->bytes.swapped == 4 * kMega);
  CHECK(ask->bytes.device == 3 * kMega);
  CHECK(ask->bytes.movable == 3 * kMega);
  protocol::Reserved answer{.gpu = 0,
                            .number = ask->number,
                            .device_bytes = 0,
                            .movable_bytes = 0,
                            .granted = 0,
                            .text = {},
                            .padding = 0,
                            .fixed_bytes = 0,
                            .swapped_bytes = 0};
  SECTION("granted") {
    answer.granted = 1;
    answer.device_bytes = answer.movable_bytes = 3 * kMega;
    answer.swapped_bytes = 4 * kMega;
    budget.answer(0, answer);
    thread.join();  // asks for nothing more
    CHECK(covered);
  }
  SECTION("refused") {
    budget.answer(0, answer);
    thread.join();
    CHECK_FALSE(covered);
    CHECK(extents == 0);
  }
}

TEST_CASE("a rotad that does not answer is waited for once, and kept to again when it does") {
  memory::Ledger ledger;
  turn::Bell bell;
  turn::Budget budget(ledger, bell, 10ms);
  budget.serve(true);
  budget.limit(0);
  REQUIRE(ledger.reserve(0, kMega, memory::Kind::kConverted));
  CHECK(budget.may_take(0, kMega, memory::Kind::kConverted));
  const auto asked = budget.take_ask(0);
  CHECK_FALSE(asked);  // withdrawn
  REQUIRE(ledger.reserve(0, kMega, memory::Kind::kConverted));
  CHECK(budget.may_take(0, kMega, memory::Kind::kConverted));
  CHECK_FALSE(budget.take_ask(0));
  CHECK(budget.spare(0) == protocol::kUnlimited);
  budget.answer(0, {.gpu = 0,
                    .number = 1,
                    .device_bytes = 3 * kMega,
                    .movable_bytes = 3 * kMega,
                    .granted = 1,
                    .text = {},
                    .padding = 0,
                    .fixed_bytes = 0,
                    .swapped_bytes = 3 * kMega});
  CHECK(budget.spare(0) == kMega);
}
