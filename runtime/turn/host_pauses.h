// When the gate of a busy program closes for a moment, so that it gives back what only an idle one can: memory whose
// free would wait for the GPU, and pinned memory of the host that others need. A pure machine.
//
// A pause is short. For host memory that others have needed for a while without one in which no work ran, some pauses
// are longer, each longer than the last, up to as long as a turn's end waits for a GPU that makes no progress. If that
// was not enough either, they come less and less often. What was found is kept while others need nothing: they may the
// moment after.
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
  // For how long none may be there for what others ask to leave before that is said: it may come within a moment, from
  // others' shares.
  static constexpr Time kSayLacks = std::chrono::seconds(1);

  // Whether this process has more of the host's memory than its share.
  void exceeds(bool does, Time now);
  // Whether others have needed that for a while.
  bool presses(Time now) const { return exceeds_since_ && now - *exceeds_since_ >= kPresses; }
  // Memory that others ask for could leave, or the host had none for it. Returns whether to say so.
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
    kCannotTell,  // it will not be known before a capture, or a call that takes long, is over
  };
  // The pause is over: after so long, with this result.
  void over(const Pause& pause, Rest rest, Time waited, Time now);

 private:
  Time next_{0};
  Time longer_{0};     // how long the next longer one is at least,
  Time longer_at_{0};  // when it may be,
  Time between_{0};    // and how long after the last
  std::optional<Time> exceeds_since_;
  std::optional<Time> lacks_since_;
};

}  // namespace rota::turn
