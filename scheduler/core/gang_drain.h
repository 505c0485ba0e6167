// How the members of a gang come to rest together.
//
// A kernel of one member may wait on the GPU for a kernel that another has not launched yet, so closing all gates and
// waiting may take for ever. All gates are closed, and each member says when its work has finished (it *rests*) and
// whether calls wait at its gate. While some do not rest, each of the others may make one call at a time. So members
// that are behind catch up with those that have run ahead, and no member runs further ahead than by one call.
//
// What a member says is about a *step*, and each further call is a step: a member that says of the current step that it
// rests makes no call before the next. So once all say that, all rest at once.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "scheduler/core/event.h"

namespace rota::scheduler {

class GangDrain {
 public:
  // How long a step is at least: about as long as a call, its work and its report take, so that members which are about
  // to rest can say so. Longer once this many steps have not been enough. Judgments.
  static constexpr Time kStep = std::chrono::microseconds(100);
  static constexpr int kManySteps = 100;
  static constexpr Time kLongestStep = std::chrono::milliseconds(10);

  // What a member says (protocol::GpuUsage::gang_rest).
  struct Word {
    std::uint32_t step = 0;
    std::uint32_t flags = 0;
  };
  static Word word_of(std::uint64_t said) {
    return {static_cast<std::uint32_t>(said >> 32), static_cast<std::uint32_t>(said)};
  }

  // A grant begins.
  void begin_turn();
  // `must`: the turn ends, whether or not the members would have it. Only while somebody waits, or it must end.
  // Returns whether the members have to be told something new.
  bool look(std::span<const Word> members, bool must, Time now);
  // 0: the gang does not drain.
  std::uint32_t step() const { return drains_ ? step_ : 0; }
  bool drains() const { return drains_; }
  Time began() const { return began_; }
  // All rest, and give back.
  bool ended() const { return ended_; }
  // When it has to be polled again, whatever the members say.
  std::optional<Time> next() const { return next_; }

 private:
  std::uint32_t step_ = 0;
  bool drains_ = false;
  bool ended_ = false;
  int steps_ = 0;
  Time began_{};
  Time step_at_{};
  std::optional<Time> next_;
};

}  // namespace rota::scheduler
