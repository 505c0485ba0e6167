// How much of a stream's work may be in flight while programs take turns: when a turn ends, other programs wait for
// what is queued. A pure machine: the calls that are made, the *marks* (events of rota's between them) that are
// recorded and passed, and the time go in; whether a call may be made, and whether a mark is due in front of it, come
// out.
//
// The time that a mark is under way shows how long a call keeps the stream busy; a few milliseconds of work are
// allowed. This limit can hold back what the GPU waits for (another stream's kernel, a value that the waiting thread
// would write). So, like a closed gate, it can be lifted: if no mark passes for a while, the stream may exceed it.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>

#include "runtime/turn/machine.h"

namespace rota::turn {

class Flow {
 public:
  // How much may be in flight in one stream. A judgment: a burst of 20 ms next to a busy program should take at most a
  // fifth longer, and a waiting thread is woken within a fraction of a millisecond.
  static constexpr Time kInFlight = std::chrono::milliseconds(3);
  // Marks of a stream are about this far apart.
  static constexpr Time kBetweenMarks = std::chrono::milliseconds(1);
  // If no mark has passed for this long while a thread waits, the thread continues.
  static constexpr Time kNothingPasses = std::chrono::milliseconds(20);

  enum class Answer {
    kWait,  // too much is in flight
    kGo,
    kMark,  // go, but first record a mark behind all calls so far, and report marked() or not_marked()
  };
  // `calls`: how many the stream has had so far, here and below.
  Answer may_call(std::uint64_t calls) const;
  void begins_mark() { marking_ = true; }
  void not_marked() { marking_ = false; }
  void marked(std::uint64_t calls, Time now);
  // The GPU has passed the oldest mark.
  void passed(Time now);
  // A thread waits. Returns whether waiting is futile: then the stream may have as much again in flight.
  bool stalls(std::uint64_t calls, Time now);
  // The marks can no longer be queried: all calls so far count as passed.
  void forget(std::uint64_t calls);
  // Its marks have ended with their context, and what was in flight counts as passed.
  void lose_marks(std::uint64_t calls);
  // Starts anew, for another stream.
  void begin(std::uint64_t calls);

  // When this many calls have been made, the next one has to ask.
  std::uint64_t free_until() const;
  std::size_t marks() const { return marks_.size(); }
  bool in_use() const { return marking_ || !marks_.empty(); }
  Time passed_at() const { return passed_at_; }

 private:
  struct Mark {
    std::uint64_t calls;  // of the stream, before it
    std::uint64_t in_flight;
    Time at;
  };
  static constexpr std::uint64_t kFirstInFlight = 4;
  static constexpr std::uint64_t kMostInFlight = 1 << 14;
  std::uint64_t calls_between_marks() const;

  std::uint64_t passed_ = 0;  // of the calls
  std::uint64_t marked_ = 0;  // before the last mark
  std::uint64_t most_ = kFirstInFlight;
  double per_call_ = 0;   // how long a call keeps the stream busy, ns; 0: not known
  bool marking_ = false;  // a mark is being made
  std::deque<Mark> marks_;
  Time passed_at_{0};
};

}  // namespace rota::turn
