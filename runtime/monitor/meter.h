// Limits how much work a process has in flight while programs take turns (runtime/turn/flow.h): counts calls per
// stream, and records rota's own events (*marks*) in front of some of them. A thread with more than a few milliseconds
// in flight waits in front of the gate until some of it is done.
//
// Active only while the state word says so (runtime/gate/scope.h); the fast path does not know about it.
#pragma once

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
#include "runtime/gate/stream_calls.h"
#include "runtime/turn/flow.h"

namespace rota::monitor {

class Meter {
 public:
  // Counts are kept for at most this many streams, if the others have nothing in flight.
  static constexpr std::size_t kMostStreams = 256;

  Meter() : state_(std::make_unique<State>()) {}

  // --- program's threads, inside the gate, before a call that submits. False: the thread has to wait until the monitor
  // says otherwise. `now` returns the time; it is called only where that is needed.
  bool enter(const driver::Call& call, turn::Time (*now)());
  // This context is about to end or has ended: its events go with it.
  void forget(api::CUcontext context);

  // --- the monitor, under the lock that contexts end under Checks which marks have passed. True: a waiting thread may
  // continue. `standing`: a thread waits.
  bool look(turn::Time now, bool standing);
  // When the next poll is due; Time::max(): nothing is in flight.
  turn::Time look_at() const { return look_at_; }
  // Metering has ended: marks in flight no longer matter.
  void stop();

  std::size_t streams() const;

 private:
  struct Stream {
    // The counter that a call passes which need not ask.
    gate::StreamCalls counted;
    // The rest is guarded by the lock.
    api::CUcontext context = nullptr;  // of the events
    turn::Flow flow;
    std::deque<api::CUevent> marks;  // of the flow's
    std::vector<api::CUevent> spare;
  };
  struct State {
    std::mutex mutex;
    // Entries are never removed, since threads remember them (gate::Thread::Metered); one may be reused for another
    // stream.
    std::map<driver::StreamKey, Stream> streams;
    bool forgotten = false;  // streams' marks were forgotten: threads that wait for them may continue
  };

  Stream& find(const driver::StreamKey& key);
  static void drop_events(Stream& stream);
  static void mark(Stream& stream, const driver::Call& call, turn::Time now, std::unique_lock<std::mutex>& lock);
  static bool pass(Stream& stream, turn::Time now);
  static void set_free(Stream& stream);

  std::unique_ptr<State> state_;
  turn::Time look_at_ = turn::Time::max();
};

}  // namespace rota::monitor
