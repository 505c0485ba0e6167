// Operations (work for streams) and graphs of them.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "tools/simgpu/driver/stream/stream.h"

namespace rota::sim {

struct Function;
struct Graph;
struct GraphAllocation;
struct GraphExec;
struct UserObject;
using GraphPointer = std::shared_ptr<Graph>;

// The parameters of each node type. A captured operation carries the same as an explicitly added node.
struct KernelParameters {
  std::shared_ptr<Function> function;
  CUkernel kernel = nullptr;  // set if CUDA_KERNEL_NODE_PARAMS gave a CUkernel
  unsigned grid[3] = {1, 1, 1};
  unsigned block[3] = {1, 1, 1};
  unsigned shared_bytes = 0;
  std::vector<unsigned char> bytes;  // the arguments, in the kernel's layout
  bool packed = false;               // they were passed in `extra`
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
  GraphPointer graph;  // owned by the node
};
struct EventParameters {  // for records and waits
  CUevent handle = nullptr;
  EventPointer event;
};
struct AllocationParameters {
  CUDA_MEM_ALLOC_NODE_PARAMS allocation{};  // with the address; accessDescs must not be used
  std::vector<CUmemAccessDesc> access;
  std::shared_ptr<GraphAllocation> memory;
};
struct FreeParameters {
  CUdeviceptr address = 0;
  std::shared_ptr<GraphAllocation> memory;
};
struct MemoryOperationParameters {
  std::vector<CUstreamBatchMemOpParams> operations;
  unsigned flags = 0;
};
using NodeParameters =
    std::variant<std::monostate, KernelParameters, CopyParameters, SetParameters, HostParameters, ChildParameters,
                 EventParameters, AllocationParameters, FreeParameters, MemoryOperationParameters>;

// One piece of work on a context's GPU, run by a stream's thread now or at each launch of a graph that contains it.
struct Operation {
  CUgraphNodeType type = CU_GRAPH_NODE_TYPE_EMPTY;
  // Empty for nodes that the graph's execution handles itself: empty, child graph, event record and wait, memory.
  std::function<void(Context&)> run;
  NodeParameters parameters;
  bool despite_errors = false;  // runs although the context has a sticky error (callbacks)
  // The context that it runs on; none: that of the stream into which it is launched.
  std::weak_ptr<Context> home;
  uint64_t memory_on = 0;  // a bit for each GPU on which it names memory
};

// Everything below is read and changed under graph_state().mutex (state.h), unless noted otherwise.

struct GraphNode {
  GraphNode(GraphPointer graph, Operation operation, std::vector<GraphNode*> after);
  ~GraphNode();
  GraphNode(const GraphNode&) = delete;
  GraphNode& operator=(const GraphNode&) = delete;

  CUgraphNode handle() const { return reinterpret_cast<CUgraphNode>(const_cast<GraphNode*>(this)); }
  CUgraphNodeType type() const { return operation->type; }
  template <class Parameters>
  const Parameters* get() const {
    return std::get_if<Parameters>(&operation->parameters);
  }
  // The pointers returned by cuGraphKernelNodeGetParams: they point into the operation and are valid until it is
  // replaced.
  void** arguments();
  void** extra();

  const std::weak_ptr<Graph> graph;
  const uint64_t serial;  // never reused
  unsigned id = 0;        // within its graph
  uint64_t cloned_from = 0;
  std::shared_ptr<const Operation> operation;
  std::vector<GraphNode*> after;  // its dependencies, in the order in which they were given
  bool enabled = true;            // for nodes of an executable graph
  bool erased = false;

 private:
  std::shared_ptr<const Operation> answered_;
  std::vector<void*> arguments_;
  void* extra_[5] = {};
  size_t bytes_ = 0;
};
using GraphNodePointer = std::shared_ptr<GraphNode>;

struct Graph : std::enable_shared_from_this<Graph> {
  Graph();
  ~Graph();  // takes only registries' locks
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  CUgraph handle() { return reinterpret_cast<CUgraph>(this); }

  // Takes the mutex and registers the node's handle: for work that a stream captures.
  GraphNode* add(Operation operation, std::vector<GraphNode*> after);
  // The same with the mutex held. `known`: the program may see it (never for nodes of an executable graph).
  GraphNode* insert(Operation operation, std::vector<GraphNode*> after, bool known = true);
  void erase(GraphNode* node);  // stays in memory as long as the graph: a capture may still continue from it
  bool holds(const GraphNode* node) const { return node->graph.lock().get() == this; }
  bool has_memory_nodes() const;            // its child graphs' too
  bool contains(const Graph& other) const;  // itself, or in a child graph
  // The number of its nodes with those of all child graphs, and how deeply these are nested.
  size_t all_nodes() const;
  unsigned depth() const;
  // For a graph that becomes a child graph of a graph that is itself this deep.
  void set_level(unsigned above);
  std::vector<GraphNode*> dependents(const GraphNode* node) const;
  // Nodes in topological order, without those in cycles and those that depend on them.
  std::vector<GraphNode*> ordered() const;
  // A node of this graph or a child graph that is not in that order; null: there is none.
  const GraphNode* in_a_cycle() const;
  // A copy with child graphs and user objects; its nodes record which node they were copied from. `known`: registers
  // the handles of the child graphs and nodes.
  GraphPointer clone(bool known) const;

  const unsigned id;
  const uint64_t serial;
  uint64_t cloned_from = 0;
  std::atomic<int> captures{0};         // in progress: until they end it cannot be destroyed or instantiated
  bool owned = false;                   // by a child graph node
  std::vector<GraphNodePointer> nodes;  // in order of creation
  std::vector<GraphNodePointer> erased;
  unsigned next_node_id = 0;
  unsigned level = 0;                                            // nesting depth of a child graph
  std::map<std::shared_ptr<UserObject>, unsigned> user_objects;  // references that the graph holds
  std::weak_ptr<GraphExec> executable;  // for a graph with memory nodes, which may have only one
};

// Ids, shared by graphs and executable graphs.
unsigned new_graph_id();

// CUDA_ERROR_INVALID_VALUE for an invalid handle. The node's graph lives at least as long as *graph.
CUresult find_node(CUgraphNode handle, GraphNodePointer* node, GraphPointer* graph);
CUresult find_graph(CUgraph handle, GraphPointer* graph);
// Adds a node to *graph with dependencies given by handles: checks that they are distinct nodes of the graph.
CUresult add_node(const GraphPointer& graph, Operation operation, const CUgraphNode* dependencies, size_t count,
                  CUgraphNode* out);
// Only plain edges are simulated: edge data must be null or zeros.
CUresult check_edge_data(const CUgraphEdgeData* data, size_t count);

}  // namespace rota::sim
