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

// The context for which this thread runs a stream's task; null: not a stream's thread. A graph's lanes run for the
// context of the stream that the graph was launched in.
Context*& running_context();
// Whether it is being destroyed: then its work need not wait for events outside the context, which may never come.
// False for null.
bool is_destroyed(const Context* context);
// Wakes a context's tasks that wait for work of other contexts, once it is marked as destroyed.
void end_foreign_waits(const Context& context);

// What a stream runs: work on the engines, or a marker (no work).
struct Task {
  std::function<void()> work;
  std::vector<std::shared_ptr<Task>> after;  // besides the previous one in its stream; dropped once it has run
  Context* context = running_context();      // otherwise that of the stream that it is pushed into
  std::atomic<uint32_t> finished{0};         // kDone; the other bits count the times that its waiters were woken
  int64_t arrives_at = 0;                    // at the GPU; modelled time, as below
  int64_t finished_at = 0;                   // written before `finished`
  Origin origin = Origin::here();

  static constexpr uint32_t kDone = 1;
  static constexpr uint32_t kWoken = 2;

  bool done() const { return (finished.load(std::memory_order_acquire) & kDone) != 0; }
  // On the thread of another context's stream, it also ends when that context is destroyed.
  void wait() const;
  // Marks it as over, in the calling thread's modelled time.
  void finish();
};
using TaskPointer = std::shared_ptr<Task>;

// The range of priorities, as on every device since compute 7.0: the lowest priority is the larger number.
inline constexpr int kLeastStreamPriority = 0;
inline constexpr int kGreatestStreamPriority = -5;

// Attributes set by cuStreamSetAttribute, besides the priority. They do not affect simgpu.
struct StreamAttributes {
  CUaccessPolicyWindow window{};
  CUsynchronizationPolicy policy{UINT32_MAX};  // never set, as on driver 580.159
  CUlaunchMemSyncDomainMap domain_map{0, 1};
  CUlaunchMemSyncDomain domain = CU_LAUNCH_MEM_SYNC_DOMAIN_DEFAULT;
};

class Stream {
 public:
  Stream(Context* context, unsigned flags, int priority);
  ~Stream();  // waits until all queued tasks have run; on its own thread it does not wait, and the thread ends with the
              // current task
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  // Queues a task behind the others. The first task starts the thread, unless it was started before.
  void push(TaskPointer task);
  void start();
  // The last task queued, or null if there never was one.
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
  bool left = false;                     // it or its context is being destroyed, so it can no longer join a capture

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
// Sorted by creation; otherwise operations on all of them would depend on addresses.
struct ByAge {
  bool operator()(const StreamPointer& one, const StreamPointer& other) const { return one->id < other->id; }
};

using EventPointer = std::shared_ptr<Event>;

}  // namespace rota::sim
