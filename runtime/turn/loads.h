// Libraries that a program is about to load and by which its memory may be reached: how long memory stays in place for
// each. A program that tries to load one again and again must not keep others from the GPU. A pure machine.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "runtime/turn/machine.h"

namespace rota::turn {

class Loads {
 public:
  // How long memory stays in place, which is longer than loading takes; the same for a library that was to be loaded a
  // short time ago; how short that time is; and how many libraries are remembered. Judgments.
  static constexpr Time kStays = std::chrono::seconds(5);
  static constexpr Time kStaysAgain = std::chrono::milliseconds(500);
  static constexpr Time kAgain = std::chrono::seconds(60);
  static constexpr std::size_t kMost = 64;

  Time stays(std::string_view library, Time now) const {
    const auto known = loaded_.find(library);
    return known != loaded_.end() && now - known->second < kAgain ? kStaysAgain : kStays;
  }
  // The load begins now: memory is in place.
  void loads(std::string_view library, Time now) {
    if (loaded_.size() >= kMost) loaded_.clear();
    loaded_.insert_or_assign(std::string(library), now);
  }

 private:
  std::map<std::string, Time, std::less<>> loaded_;
};

}  // namespace rota::turn
