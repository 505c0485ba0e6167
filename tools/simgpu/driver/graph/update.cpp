// What may change in an executable graph, per node and as a whole.
#include <algorithm>
#include <functional>
#include <unordered_map>

#include "tools/simgpu/driver/graph/exec.h"
#include "tools/simgpu/driver/graph/nodes.h"
#include "tools/simgpu/driver/graph/state.h"

namespace rota::sim {
namespace {

// The properties of an operand's location that an update may not change.
struct OperandPlace {
  CUmemorytype type;
  int kind;  // of memory; -1: pageable, or an array
  int gpu;
  bool operator==(const OperandPlace&) const = default;
};

OperandPlace place(CUmemorytype type, uint64_t address) {
  OperandPlace found{type, -1, -1};
  if (auto allocation = driver().memory.find(address); allocation && type != CU_MEMORYTYPE_HOST) {
    found.kind = static_cast<int>(allocation->kind);
    found.gpu = allocation->gpu;
  }
  return found;
}
OperandPlace destination(const CUDA_MEMCPY3D& copy) {
  return place(copy.dstMemoryType, copy.dstMemoryType == CU_MEMORYTYPE_ARRAY ? 0 : copy.dstDevice);
}
OperandPlace source(const CUDA_MEMCPY3D& copy) {
  return place(copy.srcMemoryType, copy.srcMemoryType == CU_MEMORYTYPE_ARRAY ? 0 : copy.srcDevice);
}

CUgraphExecUpdateResult check_kernel(const KernelParameters& before, const KernelParameters& after,
                                     unsigned long long flags) {
  if (before.function->context != after.function->context) {
    return CU_GRAPH_EXEC_UPDATE_ERROR_UNSUPPORTED_FUNCTION_CHANGE;
  }
  if (cooperative(before) != cooperative(after)) return CU_GRAPH_EXEC_UPDATE_ERROR_ATTRIBUTES_CHANGED;
  auto priority = [](const KernelParameters& kernel) {
    auto found = kernel.attributes.find(CU_LAUNCH_ATTRIBUTE_PRIORITY);
    return found == kernel.attributes.end() ? 0 : found->second.priority;
  };
  bool counts = (flags & CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY) != 0;
  return counts && priority(before) != priority(after) ? CU_GRAPH_EXEC_UPDATE_ERROR_ATTRIBUTES_CHANGED
                                                       : CU_GRAPH_EXEC_UPDATE_SUCCESS;
}

bool same_set(const CUDA_MEMSET_NODE_PARAMS& before, const CUDA_MEMSET_NODE_PARAMS& after) {
  if (place(CU_MEMORYTYPE_DEVICE, before.dst) != place(CU_MEMORYTYPE_DEVICE, after.dst)) return false;
  if (before.height != after.height) return false;
  return before.height <= 1 ||
         (before.width == after.width && before.pitch == after.pitch && before.elementSize == after.elementSize);
}

// Addresses, values and wait conditions may change; the kinds of operations may not.
bool same_batch(const MemoryOperationParameters& before, const MemoryOperationParameters& after) {
  return before.operations.size() == after.operations.size() && before.flags == after.flags &&
         std::equal(before.operations.begin(), before.operations.end(), after.operations.begin(),
                    [](const auto& one, const auto& other) { return one.operation == other.operation; });
}

}  // namespace

CUgraphExecUpdateResult check_change(const Operation& before, const Operation& after, unsigned long long flags) {
  if (before.type != after.type)
    return mutated(Mutation::updates_ignore_types) ? CU_GRAPH_EXEC_UPDATE_SUCCESS
                                                   : CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED;
  bool fits = true;
  switch (before.type) {
    case CU_GRAPH_NODE_TYPE_KERNEL: {
      const auto* old = std::get_if<KernelParameters>(&before.parameters);
      const auto* wanted = std::get_if<KernelParameters>(&after.parameters);
      return old != nullptr && wanted != nullptr ? check_kernel(*old, *wanted, flags)
                                                 : CU_GRAPH_EXEC_UPDATE_ERROR_NOT_SUPPORTED;
    }
    case CU_GRAPH_NODE_TYPE_MEMCPY: {
      const auto* old = std::get_if<CopyParameters>(&before.parameters);
      const auto* wanted = std::get_if<CopyParameters>(&after.parameters);
      fits = old != nullptr && wanted != nullptr && destination(old->copy) == destination(wanted->copy) &&
             source(old->copy) == source(wanted->copy);
      break;
    }
    case CU_GRAPH_NODE_TYPE_MEMSET: {
      const auto* old = std::get_if<SetParameters>(&before.parameters);
      const auto* wanted = std::get_if<SetParameters>(&after.parameters);
      fits = old != nullptr && wanted != nullptr && same_set(old->set, wanted->set);
      break;
    }
    case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP: {
      const auto* old = std::get_if<MemoryOperationParameters>(&before.parameters);
      const auto* wanted = std::get_if<MemoryOperationParameters>(&after.parameters);
      fits = old != nullptr && wanted != nullptr && same_batch(*old, *wanted);
      break;
    }
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
    case CU_GRAPH_NODE_TYPE_MEM_FREE:
      return CU_GRAPH_EXEC_UPDATE_ERROR_NOT_SUPPORTED;
    default:
      break;
  }
  return fits ? CU_GRAPH_EXEC_UPDATE_SUCCESS : CU_GRAPH_EXEC_UPDATE_ERROR_PARAMETERS_CHANGED;
}

namespace {

// Pairs the nodes of two graphs: first the nodes on which no others depend, in order of creation, then the dependencies
// of paired nodes, in their order.
class Pairing {
 public:
  CUgraphExecUpdateResult pair(const Graph& into, const Graph& from, CUgraphExecUpdateResultInfo* info);
  const std::vector<std::pair<GraphNode*, GraphNode*>>& pairs() const { return pairs_; }

