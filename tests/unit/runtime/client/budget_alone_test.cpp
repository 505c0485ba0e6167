// The budget by itself, where the test is the monitor and rotad.
#include <atomic>
#include <catch2/catch.hpp>
#include <set>
#include <thread>

#include "runtime/client/budget.h"
#include "runtime/core/one_allocation.h"
#include "scheduler/protocol/reserve_number.h"
#include "tests/unit/runtime/eventually.h"
#include "tests/unit/runtime/fake_driver.h"
#include "tests/unit/runtime/fake_residency.h"

using namespace rota;
using namespace std::chrono_literals;

namespace {

constexpr std::uint64_t kMega = 1 << 20;

struct Alone {
  explicit Alone(std::chrono::nanoseconds patience = 20s) : budget(memory, bell, patience) {
    budget.serve(true);
    budget.limit(0);
  }
  client::Budget::Ask next_ask() {
    std::optional<client::Budget::Ask> ask;
    CHECK(test::eventually([&] { return (ask = budget.take_ask(0)).has_value(); }));
    REQUIRE(ask);
    return *ask;
  }
  void answer(std::uint32_t number, bool granted, const client::Budget::Bytes& bytes, bool full = false) {
    budget.answer(0, {.gpu = 0,
                      .number = number,
                      .device_bytes = bytes.device,
                      .movable_bytes = bytes.movable,
                      .granted = granted ? 1U : 0U,
                      .text = {},
                      .full = full ? 1U : 0U,
                      .fixed_bytes = bytes.fixed,
                      .swapped_bytes = bytes.swapped});
  }
  bool takes(std::uint64_t bytes, memory::Kind kind) {
    REQUIRE(ledger.reserve(0, bytes, kind));
    return budget.may_take(0, bytes, kind, [&] { ledger.cancel(0, bytes, kind); });
  }
  test::FakeDriver driver;
  test::FakeResidency memory;
  memory::Ledger& ledger = memory.books;
  std::atomic<std::uint64_t>& extents = memory.needed;
  client::Bell bell;
  client::Budget budget;
};

}  // namespace

TEST_CASE("what stays and what extents take are asked for each by itself, though all that is asked for is covered") {
  Alone alone;
  memory::Ledger& ledger = alone.ledger;
  std::atomic<std::uint64_t>& extents = alone.extents;
  bool covered = false;
  std::thread first([&] { covered = alone.takes(2 * kMega, memory::Kind::kConverted); });
  alone.answer(alone.next_ask().number, true, {100 * kMega, 100 * kMega, 0, 0});
  first.join();
  CHECK(covered);
  // The total and the movable part are far within the grant.
  std::thread second([&] { covered = alone.takes(3 * kMega, memory::Kind::kPhysical); });
  const client::Budget::Ask stays = alone.next_ask();
  CHECK(stays.bytes.device == 5 * kMega);
  CHECK(stays.bytes.movable == 2 * kMega);
  CHECK(stays.bytes.fixed == 3 * kMega);
  CHECK(stays.bytes.swapped == 0);
  alone.answer(stays.number, false, {100 * kMega, 100 * kMega, 0, 0});
  second.join();
  CHECK_FALSE(covered);
  CHECK(ledger.fixed_bytes(0) == 0);
  CHECK(ledger.live_bytes(0) == 2 * kMega);
  const auto more_extents = [&](std::uint64_t bytes) {
    extents += bytes;
    covered = alone.budget.may_take_extents(0, bytes, 0, [&, bytes] { extents -= bytes; });
  };
  std::thread third([&] { more_extents(4 * kMega); });
  const client::Budget::Ask takes = alone.next_ask();
  CHECK(takes.bytes.swapped == 4 * kMega);
  CHECK(takes.bytes.device == 2 * kMega);
  alone.answer(takes.number, true, {100 * kMega, 100 * kMega, 0, 6 * kMega});
  third.join();
  CHECK(covered);
  more_extents(2 * kMega);  // within the grant: nothing is asked
  CHECK(covered);
  std::thread fourth([&] { more_extents(kMega); });
  alone.answer(alone.next_ask().number, false, {100 * kMega, 100 * kMega, 0, 6 * kMega});
  fourth.join();
  CHECK_FALSE(covered);
  CHECK(extents == 6 * kMega);
  // What is not needed is returned, of each kind.
  extents = kMega;
  const client::Budget::Has has = alone.budget.tighten(0);
  CHECK(has.bytes.swapped == kMega);
  CHECK(has.bytes.fixed == 0);
  CHECK(has.bytes.movable == 2 * kMega);
}

