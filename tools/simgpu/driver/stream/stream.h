// Streams: queues of tasks, each run in order by a thread of its own. Order between streams (events, the legacy
// default stream's rules) is kept by tasks that wait for earlier tasks, so there can be no cycle.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "tools/simgpu/driver/api.h"
#include "tools/simgpu/driver/stream/activity.h"

namespace rota::sim {

struct Capture;
struct Context;
struct Event;
struct GraphNode;

// The context for which this thread runs a stream's task; null: it is no stream's thread. A graph's lanes run for the
// context of the stream that the graph was launched in.
Context*& running_context();
// It is being destroyed: what its work waits for outside of it may never come, and need not be waited for. False
// for null.
bool is_destroyed(const Context* context);
// Wakes the tasks of a context that wait for work of others, once it is marked as destroyed.
void end_foreign_waits(const Context& context);

// What a stream runs: work on the engines, or a marker (no work).
struct Task {
  std::function<void()> work;
  std::vector<std::shared_ptr<Task>> after;  // beside the one before it in its stream; dropped once it ran
  Context* context = running_context();      // else that of the stream that it is pushed into
  std::atomic<uint32_t> finished{0};         // kDone; the other bits count the times that its waiters were woken
  int64_t arrives_at = 0;                    // at the GPU; modelled time, as below
  int64_t finished_at = 0;                   // written before `finished`
  Origin origin = Origin::here();

  static constexpr uint32_t kDone = 1;
  static constexpr uint32_t kWoken = 2;

  bool done() const { return (finished.load(std::memory_order_acquire) & kDone) != 0; }
  // On the thread of another context's stream it ends too when that context is destroyed.
  void wait() const;
  // It is over, in the modelled time of the thread that says so.
  void finish();
};
using TaskPointer = std::shared_ptr<Task>;

// The range of priorities, as on every device since compute 7.0: the least is a greater number.
inline constexpr int kLeastStreamPriority = 0;
inline constexpr int kGreatestStreamPriority = -5;

// What cuStreamSetAttribute sets, beside the priority. None of it changes what simgpu does.
struct StreamAttributes {
  CUaccessPolicyWindow window{};
  CUsynchronizationPolicy policy{UINT32_MAX};  // never set: so says driver 580.159
  CUlaunchMemSyncDomainMap domain_map{0, 1};
  CUlaunchMemSyncDomain domain = CU_LAUNCH_MEM_SYNC_DOMAIN_DEFAULT;
};

class Stream {
 public:
  Stream(Context* context, unsigned flags, int priority);
  ~Stream();  // waits until all that is queued ran; its own thread does not, and ends with the task under way
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  // Queues a task behind what is there. The thread is started by the first one, or before.
  void push(TaskPointer task);
  void start();
  // The task queued last, or null if there never was one.
  TaskPointer last() const;

  CUstream handle() { return reinterpret_cast<CUstream>(this); }
  bool blocking() const { return (flags & CU_STREAM_NON_BLOCKING) == 0; }

  Context* const context;
  const unsigned flags;
  std::atomic<int> priority;
  const uint64_t id;
  StreamAttributes attributes;  // under the context's mutex
  bool destroyed = false;       // by the program; it takes no more work. Under the context's mutex
  // Under the driver's capture mutex:
  std::shared_ptr<Capture> capture;
  std::vector<GraphNode*> capture_tail;  // what the next captured node depends on
  bool left = false;                     // it or its context is being destroyed: it joins no capture any more

 private:
  void run();
  void start_locked();
  TaskPointer next_task();

  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<TaskPointer> queue_;
  TaskPointer last_;
  std::atomic<uint64_t> queued_{0};  // tasks in queue_
  std::atomic<bool> ending_{false};
  std::atomic<bool> over_{false};  // the thread runs no task any more
  uint64_t participant_ = 0;       // its thread's number on the clock
  std::thread worker_;
};
using StreamPointer = std::shared_ptr<Stream>;
// In the order in which they were made, or what is done with all of them depends on addresses.
struct ByAge {
  bool operator()(const StreamPointer& one, const StreamPointer& other) const { return one->id < other->id; }
};

using EventPointer = std::shared_ptr<Event>;

}  // namespace rota::sim
