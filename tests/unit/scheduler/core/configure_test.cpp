// Changing the settings while programs run.
#include <catch2/catch.hpp>

#include "scheduler/core/core.h"

namespace rota::scheduler {
namespace {

using namespace std::chrono_literals;

constexpr Bytes kMega = Bytes{1} << 20;

struct Machine {
  explicit Machine(Mode mode) : settings{.mode = mode, .quantum = 100ms, .grace = 1s}, core(settings) {}
  void client(ClientId id, Bytes used = 0) {
    core.step(event::Join{id}, now);
    core.step(event::AddGpu{id, 0, 1000 * kMega, 10 * kMega}, now);
    core.step(event::Usage{id, 0, used}, now);
    core.step(event::Want{id, 1}, now);
  }
  void configure() { core.step(event::Configure{settings}, now); }
  const ClientState& state(ClientId id) const { return *core.client(id); }

  Time now = 10s;
  Settings settings;
  Core core;
};

TEST_CASE("when the mode becomes exclusive all but the first holder are asked to yield, and then nobody joins") {
  Machine machine(Mode::kConcurrent);
  for (ClientId id = 1; id <= 3; ++id) machine.client(id);
  REQUIRE(machine.core.gpu(0).holders == 3);
  machine.settings.mode = Mode::kExclusive;
  machine.configure();
  CHECK(machine.state(1).waiters == 0);
  CHECK(machine.state(2).waiters != 0);
  CHECK(machine.state(3).waiters != 0);
  for (ClientId id = 2; id <= 3; ++id) {
    machine.core.step(event::GiveBack{id, machine.state(id).grant}, machine.now);
    machine.core.step(event::Want{id, 1}, machine.now);
  }
  CHECK(machine.core.gpu(0).holders == 1);
  CHECK(machine.state(1).waiters != 0);
}

TEST_CASE("when the mode becomes concurrent everybody who waits is granted at once and nobody has to yield") {
  const Mode mode = GENERATE(Mode::kExclusive, Mode::kAutomatic);
  Machine machine(mode);
  for (ClientId id = 1; id <= 3; ++id) machine.client(id, 600 * kMega);
  REQUIRE(machine.core.gpu(0).holders == 1);
  machine.settings.mode = Mode::kConcurrent;
  machine.configure();
  CHECK(machine.core.gpu(0).holders == 3);
  CHECK(machine.core.gpu(0).waiters == 0);
  CHECK_FALSE(machine.core.gpu(0).crowded);
  for (ClientId id = 1; id <= 3; ++id) CHECK(machine.state(id).waiters == 0);
  CHECK_FALSE(machine.core.next_deadline());
}

TEST_CASE("another quantum moves the time to drain of a holder that somebody waits for, and its deadline") {
  Machine machine(Mode::kExclusive);
  machine.client(1);
  machine.client(2);
  REQUIRE(machine.state(1).drain_at == 10s + 100ms);
  machine.settings.quantum = 3s;
  machine.configure();
  CHECK(machine.state(1).drain_at == 13s);
  CHECK(*machine.core.next_deadline() == 14s);
  machine.settings.grace = 5s;
  machine.configure();
  CHECK(machine.state(1).drain_at == 13s);
  CHECK(*machine.core.next_deadline() == 18s);
}

TEST_CASE("settings that stay the same decide nothing") {
  const Mode mode = GENERATE(Mode::kExclusive, Mode::kAutomatic, Mode::kConcurrent);
  Machine machine(mode);
  for (ClientId id = 1; id <= 3; ++id) machine.client(id, 400 * kMega);
  CHECK(machine.core.step(event::Configure{machine.settings}, machine.now).empty());
}

}  // namespace
}  // namespace rota::scheduler