TEST_CASE(
    "of all that is asked in the course of one allocation, and refused, the first that no other way follows counts") {
  Alone alone;
  const auto counts = [](std::uint32_t number) { return protocol::refusal_counts(number, false); };
  const auto one = [&](std::uint64_t bytes) {
    const OneAllocation allocation;
    return alone.takes(bytes, memory::Kind::kConverted);
  };
  std::thread thread([&] {
    const OneAllocation allocation;
    {
      const OneAllocation::FirstWay way;
      one(4 * kMega);
    }
    one(2 * kMega);
    one(kMega);
  });
  std::set<std::uint32_t> numbers;
  for (const bool expected : {false, true, false}) {
    const std::uint32_t number = alone.next_ask().number;
    CHECK(counts(number) == expected);
    CHECK(numbers.insert(number).second);
    alone.answer(number, false, {});
  }
  thread.join();
  CHECK(protocol::next_reserve_number(protocol::kWaitsIfFull - 1) == 1);
}

TEST_CASE("while an allocation may wait for others' memory, only another refusal counts, and then no more") {
  Alone alone;
  std::thread thread([&] {
    const OneAllocation allocation;
    const OneAllocation::MayWait waits(true);
    for (int time = 0; time < 4; ++time) alone.takes(kMega, memory::Kind::kConverted);
  });
  struct Refusal {
    bool full;
    bool counts;
  };
  for (const auto [full, counts] :
       {Refusal{true, false}, Refusal{true, false}, Refusal{false, true}, Refusal{false, false}}) {
    const std::uint32_t number = alone.next_ask().number;
    CHECK(protocol::refusal_counts(number, full) == counts);
    alone.answer(number, false, {}, full);
  }
  thread.join();
}

TEST_CASE("a refused allocation leaves nothing behind for the next one of its thread") {
  Alone alone;
  std::thread thread([&] {
    for (int time = 0; time < 2; ++time) {
      const OneAllocation allocation;
      alone.takes(kMega, memory::Kind::kConverted);
    }
  });
  for (int time = 0; time < 2; ++time) {
    const std::uint32_t number = alone.next_ask().number;
    CHECK(protocol::refusal_counts(number, true));
    alone.answer(number, false, {});
  }
  thread.join();
}

TEST_CASE("an allocation that needs an extent asks once for both") {
  Alone alone;
  std::atomic<bool> covered{false};
  std::thread thread([&] {
    alone.extents = 4 * kMega;
    covered = alone.budget.may_take_extents(0, 4 * kMega, 3 * kMega, [&] { alone.extents = 0; });
    if (covered) covered = alone.takes(3 * kMega, memory::Kind::kConverted);
  });
  const client::Budget::Ask ask = alone.next_ask();
  CHECK(ask.bytes.swapped == 4 * kMega);
  CHECK(ask.bytes.device == 3 * kMega);
  CHECK(ask.bytes.movable == 3 * kMega);
  SECTION("granted") {
    alone.answer(ask.number, true, {3 * kMega, 3 * kMega, 0, 4 * kMega});
    thread.join();  // asks for nothing more
    CHECK(covered);
  }
  SECTION("refused") {
    alone.answer(ask.number, false, {});
    thread.join();
    CHECK_FALSE(covered);
    CHECK(alone.extents == 0);
  }
}

TEST_CASE("a rotad that does not answer is waited for once, and kept to again when it does") {
  Alone alone(10ms);
  CHECK(alone.takes(kMega, memory::Kind::kConverted));
  CHECK_FALSE(alone.budget.take_ask(0));  // withdrawn
  CHECK(alone.takes(kMega, memory::Kind::kConverted));
  CHECK_FALSE(alone.budget.take_ask(0));
  CHECK(alone.budget.spare(0) == protocol::kUnlimited);
  alone.answer(1, true, {3 * kMega, 3 * kMega, 0, 3 * kMega});
  CHECK(alone.budget.spare(0) == kMega);
}
