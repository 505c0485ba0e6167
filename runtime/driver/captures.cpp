// The stream captures under way in this process, and what must not be done during one.
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <thread>

#include "generated/driver_real.h"
#include "runtime/core/counted.h"
#include "runtime/core/own_tid.h"
#include "runtime/driver/answers.h"
#include "runtime/driver/context.h"
#include "runtime/driver/contexts.h"
#include "runtime/driver/stream.h"

namespace rota::driver {

void Contexts::drop_captures_of(State& state, api::CUcontext context) {
  drop_captures(state, [&](const Capture& capture) { return capture.context == context; });
}

void Contexts::drop_captures(State& state, FunctionRef<bool(const Capture&)> gone) {
  std::erase_if(state.captures, gone);
  capture_count_.store(static_cast<std::uint32_t>(state.captures.size()), std::memory_order_release);
}

api::CUresult Contexts::begin_capture(api::CUstream stream, bool per_thread, FunctionRef<api::CUresult()> call) {
  Capture capture;
  capture.stream = meant(stream, per_thread);
  capture.tid = capture.stream == kPerThreadStream ? own_tid() : 0;
  forbid_synchronizing();
  const std::lock_guard lock(state_->closing);
  if (real::cuStreamGetCtx(capture.stream, &capture.context) != api::CUDA_SUCCESS) capture.context = current_context();
  {
    const std::lock_guard lists(state_->lists);
    capture.number = ++state_->captures_begun;
    state_->captures.push_back(capture);
    capture_count_.store(static_cast<std::uint32_t>(state_->captures.size()), std::memory_order_release);
  }
  const api::CUresult result = call();
  if (result != api::CUDA_SUCCESS) {
    const std::lock_guard lists(state_->lists);
    drop_captures(*state_, [&](const Capture& known) { return known.number == capture.number; });
  }
  return result;
}

// Before a capture begins, waits until threads that synchronize, or are about to, have returned. Not longer than this:
// one may be waiting for work that waits for this very thread.
void Contexts::forbid_synchronizing() {
  const pid_t own = own_tid();
  pid_t captures = 0;
  if (!capturer_.compare_exchange_strong(captures, own) && captures != own) capturer_.store(kSeveral);
  const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(10);
  while (synchronizing_.load() != 0 && std::chrono::steady_clock::now() < until) {
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
}

std::optional<api::CUresult> Contexts::synchronize(api::CUcontext context) {
  pid_t own = 0;  // asked for at most once, only if needed
  const auto others_capture = [&] {
    const pid_t captures = capturer_.load();
    if (captures != 0 && own == 0) own = own_tid();
    return captures != 0 && captures != own;
  };
  if (others_capture() || current_context() != context || !known(context)) return std::nullopt;
  const Counted synchronizing(synchronizing_);
  if (others_capture()) return std::nullopt;
  const api::CUresult result = real::cuCtxSynchronize();
  // A capture is under way that rota does not know of.
  return result == api::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED ? std::nullopt : std::optional(result);
}

api::CUresult Contexts::end_capture(api::CUstream stream, bool per_thread, FunctionRef<api::CUresult()> call) {
  const api::CUstream which = meant(stream, per_thread);
  const pid_t tid = which == kPerThreadStream ? own_tid() : 0;
  const std::lock_guard lock(state_->closing);
  const api::CUresult result = call();
  bool over = result == api::CUDA_SUCCESS;
  if (!over) {
    // An invalidated capture ends here too; a call by the wrong thread or on another stream ends nothing.
    api::CUstreamCaptureStatus status{};
    over =
        real::cuStreamIsCapturing(which, &status) == api::CUDA_SUCCESS && status == api::CU_STREAM_CAPTURE_STATUS_NONE;
  }
  if (over) {
    const std::lock_guard lists(state_->lists);
    drop_captures(*state_, [&](const Capture& capture) { return capture.stream == which && capture.tid == tid; });
  }
  return result;
}

bool Contexts::submits_nothing(const Call& call) const {
  // A driver that cannot even tell which context is current (in a forked child, or after shutdown) also refuses the
  // call itself. And libcudart loads libraries before there is any context: nothing reaches a GPU.
  api::CUcontext current = nullptr;
  if (real::cuCtxGetCurrent(&current) != api::CUDA_SUCCESS) return true;
  if (current == nullptr) {
    // A stream has its own context; without one the driver refuses the call.
    if (!call.has_stream || call.stream == nullptr) return true;
    const api::CUresult result = real::cuStreamGetCtx(call.stream, &current);
    if (!lacks_function(result) && (result != api::CUDA_SUCCESS || current == nullptr)) return true;
  }
  if (captures() == 0) return false;
  // A capture spreads to another stream by a wait for one of its events, in any thread: the stream itself is not
  // capturing yet. Even if it is not such a wait, waiting for an event is not GPU work.
  if (call.symbol == Symbol::k_cuStreamWaitEvent || call.symbol == Symbol::k_cuStreamWaitEvent_ptsz) return true;
  if (!call.has_stream) return false;
  const api::CUstream stream = meant(call.stream, call.per_thread);
  if (stream == kLegacyStream) return false;  // cannot be captured
  api::CUstreamCaptureStatus status{};
  return real::cuStreamIsCapturing(stream, &status) == api::CUDA_SUCCESS &&
         status != api::CU_STREAM_CAPTURE_STATUS_NONE;
}

bool Contexts::anything_captures(State& state) {
  if (state.captures.empty()) return false;
  // A thread that ended while it captured its own stream will never end that capture.
  drop_captures(state, [](const Capture& capture) {
    return capture.tid != 0 && syscall(SYS_tgkill, getpid(), capture.tid, 0) != 0 && errno == ESRCH;
  });
  return !state.captures.empty();
}

}  // namespace rota::driver
