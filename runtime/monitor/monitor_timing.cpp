// The monitor's part in not disturbing what the program times (timing.h).
#include <algorithm>

#include "generated/driver_real.h"
#include "runtime/account/account.h"
#include "runtime/driver/context.h"
#include "runtime/monitor/monitor.h"

namespace rota::monitor {

namespace {

// The longest time that a thread waits for others to yield, however often it has to ask again.
constexpr turn::Time kMostPatience = 2 * turn::Pairs::kLongest;

}  // namespace

// --- the program's threads

api::CUresult Monitor::record(api::CUevent event, api::CUstream stream, bool per_thread,
                              FunctionRef<api::CUresult()> call) {
  // A call within a call, in a profiler's callback, does not wait.
  if (gate::may_not_wait() || !timing_.has_time(event)) return call();
  if (contexts_.captures() != 0) {
    timing_.forget(event);
    return call();
  }
  const api::CUcontext current = driver::of_current_context(stream) ? driver::current_context() : nullptr;
  const Timing::Key key = Timing::key_of(driver::key_of(stream, per_thread, current));
  Timing::Place place = timing_.place(event, key, now());
  if (place == Timing::Place::kOpens) {
    const driver::Call recorded{
        .symbol = Symbol::k_cuEventRecord, .stream = stream, .has_stream = true, .per_thread = per_thread};
    if (!opens(event, key, several() ? reached(recorded) : gate::kAllDevices)) place = Timing::Place::kNone;
  }
  const api::CUresult result = call();
  if (place != Timing::Place::kNone) timing_.recorded(event, key, place, result == api::CUDA_SUCCESS, now());
  return result;
}

// Waits until the pair may be opened; false: the pair does not count.
bool Monitor::opens(api::CUevent event, const Timing::Key& stream, gate::Devices devices) {
  turn::Time waited{0};
  for (;;) {
    gate_.pass(devices);
    const std::uint32_t seen = timing_.changes();
    switch (timing_.open(event, stream, now())) {
      case Timing::Opens::kFirst:
        bell_.ring();
        return true;
      case Timing::Opens::kNow:
        return true;
      case Timing::Opens::kNoMatter:
        return false;
      case Timing::Opens::kNotYet:
        break;
    }
    if (waited >= kMostPatience) return false;
    bell_.ring();
    const turn::Time before = now();
    timing_.wait(seen);
    waited += now() - before;
  }
}

// --- the monitor's thread

Timing::Wish Monitor::look_at_timing() {
  const std::uint32_t watch = rotad_ && !stopping() ? rotad_->watch() : 0;
  const auto any = [this](const auto& is) {
    return std::ranges::any_of(tasks_, [&](const auto& task) { return is(*task); });
  };
  const bool takes_turns = any([](const Task& task) {
    const turn::Phase phase = task.machine.phase();
    return phase != turn::Phase::kAlone && phase != turn::Phase::kUnserved && phase != turn::Phase::kBeside;
  });
  const Timing::Situation situation{.shared = (watch & protocol::kWatchTimings) != 0,
                                    .beside = takes_turns && (watch & protocol::kWatchAlone) != 0,
                                    .runs = any([](const Task& task) { return task.holds(); }),
                                    .hold = any([](const Task& task) { return task.machine.held_by_measurement(); }),
                                    .alone_until = rotad_ ? rotad_->alone_until() : turn::Time{0}};
  Timing::Wish wish;
  const auto passed = [](api::CUevent event) { return real::cuEventQuery(event) != api::CUDA_ERROR_NOT_READY; };
  const auto look = [&] { wish = timing_.look(situation, now(), passed); };
  // No context ends while its events are queried.
  if (timing_.in_flight() && contexts_.while_all_live(look)) return wish;
  return timing_.look(situation, now(), [](api::CUevent) { return false; });
}

// No pair begins during this.
void Monitor::look_at_activity(Task& task) {
  const std::uint32_t watch = rotad_ ? rotad_->watch(task.served) : 0;
  const std::uint32_t counted = watch & (protocol::kWatchCalls | protocol::kWatchSamples | protocol::kWatchMeter);
  const bool runs = task.holds();
  // The process's account records each moment once.
  const auto first = std::ranges::find_if(tasks_, [](const auto& each) { return each->holds(); });
  const bool accounts = account::wanted() && first != tasks_.end() && first->get() == &task;
  if (timing_.unless_measuring([&] { task.sampler.look(counted, accounts, runs, now()); })) return;
  task.sampler.look(counted & ~protocol::kWatchSamples, false, runs, now());
}

}  // namespace rota::monitor
