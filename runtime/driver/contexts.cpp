#include "runtime/driver/contexts.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "generated/driver_real.h"
#include "runtime/driver/answers.h"
#include "runtime/driver/context.h"
#include "runtime/driver/stream.h"

namespace rota::driver {

namespace {

// The first CUDA version whose driver has cuCtxRecordEvent.
constexpr int kContextEvents = 12050;

// Whether this result means that a context will never run anything again: it has ended, or a permanent error has ended
// all of its work. Any other failure says nothing about running work.
bool runs_nothing(api::CUresult result) {
  switch (result) {
    case api::CUDA_ERROR_DEINITIALIZED:
    case api::CUDA_ERROR_INVALID_CONTEXT:
    case api::CUDA_ERROR_CONTEXT_IS_DESTROYED:
    case api::CUDA_ERROR_ECC_UNCORRECTABLE:
    case api::CUDA_ERROR_NVLINK_UNCORRECTABLE:
    case api::CUDA_ERROR_ILLEGAL_ADDRESS:
    case api::CUDA_ERROR_LAUNCH_TIMEOUT:
    case api::CUDA_ERROR_ASSERT:
    case api::CUDA_ERROR_HARDWARE_STACK_ERROR:
    case api::CUDA_ERROR_ILLEGAL_INSTRUCTION:
    case api::CUDA_ERROR_MISALIGNED_ADDRESS:
    case api::CUDA_ERROR_INVALID_ADDRESS_SPACE:
    case api::CUDA_ERROR_INVALID_PC:
    case api::CUDA_ERROR_LAUNCH_FAILED:
      return true;
    default:
      return false;
  }
}

// Makes a context current. CUDA_ERROR_INVALID_CONTEXT and the like are believed only if the driver does not know the
// context by its number either: a temporary refusal says nothing about its work, and is returned as CUDA_ERROR_UNKNOWN.
api::CUresult push(api::CUcontext context) {
  const api::CUresult result = real::cuCtxPushCurrent_v2(context);
  const bool gone = result == api::CUDA_ERROR_INVALID_CONTEXT || result == api::CUDA_ERROR_CONTEXT_IS_DESTROYED;
  unsigned long long id = 0;
  return gone && real::cuCtxGetId(context, &id) == api::CUDA_SUCCESS ? api::CUDA_ERROR_UNKNOWN : result;
}

// Queries a stream that every context has; CUDA_SUCCESS means that only non-blocking streams may have work. Its result
// never hides a permanent error. Must not be called during a capture, which it might end.
api::CUresult query_legacy_stream(api::CUcontext context) {
  api::CUresult result = push(context);
  if (result != api::CUDA_SUCCESS) return result;
  result = real::cuStreamQuery(kLegacyStream);
  api::CUcontext popped = nullptr;
  real::cuCtxPopCurrent_v2(&popped);
  return result;
}

bool blocking_streams_rest(api::CUcontext context) {
  const api::CUresult result = query_legacy_stream(context);
  return result == api::CUDA_SUCCESS || runs_nothing(result);
}

bool has_failed(api::CUcontext context) {
  const api::CUresult result = query_legacy_stream(context);
  return result != api::CUDA_ERROR_DEINITIALIZED && runs_nothing(result);
}

// A number that no other context of this process has or had. Zero before CUDA 12.0.
std::uint64_t driver_id_of(api::CUcontext context) {
  unsigned long long id = 0;
  return real::cuCtxGetId(context, &id) == api::CUDA_SUCCESS ? id : 0;
}

}  // namespace

Contexts::Contexts() : state_(std::make_unique<State>()) {}

// With both locks held.
Contexts::Context Contexts::born(State& state, api::CUcontext context, int device, bool primary) {
  Context fresh;
  fresh.handle = context;
  fresh.life = ++state.lives;
  fresh.driver_id = driver_id_of(context);
  fresh.device = device;
  fresh.primary = primary;
  return fresh;
}

bool Contexts::add(api::CUcontext context, int device, bool primary) {
  if (context == nullptr) return false;
  const std::scoped_lock lock(state_->closing, state_->lists);
  for (Context& known : state_->contexts) {
    if (known.handle != context) continue;
    known.primary = known.primary || primary;
    // Records of a context whose end was not noticed must not pass to the next one.
    const std::uint64_t id = driver_id_of(context);
    if (id != 0 && known.driver_id != 0 && id != known.driver_id) {
      known = born(*state_, context, device, known.primary);
      drop_captures_of(*state_, context);
      return true;
    }
    return false;
  }
  state_->contexts.push_back(born(*state_, context, device, primary));
  return true;
}

bool Contexts::known(api::CUcontext context) const {
  return static_cast<bool>(life_of(context));
}

ContextLife Contexts::life_of(api::CUcontext context) const {
  const std::lock_guard lock(state_->lists);
  for (const Context& known : state_->contexts) {
    if (known.handle == context) return {known.handle, known.life};
  }
  return {};
}

api::CUcontext Contexts::primary(int device) const {
  const std::lock_guard lock(state_->lists);
  for (const Context& context : state_->contexts) {
    if (context.primary && context.device == device) return context.handle;
  }
  return nullptr;
}

api::CUresult Contexts::end_context(api::CUcontext context, FunctionRef<api::CUresult()> call,
                                    FunctionRef<bool(api::CUresult)> ended) {
  const std::lock_guard lock(state_->closing);
  handles_ended.fetch_add(1, std::memory_order_acq_rel);
  const api::CUresult result = call();
  if (ended(result)) {
    const std::lock_guard lists(state_->lists);
    // Its events ended with it.
    std::erase_if(state_->contexts, [&](const Context& known) { return known.handle == context; });
    drop_captures_of(*state_, context);
  }
  return result;
}

void Contexts::begin_anew(api::CUcontext context) {
  const std::scoped_lock lock(state_->closing, state_->lists);
  for (Context& known : state_->contexts) {
    if (known.handle == context) known = born(*state_, context, known.device, known.primary);
  }
  drop_captures_of(*state_, context);
}

Contexts::Handle Contexts::handle_now(api::CUcontext context) const {
  const std::lock_guard lock(state_->lists);
  for (const Context& known : state_->contexts) {
    if (known.handle != context || known.driver_id == 0) continue;
    unsigned long long id = 0;
    const api::CUresult result = real::cuCtxGetId(context, &id);
    if (result == api::CUDA_ERROR_INVALID_CONTEXT || result == api::CUDA_ERROR_CONTEXT_IS_DESTROYED) {
      return Handle::kNobodys;
    }
    return result != api::CUDA_SUCCESS || id == known.driver_id ? Handle::kSame : Handle::kOthers;
  }
  return Handle::kSame;
}

bool Contexts::needs_streams() {
  int version = driver_version_.load(std::memory_order_relaxed);
  if (version == 0) {
    if (real::cuDriverGetVersion(&version) != api::CUDA_SUCCESS) version = kContextEvents;
    driver_version_.store(version, std::memory_order_relaxed);
  }
  return version < kContextEvents;
}

void Contexts::stream_made(api::CUstream stream) {
  if (!needs_streams()) return;
  const api::CUcontext current = current_context();
  const std::lock_guard lock(state_->lists);
  for (Context& context : state_->contexts) {
    // The stream that had this handle before ended with its context, which another thread is about to remove from the
    // list.
    std::erase_if(context.tracks, [&](const Track& known) {
      if (known.stream != stream) return false;
      context.last.insert(context.last.end(), known.pending.begin(), known.pending.end());
      return true;
    });
    if (context.handle == current) context.tracks.push_back({.stream = stream, .pending = {}});
  }
}

// True if the stream was tracked. Its last event is recorded behind its work, and the handle is forgotten.
bool Contexts::end_track(State& state, Context& context, api::CUstream stream) {
  const auto track = std::find_if(context.tracks.begin(), context.tracks.end(),
                                  [&](const Track& known) { return known.stream == stream; });
  if (stream == nullptr || track == context.tracks.end()) return false;
  // Nor is it recorded on a stream that has joined the capture of another context: the event would become part of that
  // capture.
  api::CUstreamCaptureStatus status{};
  const bool captures = std::any_of(state.captures.begin(), state.captures.end(),
                                    [&](const Capture& capture) { return capture.context == context.handle; }) ||
                        (!state.captures.empty() && (real::cuStreamIsCapturing(stream, &status) != api::CUDA_SUCCESS ||
                                                     status != api::CU_STREAM_CAPTURE_STATUS_NONE));
  // Rarely enough that the cost per destroyed stream stays the same, however many events are not reached; and not
  // during a capture, since a query by a thread that is not in RELAXED mode invalidates captures (measured). The mode
  // is set for a capture that begins in the meantime.
  auto mode = api::CU_STREAM_CAPTURE_MODE_RELAXED;
  if (context.last.size() >= context.check_at && state.captures.empty() &&
      real::cuThreadExchangeStreamCaptureMode(&mode) == api::CUDA_SUCCESS) {
    sweep_last(context);
    real::cuThreadExchangeStreamCaptureMode(&mode);
  }
  if (!captures) record(context, *track);
  context.last.insert(context.last.end(), track->pending.begin(), track->pending.end());
  context.tracks.erase(track);
  return true;
}

// True if all of them are reached.
bool Contexts::sweep_last(Context& context) {
  std::erase_if(context.last, [&](api::CUevent event) {
    if (real::cuEventQuery(event) == api::CUDA_ERROR_NOT_READY) return false;
    // The event was reached, or its context has failed and runs nothing any more.
    context.spare.push_back(event);
    ++context.reached;
    return true;
  });
  context.check_at = std::max(kFewLast, 2 * context.last.size());
  return context.last.empty();
}

api::CUresult Contexts::destroy_stream(api::CUstream stream, FunctionRef<api::CUresult()> call) {
  // The driver lets the stream's work finish after it has destroyed the stream, and may give its handle to a new one at
  // once: a last event is recorded behind that work, and the handle is forgotten first.
  std::uint64_t tracked_in = 0;
  if (needs_streams()) {
    const std::lock_guard lock(state_->lists);
    for (Context& context : state_->contexts) {
      if (end_track(*state_, context, stream)) tracked_in = context.life;
    }
  }
  handles_ended.fetch_add(1, std::memory_order_acq_rel);
  const api::CUresult result = call();
  if (result == api::CUDA_SUCCESS && captures() > 0) {
    const std::lock_guard lock(state_->lists);
    drop_captures(*state_, [&](const Capture& capture) { return capture.stream == stream; });
  }
  if (result != api::CUDA_SUCCESS && tracked_in != 0) {
    const std::lock_guard lock(state_->lists);
    for (Context& context : state_->contexts) {
      if (context.life == tracked_in) context.tracks.push_back({.stream = stream, .pending = {}});
    }
  }
  return result;
}

Contexts::Recorded Contexts::record(Context& context, Track& track) {
  const auto failed = [](api::CUresult why) { return runs_nothing(why) ? Recorded::kRunsNothing : Recorded::kUnknown; };
  api::CUresult result = push(context.handle);
  if (result != api::CUDA_SUCCESS) return failed(result);
  api::CUevent event = nullptr;
  if (!context.spare.empty()) {
    event = context.spare.back();
    context.spare.pop_back();
  } else if (track.pending.size() >= kMarkers) {
    event = track.pending.back();  // the newest is recorded again; the older ones still show progress
    track.pending.pop_back();
    track.waited_for = std::min(track.waited_for, track.pending.size());
  } else if ((result = real::cuEventCreate(&event, api::CU_EVENT_DISABLE_TIMING)) != api::CUDA_SUCCESS) {
    event = nullptr;
  }
  if (event != nullptr && track.stream != nullptr) {
    result = real::cuEventRecord(event, track.stream);
  } else if (event != nullptr && needs_streams()) {
    // Work in the legacy stream precedes work that is submitted to a blocking stream later.
    if (context.own == nullptr && real::cuStreamCreate(&context.own, api::CU_STREAM_DEFAULT) != api::CUDA_SUCCESS) {
      context.own = nullptr;
    }
    result = real::cuEventRecord(event, context.own != nullptr ? context.own : kLegacyStream);
  } else if (event != nullptr) {
    result = real::cuCtxRecordEvent(context.handle, event);
    if (lacks_function(result)) result = real::cuEventRecord(event, kLegacyStream);
  }
  api::CUcontext popped = nullptr;
  real::cuCtxPopCurrent_v2(&popped);
  if (event == nullptr) return failed(result);
  if (result != api::CUDA_SUCCESS) {
    context.spare.push_back(event);
    return failed(result);
  }
  track.pending.push_back(event);
  return Recorded::kYes;
}

Contexts::Mark Contexts::mark(Devices devices) {
  const std::unique_lock lock(state_->closing, std::try_to_lock);
  if (!lock || state_->shut) return Mark::kBusy;
  const std::lock_guard lists(state_->lists);
  if (anything_captures(*state_)) return Mark::kCapturing;
  bool unknown = false;
  for (Context& context : state_->contexts) {
    if ((bit_of(context.device) & devices) == 0) continue;
    for (Track& track : context.tracks) unknown |= record(context, track) == Recorded::kUnknown;
  }
  return unknown ? Mark::kUnknown : Mark::kMarked;
}

Contexts::Progress Contexts::progress(Devices devices) {
  Progress answer;
  const std::unique_lock lock(state_->closing, std::try_to_lock);
  if (!lock || state_->shut) return answer;
  const std::lock_guard lists(state_->lists);
  answer.looked = true;
  answer.done = true;
  for (Context& context : state_->contexts) {
    if ((bit_of(context.device) & devices) == 0) continue;
    for (Track& track : context.tracks) {
      while (!track.pending.empty()) {
        if (real::cuEventQuery(track.pending.front()) == api::CUDA_ERROR_NOT_READY) {
          answer.done = false;
          track.waited_for = track.pending.size();
          break;
        }
        context.spare.push_back(track.pending.front());
        track.pending.pop_front();
        if (track.waited_for == 0) continue;
        --track.waited_for;
        ++context.reached;
      }
    }
    if (!sweep_last(context)) answer.done = false;
    // The threads' own default streams, which have no marks.
    if (answer.done && needs_streams())
      answer.done = !anything_captures(*state_) && blocking_streams_rest(context.handle);
    answer.reached += context.reached;
  }
  return answer;
}

int Contexts::device_of(api::CUcontext context) const {
  const std::lock_guard lists(state_->lists);
  const auto known = std::ranges::find(state_->contexts, context, &Context::handle);
  return known != state_->contexts.end() ? known->device : -1;
}

api::CUcontext Contexts::some(int device) const {
  const std::lock_guard lists(state_->lists);
  const auto known = std::ranges::find(state_->contexts, device, &Context::device);
  return known != state_->contexts.end() ? known->handle : nullptr;
}

bool Contexts::none(int device) const {
  const std::lock_guard lists(state_->lists);
  return std::none_of(state_->contexts.begin(), state_->contexts.end(),
                      [&](const Context& context) { return context.device == device; });
}

ContextLife Contexts::any(int device) const {
  const std::unique_lock lock(state_->closing, std::try_to_lock);
  ContextLife some;
  if (!lock || state_->shut) return some;
  for (const Context& context : state_->contexts) {
    if (context.device != device) continue;
    some = {context.handle, context.life};
    if (state_->contexts.size() == 1 || captures() != 0 || !has_failed(some.context)) break;
  }
  return some;
}

std::vector<api::CUcontext> Contexts::failed(int device) const {
  std::vector<api::CUcontext> all;
  const std::unique_lock lock(state_->closing, std::try_to_lock);
  if (!lock || state_->shut || captures() != 0) return all;
  for (const Context& context : state_->contexts) {
    if (context.device == device && has_failed(context.handle)) all.push_back(context.handle);
  }
  return all;
}

// With the closing lock held.
bool Contexts::alive(const State& state, const ContextLife& life) {
  return !state.shut && std::any_of(state.contexts.begin(), state.contexts.end(), [&](const Context& known) {
    return ContextLife{known.handle, known.life} == life;
  });
}

Contexts::Within Contexts::within(const ContextLife& life, FunctionRef<void()> work, api::CUresult* error) {
  const std::unique_lock lock(state_->closing, std::try_to_lock);
  if (!lock) return Within::kBusy;
  if (!alive(*state_, life)) return Within::kGone;
  if (const api::CUresult pushed = real::cuCtxPushCurrent_v2(life.context); pushed != api::CUDA_SUCCESS) {
    if (error != nullptr) *error = pushed;
    return Within::kRefused;
  }
  work();
  api::CUcontext popped = nullptr;
  real::cuCtxPopCurrent_v2(&popped);
  return Within::kRan;
}

bool Contexts::while_alive(const ContextLife& life, FunctionRef<void()> work) {
  for (;;) {
    if (const std::unique_lock lock(state_->closing, std::try_to_lock); lock) {
      if (!alive(*state_, life)) return false;
      work();
      return true;
    }
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

bool Contexts::while_all_live(FunctionRef<void()> work) {
  const std::unique_lock lock(state_->closing, std::try_to_lock);
  if (!lock || state_->shut) return false;
  work();
  return true;
}

void Contexts::shut() {
  // At most a second: exit must not hang on a driver call that does not return.
  for (int attempt = 0; attempt < 1000; ++attempt) {
    if (const std::unique_lock lock(state_->closing, std::try_to_lock); lock) {
      state_->shut = true;
      return;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

}  // namespace rota::driver
