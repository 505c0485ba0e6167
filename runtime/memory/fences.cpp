#include "runtime/memory/fences.h"

#include <algorithm>
#include <iterator>

#include "generated/driver_real.h"
#include "runtime/driver/capture_mode.h"
#include "runtime/driver/own_streams.h"

namespace rota::memory {

std::deque<Fences::Point>::iterator Fences::at(Points& points, Fence fence) {
  return std::lower_bound(points.points.begin(), points.points.end(), fence,
                          [](const Point& point, Fence wanted) { return point.fence < wanted; });
}

Fences::Point* Fences::find(const Queue& queue, Fence fence) {
  const auto points = queues_.find(queue);
  if (points == queues_.end()) return nullptr;
  const auto found = at(points->second, fence);
  return found != points->second.points.end() && found->fence == fence ? &*found : nullptr;
}

void Fences::add(const Queue& queue, Point point) {
  Points& points = queues_[queue];
  points.bytes += point.bytes;
  if (points.points.empty() || points.points.back().fence < point.fence) {
    points.points.push_back(std::move(point));
  } else {  // threads that free at the same time may overtake each other
    points.points.insert(at(points, point.fence), std::move(point));
  }
}

api::CUevent Fences::hold(const Queue& queue, Fence fence) {
  Point* point = find(queue, fence);
  if (point == nullptr) return nullptr;
  ++point->awaited;
  return point->event;
}

void Fences::let_go(Lock& lock, const Queue& queue, Fence fence) {
  if (Point* point = find(queue, fence); point != nullptr) {
    --point->awaited;
    return;
  }
  const auto held = held_.find(fence);
  if (held == held_.end() || --held->second.awaited > 0) return;
  const auto [event, context, awaited] = held->second;
  held_.erase(held);
  release(context, event);
  destroy_surplus(lock);
}

void Fences::release(api::CUcontext context, api::CUevent event) {
  if (event != nullptr && !events_.give_back(context, event)) surplus_.emplace_back(context, event);
}

template <typename Question>
void Fences::ask(Lock& lock, api::CUcontext context, const Question& question) {
  const auto asked = asked_.insert(context);
  lock.unlock();
  {
    const driver::RelaxedCapture relaxed;
    question();
  }
  lock.lock();
  asked_.erase(asked);
  if (ending_.contains(context)) answered_.notify_all();
}

void Fences::destroy_surplus(Lock& lock) {
  for (std::size_t index = 0; index < surplus_.size();) {
    const auto [context, event] = surplus_[index];
    if (ending_.contains(context)) {
      ++index;
      continue;
    }
    surplus_[index] = surplus_.back();
    surplus_.pop_back();
    ask(lock, context, [event] { real::cuEventDestroy_v2(event); });
  }
}

bool Fences::reached(Lock& lock, const Queue& queue, Fence fence) {
  const api::CUcontext context = find(queue, fence)->event_context;
  bool is = true;
  if (const api::CUevent event = hold(queue, fence); event != nullptr) {
    ask(lock, context, [&] { is = driver::reached(event); });
  }
  let_go(lock, queue, fence);
  return is;
}

void Fences::retire(const Queue& queue, Fence upto, const Passed& passed) {
  const auto known = queues_.find(queue);
  if (known == queues_.end()) return;
  Points& points = known->second;
  while (!points.points.empty() && points.points.front().fence <= upto) {
    const Point point = std::move(points.points.front());
    points.points.pop_front();
    points.bytes -= point.bytes;
    if (point.awaited > 0) {
      held_[point.fence] = {point.event, point.event_context, point.awaited};
    } else {
      release(point.event_context, point.event);
    }
    passed(point);
  }
  if (points.points.empty()) queues_.erase(known);
}

void Fences::query(Lock& lock, const Queue& queue, const Passed& passed) {
  Fence not_passed = last_.load() + 1;
  for (int question = 0;; ++question) {
    const auto known = queues_.find(queue);
    if (known == queues_.end()) return;
    Points& points = known->second;
    const auto left = static_cast<std::size_t>(at(points, not_passed) - points.points.begin());
    if (left == 0 || ending_.contains(points.points.front().event_context)) return;
    // The newest, for a stream that is idle; the oldest, for one that makes no progress; then between the two.
    const std::size_t index = question == 0 ? left - 1 : question == 1 ? 0 : (left - 1) / 2;
    const Fence fence = points.points[index].fence;
    if (reached(lock, queue, fence)) {
      retire(queue, fence, passed);
    } else {
      not_passed = fence;
    }
  }
}

void Fences::query(Lock& lock, const Passed& passed) {
  std::vector<Queue> all;
  all.reserve(queues_.size());
  for (const auto& [queue, points] : queues_) all.push_back(queue);
  for (const Queue& queue : all) query(lock, queue, passed);
  destroy_surplus(lock);
}

void Fences::query_after_free(Lock& lock, const Queue& queue, const Passed& passed) {
  const auto known = queues_.find(queue);
  if (known == queues_.end()) return;
  const Points& before = known->second;
  if (before.points.size() < before.query_at && before.bytes < before.query_at_bytes) return;
  if (ending_.contains(before.points.front().event_context)) return;
  const Fence fence = before.points[(before.points.size() - 1) / 2].fence;
  if (reached(lock, queue, fence)) retire(queue, fence, passed);
  // So that a stream with much work queued is not queried at each free.
  if (const auto after = queues_.find(queue); after != queues_.end()) {
    after->second.query_at = std::max(kFew, 2 * after->second.points.size());
    after->second.query_at_bytes = std::max(kMuch, 2 * after->second.bytes);
  }
  destroy_surplus(lock);
}

void Fences::context_ending(Lock& lock, api::CUcontext context) {
  ending_.insert(context);
  answered_.wait(lock, [&] { return !asked_.contains(context); });
}

void Fences::context_ended(api::CUcontext context, bool gone, const Passed& passed) {
  if (const auto ending = ending_.find(context); ending != ending_.end()) ending_.erase(ending);
  if (!gone) return;
  std::erase_if(surplus_, [&](const auto& event) { return event.first == context; });
  for (auto& [fence, held] : held_) {
    if (held.context == context) held.event = nullptr;
  }
  for (auto queue = queues_.begin(); queue != queues_.end();) {
    Points& points = queue->second;
    std::erase_if(points.points, [&](const Point& point) {
      if (point.event_context != context) return false;
      points.bytes -= point.bytes;
      if (point.awaited > 0) held_[point.fence] = {nullptr, context, point.awaited};
      passed(point);
      return true;
    });
    queue = points.points.empty() ? queues_.erase(queue) : std::next(queue);
  }
}

}  // namespace rota::memory
