#include "runtime/monitor/meter.h"

#include <algorithm>
#include <utility>

#include "generated/driver_real.h"
#include "runtime/driver/context.h"
#include "runtime/driver/stream.h"

namespace rota::monitor {

using namespace std::chrono_literals;

namespace {

// The monitor's polling intervals: while a thread waits, and otherwise.
constexpr turn::Time kLookForThreads = 100us;
constexpr turn::Time kLook = 1ms;

}  // namespace

void Meter::set_free(Stream& stream) {
  stream.counted.free_until.store(stream.flow.free_until(), std::memory_order_relaxed);
}

// Threads end, and their streams with them, without notice. So when the list is full, the stream that has had nothing
// in flight for longest is replaced. A thread that still remembers it counts for the new one until it has to look up
// its own.
Meter::Stream& Meter::find(const driver::StreamKey& key) {
  std::map<driver::StreamKey, Stream>& streams = state_->streams;
  const auto found = streams.find(key);
  if (found != streams.end()) return found->second;
  if (streams.size() < kMostStreams) return streams[key];
  auto oldest = streams.end();
  for (auto each = streams.begin(); each != streams.end(); ++each) {
    const bool older = oldest == streams.end() || each->second.flow.passed_at() < oldest->second.flow.passed_at();
    if (!each->second.flow.in_use() && older) oldest = each;
  }
  if (oldest == streams.end()) return streams[key];
  auto node = streams.extract(oldest);
  node.key() = key;
  Stream& stream = node.mapped();
  stream.flow.begin(stream.counted.calls.load());
  streams.insert(std::move(node));
  return stream;
}

std::size_t Meter::streams() const {
  const std::lock_guard lock(state_->mutex);
  return state_->streams.size();
}

// The stream's context still exists.
void Meter::drop_events(Stream& stream) {
  for (const api::CUevent mark : stream.marks) stream.spare.push_back(mark);
  for (const api::CUevent event : stream.spare) real::cuEventDestroy_v2(event);
  stream.marks.clear();
  stream.spare.clear();
}

bool Meter::enter(const driver::Call& call, turn::Time (*now)()) {
  if (!call.has_stream) return true;
  const bool needs_context = driver::of_current_context(call.stream);
  const api::CUcontext current = needs_context ? driver::current_context() : nullptr;
  if (gate::StreamCalls* const counted = gate::remembered(call, current)) {
    if (counted->may_call()) return true;
  }
  std::unique_lock lock(state_->mutex);
  Stream& stream = find(driver::key_of(call.stream, call.per_thread, current));
  gate::remember(call, current, stream.counted);
  std::atomic<std::uint64_t>& calls = stream.counted.calls;
  const turn::Flow::Answer answer = stream.flow.may_call(calls.load(std::memory_order_relaxed));
  if (answer == turn::Flow::Answer::kWait) return false;
  if (answer == turn::Flow::Answer::kMark) mark(stream, call, now(), lock);
  calls.fetch_add(1, std::memory_order_relaxed);
  set_free(stream);
  return true;
}

// Records an event behind all calls of the stream so far. If the driver refuses, nothing is measured. If the driver's
// queue is full, the driver waits, perhaps for work that another thread is about to submit, so the lock is not held
// during the call.
void Meter::mark(Stream& stream, const driver::Call& call, turn::Time now, std::unique_lock<std::mutex>& lock) {
  const api::CUstream handle = driver::meant(call.stream, call.per_thread);
  const api::CUcontext context = driver::context_of(call.stream, call.per_thread);
  if (context == nullptr) return;
  if (context != stream.context) {
    // It belonged to another stream before, by its handle or its slot.
    drop_events(stream);
    stream.flow.lose_marks(stream.counted.calls.load());
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
  const std::uint64_t calls = stream.counted.calls.load();
  stream.flow.begins_mark();
  lock.unlock();
  const bool made = real::cuEventRecord(event, handle) == api::CUDA_SUCCESS;
  lock.lock();
  stream.flow.not_marked();
  if (stream.context != context) return;  // the context has ended since, and the event with it
  if (!made) {
    stream.spare.push_back(event);
    return;
  }
  stream.marks.push_back(event);
  stream.flow.marked(calls, now);
}

// Its streams stay in the list: threads remember them, and other streams may get their handles.
void Meter::forget(api::CUcontext context) {
  const std::lock_guard lock(state_->mutex);
  for (auto& [key, stream] : state_->streams) {
    if (stream.context != context) continue;
    stream.marks.clear();
    stream.spare.clear();
    stream.context = nullptr;
    stream.flow.forget(stream.counted.calls.load());
    set_free(stream);
    state_->forgotten = true;
  }
}

// Whether the stream has made progress.
bool Meter::pass(Stream& stream, turn::Time now) {
  bool some = false;
  while (!stream.marks.empty() && real::cuEventQuery(stream.marks.front()) != api::CUDA_ERROR_NOT_READY) {
    stream.flow.passed(now);
    stream.spare.push_back(stream.marks.front());
    stream.marks.pop_front();
    some = true;
  }
  if (some) set_free(stream);
  return some;
}

bool Meter::look(turn::Time now, bool standing) {
  const std::lock_guard lock(state_->mutex);
  bool some = std::exchange(state_->forgotten, false);
  bool any = false;
  for (auto next = state_->streams.begin(); next != state_->streams.end();) {
    const auto each = next++;
    Stream& stream = each->second;
    some |= pass(stream, now);
    // The stream may have as much again in flight: it may be waiting for a call that is held back.
    if (standing && stream.flow.stalls(stream.counted.calls.load(), now)) {
      set_free(stream);
      some = true;
    }
    any |= !stream.marks.empty();
  }
  look_at_ = any ? now + (standing ? kLookForThreads : kLook) : turn::Time::max();
  return some;
}

void Meter::stop() {
  const std::lock_guard lock(state_->mutex);
  for (auto& [key, stream] : state_->streams) {
    stream.flow.forget(stream.counted.calls.load());
    for (const api::CUevent mark : stream.marks) stream.spare.push_back(mark);
    stream.marks.clear();
    set_free(stream);
  }
  look_at_ = turn::Time::max();
}

}  // namespace rota::monitor
