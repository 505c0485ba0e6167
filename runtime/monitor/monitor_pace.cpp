// The monitor's pace: how much may be in flight, and when it sleeps or spins.
#include <algorithm>
#include <thread>

#include "runtime/gate/reach_check.h"
#include "runtime/monitor/monitor.h"

namespace rota::monitor {

using namespace std::chrono_literals;

namespace {

constexpr turn::Time kAwake(protocol::kAwakeNs);

}  // namespace

// Work in flight is limited while programs take turns, or while others need host memory that is given back once nothing
// is in flight.
void Monitor::meter() {
  const bool asked = rotad_ && ((rotad_->watch() & protocol::kWatchMeter) != 0 || host_pauses_.presses(now()));
  const bool wanted = !stopping() && asked;
  if (wanted != gate_.metered()) {
    if (!wanted) meter_.stop();
    gate_.set_metered(wanted);
  }
  if (!wanted) return;
  const bool standing = gate_.held_up() != 0;
  if (contexts_.captures() != 0) {
    if (standing) gate_.resume();  // metering is off for now
    return;
  }
  if (!standing && now() < meter_.look_at() && meter_.look_at() != turn::Time::max()) return;
  contexts_.while_all_live([&] {
    if (meter_.look(now(), standing)) gate_.resume();
  });
}

// Where several tasks take turns, it has to be known for which of them a call is; and for a captured copy, on which
// GPUs the graph will work (graph_reach.h).
void Monitor::sort_calls() {
  const bool watched = tasks_.size() > 1 && rotad_ && std::ranges::any_of(tasks_, [this](const auto& task) {
                         return task->machine.watches_gpu() || rotad_->watch(task->served) != 0;
                       });
  const bool captures = several() && contexts_.captures() != 0;
  const bool wanted = watched || captures || (gate::checks_reached_calls() && several());
  if (wanted == gate_.sorted()) return;
  if (wanted) return gate_.set_sorted(true);
  // Not while a capture begins (capture_begins()).
  contexts_.while_all_live([&] {
    if (contexts_.captures() == 0) gate_.set_sorted(false);
  });
}

void Monitor::sleep(std::uint32_t heard, std::uint32_t event_seen) {
  turn::Pace pace(kAwake);
  pace.begin(
      {.connected = static_cast<bool>(rotad_), .asked = rotad_.asks(), .unsent = rotad_ && rotad_->has_unsent()});
  pace.at(meter_.look_at());
  pace.at(timing_.look_at());
  for (const auto& task : tasks_) {
    pace.task(task->machine);
    pace.at(task->sampler.look_at());
    if (!task->due.empty()) pace.due();
    if (task->told && task->told->any && !task->told->answered) pace.unanswered();
    const bool waits = task->machine.phase() == turn::Phase::kWaiting && rotad_;
    if (waits) pace.turn(rotad_->next_turn(task->served), task->devices);
  }
  const turn::Time begun = now();
  const turn::Pace::Wait wait = pace.wait(begun);
  const turn::Time until = begun + wait.most;
  using How = turn::Pace::Wait::How;
  switch (wait.how) {
    case How::kNot:
      break;
    case How::kSleep:
      std::this_thread::sleep_for(wait.most);
      break;
    case How::kAwake:
      while (now() < until) std::this_thread::yield();
      break;
    case How::kForTurn: {
      gate_.rouse(std::chrono::steady_clock::time_point(wait.until), wait.devices);
      const auto& event = rotad_->event();
      while (now() < std::min(until, wait.until) && bell_.heard() == heard && event.load() == event_seen) {
        std::this_thread::yield();
      }
      break;
    }
    case How::kForMessage:
      rotad_->wait_for_message(static_cast<int>(std::clamp<std::int64_t>(wait.most / 1ms, 1, 50)));
      break;
    case How::kForBell:
      bell_.wait(heard, rotad_ ? &rotad_->event() : nullptr, event_seen, wait.most);
      break;
  }
}

}  // namespace rota::monitor
