#include "runtime/monitor/meter.h"

#include <algorithm>
#include <utility>

#include "generated/driver_real.h"
#include "runtime/driver/context.h"
#include "runtime/driver/stream.h"

namespace rota::turn {

using namespace std::chrono_literals;

namespace {

// How often the monitor looks: while a thread waits, and otherwise.
constexpr Time kLookForThreads = 100us;
constexpr Time kLook = 1ms;
// One runs and one is queued, however long they are.
constexpr double kLeastInFlight = 2;
// The weight of a new measurement in the estimate of how long a call keeps the stream busy.
constexpr double kNewest = 0.3;

}  // namespace

std::uint64_t Meter::calls_between_marks(const Stream& stream) {
  if (stream.per_call == 0) return 1;
  const auto calls = static_cast<std::uint64_t>(static_cast<double>(kBetweenMarks.count()) / stream.per_call);
  return std::clamp<std::uint64_t>(calls, 1, std::max<std::uint64_t>(stream.most / 2, 1));
}

void Meter::set_free(Stream& stream) {
  const std::uint64_t next_mark = stream.marked + calls_between_marks(stream);
  stream.free_until.store(std::min(next_mark, stream.passed + stream.most), std::memory_order_relaxed);
}

// The stream that the calling thread used last, if this call uses it, too.
Meter::Stream* Meter::remembered(const gate::Call& call, api::CUcontext current) {
  const gate::Thread* const thread = gate::self;
  if (thread == nullptr) return nullptr;
  const gate::Thread::Metered& last = thread->metered;
  const bool same = last.stream != nullptr && last.handle == call.stream && last.per_thread == call.per_thread &&
                    last.context == current;
  return same ? static_cast<Stream*>(last.stream) : nullptr;
}

// Threads end, and their streams with them, without notice. So when the list is full, the stream that has had nothing
// in flight for longest is replaced. A thread that still remembers it counts for the new one until it has to look up
// its own.
Meter::Stream& Meter::find(const StreamKey& key) {
  std::map<StreamKey, Stream>& streams = state_->streams;
  const auto found = streams.find(key);
  if (found != streams.end()) return found->second;
  if (streams.size() < kMostStreams) return streams[key];
  auto oldest = streams.end();
  for (auto each = streams.begin(); each != streams.end(); ++each) {
    const bool older = oldest == streams.end() || each->second.passed_at < oldest->second.passed_at;
    if (each->second.marks.empty() && !each->second.marking && older) oldest = each;
  }
  if (oldest == streams.end()) return streams[key];
  auto node = streams.extract(oldest);
  node.key() = key;
  Stream& stream = node.mapped();
  stream.passed = stream.marked = stream.calls.load();
  stream.most = kFirstInFlight;
  stream.per_call = 0;
  streams.insert(std::move(node));
  return stream;
}

std::size_t Meter::streams() const {
  const std::lock_guard lock(state_->mutex);
  return state_->streams.size();
}

// The stream's context still exists.
void Meter::drop_events(Stream& stream) {
  for (const Mark& mark : stream.marks) stream.spare.push_back(mark.event);
  for (const api::CUevent event : stream.spare) real::cuEventDestroy_v2(event);
  stream.marks.clear();
  stream.spare.clear();
}

bool Meter::enter(const gate::Call& call, Time (*now)()) {
  if (!call.has_stream) return true;
  const bool needs_context = driver::of_current_context(call.stream);
  const api::CUcontext current = needs_context ? driver::current_context() : nullptr;
  if (Stream* const stream = remembered(call, current)) {
    if (stream->calls.fetch_add(1, std::memory_order_relaxed) < stream->free_until.load(std::memory_order_relaxed)) {
      return true;
    }
    stream->calls.fetch_sub(1, std::memory_order_relaxed);
  }
  std::unique_lock lock(state_->mutex);
  Stream& stream = find(key_of(call.stream, call.per_thread, current));
  if (gate::self != nullptr) {
    gate::self->metered = {&stream, call.stream, current, call.per_thread};
  }
  const std::uint64_t calls = stream.calls.load(std::memory_order_relaxed);
  if (calls - stream.passed >= stream.most && (!stream.marks.empty() || stream.marking)) return false;
  if (calls - stream.marked >= calls_between_marks(stream) && !stream.marking) mark(stream, call, now(), lock);
  stream.calls.fetch_add(1, std::memory_order_relaxed);
  set_free(stream);
  return true;
}

bool Meter::count(const gate::Call& call) {
  if (!call.has_stream) return true;
  const bool needs_context = driver::of_current_context(call.stream);
  Stream* const stream = remembered(call, needs_context ? driver::current_context() : nullptr);
  if (stream != nullptr) stream->calls.fetch_add(1, std::memory_order_relaxed);
  return true;
}

// Records an event behind all calls of the stream so far. If the driver refuses, nothing is measured. If the driver's
// queue is full, the driver waits, perhaps for work that another thread is about to submit, so the lock is not held
// during the call.
void Meter::mark(Stream& stream, const gate::Call& call, Time now, std::unique_lock<std::mutex>& lock) {
  const api::CUstream handle = driver::meant(call.stream, call.per_thread);
  const api::CUcontext context = driver::context_of(call.stream, call.per_thread);
  if (context == nullptr) return;
  if (context != stream.context) {
    // It belonged to another stream before, by its handle or its slot.
    drop_events(stream);
    stream.passed = stream.calls.load();
    stream.context = context;
  }
  const driver::CurrentContext current(context);
  if (!current) return;
  api::CUevent event = nullptr;
  if (!stream.spare.empty()) {
    event = stream.spare.back();
    stream.spare.pop_back();
  } else if (real::cuEventCreate(&event, api::CU_EVENT_DISABLE_TIMING) != api::CUDA_SUCCESS) {
    return;
  }
  const std::uint64_t calls = stream.calls.load();
  stream.marking = true;
  lock.unlock();
  const bool made = real::cuEventRecord(event, handle) == api::CUDA_SUCCESS;
  lock.lock();
  stream.marking = false;
  if (stream.context != context) return;  // the context has ended since, and the event with it
  if (!made) {
    stream.spare.push_back(event);
    return;
  }
  if (stream.marks.empty()) stream.passed_at = now;
  stream.marks.push_back({event, calls, calls - std::min(calls, stream.passed), now});
  stream.marked = std::max(stream.marked, calls);
}

// Its streams stay in the list: threads remember them, and other streams may get their handles.
void Meter::forget(api::CUcontext context) {
  const std::lock_guard lock(state_->mutex);
  for (auto& [key, stream] : state_->streams) {
    if (stream.context != context) continue;
    stream.marks.clear();
    stream.spare.clear();
    stream.context = nullptr;
    stream.passed = stream.marked = stream.calls.load();
    set_free(stream);
    state_->forgotten = true;
  }
}

// Whether the stream has made progress.
bool Meter::passed(Stream& stream, Time now) {
  bool some = false;
  while (!stream.marks.empty()) {
    const Mark& mark = stream.marks.front();
    if (real::cuEventQuery(mark.event) == api::CUDA_ERROR_NOT_READY) break;
    // The calls in flight before it took as long as the mark was under way.
    if (mark.in_flight != 0) {
      // The mark may have been made and passed since the monitor read the time.
      const Time took = std::max(now - mark.at, Time{1});
      const double each = static_cast<double>(took.count()) / static_cast<double>(mark.in_flight);
      stream.per_call = stream.per_call == 0 ? each : stream.per_call + kNewest * (each - stream.per_call);
      const double most = static_cast<double>(kInFlight.count()) / std::max(stream.per_call, 1.0);
      stream.most = static_cast<std::uint64_t>(std::clamp(most, kLeastInFlight, static_cast<double>(kMostInFlight)));
    }
    stream.passed = std::max(stream.passed, mark.calls);
    stream.spare.push_back(mark.event);
    stream.marks.pop_front();
    stream.passed_at = now;
    some = true;
  }
  if (some) set_free(stream);
  return some;
}

bool Meter::look(Time now, bool standing) {
  const std::lock_guard lock(state_->mutex);
  bool some = std::exchange(state_->forgotten, false);
  bool any = false;
  for (auto next = state_->streams.begin(); next != state_->streams.end();) {
    const auto each = next++;
    Stream& stream = each->second;
    some |= passed(stream, now);
    if (standing && !stream.marks.empty() && now - stream.passed_at >= kNothingPasses) {
      // Allow as much again: the stream may be waiting for a call that is held back.
      stream.passed_at = now;
      stream.most = std::min(stream.calls.load() - stream.passed + stream.most, 4 * kMostInFlight);
      set_free(stream);
      some = true;
    }
    any |= !stream.marks.empty();
  }
  look_at_ = any ? now + (standing ? kLookForThreads : kLook) : Time::max();
  return some;
}

void Meter::stop() {
  const std::lock_guard lock(state_->mutex);
  for (auto& [key, stream] : state_->streams) {
    stream.passed = stream.marked = stream.calls.load();
    for (const Mark& mark : stream.marks) stream.spare.push_back(mark.event);
    stream.marks.clear();
    set_free(stream);
  }
  look_at_ = Time::max();
}

}  // namespace rota::turn
