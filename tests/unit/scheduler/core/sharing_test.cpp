// How programs share a GPU that they fit: the whole policy with a model of programs, and its parts by hand.
#include "scheduler/core/policy/sharing.h"

#include <catch2/catch.hpp>
#include <cstdlib>
#include <random>

#include "tests/unit/scheduler/core/programs_sim.h"

namespace rota::scheduler {
namespace {

using namespace std::chrono_literals;
using sim::Fixed;
using sim::Program;
using sim::Result;
using sim::shared;
using sim::World;

double score(const Result& result, const std::vector<double>& alone) {
  double sum = 0;
  for (std::size_t i = 0; i < alone.size(); ++i) sum += result.kernels[i] / alone[i];
  return sum;
}

std::vector<double> alone(const std::vector<Program>& programs, Time length) {
  std::vector<double> rates;
  for (const Program& program : programs) {
    rates.push_back(World({program}, Fixed{Candidate::kTogether, {false}}).run(length).kernels[0]);
  }
  return rates;
}

// The best of the three candidates, with hindsight.
double best(const std::vector<Program>& programs, const std::vector<double>& rates, Time length) {
  std::vector<bool> light;
  for (const Program& program : programs) {
    const auto kernel = static_cast<double>(program.kernel.count());
    light.push_back(kernel / (kernel + static_cast<double>(program.cpu.count())) < Sharing::kLight);
  }
  double most = 0;
  for (const Candidate candidate : {Candidate::kTogether, Candidate::kTurns, Candidate::kLightOpen}) {
    most = std::max(most, score(World(programs, Fixed{candidate, light}).run(length), rates));
  }
  return most;
}

constexpr Program kSaturating{.kernel = 1ms};
constexpr Program kHalf{.kernel = 500us, .cpu = 500us};
constexpr Program kTiny{.kernel = 250us, .cpu = 2ms};

TEST_CASE("two programs that keep a GPU busy take turns and lose next to nothing") {
  const Result result = shared({kSaturating, kSaturating}, 10s);
  CHECK(result.candidate == Candidate::kTurns);
  CHECK(result.kernels[0] + result.kernels[1] >= 0.98 * 1000);
  CHECK(std::abs(result.kernels[0] - result.kernels[1]) <= 0.05 * 1000);
}

TEST_CASE("eight have an eighth each") {
  const Result result = shared(std::vector<Program>(8, kSaturating), 20s);
  for (const double rate : result.kernels) CHECK(rate == Approx(125).margin(12.5));
}

TEST_CASE("programs that leave a GPU idle run together") {
  CHECK(shared({kTiny, kTiny}, 5s).candidate == Candidate::kTogether);
  CHECK(shared({kHalf, kHalf}, 5s).candidate == Candidate::kTogether);
  CHECK(shared({kSaturating, kTiny}, 5s).candidate != Candidate::kTurns);
}

TEST_CASE("light programs run at any time concurrently with heavy ones that take turns") {
  CHECK(shared({kSaturating, kSaturating, kTiny}, 5s).candidate == Candidate::kLightOpen);
}

TEST_CASE("light programs run at any time also if not all of the heavy ones keep the GPU busy") {
  constexpr Program kBusy{.kernel = 1ms, .cpu = 500us};
  constexpr Program kLighter{.kernel = 500us, .cpu = 1250us};
  const std::vector<Program> programs{{.kernel = 2500us}, kLighter, kBusy};
  const Result result = shared(programs, 20s);
  CHECK(result.candidate == Candidate::kLightOpen);
  const std::vector<double> rates = alone(programs, 20s);
  CHECK(score(result, rates) >= 0.97 * best(programs, rates, 20s));
}

TEST_CASE("heavy and light programs run together where that is better than turns of the heavy ones") {
  // Both heavy ones leave the GPU idle for part of their time.
  const std::vector<Program> programs{
      {.kernel = 1500us, .cpu = 16750us}, {.kernel = 1ms, .cpu = 500us}, {.kernel = 1ms, .cpu = 500us}};
  const Result result = shared(programs, 20s);
  CHECK(result.candidate == Candidate::kTogether);
  const std::vector<double> rates = alone(programs, 20s);
  CHECK(score(result, rates) >= 0.97 * best(programs, rates, 20s));
}

TEST_CASE("the choice is made within a second, and stays for ten") {
  for (const auto& programs : {std::vector{kSaturating, kSaturating}, std::vector{kHalf, kHalf},
                               std::vector{kSaturating, kSaturating, kTiny}}) {
    const Result result = shared(programs, 9s);
    CHECK(result.last_change <= 2s);  // the world begins at 1 s
    CHECK(result.changes <= 3);
  }
}

TEST_CASE("what an earlier rotad has measured of programs applies at once, and is measured again when it was due") {
  for (const auto& programs : {std::vector{kSaturating, kSaturating}, std::vector{kSaturating, kSaturating, kTiny}}) {
    World before(programs, std::nullopt);
    const Result was = before.run(6s);
    REQUIRE(was.candidate != Candidate::kTogether);
    const auto measured = before.measured();
    REQUIRE(measured.size() == programs.size());
    World after(programs, std::nullopt);
    for (const auto& each : measured) after.tell_measured(each);
    const Result is = after.run(3s);
    CHECK(is.candidate == was.candidate);
    CHECK(is.last_change <= 1s + 20ms);  // the world begins at 1 s
    CHECK(is.changes == 0);
    const auto again = after.measured();
    REQUIRE(again.size() == measured.size());
    for (std::size_t i = 0; i < again.size(); ++i) {
      CHECK(again[i].light == measured[i].light);
      CHECK(again[i].busy == measured[i].busy);
      CHECK(again[i].again_in == measured[i].again_in - 3s);
    }
    // Without one of them, nothing is known of the set.
    World other(programs, std::nullopt);
    other.tell_measured(measured.front());
    CHECK(other.measured().empty());
    CHECK(other.run(3s).last_change > 1s + 20ms);
  }
}

TEST_CASE("a burst next to a program that keeps the GPU busy is served at once") {
  const Program burst{.kernel = 1ms, .cpu = 0ms, .burst = 20, .think = 200ms};
  Result result = shared({kSaturating, burst}, 30s);
  std::vector<Time>& took = result.bursts[1];
  REQUIRE(took.size() > 100);
  std::sort(took.begin(), took.end());
  CHECK(took[took.size() / 2] <= 24ms);
  CHECK(took[took.size() * 99 / 100] <= 30ms);
  // The bursts take 20 of every 220 ms.
  CHECK(result.kernels[0] >= 0.97 * 1000 * 200 / 222);
}

TEST_CASE("four notebooks next to a trainer wait for each other at most") {
  std::vector<Program> programs{kSaturating};
  for (const Time think : {1700ms, 1900ms, 2100ms, 2300ms}) {
    programs.push_back({.kernel = 1ms, .cpu = 0ms, .burst = 100, .think = think});
  }
  Result result = shared(programs, 100s);
  std::vector<Time> took;
  double bursts = 0;
  for (std::size_t i = 1; i < 5; ++i) {
    took.insert(took.end(), result.bursts[i].begin() + 5, result.bursts[i].end());
    bursts += 0.1 * static_cast<double>(result.bursts[i].size());
  }
  REQUIRE(took.size() > 100);
  std::sort(took.begin(), took.end());
  CHECK(took[took.size() / 2] <= 120ms);
  CHECK(took[took.size() * 95 / 100] <= 220ms);
  CHECK(result.kernels[0] >= 0.97 * (1000 - bursts * 10));
}

// A core with measured turns and two clients that fit a GPU together.
struct Two {
  Two()
      : core([] {
          Settings settings;
          settings.measured_turns = true;
          return settings;
        }()) {
    for (const ClientId id : {1U, 2U}) {
      core.step(event::Join{id}, now);
      core.step(event::AddGpu{id, 0, Bytes{80} << 30, 1}, now);
    }
  }
  bool both_hold() const { return core.client(1)->held != 0 && core.client(2)->held != 0; }
  Core core;
  Time now = 1s;
};

TEST_CASE("a program that has handed memory to others runs concurrently with them: they may wait for each other") {
  Two two;
  two.core.step(event::Activity{.client = 1, .calls = 1, .shares = true}, two.now);
  two.core.step(event::Want{1, 1}, two.now);
  two.core.step(event::Want{2, 1}, two.now);
  CHECK(two.both_hold());
}

TEST_CASE("while somebody drains what it had queued before there were turns nothing is measured") {
  Two two;
  std::uint64_t samples = 0;
  const auto tell = [&](Time passed, bool second_works) {
    two.now += passed;
    samples += static_cast<std::uint64_t>(passed / 1ms);
    for (const ClientId id : {1U, 2U}) {
      if (id == 2 && !second_works) continue;
      event::Activity activity = {.client = id, .calls = samples};
      activity.samples = activity.busy = activity.in_spells = samples;
      two.core.step(activity, two.now);
    }
    two.core.step(event::Tick{}, two.now);
  };
  tell(1ms, true);
  two.core.step(event::Want{1, 1}, two.now);
  two.core.step(event::Want{2, 1}, two.now);
  tell(60ms, true);
  REQUIRE(two.core.gpu(0).looking);
  // The second leaves and waits; the first has a second of work queued.
  two.core.step(event::GiveBack{2, two.core.client(2)->grant}, two.now);
  two.core.step(event::Want{2, 1}, two.now);
  for (int i = 0; i < 40; ++i) tell(25ms, false);
  CHECK(two.core.gpu(0).candidate == Candidate::kTurns);
  CHECK(two.core.gpu(0).looking);
  // After that it is, as before.
  two.core.step(event::GiveBack{1, two.core.client(1)->grant}, two.now);
  two.core.step(event::Want{1, 1}, two.now);
  for (int i = 0; i < 45 && two.core.gpu(0).looking; ++i) tell(25ms, true);
  CHECK_FALSE(two.core.gpu(0).looking);
}

TEST_CASE("a new pair runs together until it collides") {
  Two two;
  std::uint64_t spells = 0;
  SECTION("and for good if it does not") {}
  SECTION("or may do so, since nothing is known of it") {
    spells = 1;
  }
  SECTION("and then takes turns") {
    spells = 60;
  }
  const auto tell = [&] {
    two.now += 60ms;
    for (const ClientId id : {1U, 2U}) {
      event::Activity activity = {.client = id, .calls = static_cast<std::uint64_t>(two.now / 1ms)};
      if (spells != 1) activity.samples = activity.busy = static_cast<std::uint64_t>(two.now / 1ms);
      activity.in_spells = spells == 60 ? activity.samples : 0;
      two.core.step(activity, two.now);
    }
    two.core.step(event::Tick{}, two.now);
  };
  tell();
  two.core.step(event::Want{1, 1}, two.now);
  two.core.step(event::Want{2, 1}, two.now);
  CHECK(two.both_hold());
  CHECK_FALSE(two.core.gpu(0).looking);
  tell();
  CHECK(two.core.gpu(0).looking == (spells != 0));
  CHECK((two.core.client(2)->waiters != 0) == (spells != 0));
}

TEST_CASE("programs that do not fit take turns by their memory, and are not sampled between two of them") {
  Two two;
  for (const ClientId id : {1U, 2U}) two.core.step(event::Usage{id, 0, Bytes{50} << 30}, two.now);
  const auto looked = [&] { return two.core.gpu(0).looking || two.core.sampling_gpus() != 0; };
  two.core.step(event::Want{1, 1}, two.now);
  two.core.step(event::Want{2, 1}, two.now);
  for (int i = 0; i < 20; ++i) {
    const ClientId holder = two.core.client(1)->held != 0 ? 1 : 2;
    two.now += 100ms;
    two.core.step(event::GiveBack{holder, two.core.client(holder)->grant}, two.now);
    CHECK_FALSE(looked());
    two.now += 50ms;
    two.core.step(event::Tick{}, two.now);
    // Nor if a client that uses no GPU comes and goes.
    two.core.step(event::Join{3}, two.now);
    two.core.step(event::Leave{3}, two.now);
    two.core.step(event::Want{holder, 1}, two.now);
    CHECK_FALSE(looked());
    CHECK_FALSE(two.both_hold());
  }
}

TEST_CASE("Unified Memory that does not fit comes by page faults: turns are long, however soon they begin") {
  Two two;
  two.core.step(event::Activity{.client = 1, .calls = 1, .switches = 1, .switching = 1ms}, two.now);
  for (const ClientId id : {1U, 2U}) two.core.step(event::Usage{id, 0, Bytes{50} << 30}, two.now);
  CHECK(two.core.gpu(0).turn == Settings{}.quantum);
  // Swap memory is there when a turn begins.
  for (const ClientId id : {1U, 2U}) two.core.step(event::Usage{id, 0, Bytes{50} << 30, 0, Bytes{20} << 30}, two.now);
  CHECK(two.core.gpu(0).turn < 1s);
}

TEST_CASE("a small program that comes and goes next to others makes their turns no longer") {
  Two two;
  two.core.step(event::Join{3}, two.now);
  two.core.step(event::AddGpu{3, 0, Bytes{80} << 30, 1}, two.now);
  for (const ClientId id : {1U, 2U}) two.core.step(event::Usage{id, 0, Bytes{50} << 30}, two.now);
  two.core.step(event::Usage{3, 0, Bytes{1} << 30}, two.now);
  bool fits = true;
  SECTION("where it fits next to the holder") {}
  SECTION("nor shorter where it does not, and memory comes by page faults") {
    fits = false;
  }
  if (!fits) two.core.step(event::Usage{3, 0, Bytes{40} << 30}, two.now);
  two.core.step(event::Want{1, 1}, two.now);
  two.core.step(event::Want{2, 1}, two.now);
  Time longest{};
  Time shortest = 1h;
  int turns = 0;
  for (Time since = two.now; turns < 20; two.now += 5ms) {
    const ClientId holder = two.core.client(1)->held != 0 ? 1 : 2;
    const ClientState& state = *two.core.client(holder);
    if (state.held != 0 && state.waiters != 0 && state.drain_at <= two.now) {
      longest = std::max(longest, two.now - since);
      if (turns > 0) shortest = std::min(shortest, two.now - since);
      ++turns;
      two.core.step(event::GiveBack{holder, state.grant}, two.now);
      two.core.step(event::Want{holder, 1}, two.now);
      since = two.now;
    }
    const ClientState& small = *two.core.client(3);
    if (two.now / 5ms % 20 == 0 && small.held == 0 && small.wanted == 0) two.core.step(event::Want{3, 1}, two.now);
    if (two.now / 5ms % 20 != 0 && small.held != 0) {
      two.core.step(event::GiveBack{3, small.grant}, two.now);
      if (!fits) since = two.now;
    }
  }
  CHECK(longest <= Settings{}.quantum + 150ms);
  CHECK(shortest >= Settings{}.quantum - 150ms);
}

TEST_CASE("a program that has handed memory to others runs at once, whichever programs wait before it") {
  Two two;
  two.core.step(event::Join{3}, two.now);
  two.core.step(event::AddGpu{3, 0, Bytes{80} << 30, 1}, two.now);
  two.core.step(event::Activity{.client = 3, .calls = 1, .shares = true}, two.now);
  std::uint64_t calls = 0;
  const auto tell = [&](Time passed) {
    two.now += passed;
    calls += static_cast<std::uint64_t>(passed / 1ms);
    for (const ClientId id : {1U, 2U}) {
      event::Activity activity = {.client = id, .calls = calls};
      activity.samples = activity.busy = activity.in_spells = calls;
      two.core.step(activity, two.now);
    }
    two.core.step(event::Tick{}, two.now);
  };
  tell(1ms);
  two.core.step(event::Want{1, 1}, two.now);
  two.core.step(event::Want{2, 1}, two.now);
  tell(60ms);
  two.core.step(event::GiveBack{2, two.core.client(2)->grant}, two.now);
  two.core.step(event::Want{2, 1}, two.now);
  REQUIRE_FALSE(two.both_hold());
  two.core.step(event::Want{3, 1}, two.now);
  CHECK(two.core.client(3)->held != 0);
}

TEST_CASE("a turn is as long as the hand-overs of all who take turns make worth while, however often one comes") {
  Two two;
  two.core.step(event::Join{3}, two.now);
  two.core.step(event::AddGpu{3, 0, Bytes{80} << 30, 1}, two.now);
  for (const ClientId id : {1U, 2U, 3U}) two.core.step(event::Want{id, 1}, two.now);
  std::array<std::uint64_t, 4> switches{};
  std::array<Time, 4> switching{};
  const auto tell = [&](ClientId id, Time took) {
    two.now += 300ms;
    switching[id] += took;
    two.core.step(
        event::Activity{.client = id, .calls = ++switches[id], .switches = switches[id], .switching = switching[id]},
        two.now);
  };
  tell(1, 200ms);
  tell(2, 200ms);
  for (int i = 0; i < 25; ++i) tell(3, 1ms);
  CHECK(two.core.gpu(0).turn >= 2s);
}

TEST_CASE("how long turns take to begin is believed for no longer than they have lasted") {
  Two two;
  two.core.step(event::Want{1, 1}, two.now);
  two.now += 2ms;
  two.core.step(event::Activity{.client = 1, .calls = 1, .switches = 1, .switching = 10min}, two.now);
  CHECK(two.core.gpu(0).switching <= 2ms);
}

TEST_CASE("that a program lacked memory is forgotten with the one that waited for it") {
  Two two;
  two.core.step(event::Activity{.client = 1, .calls = 1, .shares = true}, two.now);
  for (const ClientId id : {1U, 2U}) two.core.step(event::Usage{id, 0, Bytes{50} << 30}, two.now);
  two.core.step(event::Want{1, 1}, two.now);
  two.core.step(event::Want{2, 1}, two.now);
  REQUIRE_FALSE(two.both_hold());
  two.core.step(event::Want{2, 0}, two.now);
  for (const ClientId id : {1U, 2U}) two.core.step(event::Usage{id, 0, Bytes{1} << 30}, two.now);
  two.now += 11s;
  for (const ClientId id : {1U, 2U}) two.core.step(event::Usage{id, 0, Bytes{1} << 30}, two.now);
  two.core.step(event::Tick{}, two.now);
  two.core.step(event::Want{2, 1}, two.now);
  CHECK(two.both_hold());
}

TEST_CASE("turns are longer where memory moves with each") {
  Two two;
  two.core.step(event::Want{1, 1}, two.now);
  two.now += 10s;
  two.core.step(event::Activity{.client = 1, .calls = 1, .switches = 1, .switching = 100ms}, two.now);
  CHECK(two.core.gpu(0).turn == 2s);
  for (const ClientId id : {1U, 2U}) {
    two.core.step(event::Usage{.client = id, .gpu = 0, .used = Bytes{60} << 30, .resident = Bytes{10} << 30}, two.now);
  }
  two.core.step(event::Want{2, 1}, two.now);
  REQUIRE(two.core.gpu(0).crowded);
  CHECK(two.core.gpu(0).turn == 3s);
}

TEST_CASE("a fixed quantum decides nothing: programs that fit together run together") {
  Two two;
  Settings settings;
  settings.quantum = 100ms;
  two.core.step(event::Configure{settings}, two.now);
  two.core.step(event::Want{1, 1}, two.now);
  two.core.step(event::Want{2, 1}, two.now);
  CHECK(two.both_hold());
}

TEST_CASE("a program that waits when turns are no longer measured is not overtaken for ever") {
  Two two;
  two.core.step(event::Join{3}, two.now);
  two.core.step(event::AddGpu{3, 0, Bytes{80} << 30, 1}, two.now);
  Settings settings;
  settings.measured_turns = true;
  settings.mode = Mode::kExclusive;
  two.core.step(event::Configure{settings}, two.now);
  const auto everybody = [&](int rounds, std::vector<int>& turns) {
    for (int round = 0; round < rounds; ++round) {
      for (const ClientId id : {1U, 2U, 3U}) {
        const ClientState& state = *two.core.client(id);
        if (state.held == 0 && state.wanted == 0) two.core.step(event::Want{id, 1}, two.now);
        if (state.held == 0 || state.waiters == 0) continue;
        ++turns[id - 1];
        two.now += 100ms;
        two.core.step(event::GiveBack{id, state.grant}, two.now);
      }
    }
  };
  std::vector<int> turns(3);
  everybody(20, turns);
  settings.measured_turns = false;
  two.core.step(event::Configure{settings}, two.now);
  turns = std::vector<int>(3);
  everybody(60, turns);
  for (const int of_one : turns) CHECK(of_one > 10);
}

TEST_CASE("a turn has an end, however far the clocks of two GPUs are apart") {
  Two two;
  two.core.step(event::AddGpu{2, 1, Bytes{80} << 30, 1}, two.now);
  // GPU 0 is used for an hour.
  two.core.step(event::Want{1, 1}, two.now);
  two.now += 1h;
  // A client wants both, and the first comes back.
  two.core.step(event::Want{2, 3}, two.now);
  two.core.step(event::GiveBack{1, two.core.client(1)->grant}, two.now);
  REQUIRE(two.core.client(2)->held == 3);
  two.core.step(event::Want{1, 1}, two.now);
  CHECK(two.core.client(2)->drain_at <= two.now + 1s);
}

// The policy against the best of the three with hindsight, for random sets of programs.
TEST_CASE("what the law chooses is about the best of the candidates") {
  const char* text = std::getenv("ROTA_SHARING_SETS");  // NOLINT(concurrency-mt-unsafe)
  const int sets = text != nullptr ? std::atoi(text) : 60 / ROTA_TEST_EVERY;
  constexpr Time kLength = 20s;
  std::minstd_rand random(12);
  const auto between = [&](double low, double high) {
    return low + (high - low) * std::uniform_real_distribution<double>()(random);
  };
  double lost = 0;
  double worst = 0;
  for (int set = 0; set < sets; ++set) {
    std::vector<Program> programs;
    const auto count = static_cast<int>(between(2, 5));
    for (int i = 0; i < count; ++i) {
      // In steps of the simulation, so that u is exact.
      const double kernel = std::round(std::exp(between(std::log(1), std::log(20))));
      const double u = between(0, 1) < 0.3 ? 1 : between(0.05, 1);
      programs.push_back({.kernel = static_cast<int>(kernel) * World::kStep,
                          .cpu = static_cast<int>(std::round(kernel * (1 / u - 1))) * World::kStep});
    }
    const std::vector<double> rates = alone(programs, kLength);
    const Result result = shared(programs, kLength);
    const double most = best(programs, rates, kLength);
    const double loss = 1 - score(result, rates) / most;
    lost += loss;
    worst = std::max(worst, loss);
    if (loss > 0.1) {
      std::string what;
      for (const Program& program : programs) {
        what +=
            std::to_string(program.kernel.count() / 1000) + "+" + std::to_string(program.cpu.count() / 1000) + " us ";
      }
      UNSCOPED_INFO(what << "loses " << loss << " as " << static_cast<int>(result.candidate) << " of " << most);
    }
  }
  INFO("mean " << lost / sets << ", worst " << worst);
  CHECK(lost / sets <= 0.02);
}

}  // namespace
}  // namespace rota::scheduler
