// A rotad in place of the user's own that was killed or has crashed.
//
// The machine's rotad is started again by whoever runs the machine. The user's own was started by a `rota run`, which
// has long become the program, and without a rotad nobody evicts memory: a program whose swapped memory is not on the
// GPU would wait until somebody starts a program, or for ever. So a program that waits has `rota` start another, as the
// next `rota run` would. A rotad that ends on purpose (`rota control stop`, SIGTERM) takes its socket away with it:
// that one stays ended.
#pragma once

#include <algorithm>
#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/client/connection.h"
#include "runtime/client/detached.h"
#include "runtime/turn/machine.h"

namespace rota::client {

// The command that starts a rotad such as this one, whose arguments these are as /proc has them, each with a NUL behind
// it. None: it was not started by `rota run`.
std::optional<std::vector<std::string>> command_for_another(std::string_view arguments);

// When the next start is due. Pure: the time is passed in.
class RotadStarts {
 public:
  // How long a rotad is away until another is started: long enough for whoever restarts it in another way. A judgment.
  static constexpr turn::Time kAway = std::chrono::seconds(1);
  // Between two attempts of this process, doubled each time, until a rotad has lived for kLives. Judgments.
  static constexpr turn::Time kFirstPause = std::chrono::seconds(10);
  static constexpr turn::Time kLastPause = std::chrono::minutes(10);
  static constexpr turn::Time kLives = std::chrono::minutes(1);

  // A rotad serves this process from now on; it has gone.
  void served(turn::Time now) { served_since_ = now; }
  void lost(turn::Time now) {
    lost_at_ = now;
    if (now - served_since_ < kLives) return;
    pause_ = kFirstPause;
    next_at_ = turn::Time{0};
  }
  bool is_due(turn::Time now) const { return now - lost_at_ >= kAway && now >= next_at_; }
  // Another is being started.
  void started(turn::Time now) {
    next_at_ = now + pause_;
    pause_ = std::min(pause_ * 2, kLastPause);
  }

 private:
  turn::Time served_since_{0};
  turn::Time lost_at_{0};
  turn::Time next_at_{0};
  turn::Time pause_ = kFirstPause;
};

class NextRotad {
 public:
  // Keeps what the environment says of rotad, since the program may change it.
  NextRotad();

  // --- the monitor's thread
  void served_by(const Connection& rotad, turn::Time now);
  void lost(turn::Time now) { starts_.lost(now); }
  // No rotad was found, and a thread waits for one: starts another if that is due.
  void awaited(turn::Time now);
  // What has to be done for another rotad, as a part of a line for the user.
  std::string remedy();

 private:
  void hear();

  std::vector<std::string> environment_;
  std::string socket_;                // of the rotad that serves, or has served, this process
  std::vector<std::string> command_;  // that starts another; empty: it is somebody else's to start again
  RotadStarts starts_;
  Heard heard_;  // what the command says
  std::string problem_;
};

}  // namespace rota::client
