// Graphs: nodes and edges.
#include "tools/simgpu/driver/graph/graph.h"

#include <algorithm>
#include <set>
#include <unordered_map>
#include <unordered_set>

#include "tools/simgpu/driver/graph/state.h"

namespace rota::sim {
namespace {

std::atomic<uint64_t> next_serial{1};
std::atomic<unsigned> next_graph_id{1};

// Only a mutation omits this.
Operation forgetful(Operation operation) {
  auto* kernel = std::get_if<KernelParameters>(&operation.parameters);
  if (kernel == nullptr || !mutated(Mutation::kernel_nodes_forget_arguments)) return operation;
  std::fill(kernel->bytes.begin(), kernel->bytes.end(), 0);
  operation.run = nullptr;
  return operation;
}

}  // namespace

GraphState& graph_state() {
  static auto* state = new GraphState;
  return *state;
}

unsigned new_graph_id() {
  return next_graph_id.fetch_add(1);
}

GraphNode::GraphNode(GraphPointer graph, Operation operation, std::vector<GraphNode*> after)
    : graph(std::move(graph)),
      serial(next_serial.fetch_add(1)),
      operation(std::make_shared<const Operation>(forgetful(std::move(operation)))),
      after(std::move(after)) {}

GraphNode::~GraphNode() {
  if (const auto* child = get<ChildParameters>(); child != nullptr) {
    driver().graphs.remove(child->graph->handle());
  }
}

void** GraphNode::arguments() {
  const auto* kernel = get<KernelParameters>();
  if (kernel == nullptr || !kernel->function) return nullptr;
  if (answered_ != operation) {
    answered_ = operation;
    const RotaSimKernel& described = *kernel->function->kernel;
    arguments_.assign(described.parameters + size_t{1}, nullptr);
    auto* bytes = const_cast<unsigned char*>(kernel->bytes.data());
    for (uint32_t index = 0; index < described.parameters; ++index) {
      arguments_[index] = bytes + described.parameter_offsets[index];
    }
    bytes_ = described.parameter_bytes;
    void* const list[] = {kBufferPointer, bytes, kBufferSize, &bytes_, nullptr};
    std::copy(std::begin(list), std::end(list), extra_);
  }
  return arguments_.data();
}

void** GraphNode::extra() {
  return arguments() != nullptr ? extra_ : nullptr;
}

Graph::Graph() : id(new_graph_id()), serial(next_serial.fetch_add(1)) {}

Graph::~Graph() {
  for (const GraphNodePointer& node : nodes) graph_state().nodes.remove(node->handle());
  for (const auto& [object, count] : user_objects) object->release(count);
}

GraphNode* Graph::add(Operation operation, std::vector<GraphNode*> after) {
  std::lock_guard lock(graph_state().mutex);
  return insert(std::move(operation), std::move(after));
}

GraphNode* Graph::insert(Operation operation, std::vector<GraphNode*> after, bool known) {
  std::erase_if(after, [](const GraphNode* earlier) { return earlier->erased; });
  auto node = std::make_shared<GraphNode>(shared_from_this(), std::move(operation), std::move(after));
  node->id = next_node_id++;
  nodes.push_back(node);
  if (known) graph_state().nodes.add(node);
  return node.get();
}

void Graph::erase(GraphNode* node) {
  for (const GraphNodePointer& other : nodes) std::erase(other->after, node);
  GraphNodePointer kept = graph_state().nodes.remove(node->handle());
  std::erase_if(nodes, [node](const GraphNodePointer& each) { return each.get() == node; });
  if (const auto* child = node->get<ChildParameters>()) driver().graphs.remove(child->graph->handle());
  node->erased = true;
  node->after.clear();
  erased.push_back(std::move(kept));
}

bool Graph::has_memory_nodes() const {
  return std::any_of(nodes.begin(), nodes.end(), [](const GraphNodePointer& node) {
    if (const auto* child = node->get<ChildParameters>()) return child->graph->has_memory_nodes();
    return node->type() == CU_GRAPH_NODE_TYPE_MEM_ALLOC || node->type() == CU_GRAPH_NODE_TYPE_MEM_FREE;
  });
}

bool Graph::contains(const Graph& other) const {
  if (this == &other) return true;
  return std::any_of(nodes.begin(), nodes.end(), [&other](const GraphNodePointer& node) {
    const auto* child = node->get<ChildParameters>();
    return child != nullptr && child->graph->contains(other);
  });
}

size_t Graph::all_nodes() const {
  size_t count = nodes.size();
  for (const GraphNodePointer& node : nodes) {
    if (const auto* child = node->get<ChildParameters>()) count += child->graph->all_nodes();
  }
  return count;
}

unsigned Graph::depth() const {
  unsigned deepest = 0;
  for (const GraphNodePointer& node : nodes) {
    if (const auto* child = node->get<ChildParameters>()) deepest = std::max(deepest, 1 + child->graph->depth());
  }
  return deepest;
}

void Graph::set_level(unsigned above) {
  level = above + 1;
  for (const GraphNodePointer& node : nodes) {
    if (const auto* child = node->get<ChildParameters>()) child->graph->set_level(level);
  }
}

std::vector<GraphNode*> Graph::dependents(const GraphNode* node) const {
  std::vector<GraphNode*> found;
  for (const GraphNodePointer& other : nodes) {
    if (std::find(other->after.begin(), other->after.end(), node) != other->after.end()) found.push_back(other.get());
  }
  return found;
}

std::vector<GraphNode*> Graph::ordered() const {
  std::unordered_map<const GraphNode*, size_t> missing;
  std::unordered_map<const GraphNode*, std::vector<GraphNode*>> next;
  std::vector<GraphNode*> order;
  for (const GraphNodePointer& node : nodes) {
    missing[node.get()] = node->after.size();
    for (const GraphNode* earlier : node->after) next[earlier].push_back(node.get());
    if (node->after.empty()) order.push_back(node.get());
  }
  for (size_t done = 0; done < order.size(); ++done) {
    for (GraphNode* later : next[order[done]]) {
      if (--missing[later] == 0) order.push_back(later);
    }
  }
  return order;
}

const GraphNode* Graph::in_a_cycle() const {
  std::vector<GraphNode*> order = ordered();
  std::unordered_set<const GraphNode*> placed(order.begin(), order.end());
  for (const GraphNodePointer& node : nodes) {
    if (placed.count(node.get()) == 0) return node.get();
    const auto* child = node->get<ChildParameters>();
    if (child == nullptr) continue;
    if (const GraphNode* inside = child->graph->in_a_cycle()) return inside;
  }
  return nullptr;
}

GraphPointer Graph::clone(bool known) const {
  auto copy = std::make_shared<Graph>();
  copy->cloned_from = serial;
  copy->level = level;
  std::unordered_map<const GraphNode*, GraphNode*> pairs;
  for (const GraphNodePointer& node : nodes) {
    Operation operation = *node->operation;
    if (auto* child = std::get_if<ChildParameters>(&operation.parameters)) {
      child->graph = child->graph->clone(known);
      child->graph->owned = true;
      if (known) driver().graphs.add(child->graph);
    }
    GraphNode* twin = copy->insert(std::move(operation), {}, known);
    twin->id = node->id;
    twin->cloned_from = node->serial;
    twin->enabled = node->enabled;
    pairs[node.get()] = twin;
  }
  copy->next_node_id = next_node_id;
  for (const GraphNodePointer& node : nodes) {
    for (const GraphNode* earlier : node->after) pairs[node.get()]->after.push_back(pairs[earlier]);
  }
  if (mutated(Mutation::clones_forget_user_objects)) return copy;
  for (const auto& [object, count] : user_objects) {
    if (object->retain(count)) copy->user_objects[object] = count;
  }
  return copy;
}

CUresult find_graph(CUgraph handle, GraphPointer* graph) {
  *graph = driver().graphs.find(handle);
  return *graph ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult find_node(CUgraphNode handle, GraphNodePointer* node, GraphPointer* graph) {
  *node = graph_state().nodes.find(handle);
  if (!*node) return CUDA_ERROR_INVALID_VALUE;
  *graph = (*node)->graph.lock();
  return *graph ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult check_edge_data(const CUgraphEdgeData* data, size_t count) {
  if (data == nullptr) return CUDA_SUCCESS;
  for (size_t index = 0; index < count; ++index) {
    const auto* bytes = reinterpret_cast<const unsigned char*>(&data[index]);
    bool plain = std::all_of(bytes, bytes + sizeof(CUgraphEdgeData), [](unsigned char each) { return each == 0; });
    if (!plain) return CUDA_ERROR_NOT_SUPPORTED;
  }
  return CUDA_SUCCESS;
}

CUresult add_node(const GraphPointer& graph, Operation operation, const CUgraphNode* dependencies, size_t count,
                  CUgraphNode* out) {
  if (out == nullptr || (count != 0 && dependencies == nullptr)) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(graph_state().mutex);
  if (count > graph->nodes.size()) return CUDA_ERROR_INVALID_VALUE;  // some would be duplicates
  std::vector<GraphNode*> after;
  for (size_t index = 0; index < count; ++index) {
    GraphNodePointer node = graph_state().nodes.find(dependencies[index]);
    bool usable = node && graph->holds(node.get()) && std::find(after.begin(), after.end(), node.get()) == after.end();
    if (!usable) return CUDA_ERROR_INVALID_VALUE;
    after.push_back(node.get());
  }
  if (mutated(Mutation::graph_forgets_dependencies)) after.clear();
  *out = graph->insert(std::move(operation), std::move(after))->handle();
  return CUDA_SUCCESS;
}

}  // namespace rota::sim