 private:
  static std::vector<GraphNode*> exits(const Graph& graph);

  std::vector<std::pair<GraphNode*, GraphNode*>> pairs_;  // into, from
};

std::vector<GraphNode*> Pairing::exits(const Graph& graph) {
  std::vector<GraphNode*> found;
  std::unordered_map<const GraphNode*, bool> followed;
  for (const GraphNodePointer& node : graph.nodes) {
    for (const GraphNode* earlier : node->after) followed[earlier] = true;
  }
  for (const GraphNodePointer& node : graph.nodes) {
    if (!followed[node.get()]) found.push_back(node.get());
  }
  return found;
}

CUgraphExecUpdateResult Pairing::pair(const Graph& into, const Graph& from, CUgraphExecUpdateResultInfo* info) {
  constexpr auto kChanged = CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
  if (into.nodes.size() != from.nodes.size()) return kChanged;
  std::vector<GraphNode*> ends = exits(into);
  std::vector<GraphNode*> wanted = exits(from);
  if (ends.size() != wanted.size()) {
    info->errorNode = wanted.size() > ends.size() ? wanted[ends.size()]->handle() : nullptr;
    return kChanged;
  }
  std::unordered_map<const GraphNode*, GraphNode*> partner;  // of nodes of `from`
  std::unordered_map<const GraphNode*, GraphNode*> reverse;
  auto join = [&](GraphNode* mine, GraphNode* theirs) {
    auto [one, fresh] = partner.emplace(theirs, mine);
    auto [other, also_fresh] = reverse.emplace(mine, theirs);
    if (fresh && also_fresh) pairs_.emplace_back(mine, theirs);
    return one->second == mine && other->second == theirs;
  };
  for (size_t index = 0; index < ends.size(); ++index) join(ends[index], wanted[index]);
  for (size_t done = 0; done < pairs_.size(); ++done) {
    auto [mine, theirs] = pairs_[done];
    if (mine->after.size() != theirs->after.size()) {
      info->errorNode = theirs->handle();
      return kChanged;
    }
    for (size_t index = 0; index < mine->after.size(); ++index) {
      if (join(mine->after[index], theirs->after[index])) continue;
      info->errorNode = theirs->handle();
      info->errorFromNode = theirs->after[index]->handle();
      return kChanged;
    }
  }
  // Nodes that no exit node reaches are in a cycle.
  return pairs_.size() == from.nodes.size() ? CU_GRAPH_EXEC_UPDATE_SUCCESS : kChanged;
}

}  // namespace

CUgraphExecUpdateResult update_nodes(Graph& into, Graph& from, unsigned long long flags, bool apply,
                                     CUgraphExecUpdateResultInfo* info) {
  Pairing pairing;
  CUgraphExecUpdateResult result = pairing.pair(into, from, info);
  if (mutated(Mutation::updates_ignore_the_shape) && result != CU_GRAPH_EXEC_UPDATE_SUCCESS) {
    return CU_GRAPH_EXEC_UPDATE_SUCCESS;
  }
  if (result != CU_GRAPH_EXEC_UPDATE_SUCCESS) return result;
  for (auto [mine, theirs] : pairing.pairs()) {
    const auto* own_child = mine->get<ChildParameters>();
    const auto* child = theirs->get<ChildParameters>();
    if (own_child != nullptr && child != nullptr) {
      result = update_nodes(*own_child->graph, *child->graph, flags, apply, info);
    } else {
      result = check_change(*mine->operation, *theirs->operation, flags);
      if (result != CU_GRAPH_EXEC_UPDATE_SUCCESS) info->errorNode = theirs->handle();
      bool changes = apply || mutated(Mutation::updates_stop_half_way);
      if (result == CU_GRAPH_EXEC_UPDATE_SUCCESS && changes) mine->operation = theirs->operation;
    }
    if (result != CU_GRAPH_EXEC_UPDATE_SUCCESS) return result;
  }
  return result;
}

CUresult update(GraphExec& executable, Graph& graph, CUgraphExecUpdateResultInfo* info) {
  std::lock_guard lock(graph_state().mutex);
  *info = {};
  info->result =
      graph.owned ? CU_GRAPH_EXEC_UPDATE_ERROR : update_nodes(*executable.graph, graph, executable.flags, false, info);
  if (info->result != CU_GRAPH_EXEC_UPDATE_SUCCESS) return CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
  CUgraphExecUpdateResultInfo ignored{};
  update_nodes(*executable.graph, graph, executable.flags, true, &ignored);
  return CUDA_SUCCESS;
}

}  // namespace rota::sim
