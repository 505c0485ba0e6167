// Attempts to restore the process's memory that the driver refuses although there is memory for it. A pure machine.
#pragma once

#include "runtime/turn/machine.h"

namespace rota::turn {

class Restores {
 public:
  // A driver that has refused this often, for this long, is assumed never to accept. A judgment.
  static constexpr int kMostRefusals = 5;
  static constexpr Time kLongestRefusal = std::chrono::seconds(3);
  // The same where the driver says that it lacks memory, and each time also that it has more free than that takes: it
  // may be about to get back what others have evicted, or the host may be short of memory for its tables. A judgment.
  static constexpr Time kLongestDenial = std::chrono::minutes(5);

  // All memory is there.
  void succeeded() { refused_ = denied_ = {}; }
  // Each returns whether that was one refusal too many: the memory is lost. A lack of memory that is none:
  bool denied(Time now) { return count(denied_, now, kLongestDenial); }
  // a real one ends those,
  void lacks() { denied_ = {}; }
  // and any other reason:
  bool refused(Time now) { return count(refused_, now, kLongestRefusal); }
  bool lost() const { return lost_; }

 private:
  struct Row {
    int count = 0;  // since all memory was last there
    Time since{0};
  };
  bool count(Row& row, Time now, Time longest) {
    if (row.count++ == 0) row.since = now;
    lost_ = lost_ || (row.count >= kMostRefusals && now - row.since >= longest);
    return lost_;
  }

  Row refused_;
  Row denied_;
  bool lost_ = false;
};

}  // namespace rota::turn
