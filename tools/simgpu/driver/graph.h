// Operations (what is put into streams), graphs of them, and stream capture.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tools/simgpu/driver/stream.h"

namespace rota::sim {

// One piece of work on a context's GPU: run by a stream's thread, now or at each launch of a graph that captured it.
struct Operation {
  CUgraphNodeType type = CU_GRAPH_NODE_TYPE_EMPTY;
  std::function<void(Context&)> run;
};

struct GraphNode {
  Operation operation;
  std::vector<GraphNode*> after;
};

struct Graph {
  std::vector<std::unique_ptr<GraphNode>> nodes;  // each after those it depends on

  GraphNode* add(Operation operation, std::vector<GraphNode*> after) {
    nodes.push_back(std::make_unique<GraphNode>(GraphNode{std::move(operation), std::move(after)}));
    return nodes.back().get();
  }
  CUgraph handle() { return reinterpret_cast<CUgraph>(this); }
};
using GraphPointer = std::shared_ptr<Graph>;

// An instantiated graph: its operations in an order that honours the dependencies. One stream runs them one by one;
// a real GPU may overlap those that do not depend on each other.
struct GraphExec {
  std::vector<Operation> operations;
  unsigned long long flags = 0;
  CUgraphExec handle() { return reinterpret_cast<CUgraphExec>(this); }
};
using GraphExecPointer = std::shared_ptr<GraphExec>;

// A capture under way, from cuStreamBeginCapture to cuStreamEndCapture on the same stream.
struct Capture {
  uint64_t id = 0;
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  std::thread::id thread;
  Stream* origin = nullptr;
  GraphPointer graph;
  std::vector<Stream*> members;  // the origin and the streams that joined through events
  bool invalidated = false;
  bool ended = false;
};

// All captures of the process.
class Captures {
 public:
  std::mutex mutex;  // guards the fields of Capture, Stream::capture, Stream::capture_tail and Event::capture
  bool any() const { return count_.load(std::memory_order_acquire) != 0; }

  // Under the mutex:
  CUresult begin(Stream& stream, CUstreamCaptureMode mode, GraphPointer graph);
  CUresult end(Stream& stream, GraphPointer* graph);
  void join(Stream& stream, const std::shared_ptr<Capture>& capture, const std::vector<GraphNode*>& tail);
  void leave(Stream& stream);  // a stream is destroyed
  bool context_captures(const Context* context, bool invalidate);
  // A call that is unsafe while capturing, made by this thread in this mode: 900, and the captures it meets are lost.
  CUresult unsafe_call(CUstreamCaptureMode thread_mode);
  bool has_blocking_capture(const Context* context, bool invalidate);

 private:
  void forget(const std::shared_ptr<Capture>& capture);

  std::vector<std::shared_ptr<Capture>> active_;
  std::atomic<int> count_{0};
  uint64_t next_id_ = 1;
};

}  // namespace rota::sim
