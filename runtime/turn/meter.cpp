#include "runtime/turn/meter.h"

#include <algorithm>

#include "generated/driver_real.h"
#include "runtime/driver/context.h"
#include "runtime/driver/stream.h"
#include "runtime/turn/own_tid.h"

namespace rota::turn {

using namespace std::chrono_literals;

namespace {

// How often the monitor looks: while a thread stands, and else.
constexpr Time kLookForThreads = 100us;
constexpr Time kLook = 1ms;
// One runs and one is ready, however long they are.
constexpr double kLeastInFlight = 2;
// Of a new measurement, in what a call is taken to keep the stream busy.
constexpr double kNewest = 0.3;

}  // namespace

Meter::Key Meter::key_of(const gate::Call& call) {
  const api::CUstream stream = driver::meant(call.stream, call.per_thread);
  if (!driver::of_current_context(stream)) return {stream, nullptr, 0};
  return {stream, driver::current_context(), stream == driver::kPerThreadStream ? gate::own_tid() : 0};
}

std::uint64_t Meter::calls_between_marks(const Stream& stream) {
  if (stream.per_call == 0) return 1;
  const auto calls = static_cast<std::uint64_t>(static_cast<double>(kBetweenMarks.count()) / stream.per_call);
  return std::clamp<std::uint64_t>(calls, 1, std::max<std::uint64_t>(stream.most / 2, 1));
}

bool Meter::enter(const gate::Call& call, Time now) {
  if (!call.has_stream) return true;
  const Key key = key_of(call);
  const std::lock_guard lock(state_->mutex);
  Stream& stream = state_->streams[key];
  if (stream.calls - stream.passed >= stream.most && !stream.marks.empty()) return false;
  if (stream.calls - stream.marked >= calls_between_marks(stream)) mark(stream, call, now);
  ++stream.calls;
  return true;
}

// An event behind all calls of the stream so far. What the driver refuses is not measured.
void Meter::mark(Stream& stream, const gate::Call& call, Time now) {
  const api::CUstream handle = driver::meant(call.stream, call.per_thread);
  const api::CUcontext context = driver::context_of(call.stream, call.per_thread);
  if (context == nullptr) return;
  if (context != stream.context) {
    // Another stream's handle before.
    stream.marks.clear();
    stream.spare.clear();
    stream.passed = stream.calls;
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
  if (real::cuEventRecord(event, handle) != api::CUDA_SUCCESS) {
    stream.spare.push_back(event);
    return;
  }
  if (stream.marks.empty()) stream.passed_at = now;
  stream.marks.push_back({event, stream.calls, stream.calls - stream.passed, now});
  stream.marked = stream.calls;
}

void Meter::forget(api::CUcontext context) {
  const std::lock_guard lock(state_->mutex);
  std::erase_if(state_->streams, [&](const auto& entry) {
    return entry.second.context == context || std::get<api::CUcontext>(entry.first) == context;
  });
}

// Whether the stream has got on.
bool Meter::passed(Stream& stream, Time now) {
  bool some = false;
  while (!stream.marks.empty()) {
    const Mark& mark = stream.marks.front();
    if (real::cuEventQuery(mark.event) == api::CUDA_ERROR_NOT_READY) break;
    // What was in flight before it has taken as long as it was on its way.
    if (mark.in_flight != 0) {
      const double each = static_cast<double>((now - mark.at).count()) / static_cast<double>(mark.in_flight);
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
  return some;
}

bool Meter::look(Time now, bool standing) {
  const std::lock_guard lock(state_->mutex);
  bool some = false;
  bool any = false;
  for (auto next = state_->streams.begin(); next != state_->streams.end();) {
    const auto each = next++;
    Stream& stream = each->second;
    some |= passed(stream, now);
    if (standing && !stream.marks.empty() && now - stream.passed_at >= kNothingPasses) {
      // As much again: what it waits for may be what is held back.
      stream.passed_at = now;
      stream.most = std::min(stream.calls - stream.passed + stream.most, 4 * kMostInFlight);
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
    stream.passed = stream.marked = stream.calls;
    for (const Mark& mark : stream.marks) stream.spare.push_back(mark.event);
    stream.marks.clear();
  }
  look_at_ = Time::max();
}

}  // namespace rota::turn
