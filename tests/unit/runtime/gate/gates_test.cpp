// The gates of several GPUs: where calls wait, and whose drain a thread inside holds up.
#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <thread>

#include "runtime/gate/gate.h"
#include "tests/unit/runtime/eventually.h"

using namespace rota;
using gate::Gate;
using Clock = std::chrono::steady_clock;
using test::eventually;

namespace {

// The stream's handle says which GPU a call reaches; a call without a stream reaches all.
struct Sorting : gate::Attendant {
  using gate::Attendant::reached;
  void arrived() override {}
  bool submits_nothing(const driver::Call&) override { return false; }
  gate::Devices reached(const driver::Call& call) override {
    return call.has_stream ? gate::Devices{1} << reinterpret_cast<std::uintptr_t>(call.stream) : gate::kAllDevices;
  }
};

driver::Call on(std::uintptr_t device) {
  return {Symbol::k_cuLaunchKernel, reinterpret_cast<api::CUstream>(device), true, false};
}

}  // namespace

TEST_CASE("calls wait at the gates of the GPUs that they reach, and at no others") {
  Sorting sorting;
  Gate gate;
  gate.set_attendant(&sorting);
  gate.count(3);
  gate.close(2);
  CHECK(gate.closed(2));
  CHECK_FALSE(gate.closed(1));
  {
    const gate::Scope scope(on(0));
  }
  std::atomic<int> passed{0};
  std::thread one([&] {
    const gate::Scope scope(on(1));
    ++passed;
  });
  std::thread all([&] {
    const gate::Scope scope({Symbol::k_cuGraphLaunch, nullptr, false, false});
    ++passed;
  });
  CHECK(eventually([&] { return gate.standing(2) == 2; }));
  CHECK(gate.standing(1) == 0);
  CHECK(passed.load() == 0);
  gate.close(1);
  gate.open(2);
  one.join();
  // The one that reaches both now waits for the other.
  CHECK(eventually([&] { return gate.standing(1) == 1 && gate.standing(2) == 0; }));
  CHECK(passed.load() == 1);
  gate.open(1);
  all.join();
}

TEST_CASE("a thread inside a call for one GPU is not inside for another, unless it entered while all gates were open") {
  Sorting sorting;
  Gate gate;
  gate.set_attendant(&sorting);
  gate.count(3);
  const auto now = [] { return Clock::now(); };
  {
    const gate::Scope early(on(0));
    gate.close(2);
    CHECK_FALSE(gate.wait_until_empty(now(), 2));  // nothing is known of it
  }
  CHECK(gate.wait_until_empty(now(), 2));
  const std::uint64_t before = gate.traffic(2).calls;
  {
    const gate::Scope scope(on(0));
    CHECK(gate.wait_until_empty(now(), 2));
    CHECK_FALSE(gate.wait_until_empty(now(), 1));
    CHECK(gate.traffic(2).inside == 0);
    CHECK(gate.traffic(1).inside == 1);
    {  // a profiler's callback in it
      const gate::Scope inner(on(0));
      CHECK_FALSE(gate.wait_until_empty(now(), 2));
    }
    CHECK(gate.wait_until_empty(now(), 2));
    const gate::MappingScope looks;
    CHECK_FALSE(gate.wait_until_empty(now(), 2));
  }
  CHECK(gate.traffic(2).calls == before);
  CHECK(gate.wait_until_empty(now(), 3));
}

TEST_CASE("a call of one GPU whose gate is open is examined no further, and counted as that GPU's") {
  struct : Sorting {
    using Sorting::reached;
    gate::Devices reached(const driver::Call& call) override {
      ++looked_at;
      return Sorting::reached(call);
    }
    gate::Devices reached_at_once(const driver::Call& call) override { return Sorting::reached(call); }
    int looked_at = 0;
  } sorting;
  Gate gate;
  gate.set_attendant(&sorting);
  gate.count(7);
  gate.close(2);
  const std::uint64_t before[] = {gate.traffic(1).calls, gate.traffic(4).calls};
  {
    const gate::Scope scope(on(0));
    CHECK(gate.wait_until_empty(Clock::now(), 6));
    CHECK_FALSE(gate.wait_until_empty(Clock::now(), 1));
  }
  CHECK(sorting.looked_at == 0);
  CHECK(gate.traffic(1).calls == before[0] + 1);
  CHECK(gate.traffic(4).calls == before[1]);
  // But a call whose gate is closed is examined, and so are one within another call and one of a GPU that has not been
  // touched.
  std::thread waits([] { const gate::Scope scope(on(1)); });
  CHECK(eventually([&] { return gate.standing(2) == 1; }));
  CHECK(sorting.looked_at == 1);
  gate.open(2);
  waits.join();
  gate.close(2);
  {
    const gate::Scope scope(on(0));
    const gate::Scope inner(on(0));
    CHECK_FALSE(gate.wait_until_empty(Clock::now(), 6));
  }
  gate.open(2);
  gate.set_sorted(true);
  {
    const gate::Scope scope(on(5));
  }
  CHECK(sorting.looked_at >= 2);
  gate.set_sorted(false);
}

TEST_CASE("memory that is out of place on one GPU keeps no call waiting that queries another's") {
  struct : Sorting {
    using Sorting::reached;
    gate::Devices reached(const void* first, const void*) override { return reinterpret_cast<std::uintptr_t>(first); }
  } sorting;
  Gate gate;
  gate.set_attendant(&sorting);
  gate.count(3);
  gate.close(2);
  gate::out_of_place.store(2);
  {
    const gate::MappingScope scope(reinterpret_cast<const void*>(1));
  }
  std::thread other([] { const gate::MappingScope scope(reinterpret_cast<const void*>(2)); });
  std::thread any([] { const gate::MappingScope scope; });
  CHECK(eventually([&] { return gate.standing(2) == 2; }));
  gate::out_of_place.store(0);
  gate.open(2);
  other.join();
  any.join();
}

// An allocation checks whether the gate is closed, gets memory that is out of place behind it, and returns: the
// thread's next call must wait. Both forms of the fast path are checked at once.
TEST_CASE("a thread that has seen a gate closed does not pass it") {
  Gate gate;
  gate.count(1);
  const int rounds = 5000;
  std::atomic<int> seen{0};
  std::atomic<int> opened{0};
  std::thread closer([&] {
    for (int round = 1; round <= rounds; ++round) {
      gate.close(1);
      while (seen.load() != round) std::this_thread::yield();
      gate.open(1);
      opened = round;
    }
  });
  int passed = 0;
  for (int round = 1; round <= rounds; ++round) {
    while (!gate.closed(1)) {
    }
    if ((gate::state_across.load() & gate::kClosedBit) == 0 || (gate::state.load() & gate::kClosedBit) == 0) ++passed;
    seen = round;
    while (opened.load() != round) std::this_thread::yield();
  }
  closer.join();
  CHECK(passed == 0);
}
