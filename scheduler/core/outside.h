// How much of a GPU's memory is outside: in use by nobody whom rotad knows. Other programs have it, a display, a
// context that its dead process has left behind. This is what is known of it by the driver's count, in two ways:
//
//   listed       what processes have there that are no clients, by the driver's list of processes. It counts as soon as
//                it is seen, as long as it is seen, and for kListKept while the driver does not tell who has what.
//   unexplained  what is in use beyond what clients can have there at most. Nobody says how much of Unified Memory lies
//                on a GPU, so it is taken to be all that they have allocated: where clients have none this is exact,
//                and else it is less than what is outside. Processes that are not listed are in it. A reading and the
//                books are of different moments, so it counts once it has been there for kSettled without a break.
//
// The larger of the two counts: none is more than what is outside, but for what has changed since the last reading.
// Beside too much of it programs would take turns without need; beside too little they would be let in together.
#pragma once

#include <algorithm>
#include <optional>

#include "scheduler/core/event.h"

namespace rota::scheduler {

class Outside {
 public:
  // Both are judgement. Readings are a second apart, and usage that nobody sends a message about is 200 ms old at most.
  static constexpr Time kSettled = std::chrono::seconds(2);
  static constexpr Time kListKept = std::chrono::seconds(10);

  // A reading: what is in use in all, what of it processes have that are no clients (nothing: the driver does not
  // tell), and what clients can have there at most.
  void measured(Bytes in_use, std::optional<Bytes> listed, Bytes explained, Time now) {
    if (listed) {
      listed_ = std::min(*listed, in_use);
      listed_at_ = now;
    } else if (now - listed_at_ >= kListKept) {
      listed_ = 0;
    }
    const Bytes unexplained = in_use > explained ? in_use - explained : 0;
    settled_ = std::min(settled_, unexplained);
    least_ = since_ == kNever ? unexplained : std::min(least_, unexplained);
    if (since_ == kNever) since_ = now;
    if (now - since_ < kSettled) return;
    settled_ = least_;
    least_ = unexplained;
    since_ = now;
  }
  // There have been no readings for too long: nothing is known.
  void forget() { *this = {}; }

  // 0 where nothing is outside, or known of it.
  Bytes bytes() const { return std::max(listed_, settled_); }

 private:
  static constexpr Time kNever = Time::min();

  Bytes listed_ = 0;
  Time listed_at_{};
  Bytes settled_ = 0;    // of what is unexplained
  Bytes least_ = 0;      // since since_
  Time since_ = kNever;  // kNever: there has been no reading
};

}  // namespace rota::scheduler
