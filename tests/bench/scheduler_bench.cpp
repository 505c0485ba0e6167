// How many grants a second the scheduler's core makes when many clients take turns on one GPU or on several: each turn
// is a give-back, the next client's grant, and a new want. The design's target is 200 000 a second with 1 000 clients.
#include <fmt/format.h>

#include <chrono>
#include <cstdlib>

#include "scheduler/core/core.h"

namespace {

using namespace rota::scheduler;

// Grants per second of real time.
double measure(Mode mode, bool measured_turns, ClientId clients, GpuIndex gpus) {
  Settings settings;
  settings.mode = mode;
  settings.measured_turns = measured_turns;
  Core core(settings);
  Time now = std::chrono::seconds(1);
  constexpr Bytes kTotal = Bytes{1} << 37;
  std::vector<ClientId> holders;
  const auto step = [&](const Event& event) {
    for (const Decision& decision : core.step(event, now)) {
      if (decision.change == Change::kGranted) holders.push_back(decision.client);
    }
  };
  for (ClientId id = 1; id <= clients; ++id) {
    step(event::Join{id, true});
    step(event::AddGpu{id, id % gpus, kTotal, Bytes{1} << 20});
    step(event::Usage{id, id % gpus, kTotal * 6 / 10});
    step(event::Want{id, GpuMask{1} << id % gpus});
  }
  const std::uint64_t before = core.grants();
  const auto start = std::chrono::steady_clock::now();
  constexpr int kTurns = 500'000;
  for (int turn = 0; turn < kTurns; ++turn) {
    now += std::chrono::microseconds(5);
    const ClientId holder = holders[static_cast<std::size_t>(turn)];
    step(event::GiveBack{holder, core.client(holder)->grant});
    step(event::Want{holder, GpuMask{1} << holder % gpus});
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  return static_cast<double>(core.grants() - before) / took.count();
}

}  // namespace

int main() {
  bool enough = true;
  for (const Mode mode : {Mode::kExclusive, Mode::kAutomatic}) {
    for (const bool measured_turns : {false, true}) {
      for (const GpuIndex gpus : {1U, 8U}) {
        const double rate = measure(mode, measured_turns, 1000, gpus);
        enough = enough && rate >= 200'000;
        fmt::print("core, {:<10} {} turns, 1000 clients, {} GPU{}: {:>10.0f} grants/s (target 200000)\n",
                   mode_name(mode), measured_turns ? "measured" : "fixed", gpus, gpus == 1 ? " " : "s", rate);
      }
    }
  }
  return enough ? EXIT_SUCCESS : EXIT_FAILURE;
}
