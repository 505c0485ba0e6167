// Memory on a GPU that belongs to no client: how much the driver's figures show, and what follows from it.
#include "scheduler/core/outside.h"

#include <catch2/catch.hpp>

#include "scheduler/core/core.h"

namespace rota::scheduler {
namespace {

using namespace std::chrono_literals;

constexpr Bytes kMega = Bytes{1} << 20;

// A GPU of 1 000 MB with contexts of 10 MB; bytes are in MB.
struct Machine {
  Machine() : core({.mode = Mode::kAutomatic, .quantum = 100ms, .grace = 1min}) {}

  void join(ClientId id, Bytes used, GpuIndex gpu = 0) {
    if (core.client(id) == nullptr) core.step(event::Join{id, true}, now);
    core.step(event::AddGpu{id, gpu, 1000 * kMega, 10 * kMega}, now);
    has(id, used, 0, 0, gpu);
  }
  void has(ClientId id, Bytes used, Bytes fixed = 0, Bytes resident = 0, GpuIndex gpu = 0) {
    core.step(event::Usage{id, gpu, used * kMega, fixed * kMega, resident * kMega, 0, 0}, now);
  }
  std::vector<Decision> want(ClientId id) { return core.step(event::Want{id, 1}, now); }
  void give_back(ClientId id) { core.step(event::GiveBack{id, state(id).grant}, now); }
  std::vector<Decision> measured(Bytes in_use, std::optional<Bytes> others, GpuIndex gpu = 0) {
    if (others) *others *= kMega;
    return core.step(event::Measured{gpu, (1000 - in_use) * kMega, others}, now);
  }
  // Readings one second apart, for long enough that unexplained memory counts.
  void measured_for_long(Bytes in_use, std::optional<Bytes> others, GpuIndex gpu = 0) {
    for (Time until = now + 2 * Outside::kSettled; now < until; now += 1s) measured(in_use, others, gpu);
    measured(in_use, others, gpu);
  }
  const ClientState& state(ClientId id) const { return *core.client(id); }
  bool holds(ClientId id) const { return state(id).held != 0; }
  bool pressed(ClientId id) const { return state(id).waiters != 0; }
  Bytes outside(GpuIndex gpu = 0) const { return core.gpu(gpu).outside / kMega; }

