// Attempts to restore the process's memory that the driver refuses for reasons other than a lack of memory. A pure
// machine.
#pragma once

#include "runtime/turn/machine.h"

namespace rota::turn {

class Restores {
 public:
  // A driver that has refused this often, for this long, is assumed never to accept. A judgment.
  static constexpr int kMostRefusals = 5;
  static constexpr Time kLongestRefusal = std::chrono::seconds(3);

  // All memory is there.
  void succeeded() { refused_ = 0; }
  // Returns whether that was one refusal too many: the memory is lost.
  bool refused(Time now) {
    if (refused_++ == 0) since_ = now;
    lost_ = lost_ || (refused_ >= kMostRefusals && now - since_ >= kLongestRefusal);
    return lost_;
  }
  bool lost() const { return lost_; }

 private:
  int refused_ = 0;  // since all memory was last there
  Time since_{0};
  bool lost_ = false;
};

}  // namespace rota::turn
