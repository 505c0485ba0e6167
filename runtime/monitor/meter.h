// Limits how much work a process has in flight while programs take turns: everybody else waits for what is queued when
// its turn ends. Calls are counted per stream, and rota records its own events (*marks*) in front of some of them; the
// monitor sees them pass and so learns how long a call keeps the stream busy. A thread with more than a few
// milliseconds in flight waits in front of the gate until some of it is done.
//
// The limit can hold back what the GPU waits for (another stream's kernel, a value that this thread would write). So,
// like a closed gate, it can be revoked: if no mark passes for a while, the stream may exceed it.
//
// Active only while the state word says so (scope.h); the fast path does not know about it.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "runtime/driver/contexts.h"
#include "runtime/driver/stream_key.h"
#include "runtime/gate/gate.h"
#include "runtime/turn/machine.h"

namespace rota::turn {

class Meter {
 public:
  // How much may be in flight in one stream. A judgment: a burst of 20 ms beside a busy program should take at most a
  // fifth longer, and a waiting thread is woken within a fraction of a millisecond.
  static constexpr Time kInFlight = std::chrono::milliseconds(3);
  // Marks of a stream are about this far apart.
  static constexpr Time kBetweenMarks = std::chrono::milliseconds(1);
  // If no mark has passed for this long while a thread waits, the thread continues.
  static constexpr Time kNothingPasses = std::chrono::milliseconds(20);
  // Counts are kept for at most this many streams, if the others have nothing in flight.
  static constexpr std::size_t kMostStreams = 256;

  Meter() : state_(std::make_unique<State>()) {}

  // --- program's threads, inside the gate, before a call that submits. False: the thread has to wait until the monitor
  // says otherwise. `now` returns the time; it is called only where that is needed.
  bool enter(const gate::Call& call, Time (*now)());
  // The same between the two events of a pair that the program times: the call is counted where that costs little, and
  // never waits.
  static bool count(const gate::Call& call);
  // This context is about to end or has ended: its events go with it.
  void forget(api::CUcontext context);

  // --- the monitor, under the lock that contexts end under
  // Checks which marks have passed. True: a waiting thread may continue. `standing`: a thread waits.
  bool look(Time now, bool standing);
  // When the next look is due; Time::max(): nothing is in flight.
  Time look_at() const { return look_at_; }
  // Metering has ended: marks in flight no longer matter.
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
    // When this many calls have been made, the next one takes the slow path.
    std::atomic<std::uint64_t> free_until{0};
    // The rest is guarded by the lock.
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
    // Entries are never removed, since threads remember them (gate::Thread::metered); one may be reused for another
    // stream.
    std::map<StreamKey, Stream> streams;
    bool forgotten = false;  // streams' marks were forgotten: threads that wait for them may continue
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
