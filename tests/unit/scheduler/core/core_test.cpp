// The scheduler's core, driven by hand: time is just a number, so no test waits.
#include "scheduler/core/core.h"

#include <catch2/catch.hpp>

namespace rota::scheduler {
namespace {

using namespace std::chrono_literals;

constexpr Bytes kMega = Bytes{1} << 20;

// Turns the core's events into sentences. GPUs have 1 000 MB and contexts take 10 MB.
struct Machine {
  explicit Machine(Mode mode, Settings settings = {})
      : core([&] {
          settings.mode = mode;
          settings.quantum = 100ms;
          settings.grace = 1s;
          return settings;
        }()) {}

  void client(ClientId id, GpuMask gpus = 1, Bytes used = 0) {
    core.step(event::Join{id}, now);
    for (GpuIndex gpu = 0; gpu < 64; ++gpu) {
      if ((gpus >> gpu & 1) == 0) continue;
      core.step(event::AddGpu{id, gpu, 1000 * kMega, 10 * kMega}, now);
      core.step(event::Usage{id, gpu, used}, now);
    }
  }
  std::vector<Decision> want(ClientId id, GpuMask gpus = 1) { return core.step(event::Want{id, gpus}, now); }
  std::vector<Decision> give_back(ClientId id) { return core.step(event::GiveBack{id, state(id).grant}, now); }
  std::vector<Decision> use(ClientId id, Bytes used, GpuIndex gpu = 0) {
    return core.step(event::Usage{id, gpu, used}, now);
  }
  std::vector<Decision> leave(ClientId id) { return core.step(event::Leave{id}, now); }
  std::vector<Decision> tick() { return core.step(event::Tick{}, now); }
  const ClientState& state(ClientId id) const { return *core.client(id); }
  bool holds(ClientId id, GpuMask gpus = 1) const { return (state(id).held & gpus) == gpus; }
  bool pressed(ClientId id) const { return state(id).waiters != 0; }

