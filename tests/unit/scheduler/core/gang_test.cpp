// Programs that want several GPUs at once: no GPU is idle for long because another one is still held, each program has
// its share, and none waits for ever.
#include <catch2/catch.hpp>
#include <cstdlib>

#include "gang_sim.h"

namespace rota::scheduler::gangs {
namespace {

// Of random histories; ROTA_GANG_STEPS=2000000 for more of them.
std::uint64_t steps_to_take() {
  const char* steps = std::getenv("ROTA_GANG_STEPS");
  return steps != nullptr ? std::strtoull(steps, nullptr, 10) : 200'000;
}

TEST_CASE("a GPU that a waiter cannot use yet goes to the next one, for a turn that ends when the waiter can start") {
  Settings settings;
  settings.mode = Mode::kExclusive;
  settings.quantum = 100ms;
  Core core(settings);
  Time now = 10s;
  for (ClientId id = 1; id <= 3; ++id) {
    core.step(event::Join{id}, now);
    for (GpuIndex gpu = 0; gpu < 2; ++gpu) core.step(event::AddGpu{id, gpu, 1000, 1}, now);
  }
  core.step(event::Want{1, 0b01}, now);
  core.step(event::Want{2, 0b11}, now);
  SECTION("while the holder in its way does not drain") {
    now += 40ms;
    core.step(event::Want{3, 0b10}, now);
    REQUIRE(core.client(3)->held == 0b10);
    CHECK(core.client(3)->drain_at == core.client(1)->drain_at);
    now += 60ms;
    core.step(event::GiveBack{1, core.client(1)->grant}, now);
    CHECK(core.client(2)->held == 0);
    core.step(event::Want{1, 0b01}, now);
    CHECK(core.client(1)->held == 0);  // it is reserved
    core.step(event::GiveBack{3, core.client(3)->grant}, now);
    CHECK(core.client(2)->held == 0b11);
  }
  SECTION("unless it would be shorter than a quarter of a turn") {
    now += 80ms;
    core.step(event::Want{3, 0b10}, now);
    CHECK(core.client(3)->held == 0);
  }
}

TEST_CASE("programs on neighbouring pairs of a ring of GPUs keep all of them busy, with equal shares") {
  const Mode mode = GENERATE(Mode::kExclusive, Mode::kAutomatic);
  const bool measured = GENERATE(false, true);
  const unsigned gpus = GENERATE(8U, 16U);
  double least = 1;
  for (unsigned seed = 1; seed <= 10; seed += ROTA_TEST_EVERY) {
    CAPTURE(mode_name(mode), measured, gpus, seed);
    Gangs ring(mode, measured, seed);
    for (unsigned i = 0; i < gpus; ++i) ring.add({.gpus = bit(i) | bit((i + 1) % gpus)});
    ring.run(120s);
    least = std::min(least, ring.gpu_seconds() / (120 * gpus));
    for (unsigned i = 0; i < gpus; ++i) {
      CHECK(ring.held(i) == Approx(ring.gpu_seconds() / (2 * gpus)).epsilon(0.04));
      CHECK(ring.longest_wait(i) <= 6 * Gangs::kTurn);
    }
  }
  CAPTURE(mode_name(mode), measured, gpus);
  CHECK(least >= 0.95);
}

TEST_CASE("programs on neighbouring pairs of a line of GPUs leave idle what nobody else could use") {
  const bool measured = GENERATE(false, true);
  CAPTURE(measured);
  Gangs line(Mode::kExclusive, measured, 1);
  for (unsigned i = 0; i < 7; ++i) line.add({.gpus = bit(i) | bit(i + 1)});
  line.run(120s);
  // All 8 GPUs for one half of the time, 6 for the other.
  CHECK(line.gpu_seconds() >= 0.95 * 7 * 120);
  for (unsigned i = 0; i < 7; ++i) CHECK(line.held(i) == Approx(60).epsilon(0.05));
}

TEST_CASE("a program on all GPUs has its share next to programs on one each, and costs little time") {
  const bool measured = GENERATE(false, true);
  const unsigned each = GENERATE(1U, 2U, 4U);
  CAPTURE(measured, each);
  Gangs mix(Mode::kExclusive, measured, each);
  const std::size_t wide = mix.add({.gpus = 0xff, .domain = 1});
  for (unsigned i = 0; i < 8 * each; ++i) mix.add({.gpus = bit(i % 8), .domain = 2 + i});
  mix.run(120s);
  CHECK(mix.held(wide) == Approx(120. / (1 + each)).epsilon(0.03));
  CHECK(mix.gpu_seconds() >= 0.98 * 8 * 120);
  CHECK(mix.longest_wait(wide) <= (4 + 4 * each) * Gangs::kTurn);
}

TEST_CASE(
    "while a program on two GPUs waits for an overcommitted one, the other GPU is not idle, and it has its share") {
  const bool measured = GENERATE(false, true);
  CAPTURE(measured);
  Gangs mix(Mode::kExclusive, measured, 3);
  const std::size_t both = mix.add({.gpus = 0b11, .domain = 1});
  for (unsigned i = 0; i < 9; ++i) mix.add({.gpus = 0b01, .domain = 2 + i});
  const std::size_t other = mix.add({.gpus = 0b10, .domain = 20});
  mix.run(120s);
  CHECK(mix.held(both) == Approx(12).epsilon(0.05));
  CHECK(mix.held(both) + mix.held(other) >= 0.95 * 120);
}

// What the programs of a random history do besides taking turns.
void disturb(Gangs& gangs, std::vector<GpuMask>& touched) {
  const std::size_t i = gangs.pick(static_cast<unsigned>(touched.size()));
  switch (gangs.pick(8)) {
    case 0:
      gangs.kill(i);
      touched[i] = gangs.pick(255) + 1;
      gangs.replace(i, {.gpus = touched[i], .domain = gangs.pick(4), .never_gives_back = gangs.pick(16) == 0});
      break;
    case 1:
    case 2:
      if (const GpuMask some = touched[i] & (gangs.pick(255) + 1); some != 0) gangs.regroup(i, some);
      break;
    case 3:
    case 4:
      gangs.interrupt(i);
      break;
    default:
      gangs.measure_alone(i);
  }
}

TEST_CASE("random sets of GPUs: no two conflicting holders, no set in part, nobody waits for ever, no GPU idles long") {
  std::uint64_t steps = 0;
  std::uint64_t revoked = 0;
  for (unsigned seed = 1; steps < steps_to_take(); ++seed) {
    const Mode mode = seed % 2 == 0 ? Mode::kExclusive : Mode::kAutomatic;
    const bool measured = seed % 4 < 2;
    CAPTURE(seed, mode_name(mode), measured);
    Gangs gangs(mode, measured, seed);
    std::vector<GpuMask> touched;
    for (unsigned i = 0; i < 2 + seed % 12; ++i) {
      // Pairs, single GPUs, or anything.
      const unsigned first = gangs.pick(8);
      const GpuMask pair = bit(first) | bit((first + 1) % 8);
      touched.push_back(gangs.pick(3) == 0 ? gangs.pick(255) + 1 : gangs.pick(2) == 0 ? pair : bit(first));
      gangs.add({.gpus = touched.back(), .domain = gangs.pick(4)});
    }
    for (int round = 0; round < 100; ++round) {
      gangs.run(gangs.pick(300) * 1ms);
      disturb(gangs, touched);
    }
    gangs.run(30s);
    // With measured turns one that is owed up to 10 s has them back.
    for (std::size_t i = 0; i < touched.size(); ++i) {
      CAPTURE(i);
      CHECK(gangs.longest_wait(i) <= (measured ? 30s : 8s));
    }
    CHECK(gangs.longest_idle() <= (measured ? 6s : 2s));
    steps += gangs.steps();
    revoked += gangs.revoked();
  }
  CHECK(revoked > 0);
}

}  // namespace
}  // namespace rota::scheduler::gangs
