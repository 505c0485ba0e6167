// When the gate of a busy program closes for a moment, so that it gives back what only an idle one can: memory whose
// free would wait for the GPU, and pinned host memory that others need. A pure machine.
//
// A pause is short. If others have needed host memory for a while and no pause found the GPU idle, some pauses are
// longer, each longer than the last, up to as long as a turn's end waits for a GPU that makes no progress. If that is
// not enough either, they come less and less often. The learned length is remembered while others need nothing, since
// they may need memory again soon.
#pragma once

#include <optional>

#include "runtime/turn/machine.h"

namespace rota::turn {

class HostPauses {
 public:
  // How long the gate is closed at most. Judgments, as all here.
  static constexpr Time kShortPause = std::chrono::milliseconds(1);
  static constexpr Time kLongestPause = Machine::kPatience;
  // Between two pauses.
  static constexpr Time kBetween = std::chrono::milliseconds(250);
  // How long others need host memory before the program's work is metered, and pauses may be longer.
  static constexpr Time kPresses = std::chrono::milliseconds(250);
  // How long host memory may be missing for an eviction that others ask for before a line says so: others' shares may
  // provide it within a moment.
  static constexpr Time kSayLacks = std::chrono::seconds(1);

  // Whether this process has more of the host's memory than its share.
  void exceeds(bool does, Time now);
  // Whether others have needed that memory for a while.
  bool presses(Time now) const { return exceeds_since_ && now - *exceeds_since_ >= kPresses; }
  // Memory that others ask for could be evicted, or the host had none for it. Returns whether to log that.
  bool lacks(bool does, Time now);

  // Whether a pause may be made.
  bool due(Time now) const { return now >= next_; }
  struct Pause {
    bool longer;
    Time most;
  };
  Pause plan(Time now) const;
  enum class Rest {
    kProven,  // no work of the process runs
    kNotYet,
    kCannotTell,  // unknown until a capture, or a call that takes long, is over
  };
  // The pause is over: after so long, with this result.
  void over(const Pause& pause, Rest rest, Time waited, Time now);

 private:
  Time next_{0};
  Time longer_{0};     // how long the next long pause is at least,
  Time longer_at_{0};  // when it may be,
  Time between_{0};    // and how long after the last
  std::optional<Time> exceeds_since_;
  std::optional<Time> lacks_since_;
};

}  // namespace rota::turn