  Time now = 10s;
  Core core;
};

bool has(const std::vector<Decision>& decisions, Change change, ClientId client) {
  for (const Decision& decision : decisions) {
    if (decision.change == change && decision.client == client) return true;
  }
  return false;
}

TEST_CASE("the first client that wants a free GPU gets it at once") {
  const Mode mode = GENERATE(Mode::kExclusive, Mode::kAutomatic, Mode::kConcurrent);
  Machine machine(mode);
  machine.client(1);
  CHECK(has(machine.want(1), Change::kGranted, 1));
  CHECK(machine.holds(1));
  CHECK(machine.state(1).grant != 0);
  CHECK_FALSE(machine.pressed(1));
}

TEST_CASE("in exclusive mode clients run one after the other in the order they asked") {
  Machine machine(Mode::kExclusive);
  for (ClientId id = 1; id <= 3; ++id) {
    machine.client(id);
    machine.want(id);
  }
  CHECK(machine.holds(1));
  CHECK_FALSE(machine.holds(2));
  CHECK(has(machine.give_back(1), Change::kGranted, 2));
  CHECK_FALSE(machine.holds(3));
  machine.want(1);
  CHECK(has(machine.give_back(2), Change::kGranted, 3));
  CHECK(has(machine.give_back(3), Change::kGranted, 1));
}

TEST_CASE("nobody is asked to give anything back while nobody waits (nvshare 12)") {
  Machine machine(Mode::kExclusive);
  machine.client(1);
  machine.client(2);
  machine.want(1);
  machine.now += 10min;
  CHECK(machine.tick().empty());
  CHECK(machine.state(1).drain_at == 0s);
  CHECK_FALSE(machine.core.next_deadline());

  CHECK(has(machine.want(2), Change::kPressure, 1));
  CHECK(machine.pressed(1));
  machine.want(2, 0);  // it no longer waits
  CHECK_FALSE(machine.pressed(1));
  CHECK(machine.state(1).drain_at == 0s);
  CHECK_FALSE(machine.core.next_deadline());
}

TEST_CASE("a holder drains when its quantum ends, counted from its grant") {
  Machine machine(Mode::kExclusive);
  machine.client(1);
  machine.client(2);
  machine.want(1);
  machine.now += 30ms;
  machine.want(2);
  CHECK(machine.state(1).drain_at == 10s + 100ms);
  machine.now += 70ms;
  machine.give_back(1);
  CHECK(machine.holds(2));
  CHECK(machine.state(2).drain_at == 0s);
  machine.want(1);
  CHECK(machine.state(2).drain_at == machine.now + 100ms);
}

TEST_CASE("a holder that ignores the drain is revoked after the grace period and others run (nvshare 12)") {
  Machine machine(Mode::kExclusive);
  machine.client(1);
  machine.client(2);
  machine.want(1);
  machine.want(2);
  const std::uint32_t grant = machine.state(1).grant;
  REQUIRE(machine.core.next_deadline() == 10s + 100ms + 1s);
  machine.now = *machine.core.next_deadline() - 1ns;
  CHECK(machine.tick().empty());
  machine.now += 1ns;
  const auto decisions = machine.tick();
  CHECK(has(decisions, Change::kRevoked, 1));
  CHECK(has(decisions, Change::kGranted, 2));
  CHECK_FALSE(machine.holds(1));
  CHECK_FALSE(machine.core.next_deadline());

  SECTION("and its late answer changes nothing") {
    CHECK(machine.core.step(event::GiveBack{1, grant}, machine.now).empty());
    CHECK(machine.holds(2));
    machine.want(1);
    CHECK(has(machine.give_back(2), Change::kGranted, 1));
    CHECK(machine.state(1).grant != grant);
  }
}

TEST_CASE("a waiter that comes late gives the holder the whole grace period") {
  Machine machine(Mode::kExclusive);
  machine.client(1);
  machine.client(2);
  machine.want(1);
  machine.now += 1h;
  machine.want(2);
  CHECK(machine.state(1).drain_at < machine.now);
  CHECK(machine.core.next_deadline() == machine.now + 1s);
}

TEST_CASE("the lease of a client that dies is free at once") {
  Machine machine(Mode::kExclusive);
  for (ClientId id = 1; id <= 3; ++id) {
    machine.client(id);
    machine.want(id);
  }
  SECTION("a holder") {
    CHECK(has(machine.leave(1), Change::kGranted, 2));
    CHECK(machine.core.client(1) == nullptr);
  }
  SECTION("a waiter: its place is gone and nobody waits for it") {
    machine.leave(2);
    machine.leave(3);
    CHECK_FALSE(machine.pressed(1));
    CHECK(machine.core.gpu(0).waiters == 0);
  }
}

TEST_CASE("a set of GPUs is granted whole or not at all") {
  Machine machine(Mode::kExclusive);
  machine.client(1, 0b01);
  machine.client(2, 0b11);
  machine.want(1, 0b01);
  machine.want(2, 0b11);
  CHECK(machine.state(2).held == 0);
  CHECK(has(machine.give_back(1), Change::kGranted, 2));
  CHECK(machine.state(2).held == 0b11);
}

TEST_CASE("clients of single GPUs do not starve one that wants two") {
  Machine machine(Mode::kExclusive);
  machine.client(1, 0b01);
  machine.client(2, 0b10);
  machine.client(3, 0b11);
  machine.client(4, 0b01);
  machine.want(1, 0b01);
  machine.want(2, 0b10);
  machine.want(3, 0b11);
  machine.want(4, 0b01);
  machine.now += 100ms;
  machine.give_back(1);
  CHECK_FALSE(machine.holds(4, 0b01));  // GPU 0 is free, but reserved for client 3, since client 2 drains
  CHECK(machine.pressed(2));
  CHECK(has(machine.give_back(2), Change::kGranted, 3));
  CHECK(has(machine.give_back(3), Change::kGranted, 4));
}

TEST_CASE("a waiter for other GPUs is not held up") {
  Machine machine(Mode::kExclusive);
  machine.client(1, 0b01);
  machine.client(2, 0b01);
  machine.client(3, 0b10);
  machine.want(1, 0b01);
  machine.want(2, 0b01);
  CHECK(has(machine.want(3, 0b10), Change::kGranted, 3));
  CHECK_FALSE(machine.pressed(3));
}

TEST_CASE("two clients that each hold what the other wants too get everything in turn") {
  Machine machine(Mode::kExclusive);
  machine.client(1, 0b11);
  machine.client(2, 0b11);
  machine.want(1, 0b01);
  machine.want(2, 0b10);
  machine.want(1, 0b11);
  machine.want(2, 0b11);
  CHECK(machine.pressed(2));
  CHECK(has(machine.give_back(2), Change::kGranted, 1));
  CHECK(machine.holds(1, 0b11));
  CHECK(machine.pressed(1));
  CHECK(has(machine.give_back(1), Change::kGranted, 2));
  CHECK(machine.holds(2, 0b11));
}

TEST_CASE("a set that grows while its GPUs are free is granted at once under a new number") {
  Machine machine(Mode::kExclusive);
  machine.client(1, 0b11);
  machine.want(1, 0b01);
  const std::uint32_t first = machine.state(1).grant;
  CHECK(has(machine.want(1, 0b11), Change::kGranted, 1));
  CHECK(machine.holds(1, 0b11));
  CHECK(machine.state(1).grant != first);
  CHECK(machine.core.step(event::GiveBack{1, first}, machine.now).empty());
}

TEST_CASE("a repeated want keeps its place, GPUs never touched are left out of it") {
  Machine machine(Mode::kExclusive);
  for (ClientId id = 1; id <= 3; ++id) {
    machine.client(id);
    machine.want(id);
  }
  machine.want(2, 0b111);
  CHECK(machine.state(2).wanted == 1);
  CHECK(has(machine.give_back(1), Change::kGranted, 2));
}

TEST_CASE("automatic mode runs clients together when their memory and contexts fit the GPU") {
  Machine machine(Mode::kAutomatic);
  machine.client(1, 1, 490 * kMega);
  machine.client(2, 1, 490 * kMega);
  machine.want(1);
  CHECK(has(machine.want(2), Change::kGranted, 2));
  CHECK_FALSE(machine.pressed(1));
  CHECK(machine.core.gpu(0).holders == 2);
  machine.now += 1h;
  CHECK(machine.tick().empty());
}

TEST_CASE("automatic mode counts every context, also of clients that do not run") {
  Machine machine(Mode::kAutomatic);
  machine.client(1, 1, 490 * kMega);
  machine.client(2, 1, 490 * kMega);
  machine.client(3);
  machine.want(1);
  machine.want(2);
  CHECK_FALSE(machine.holds(2));
}

TEST_CASE("a context of unknown cost is taken for 500 MiB, in proportion on a small GPU") {
  CHECK(assumed_context(Bytes{141} << 30) == Bytes{500} << 20);
  CHECK(assumed_context(Bytes{1} << 30) == Bytes{64} << 20);
}

TEST_CASE("automatic mode takes turns when the memory does not fit") {
  Machine machine(Mode::kAutomatic);
  machine.client(1, 1, 600 * kMega);
  machine.client(2, 1, 600 * kMega);
  machine.want(1);
  machine.want(2);
  CHECK_FALSE(machine.holds(2));
  CHECK(machine.state(1).drain_at == 10s + 100ms);
  CHECK(has(machine.give_back(1), Change::kGranted, 2));
  machine.want(1);
  CHECK_FALSE(machine.holds(1));
  CHECK(machine.pressed(2));
}

TEST_CASE("automatic mode forms groups that fit, and a group ends its turn together") {
  Machine machine(Mode::kAutomatic);
  machine.client(1, 1, 300 * kMega);
  machine.client(2, 1, 300 * kMega);
  machine.client(3, 1, 600 * kMega);
  machine.client(4, 1, 100 * kMega);
  machine.want(1);
  machine.now += 40ms;
  machine.want(2);
  machine.want(3);
  machine.want(4);  // would fit beside 1 and 2, but comes after 3
  CHECK(machine.holds(1));
  CHECK(machine.holds(2));
  CHECK_FALSE(machine.holds(3));
  CHECK_FALSE(machine.holds(4));
  CHECK(machine.state(1).drain_at == machine.now + 100ms);
  CHECK(machine.state(2).drain_at == machine.now + 100ms);
  machine.give_back(1);
  const auto decisions = machine.give_back(2);
  CHECK(has(decisions, Change::kGranted, 3));
  CHECK(has(decisions, Change::kGranted, 4));
}

TEST_CASE("memory that cannot move takes room from the others also while its owner waits") {
  Machine machine(Mode::kAutomatic);
  machine.client(1);
  machine.client(2, 1, 400 * kMega);
  machine.client(3, 1, 400 * kMega);
  machine.core.step(event::Usage{1, 0, 300 * kMega, 300 * kMega}, machine.now);
  machine.want(2);
  machine.want(3);
  CHECK(machine.holds(2));
  CHECK_FALSE(machine.holds(3));
}

TEST_CASE("when clients that run together outgrow the GPU the last one yields and they take turns") {
  Machine machine(Mode::kAutomatic);
  machine.client(1, 1, 400 * kMega);
  machine.client(2, 1, 400 * kMega);
  machine.want(1);
  machine.now += 50ms;
  machine.want(2);
  CHECK(has(machine.use(2, 590 * kMega), Change::kPressure, 2));
  CHECK_FALSE(machine.pressed(1));
  CHECK(machine.state(2).drain_at == machine.now + 100ms);
  machine.give_back(2);
  machine.want(2);
  CHECK_FALSE(machine.holds(2));
  CHECK(machine.pressed(1));
}

TEST_CASE("a process that grows alone beyond the GPU still runs") {
  Machine machine(Mode::kAutomatic);
  machine.client(1, 1, 400 * kMega);
  machine.want(1);
  CHECK(machine.use(1, 5000 * kMega).empty());
  CHECK(machine.holds(1));
}

TEST_CASE("automatic mode does not flap when a process allocates and frees in every iteration") {
  Machine machine(Mode::kAutomatic);
  machine.client(1, 1, 400 * kMega);
  machine.client(2, 1, 400 * kMega);
  machine.want(1);
  machine.want(2);
  machine.use(2, 590 * kMega);
  machine.give_back(2);
  machine.want(2);
  REQUIRE_FALSE(machine.holds(2));
  for (int i = 0; i < 10; ++i) {
    machine.now += 50ms;
    CHECK(machine.use(2, 400 * kMega).empty());
    machine.now += 50ms;
    CHECK(machine.use(2, 590 * kMega).empty());
  }
  SECTION("they run together again once the memory has been low for a while") {
    machine.now += 3s;
    CHECK(has(machine.use(2, 400 * kMega), Change::kGranted, 2));
    CHECK_FALSE(machine.pressed(1));
  }
  SECTION("but not at the very edge") {
    machine.now += 3s;
    machine.use(2, 570 * kMega);  // would just fit
    CHECK_FALSE(machine.holds(2));
  }
}

TEST_CASE("concurrent mode lets everybody run, whatever they use") {
  Machine machine(Mode::kConcurrent);
  for (ClientId id = 1; id <= 5; ++id) {
    machine.client(id, 1, 900 * kMega);
    machine.want(id);
    CHECK(machine.holds(id));
  }
  CHECK_FALSE(machine.pressed(1));
}

TEST_CASE("after a restart of the daemon those who run are granted what they run on") {
  Machine machine(Mode::kExclusive);
  machine.client(1);
  machine.client(2);
  machine.client(3);
  machine.want(1);
  machine.want(2);
  CHECK(has(machine.core.step(event::Want{3, 1, true}, machine.now), Change::kGranted, 3));
  CHECK(machine.pressed(1));
  CHECK(machine.pressed(3));
  machine.give_back(1);
  CHECK_FALSE(machine.holds(2));
  CHECK(has(machine.give_back(3), Change::kGranted, 2));
}

TEST_CASE("a client that is withdrawn has to give back at once, and is revoked earlier than after the grace period") {
  Machine machine(Mode::kExclusive);
  machine.client(1);
  machine.client(2);
  CHECK(machine.core.step(event::Withdraw{1, 500ms}, machine.now).empty());  // it holds nothing
  machine.want(1);
  CHECK_FALSE(machine.pressed(1));
  const Time begun = machine.now;
  CHECK(has(machine.core.step(event::Withdraw{1, 500ms}, machine.now), Change::kPressure, 1));
  CHECK(machine.pressed(1));
  CHECK(machine.state(1).drain_at == begun);
  CHECK(machine.core.give_back_by(1) == begun + 500ms);
  machine.now += 100ms;
  CHECK(machine.core.step(event::Withdraw{1, 500ms}, machine.now).empty());  // the first one counts
  machine.want(2);                                                           // and who comes later changes nothing
  CHECK(machine.core.give_back_by(1) == begun + 500ms);
  machine.now = begun + 500ms;
  CHECK(has(machine.tick(), Change::kRevoked, 1));
  CHECK(machine.holds(2));
  // It ends with the grant.
  machine.want(1);
  machine.give_back(2);
  CHECK(machine.holds(1));
  CHECK_FALSE(machine.pressed(1));
  CHECK(machine.core.give_back_by(1) == Time{});
}

TEST_CASE("events about unknown clients, GPUs and grants are ignored") {
  Machine machine(Mode::kExclusive);
  CHECK(machine.want(7).empty());
  CHECK(machine.core.step(event::GiveBack{7, 1}, machine.now).empty());
  CHECK(machine.core.step(event::AddGpu{7, 0, 1, 1}, machine.now).empty());
  machine.client(1);
  CHECK(machine.core.step(event::AddGpu{1, 64, 1, 1}, machine.now).empty());
  CHECK(machine.core.step(event::Usage{1, 9, 1}, machine.now).empty());
  CHECK(machine.core.step(event::GiveBack{1, 0}, machine.now).empty());
  machine.want(1);
  CHECK(machine.core.step(event::GiveBack{1, 0}, machine.now).empty());
  CHECK(machine.holds(1));
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
