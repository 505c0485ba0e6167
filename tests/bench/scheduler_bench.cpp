// How many grants a second the scheduler's core makes when many clients take turns on one GPU, on several, or on
// neighbouring pairs of several: each turn is a give-back, the next client's grant, and a new want. The target is
// 200 000 a second with 2 000 clients, by the processor's time: what else the machine does is not in it.
#include <fmt/format.h>

#include <chrono>
#include <cstdlib>

#include "scheduler/core/core.h"
#include "scheduler/server/processor_time.h"

namespace {

using namespace rota::scheduler;

// Grants per second.
double measure(Mode mode, bool measured_turns, ClientId clients, GpuIndex gpus, bool pairs) {
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
  const auto wanted = [&](ClientId id) {
    return GpuMask{1} << id % gpus | GpuMask{pairs ? 1U : 0U} << (id + 1) % gpus;
  };
  for (ClientId id = 1; id <= clients; ++id) {
    step(event::Join{id});
    for (GpuIndex gpu = 0; gpu < gpus; ++gpu) {
      if (!has(wanted(id), gpu)) continue;
      step(event::AddGpu{id, gpu, kTotal, Bytes{1} << 20});
      step(event::Usage{id, gpu, kTotal * 6 / 10});
    }
    step(event::Want{id, wanted(id)});
  }
  const std::uint64_t before = core.grants();
  const std::chrono::nanoseconds start = rota::server::processor_time();
  constexpr int kTurns = 500'000;
  for (int turn = 0; turn < kTurns; ++turn) {
    now += std::chrono::microseconds(5);
    const ClientId holder = holders[static_cast<std::size_t>(turn)];
    step(event::GiveBack{holder, core.client(holder)->grant});
    step(event::Want{holder, wanted(holder)});
  }
  const std::chrono::duration<double> took = rota::server::processor_time() - start;
  return static_cast<double>(core.grants() - before) / took.count();
}

struct Wanted {
  GpuIndex gpus;
  bool pairs;
  const char* what;
};

}  // namespace

int main() {
  bool enough = true;
  for (const Mode mode : {Mode::kExclusive, Mode::kAutomatic}) {
    for (const bool measured_turns : {false, true}) {
      for (const auto& [gpus, pairs, what] :
           {Wanted{1, false, "1 GPU"}, {8, false, "8 GPUs"}, {8, true, "pairs of 8"}}) {
        const double rate = measure(mode, measured_turns, 2000, gpus, pairs);
        enough = enough && rate >= 200'000;
        fmt::print("core, {:<10} {:<8} turns, 2000 clients, {:<10}: {:>10.0f} grants/s (target 200000)\n",
                   mode_name(mode), measured_turns ? "measured" : "fixed", what, rate);
      }
    }
  }
  return enough ? EXIT_SUCCESS : EXIT_FAILURE;
}
