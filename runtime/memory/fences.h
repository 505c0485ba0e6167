// Frees that streams have not passed yet: an event behind each, and what is notified when it has been reached.
//
// Points in a stream's work are numbered before their events are recorded, so an event that is reached says that all
// points of its stream with lower numbers have been passed too: one query of the driver serves many of them. The driver
// is queried with no lock held, since it has a lock of its own for which threads queue. During a query
//  - another thread may find that the point has been passed: its event is reused only when the last thread has released
//    it;
//  - the end of a context waits for the queries under way, and new ones do not touch its events.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "generated/driver_types.h"
#include "runtime/core/function_ref.h"
#include "runtime/driver/events.h"
#include "runtime/memory/heap.h"

namespace rota::memory {

struct ServedPool;

// Each function except next() is called with the owner's lock held, which also guards what the points refer to.
class Fences {
 public:
  using Fence = Heap::Fence;
  // What the work belongs to: the stream or, where the stream cannot be identified, the fence.
  struct Queue {
    Heap::Stream stream = 0;
    Fence fence = 0;
    friend auto operator<=>(const Queue&, const Queue&) = default;
  };
  static Queue queue_of(Heap::Stream stream, Fence fence) {
    return stream != 0 ? Queue{.stream = stream} : Queue{.fence = fence};
  }
  struct Point {
    Fence fence = 0;
    api::CUevent event = nullptr;
    api::CUcontext event_context = nullptr;
    std::shared_ptr<ServedPool> pool;  // whose heap
    api::CUcontext heap_context = nullptr;
    std::uint64_t address = 0;  // of the block
    std::uint64_t bytes = 0;
    int awaited = 0;  // threads that use the event
  };
  // With the lock held: the block behind the point is available to all streams.
  using Passed = FunctionRef<void(const Point& point)>;
  using Lock = std::unique_lock<std::mutex>;

  explicit Fences(driver::SpareEvents& events) : events_(events) {}

  // The number of a new point. Any thread, no lock; called before the event is recorded.
  Fence next() { return last_.fetch_add(1) + 1; }
  void add(const Queue& queue, Point point);
  bool outstanding(const Queue& queue, Fence fence) { return find(queue, fence) != nullptr; }

  // Keeps the event of a point usable until release(); null if the point has been passed.
  api::CUevent hold(const Queue& queue, Fence fence);
  void let_go(Lock& lock, const Queue& queue, Fence fence);

  // The event is no longer used.
  void release(api::CUcontext context, api::CUevent event);

  // Asks the driver what the streams have passed, with `lock` released meanwhile. An idle stream costs one query, a
  // busy one two or a few.
  void query(Lock& lock, const Passed& passed);
  // The same after a free, for its stream only, once a query has become worthwhile: once for several frees.
  void query_after_free(Lock& lock, const Queue& queue, const Passed& passed);

  // context_ending(): a context is about to be destroyed. context_ended() says whether it was; if so, its events have
  // ended with it, and their points count as passed.
  void context_ending(Lock& lock, api::CUcontext context);
  bool is_ending(api::CUcontext context) const { return ending_.contains(context); }
  void context_ended(api::CUcontext context, bool gone, const Passed& passed);

 private:
  // When a query after a free is worthwhile: this many points, or this many bytes (several spans) behind them.
  static constexpr std::size_t kFew = 64;
  static constexpr std::uint64_t kMuch = std::uint64_t{256} << 20;

  struct Points {
    std::deque<Point> points;  // in order of their fences
    std::uint64_t bytes = 0;
    std::size_t query_at = kFew;
    std::uint64_t query_at_bytes = kMuch;
  };
  struct Held {
    api::CUevent event = nullptr;
    api::CUcontext context = nullptr;
    int awaited = 0;
  };

  static std::deque<Point>::iterator at(Points& points, Fence fence);
  Point* find(const Queue& queue, Fence fence);
  bool reached(Lock& lock, const Queue& queue, Fence fence);
  void retire(const Queue& queue, Fence upto, const Passed& passed);
  void destroy_surplus(Lock& lock);
  // Makes a driver call about a context, with `lock` released, in RELAXED capture mode.
  template <typename Question>
  void ask(Lock& lock, api::CUcontext context, const Question& question);
  void query(Lock& lock, const Queue& queue, const Passed& passed);

  driver::SpareEvents& events_;
  std::atomic<Fence> last_{0};
  std::map<Queue, Points> queues_;
  std::map<Fence, Held> held_;                                    // of points that have been passed
  std::vector<std::pair<api::CUcontext, api::CUevent>> surplus_;  // to be destroyed
  std::multiset<api::CUcontext> ending_;
  std::multiset<api::CUcontext> asked_;  // whose events are being queried
  std::condition_variable answered_;
};

}  // namespace rota::memory
