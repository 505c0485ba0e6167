// How much work a process has in flight while programs take turns: what is queued when its turn ends, everybody else
// waits for. So calls are counted, stream by stream, and events of ours (*marks*) are put in front of some of them;
// the monitor sees them pass, and so learns how long a call keeps the stream busy. Who has more in flight than some
// milliseconds stands in front of the gate until some of it is done.
//
// A bound can hold back what the GPU waits for (another stream's kernel, a value that this thread would write). So it
// is revocable as a close is: if no mark passes for a while, the stream may go beyond it.
//
// Only while the state word says so (scope.h); the fast path knows nothing of it.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "runtime/turn/contexts.h"
#include "runtime/turn/gate.h"
#include "runtime/turn/machine.h"
#include "runtime/turn/stream_key.h"

namespace rota::turn {

class Meter {
 public:
  // How much may be in flight in one stream. Judgement: a burst of 20 ms beside a busy program is to take at most a
  // fifth longer, and a thread that stands is woken within a fraction of a millisecond.
  static constexpr Time kInFlight = std::chrono::milliseconds(3);
  // Marks of a stream are about so far apart.
  static constexpr Time kBetweenMarks = std::chrono::milliseconds(1);
  // No mark has passed for so long while a thread stands: it goes on.
  static constexpr Time kNothingPasses = std::chrono::milliseconds(20);
  // Of so many streams at most the counts are kept, if nothing of the others is in flight.
  static constexpr std::size_t kMostStreams = 256;

  Meter() : state_(std::make_unique<State>()) {}

  // --- program's threads, inside the gate, before a call that submits. False: the call's thread has to stand until the
  // monitor says otherwise. `now` tells the time, where that is needed.
  bool enter(const gate::Call& call, Time (*now)());
  // The same between two events of a pair that the program times: it is counted where that costs little, and goes on.
  static bool count(const gate::Call& call);
  // This context is about to end, or has: its events go with it.
  void forget(api::CUcontext context);

  // --- the monitor, under the lock that contexts end under
  // Looks which marks have passed. True: somebody who stands may go on. `standing`: somebody does.
  bool look(Time now, bool standing);
  // When the next look is wanted; Time::max(): nothing is in flight.
  Time look_at() const { return look_at_; }
  // Nothing is metered any more: marks that are under way no longer matter.
  void stop();

  std::size_t streams() const;

 private:
  struct Mark {
    api::CUevent event;
    std::uint64_t calls;  // of the stream, before it
    std::uint64_t in_flight;
    Time at;
  };
  struct Stream {
    std::atomic<std::uint64_t> calls{0};  // so far
    // When this many calls have been made, the next one has to look what to do.
    std::atomic<std::uint64_t> free_until{0};
    // The rest under the lock.
    api::CUcontext context = nullptr;  // of the events
    std::uint64_t passed = 0;          // of the calls
    std::uint64_t marked = 0;          // before the last mark
    std::uint64_t most = kFirstInFlight;
    double per_call = 0;   // how long a call keeps the stream busy, ns; 0: not known
    bool marking = false;  // a thread is making a mark, without the lock
    std::deque<Mark> marks;
    std::vector<api::CUevent> spare;
    Time passed_at{0};
  };
  static constexpr std::uint64_t kFirstInFlight = 4;
  static constexpr std::uint64_t kMostInFlight = 1 << 14;
  struct State {
    std::mutex mutex;
    // None ever goes, since threads remember them (gate::Thread::metered); one may come to be another stream's.
    std::map<StreamKey, Stream> streams;
    bool forgotten = false;  // streams' marks: who stands for them may go on
  };

  Stream& find(const StreamKey& key);
  static void drop_events(Stream& stream);
  static Stream* remembered(const gate::Call& call, api::CUcontext current);
  static void mark(Stream& stream, const gate::Call& call, Time now, std::unique_lock<std::mutex>& lock);
  static bool passed(Stream& stream, Time now);
  static std::uint64_t calls_between_marks(const Stream& stream);
  static void set_free(Stream& stream);

  std::unique_ptr<State> state_;
  Time look_at_ = Time::max();
};

}  // namespace rota::turn
