// Operations (what is put into streams) and graphs of them.
#pragma once

#include <functional>
#include <memory>
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

}  // namespace rota::sim
