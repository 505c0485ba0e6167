// Stream capture's rules, from the driver API's documentation and from measurement (see cuCtxRecordEvent).
#include "tools/simgpu/driver/capture/capture.h"

#include <algorithm>
#include <set>

#include "tools/simgpu/driver/driver.h"
#include "tools/simgpu/driver/entry/mutations.h"
#include "tools/simgpu/driver/graph/state.h"

namespace rota::sim {
namespace {

// Whether every member's last nodes join the origin stream again.
bool joined(const Capture& capture) {
  std::lock_guard lock(graph_state().mutex);
  std::set<GraphNode*> reached;
  std::vector<GraphNode*> open = capture.origin->capture_tail;
  while (!open.empty()) {
    GraphNode* node = open.back();
    open.pop_back();
    if (reached.insert(node).second) open.insert(open.end(), node->after.begin(), node->after.end());
  }
  for (const Stream* member : capture.members) {
    for (GraphNode* node : member->capture_tail) {
      if (reached.count(node) == 0) return false;
    }
  }
  return true;
}

}  // namespace

CapturePointer Captures::of(const Stream& stream) {
  if (!any()) return nullptr;
  std::lock_guard lock(mutex);
  return stream.capture;
}

CUresult Captures::begin(Stream& stream, const std::shared_ptr<Capture>& capture, std::vector<GraphNode*> tail) {
  if (stream.left) return CUDA_ERROR_INVALID_HANDLE;
  if (stream.capture) return CUDA_ERROR_ILLEGAL_STATE;
  capture->id = mutated(Mutation::capture_ids_are_alike) ? 1 : next_id_++;
  capture->thread = std::this_thread::get_id();
  capture->origin = &stream;
  capture->members.push_back(&stream);
  capture->graph->captures.fetch_add(1);
  stream.capture = capture;
  stream.capture_tail = std::move(tail);
  active_.push_back(capture);
  count_.fetch_add(1, std::memory_order_acq_rel);
  return CUDA_SUCCESS;
}

void Captures::forget(const std::shared_ptr<Capture>& capture) {
  capture->ended = true;
  for (Stream* member : capture->members) {
    member->capture.reset();
    member->capture_tail.clear();
  }
  auto found = std::find(active_.begin(), active_.end(), capture);
  if (found == active_.end()) return;
  active_.erase(found);
  capture->graph->captures.fetch_sub(1);
  count_.fetch_sub(1, std::memory_order_acq_rel);
}

CUresult Captures::end(Stream& stream, std::shared_ptr<Capture>* ended) {
  std::shared_ptr<Capture> capture = stream.capture;
  if (!capture) return CUDA_ERROR_ILLEGAL_STATE;
  if (capture->origin != &stream && !mutated(Mutation::any_stream_ends_a_capture)) {
    return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
  }
  bool bound = capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED && !mutated(Mutation::any_thread_ends_a_capture);
  bound = bound || mutated(Mutation::relaxed_captures_are_bound_to_threads);
  if (bound && capture->thread != std::this_thread::get_id()) return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
  CUresult result = CUDA_SUCCESS;
  if (capture->invalidated && !mutated(Mutation::invalidated_captures_give_graphs)) {
    result = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  } else if (!joined(*capture) && !mutated(Mutation::forks_need_not_be_joined)) {
    result = CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
  }
  forget(capture);
  *ended = std::move(capture);
  return result;
}

void Captures::join(Stream& stream, const std::shared_ptr<Capture>& capture, const std::vector<GraphNode*>& tail) {
  if (stream.left) return;
  if (!stream.capture) {
    stream.capture = capture;
    capture->members.push_back(&stream);
  }
  for (GraphNode* node : tail) {
    if (std::find(stream.capture_tail.begin(), stream.capture_tail.end(), node) == stream.capture_tail.end()) {
      stream.capture_tail.push_back(node);
    }
  }
}

void Captures::leave(Stream& stream) {
  stream.left = true;
  std::shared_ptr<Capture> capture = stream.capture;
  if (!capture) return;
  capture->invalidated = true;
  if (capture->origin == &stream) {
    forget(capture);
    if (capture->own_graph) driver().graphs.remove(capture->graph->handle());
    return;
  }
  capture->members.erase(std::find(capture->members.begin(), capture->members.end(), &stream));
  stream.capture.reset();
}

bool Captures::context_captures(const Context* context, bool invalidate) {
  bool found = false;
  for (const auto& capture : active_) {
    bool touches =
        std::any_of(capture->members.begin(), capture->members.end(), [context, &capture](const Stream* member) {
          bool counts = member == capture->origin || !mutated(Mutation::context_events_see_origins_only);
          return counts && member->context == context;
        });
    if (touches && invalidate) capture->invalidated = true;
    found = found || touches;
  }
  return found;
}

bool Captures::has_blocking_capture(const Context* context, bool invalidate) {
  if (mutated(Mutation::legacy_stream_ignores_captures)) return false;
  bool found = false;
  for (const auto& capture : active_) {
    bool touches = std::any_of(capture->members.begin(), capture->members.end(), [context](const Stream* member) {
      return member->context == context &&
             (member->blocking() || mutated(Mutation::every_capture_stops_the_legacy_stream));
    });
    if (touches && invalidate) capture->invalidated = true;
    found = found || touches;
  }
  return found;
}

CUresult Captures::unsafe_call(CUstreamCaptureMode thread_mode) {
  if (mutated(Mutation::captures_allow_unsafe_calls)) return CUDA_SUCCESS;
  bool relaxed = thread_mode == CU_STREAM_CAPTURE_MODE_RELAXED;
  if (relaxed && !mutated(Mutation::relaxed_threads_are_refused)) return CUDA_SUCCESS;
  bool minds_others = thread_mode == CU_STREAM_CAPTURE_MODE_GLOBAL || mutated(Mutation::thread_modes_do_not_matter);
  CUresult result = CUDA_SUCCESS;
  for (const auto& capture : active_) {
    bool all_global = mutated(Mutation::captures_are_all_global);
    CUstreamCaptureMode mode = all_global ? CU_STREAM_CAPTURE_MODE_GLOBAL : capture->mode;
    bool mine = capture->thread == std::this_thread::get_id() && mode != CU_STREAM_CAPTURE_MODE_RELAXED;
    bool global = minds_others && mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
    if (!mine && !global) continue;
    capture->invalidated = true;
    result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  return result;
}

}  // namespace rota::sim
