// Executable graphs: a copy of a graph whose nodes keep their parameters and whose edges never change.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "tools/simgpu/driver/graph/graph.h"

namespace rota::sim {

// One step of an execution. Child graphs are flattened: a begin step and an end step enclose each.
struct GraphStep {
  const GraphNode* node = nullptr;  // null: a marker
  std::vector<uint32_t> after;      // steps
  uint32_t lane = 0;                // steps of one lane run one after the other, lanes run concurrently
};

struct GraphExec : std::enable_shared_from_this<GraphExec> {
  GraphExec(GraphPointer copy, unsigned long long flags);
  ~GraphExec();
  GraphExec(const GraphExec&) = delete;
  GraphExec& operator=(const GraphExec&) = delete;

  CUgraphExec handle() { return reinterpret_cast<CUgraphExec>(this); }
  // Under graph_state().mutex: the node that corresponds to one of the graph that this was instantiated from (or of a
  // child graph of it), or null.
  GraphNode* find(const GraphNode& original) const;
  bool allocates(const GraphAllocation& memory) const;
  bool frees_on_launch() const;

  const GraphPointer graph;  // its own copy
  const unsigned long long flags;
  const unsigned id;
  std::vector<GraphStep> steps;  // in topological order; never changed
  uint32_t lanes = 1;
  // The memory that its nodes allocate and free.
  std::vector<std::shared_ptr<GraphAllocation>> allocations;
  std::vector<std::shared_ptr<GraphAllocation>> frees;
  std::atomic<bool> destroyed{false};

  // Held while a launch is queued in its stream: launches of one executable graph are serialized.
  std::mutex launching;
  TaskPointer last_launch;                  // under `launching`
  std::vector<StreamPointer> lane_streams;  // created by the first launch that needs them, under `launching`

 private:
  void flatten(const Graph& from, const std::vector<uint32_t>& after, std::vector<uint32_t>* leaves);
  void assign_lanes();
  std::unordered_map<uint64_t, GraphNode*> by_original_;  // serials of the original nodes
};
using GraphExecPointer = std::shared_ptr<GraphExec>;

struct InstantiateFailure {
  CUgraphNode node = nullptr;
  CUgraphInstantiateResult result = CUDA_GRAPH_INSTANTIATE_SUCCESS;
};
CUresult instantiate(const GraphPointer& graph, unsigned long long flags, CUgraphExec* out,
                     InstantiateFailure* failure);
// Prepares a launch, ordered behind the stream's work and earlier launches.
CUresult upload_graph(const GraphExecPointer& executable, const StreamPointer& stream);
CUresult launch_graph(const GraphExecPointer& executable, const StreamPointer& stream);
// Takes over the parameters of a graph of the same shape, all or nothing.
CUresult update(GraphExec& executable, Graph& graph, CUgraphExecUpdateResultInfo* info);
// Whether a node of an executable graph may be given this operation; success, or cuGraphExecUpdate's result for it.
CUgraphExecUpdateResult check_change(const Operation& before, const Operation& after, unsigned long long flags);
// The pairwise update of the nodes of two graphs of one shape; changes nothing unless `apply`.
CUgraphExecUpdateResult update_nodes(Graph& into, Graph& from, unsigned long long flags, bool apply,
                                     CUgraphExecUpdateResultInfo* info);

}  // namespace rota::sim
