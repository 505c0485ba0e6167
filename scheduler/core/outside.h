// How much of a GPU's memory is unmanaged (*outside*), that is, in use by processes that rotad does not know: programs
// without rota, a display server, the context of a process that has died. The driver's figures show it in two ways:
//
//   listed       used by processes that are not clients, according to the driver's list of processes, and what it has
//                for contexts and lists for none. It counts as soon as it is seen, as long as it is seen, and for
//                kListKept while the driver does not report processes.
//   unexplained  in use beyond the most that clients can have there. How much Unified Memory is on a GPU is not known:
//                all that clients have allocated is assumed to be there, which is exact where clients have none, and
//                otherwise leaves too little unexplained. Processes that are not listed are included. A reading and the
//                accounting are of different moments, so it counts only once it has been there for kSettled without a
//                break.
//
// The larger of the two counts, since neither is more than what is unmanaged, apart from changes since the last
// reading. If the figure were too large, programs would take turns without need; if it is too small, they are let in
// together.
#pragma once

#include <algorithm>
#include <optional>

#include "scheduler/core/event.h"

namespace rota::scheduler {

class Outside {
 public:
  // Both are judgement. Readings are a second apart, and usage that is reported without a message is at most 200 ms
  // old.
  static constexpr Time kSettled = std::chrono::seconds(2);
  static constexpr Time kListKept = std::chrono::seconds(10);

  // A reading: the total in use, the part of it that processes other than clients use (nothing: the driver does not
  // report it), and the most that clients can have there.
  void measured(Bytes in_use, std::optional<Bytes> listed, Bytes explained, Time now) {
    if (listed) {
      listed_ = std::min(*listed, in_use);
      listed_at_ = now;
    } else if (now - listed_at_ >= kListKept) {
      listed_ = 0;
    }
    const Bytes unexplained = in_use > explained ? in_use - explained : 0;
    lasting_ = std::min(lasting_, unexplained);
    least_ = since_ == kNever ? unexplained : std::min(least_, unexplained);
    if (since_ == kNever) since_ = now;
    if (now - since_ < kSettled) return;
    lasting_ = least_;
    least_ = unexplained;
    since_ = now;
  }
  // There has been no reading for too long: forgets everything.
  void forget() { *this = {}; }

  // 0 if nothing is unmanaged, or if nothing is known.
  Bytes bytes() const { return std::max(listed_, lasting_); }

 private:
  static constexpr Time kNever = Time::min();

  Bytes listed_ = 0;
  Time listed_at_{};
  Bytes lasting_ = 0;    // the part of the unexplained bytes that counts
  Bytes least_ = 0;      // minimum since since_
  Time since_ = kNever;  // kNever: no reading yet
};

}  // namespace rota::scheduler
