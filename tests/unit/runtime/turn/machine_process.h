// A process as the turn machine sees it, driven by a test.
#pragma once

#include "runtime/turn/machine.h"

namespace rota::test {

using namespace turn;  // NOLINT(google-build-using-namespace)
using namespace std::chrono_literals;

// One process with one GPU, which has index 0 in rotad.
struct Process {
  Machine machine;
  Time now = 1000s;
  event::Look seen;
  std::vector<Action> done;  // by the last call
  Marked mark = Marked::kYes;
  bool resident = true;  // whether an attempt to restore memory succeeds
  bool some = false;     // whether, if `resident` is false, a part of it was restored

  Process() { step(event::Gpus{.any = true, .answered = true, .served = 1}); }

  void step(const Event& event) {
    done.clear();
    apply(event);
  }
  void apply(const Event& event) {
    const std::vector<Action> actions = machine.step(event, now);
    for (const Action& action : actions) {
      done.push_back(action);
      if (action.act == Act::kMark) apply(event::MarkMade{mark});
      if (action.act == Act::kBringBack) {
        seen.resident = resident;
        apply(event::Brought{.resident = resident, .some = some});
      }
    }
  }
  void look() { step(seen); }
  // Calls the machine whenever it asks to be called, for this long.
  void run(Time time) {
    std::vector<Action> all;
    for (const Time until = now + time; now < until;) {
      now = std::min(until, std::max(machine.look_at(), now + 20us));
      look();
      all.insert(all.end(), done.begin(), done.end());
    }
    done = all;
  }
  void run_until(Phase phase) {
    for (const Time until = now + 1h; machine.phase() != phase && now < until;) run(1ms);
    REQUIRE(machine.phase() == phase);
  }
  bool did(Act act) const {
    return std::any_of(done.begin(), done.end(), [&](const Action& action) { return action.act == act; });
  }
  bool said(Note note) const {
    return std::any_of(done.begin(), done.end(),
                       [&](const Action& action) { return action.act == Act::kSay && action.note == note; });
  }
  void hold(std::uint32_t grant = 1) {
    seen.standing = 1;
    look();
    REQUIRE(did(Act::kWant));
    seen.lease = {.grant = grant, .held = 1};
    look();
    seen.standing = 0;
    REQUIRE(machine.gate_open());
  }
  // Another client waits, and the turn is over; the GPU is working and calls wait at the gate.
  void press() {
    run(10ms);
    seen.lease.waiters = 1;
    seen.lease.drain_at = now;
    seen.looked = true;
    seen.done = false;
    seen.standing = 1;
    look();
    REQUIRE(machine.phase() == Phase::kDraining);
    REQUIRE_FALSE(machine.gate_open());
  }
  void lose() {
    seen.lease = {};
    step(event::Lost{});
  }
  void welcome() {
    step(event::Connected{});
    step(event::Gpus{.any = true, .answered = true, .served = 1});
  }
};

}  // namespace rota::test
