// Stream capture's rules, from the driver API's documentation and from measurement (see cuCtxRecordEvent).
#include <algorithm>
#include <set>

#include "tools/simgpu/driver/capture.h"

namespace rota::sim {

CUresult Captures::begin(Stream& stream, CUstreamCaptureMode mode, GraphPointer graph) {
  if (stream.capture) return CUDA_ERROR_ILLEGAL_STATE;
  auto capture = std::make_shared<Capture>();
  capture->id = next_id_++;
  capture->mode = mode;
  capture->thread = std::this_thread::get_id();
  capture->origin = &stream;
  capture->graph = std::move(graph);
  capture->members.push_back(&stream);
  stream.capture = capture;
  stream.capture_tail.clear();
  active_.push_back(std::move(capture));
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
  count_.fetch_sub(1, std::memory_order_acq_rel);
}

CUresult Captures::end(Stream& stream, GraphPointer* graph) {
  std::shared_ptr<Capture> capture = stream.capture;
  if (!capture) return CUDA_ERROR_ILLEGAL_STATE;
  if (capture->origin != &stream) return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
  if (capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED && capture->thread != std::this_thread::get_id()) {
    capture->invalidated = true;
    return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
  }
  CUresult result = CUDA_SUCCESS;
  if (capture->invalidated) {
    result = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  } else {
    // Every member's last node must have been joined back into the origin.
    std::set<GraphNode*> reached;
    std::vector<GraphNode*> open = stream.capture_tail;
    while (!open.empty()) {
      GraphNode* node = open.back();
      open.pop_back();
      if (reached.insert(node).second) open.insert(open.end(), node->after.begin(), node->after.end());
    }
    for (Stream* member : capture->members) {
      for (GraphNode* node : member->capture_tail) {
        if (reached.count(node) == 0) result = CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
      }
    }
  }
  *graph = result == CUDA_SUCCESS ? capture->graph : nullptr;
  forget(capture);
  return result;
}

void Captures::join(Stream& stream, const std::shared_ptr<Capture>& capture, const std::vector<GraphNode*>& tail) {
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
  std::shared_ptr<Capture> capture = stream.capture;
  if (!capture) return;
  capture->invalidated = true;
  if (capture->origin == &stream) {
    forget(capture);
    return;
  }
  capture->members.erase(std::find(capture->members.begin(), capture->members.end(), &stream));
  stream.capture.reset();
}

bool Captures::context_captures(const Context* context, bool invalidate) {
  bool found = false;
  for (const auto& capture : active_) {
    bool touches = std::any_of(capture->members.begin(), capture->members.end(),
                               [context](const Stream* member) { return member->context == context; });
    if (touches && invalidate) capture->invalidated = true;
    found = found || touches;
  }
  return found;
}

bool Captures::has_blocking_capture(const Context* context, bool invalidate) {
  bool found = false;
  for (const auto& capture : active_) {
    bool touches = std::any_of(capture->members.begin(), capture->members.end(), [context](const Stream* member) {
      return member->context == context && member->blocking();
    });
    if (touches && invalidate) capture->invalidated = true;
    found = found || touches;
  }
  return found;
}

CUresult Captures::unsafe_call(CUstreamCaptureMode thread_mode) {
  if (thread_mode == CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_SUCCESS;
  CUresult result = CUDA_SUCCESS;
  for (const auto& capture : active_) {
    bool mine = capture->thread == std::this_thread::get_id() && capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED;
    bool global = thread_mode == CU_STREAM_CAPTURE_MODE_GLOBAL && capture->mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
    if (!mine && !global) continue;
    capture->invalidated = true;
    result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  return result;
}

}  // namespace rota::sim
