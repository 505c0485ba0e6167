// Stream capture: which streams and events belong to which capture, and which calls are forbidden meanwhile.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "tools/simgpu/driver/graph/graph.h"

namespace rota::sim {

// A capture in progress, from cuStreamBeginCapture to cuStreamEndCapture on the same stream.
struct Capture {
  uint64_t id = 0;
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  std::thread::id thread;
  Stream* origin = nullptr;
  GraphPointer graph;
  bool own_graph = true;         // created for this capture and destroyed if the capture fails
  std::vector<Stream*> members;  // the origin and the streams that joined through events
  bool invalidated = false;
  bool ended = false;
};

using CapturePointer = std::shared_ptr<Capture>;

// All captures of the process.
class Captures {
 public:
  std::mutex mutex;  // guards the fields of Capture, Stream::capture, Stream::capture_tail and Event::capture
  bool any() const { return count_.load(std::memory_order_acquire) != 0; }
  // The stream's capture; null: none. Another thread may begin or end it at any time, so Driver::submit() is told what
  // was found.
  CapturePointer of(const Stream& stream);

  // Under the mutex:
  CUresult begin(Stream& stream, const std::shared_ptr<Capture>& capture, std::vector<GraphNode*> tail);
  // Takes the stream out of its capture. *ended is the capture if that ended it; null: it continues.
  CUresult end(Stream& stream, std::shared_ptr<Capture>* ended);
  void join(Stream& stream, const std::shared_ptr<Capture>& capture, const std::vector<GraphNode*>& tail);
  void leave(Stream& stream);  // a stream is destroyed
  bool context_captures(const Context* context, bool invalidate);
  // For a call by this thread, in this mode, that is unsafe while capturing: returns 900, and invalidates the captures
  // concerned.
  CUresult unsafe_call(CUstreamCaptureMode thread_mode);
  bool has_blocking_capture(const Context* context, bool invalidate);

 private:
  void forget(const std::shared_ptr<Capture>& capture);

  std::vector<std::shared_ptr<Capture>> active_;
  std::atomic<int> count_{0};
  uint64_t next_id_ = 1;
};

}  // namespace rota::sim
