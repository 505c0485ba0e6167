// Frees that streams have yet to pass: an event behind each, and who is told when it has been reached.
//
// Points in a stream's work are numbered before their events are recorded, so an event that is reached says that all
// points of its stream with lower numbers have been passed too: one question of the driver serves many of them. And the
// driver is asked with no lock held, since it has a lock of its own for which threads queue. Meanwhile
//  - a point that somebody asks about, or makes a stream wait for, may be found to be passed by another thread: its
//    event is used again only when the last of them has let go of it;
//  - a context that is about to end is waited for by nobody: its end waits for the questions that are under way, and
//    new ones leave its events alone.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "generated/driver_types.h"
#include "runtime/driver/events.h"
#include "runtime/memory/heap.h"

namespace rota::memory {

struct ServedPool;

// Each function but next() is called with the owner's lock held: the one that also guards what the points stand for.
class Fences {
 public:
  using Fence = Heap::Fence;
  // Whose work it is: the stream, or, where that cannot be told from others, the fence.
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
    std::uint64_t bytes = 0;
    int awaited = 0;  // threads that use the event
  };
  // With the lock held: the block behind the point is everybody's.
  using Passed = std::function<void(const Point& point)>;
  using Lock = std::unique_lock<std::mutex>;

  explicit Fences(driver::SpareEvents& events) : events_(events) {}

  // The number of a point. Any thread, no lock: before the event is recorded.
  Fence next() { return last_.fetch_add(1) + 1; }
  void add(const Queue& queue, Point point);
  bool outstanding(const Queue& queue, Fence fence) { return find(queue, fence) != nullptr; }

  // Keeps the event of a point usable until let_go(); null if the point has been passed.
  api::CUevent hold(const Queue& queue, Fence fence);
  void let_go(Lock& lock, const Queue& queue, Fence fence);

  // Asks what the streams have passed, with `lock` open meanwhile. A stream that is idle costs a question, one that is
  // busy two or a few.
  void look(Lock& lock, const Passed& passed);
  // The same after a free, of its stream alone, where it has become worth a question: once for several frees.
  void look_after_free(Lock& lock, const Queue& queue, const Passed& passed);

  // A context is about to be destroyed. Then says whether it is gone: its events are, and their points passed.
  void context_ending(Lock& lock, api::CUcontext context);
  bool is_ending(api::CUcontext context) const { return ending_.contains(context); }
  void context_ended(api::CUcontext context, bool gone, const Passed& passed);

 private:
  // What makes a stream worth a question after a free: this many points, or bytes (a span's) behind them.
  static constexpr std::size_t kFew = 8;
  static constexpr std::uint64_t kMuch = std::uint64_t{32} << 20;

  struct Points {
    std::deque<Point> points;  // in order of their fences
    std::uint64_t bytes = 0;
    std::size_t look_at = kFew;
    std::uint64_t look_at_bytes = kMuch;
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
  void release(api::CUcontext context, api::CUevent event);
  void destroy_surplus(Lock& lock);
  // Asks the driver something about a context, with `lock` open, in RELAXED capture mode.
  template <typename Question>
  void ask(Lock& lock, api::CUcontext context, const Question& question);
  void look(Lock& lock, const Queue& queue, const Passed& passed);

  driver::SpareEvents& events_;
  std::atomic<Fence> last_{0};
  std::map<Queue, Points> queues_;
  std::map<Fence, Held> held_;                                    // of points that have been passed
  std::vector<std::pair<api::CUcontext, api::CUevent>> surplus_;  // to be destroyed
  std::multiset<api::CUcontext> ending_;
  std::multiset<api::CUcontext> asked_;  // whose events the driver is being asked about
  std::condition_variable answered_;
};

}  // namespace rota::memory
