// Operations (what is put into streams) and graphs of them.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <variant>
#include <vector>

#include "tools/simgpu/driver/stream.h"

namespace rota::sim {

struct Function;
struct Graph;
using GraphPointer = std::shared_ptr<Graph>;

// What a node of each type says about itself. A captured operation carries the same as a node made by hand.
struct KernelParameters {
  std::shared_ptr<Function> function;
  CUkernel kernel = nullptr;  // set when it was named by a CUkernel of CUDA_KERNEL_NODE_PARAMS
  unsigned grid[3] = {1, 1, 1};
  unsigned block[3] = {1, 1, 1};
  unsigned shared_bytes = 0;
  std::vector<unsigned char> bytes;  // the arguments, as the kernel lays them out
  bool packed = false;               // they came through `extra`
  std::map<CUlaunchAttributeID, CUlaunchAttributeValue> attributes;
};
struct CopyParameters {
  CUDA_MEMCPY3D copy{};
};
struct SetParameters {
  CUDA_MEMSET_NODE_PARAMS set{};
};
struct HostParameters {
  CUhostFn function = nullptr;
  void* data = nullptr;
};
struct ChildParameters {
  GraphPointer graph;  // the node's own
};
struct EventParameters {  // of records and waits
  CUevent handle = nullptr;
  EventPointer event;
};
struct AllocationParameters {
  CUDA_MEM_ALLOC_NODE_PARAMS allocation{};  // with the address; accessDescs is not to be used
  std::vector<CUmemAccessDesc> access;
};
struct FreeParameters {
  CUdeviceptr address = 0;
};
struct MemoryOperationParameters {
  std::vector<CUstreamBatchMemOpParams> operations;
  unsigned flags = 0;
};
using NodeParameters =
    std::variant<std::monostate, KernelParameters, CopyParameters, SetParameters, HostParameters, ChildParameters,
                 EventParameters, AllocationParameters, FreeParameters, MemoryOperationParameters>;

// One piece of work on a context's GPU: run by a stream's thread, now or at each launch of a graph that holds it.
struct Operation {
  CUgraphNodeType type = CU_GRAPH_NODE_TYPE_EMPTY;
  // Empty for nodes that the graph's execution does itself: empty, child graph, event record and wait, memory.
  std::function<void(Context&)> run;
  NodeParameters parameters;
  bool despite_errors = false;  // runs although the context has an error that sticks (callbacks)
  // Where it runs; none: on the context of the stream into which it is launched.
  std::weak_ptr<Context> home;
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

  std::atomic<int> captures{0};  // under way into it: until they end it cannot be destroyed or instantiated
};

// An instantiated graph: its operations in an order that honours the dependencies. One stream runs them one by one;
// a real GPU may overlap those that do not depend on each other.
struct GraphExec {
  std::vector<Operation> operations;
  unsigned long long flags = 0;
  CUgraphExec handle() { return reinterpret_cast<CUgraphExec>(this); }
};
using GraphExecPointer = std::shared_ptr<GraphExec>;

}  // namespace rota::sim
