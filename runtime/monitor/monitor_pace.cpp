// The monitor's pace: how much may be in flight, and when it sleeps or spins.
#include <algorithm>
#include <thread>

#include "runtime/gate/reach_check.h"
#include "runtime/monitor/monitor.h"

namespace rota::turn {

using namespace std::chrono_literals;

namespace {

// How often the socket is checked: nothing else shows that rotad is gone.
constexpr Time kLookAtSocket = 250ms;
// The same while rotad has not read what this process has to say.
constexpr Time kSendAgain = 1ms;
// Both sides of a hand-over spin for as long as one takes when little is in flight: waking a sleeping thread takes
// longer than the work that it then does.
constexpr Time kAwake(protocol::kAwakeNs);
bool is_about(Time turn) {
  const Time since = now() - turn;
  return turn != Time{0} && since >= Time{0} && since < kAwake;
}

}  // namespace

// What is in flight while programs take turns, or others need host memory that is given back once nothing is.
void Monitor::meter() {
  const bool asked = connection_ && ((connection_->watch() & protocol::kWatchMeter) != 0 || host_presses());
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
  if (!standing && now() < meter_.look_at() && meter_.look_at() != Time::max()) return;
  contexts_.while_all_live([&] {
    if (meter_.look(now(), standing)) gate_.resume();
  });
}

// Where several tasks take turns, it has to be known which of them a call is for; and of a captured copy, of which GPUs
// the graph will be (graph_reach.h).
void Monitor::sort_calls() {
  const bool watched = tasks_.size() > 1 && connection_ && std::ranges::any_of(tasks_, [this](const auto& task) {
                         return task->machine.watches_gpu() || connection_->watch(task->served) != 0;
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
  Time look_at = std::min(meter_.look_at(), timing_.look_at());
  Time turn{0};          // the earliest that is about to begin,
  gate::Devices at = 0;  // on these GPUs
  std::optional<Time> draining;
  bool unanswered = false;
  bool due = false;
  for (const auto& task : tasks_) {
    const Machine& machine = task->machine;
    look_at = std::min({look_at, machine.look_at(), task->activity.look_at()});
    due |= !task->due.empty();
    const bool drains = machine.phase() == Phase::kDraining && !machine.rests_in_gang();
    if (drains) draining = std::max(draining.value_or(Time{0}), machine.draining_since());
    unanswered |= task->told && task->told->any && !task->told->answered;
    if (machine.phase() != Phase::kWaiting || !connection_) continue;
    const Time begins = connection_->next_turn(task->served);
    if (begins == Time{0} || (turn != Time{0} && begins >= turn)) continue;
    turn = begins;
    at = task->devices;
  }
  Time pause = std::min(look_at - now(), connection_ || unanswered_ ? kLookAtSocket : Time(1s));
  if (turn > now()) pause = std::min(pause, turn - now());
  if (connection_ && connection_->has_unsent()) pause = std::min(pause, kSendAgain);
  if (pause <= Time{0} || due) return;
  if (draining) {
    if (!is_about(*draining)) return std::this_thread::sleep_for(pause);
    for (const Time until = now() + pause; now() < until;) std::this_thread::yield();
  } else if (is_about(turn)) {
    gate_.rouse(std::chrono::steady_clock::time_point(turn + kAwake), at);
    const auto& event = connection_->event();
    for (const Time until = now() + pause; now() < until && bell_.heard() == heard && event.load() == event_seen;) {
      if (!is_about(turn)) return;
      std::this_thread::yield();
    }
  } else if (connection_ && unanswered) {
    // The answer comes on the socket, for which no bell rings; it takes microseconds.
    connection_->wait_for_message(static_cast<int>(std::clamp<std::int64_t>(pause / 1ms, 1, 50)));
  } else {
    bell_.wait(heard, connection_ ? &connection_->event() : nullptr, event_seen, pause);
  }
}

}  // namespace rota::turn