  Time now = 100s;
  Core core;
};

}  // namespace

TEST_CASE("what processes have that are no clients counts as soon as it is listed, and until it is listed no more") {
  Machine machine;
  machine.join(1, 0);
  machine.measured(300, 250);
  CHECK(machine.outside() == 250);
  machine.now += 1s;
  machine.measured(350, 300);
  CHECK(machine.outside() == 300);
  machine.measured(10, 0);
  CHECK(machine.outside() == 0);
}

TEST_CASE("two that fit by the books but not beside what is outside take turns, and run together once it is gone") {
  Machine machine;
  machine.join(1, 400);
  machine.measured(310, 300);
  machine.join(2, 400);
  machine.want(1);
  machine.want(2);
  CHECK(machine.holds(1));
  CHECK_FALSE(machine.holds(2));
  CHECK(machine.pressed(1));
  SECTION("the reading that says so lets the other one in") {
    const std::vector<Decision> decisions = machine.measured(420, 0);
    CHECK(machine.holds(2));
    CHECK_FALSE(machine.pressed(1));
    CHECK(std::any_of(decisions.begin(), decisions.end(), [](const Decision& decision) {
      return decision.change == Change::kGranted && decision.client == 2;
    }));
  }
  SECTION("a program that comes beside both sends away the one granted last") {
    machine.measured(420, 0);
    REQUIRE(machine.holds(2));
    machine.measured(920, 300);
    CHECK_FALSE(machine.pressed(1));
    CHECK(machine.pressed(2));
    machine.give_back(2);
    machine.want(2);
    CHECK_FALSE(machine.holds(2));
  }
}

TEST_CASE("promises leave room for what is outside") {
  Machine machine;
  machine.join(1, 100);
  machine.join(2, 100);
  machine.measured(320, 300);
  machine.want(1);
  machine.want(2);
  REQUIRE(machine.holds(2));
  machine.core.step(event::Ask{1, 0, 580 * kMega}, machine.now);  // 1 000 - 20 - 300 - 100
  CHECK(machine.core.promised_bytes(1, 0) == 580 * kMega);
  machine.core.step(event::Ask{1, 0, 581 * kMega}, machine.now);
  CHECK(machine.core.promised_bytes(1, 0) == 580 * kMega);
  CHECK(machine.pressed(2));
}

TEST_CASE("swap memory clears for a holder what is outside, too") {
  Machine machine;
  machine.join(1, 600);
  machine.want(1);
  machine.has(1, 600, 0, 600);
  machine.give_back(1);
  machine.join(2, 300);
  machine.measured(900, 300);
  machine.want(2);
  REQUIRE(machine.holds(2));
  CHECK(machine.core.bytes_to_clear(1, 0) == 220 * kMega);  // 600 + 300 + 300 + 20
}

TEST_CASE("what is in use and nobody's counts once it has been there for a while, and at once less when it is less") {
  Machine machine;
  machine.join(1, 100);
  const std::optional<Bytes> others = GENERATE(std::optional<Bytes>(), std::optional<Bytes>(50));
  const Bytes listed = others.value_or(0);
  machine.measured(410, others);
  CHECK(machine.outside() == listed);
  machine.now += 1s;
  machine.measured(450, others);
  CHECK(machine.outside() == listed);
  machine.now += 1s;
  machine.measured(430, others);
  CHECK(machine.outside() == 300);  // the least of the three, less 110
  machine.now += 10ms;
  machine.measured(310, others);
  CHECK(machine.outside() == 200);
  machine.now += 1s;
  machine.measured(110, others);
  CHECK(machine.outside() == listed);
}

TEST_CASE("what is in use for a moment only, while a client grows or goes, is nobody's") {
  Machine machine;
  machine.join(1, 100);
  for (int i = 0; i < 20; ++i) {
    machine.measured(i % 3 == 0 ? 110 : 600, 0);
    CHECK(machine.outside() == 0);
    machine.now += 1s;
  }
}

TEST_CASE("what clients can have there is not outside, wherever their Unified Memory lies") {
  Machine machine;
  machine.join(1, 300);
  machine.join(2, 300);
  SECTION("all of it there") {
    machine.measured_for_long(620, std::nullopt);
    CHECK(machine.outside() == 0);
  }
  SECTION("what is not there may be: as much of what is outside is not seen") {
    machine.measured_for_long(620 - 300 + 400, std::nullopt);
    CHECK(machine.outside() == 100);
  }
  SECTION("what is not listed and native is all there") {
    machine.has(1, 300, 300);
    machine.has(2, 300, 300);
    machine.measured_for_long(720, std::nullopt);
    CHECK(machine.outside() == 100);
  }
  SECTION("what was freed a moment ago may still be") {
    machine.has(1, 100);
    machine.measured_for_long(420, 0);
    machine.has(1, 300);
    machine.has(1, 100);
    machine.measured(620, 0);
    CHECK(machine.outside() == 0);
  }
  SECTION("what was promised may be there before it is told") {
    machine.want(1);
    machine.core.step(event::Ask{1, 0, 500 * kMega}, machine.now);
    machine.measured_for_long(820, 0);
    CHECK(machine.outside() == 0);
  }
  SECTION("another GPU's, of one that uses both") {
    machine.join(1, 200, 1);
    machine.measured_for_long(820, std::nullopt);
    CHECK(machine.outside() == 0);
    machine.has(1, 200, 150, 0, 1);
    machine.measured_for_long(820, std::nullopt);
    CHECK(machine.outside() == 150);
  }
}

TEST_CASE("where the driver no longer says who has what, what it said counts for a while") {
  Machine machine;
  machine.join(1, 0);
  machine.measured(310, 300);
  machine.now += Outside::kListKept - 1s;
  machine.measured(10, std::nullopt);
  CHECK(machine.outside() == 300);
  machine.now += 1s;
  machine.measured(10, std::nullopt);
  CHECK(machine.outside() == 0);
}

TEST_CASE("when the driver says nothing any more, what it said is forgotten, and with it who had to wait for it") {
  Machine machine;
  machine.join(1, 400);
  machine.join(2, 400);
  machine.measured_for_long(320, std::nullopt);
  machine.measured(320, 300);
  machine.want(1);
  machine.want(2);
  REQUIRE_FALSE(machine.holds(2));
  machine.core.step(event::Unmeasured{0}, machine.now);
  CHECK(machine.outside() == 0);
  CHECK(machine.holds(2));
  // What was unexplained before has to be there for a while again.
  machine.measured(320, std::nullopt);
  CHECK(machine.outside() == 0);
}

TEST_CASE("what refusals show counts beside a reading that says less, and the larger of the two counts") {
  Machine machine;
  for (const ClientId id : {1, 2}) {
    machine.join(id, 400);
    machine.want(id);
  }
  machine.has(1, 400, 0, 400);
  for (int i = 0; i < 3; ++i) {
    machine.core.step(event::Usage{2, 0, 400 * kMega, 0, 250 * kMega, 150 * kMega, 30 * kMega}, machine.now);
    machine.now += Clearing::kSettled;
  }
  REQUIRE(machine.outside() == 300);
  machine.measured(770, 100);
  CHECK(machine.outside() == 300);
  machine.measured(970, 320);
  CHECK(machine.outside() == 320);
  machine.core.step(event::Unmeasured{0}, machine.now);
  CHECK(machine.outside() == 300);
}

TEST_CASE("a GPU that nobody uses any more, or nobody ever did, has nothing outside") {
  Machine machine;
  machine.measured(310, 300);
  CHECK(machine.outside() == 0);
  machine.join(1, 0);
  CHECK(machine.outside() == 0);
  machine.measured(310, 300);
  REQUIRE(machine.outside() == 300);
  machine.core.step(event::Leave{1}, machine.now);
  CHECK(machine.outside() == 0);
  machine.core.step(event::Measured{protocol::kMaxGpus, 0, std::nullopt}, machine.now);
  machine.core.step(event::Unmeasured{protocol::kMaxGpus}, machine.now);
}

TEST_CASE("figures that cannot be are cut to what the GPU has") {
  Machine machine;
  machine.join(1, 0);
  machine.core.step(event::Measured{0, ~Bytes{0}, 5 * kMega}, machine.now);
  CHECK(machine.outside() == 0);
  machine.core.step(event::Measured{0, 0, ~Bytes{0}}, machine.now);
  CHECK(machine.outside() == 1000);
}

}  // namespace rota::scheduler
