// How the monitor waits for what happens next: asleep, or awake where waking would take longer than what it waits for.
// Pure: the states of the tasks go in, how to wait comes out.
#pragma once

#include <optional>

#include "runtime/core/devices.h"
#include "runtime/turn/machine.h"

namespace rota::turn {

class Pace {
 public:
  // Both sides of a hand-over spin for as long as one takes when little is in flight: waking a sleeping thread takes
  // longer than the work that it then does.
  explicit Pace(Time awake) : awake_(awake) {}

  // How often the socket is checked: nothing else shows that rotad has closed the connection.
  static constexpr Time kLookAtSocket = std::chrono::milliseconds(250);
  static constexpr Time kWithoutRotad = std::chrono::seconds(1);
  // The same while rotad has not read all messages of this process.
  static constexpr Time kSendAgain = std::chrono::milliseconds(1);

  struct Rotad {
    bool connected = false;
    bool asked = false;   // or it has not welcomed this process yet
    bool unsent = false;  // it has not read all
  };
  void begin(const Rotad& rotad) {
    *this = Pace(awake_);
    rotad_ = rotad;
  }
  // When something has to be polled.
  void at(Time look_at) { look_at_ = std::min(look_at_, look_at); }
  // A task has events that it has not been told.
  void due() { due_ = true; }
  void task(const Machine& machine) {
    at(machine.look_at());
    const bool drains = machine.phase() == Phase::kDraining && !machine.rests_in_gang();
    if (drains) draining_ = std::max(draining_.value_or(Time{0}), machine.draining_since());
  }
  // rotad has not answered for a task's GPUs: the answer takes microseconds and rings no bell.
  void unanswered() { unanswered_ = true; }
  // When the turn of a task that waits is about to begin on these GPUs; 0: not known.
  void turn(Time begins, Devices devices) {
    if (begins == Time{0} || (turn_ != Time{0} && begins >= turn_)) return;
    turn_ = begins;
    turn_on_ = devices;
  }

  struct Wait {
    enum class How {
      kNot,
      kSleep,       // without the bell
      kAwake,       // yields the CPU, without the bell
      kForTurn,     // the same until the bell rings or the turn is no longer about to begin
      kForMessage,  // on the socket
      kForBell,     // or rotad's page
    } how = How::kNot;
    Time most{0};
    Devices devices = 0;  // kForTurn: the GPUs whose threads are about to continue,
    Time until{0};        // and until when
  };
  Wait wait(Time now) const;
  // Whether a turn, or a drain, has begun so recently or is so near that it is waited for awake.
  bool is_about(Time turn, Time now) const { return turn != Time{0} && now >= turn && now - turn < awake_; }

 private:
  Time awake_;
  Rotad rotad_;
  Time look_at_ = Time::max();
  bool due_ = false;
  bool unanswered_ = false;
  std::optional<Time> draining_;
  Time turn_{0};
  Devices turn_on_ = 0;
};

}  // namespace rota::turn
