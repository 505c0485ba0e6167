#include "runtime/gate/graph_reach.h"

#include <vector>

#include "generated/driver_real.h"
#include "runtime/driver/context.h"

namespace rota::gate {

namespace {

// What the driver says of a node; `ask` stores it in `answer`.
template <typename Answer, typename Ask, typename Use>
Devices by_answer(const Ask& ask, const Use& use) {
  Answer answer{};
  return ask(&answer) == api::CUDA_SUCCESS ? use(answer) : kAllDevices;
}

}  // namespace

Devices GraphReach::of(api::CUgraph graph) {
  std::size_t count = 0;
  if (real::cuGraphGetNodes(graph, nullptr, &count) != api::CUDA_SUCCESS) return kAllDevices;
  std::vector<api::CUgraphNode> nodes(count);
  if (count != 0 && real::cuGraphGetNodes(graph, nodes.data(), &count) != api::CUDA_SUCCESS) return kAllDevices;
  Devices devices = 0;
  for (std::size_t index = 0; index < nodes.size() && devices != kAllDevices; ++index) devices |= of(nodes[index]);
  return devices;
}

Devices GraphReach::of(api::CUgraphNode node) {
  api::CUgraphNodeType type{};
  if (real::cuGraphNodeGetType(node, &type) != api::CUDA_SUCCESS) return kAllDevices;
  switch (type) {
    case api::CU_GRAPH_NODE_TYPE_KERNEL:
      // Such nodes have a context, however they were added (measured on an H200, 580.159.04).
      return by_answer<api::CUDA_KERNEL_NODE_PARAMS>(
          [&](auto* kernel) { return real::cuGraphKernelNodeGetParams_v2(node, kernel); },
          [&](const auto& kernel) { return kernel.ctx != nullptr ? reached_.of(kernel.ctx) : kAllDevices; });
    case api::CU_GRAPH_NODE_TYPE_MEMCPY:
      return by_answer<api::CUDA_MEMCPY3D>([&](auto* copy) { return real::cuGraphMemcpyNodeGetParams(node, copy); },
                                           [&](const auto& copy) { return with_elsewhere(memory_of(copy)); });
    case api::CU_GRAPH_NODE_TYPE_MEMSET:
      return by_answer<api::CUDA_MEMSET_NODE_PARAMS>(
          [&](auto* set) { return real::cuGraphMemsetNodeGetParams(node, set); },
          [&](const auto& set) { return with_elsewhere(reached_.at(set.dst)); });
    case api::CU_GRAPH_NODE_TYPE_GRAPH:
      return by_answer<api::CUgraph>([&](auto* child) { return real::cuGraphChildGraphNodeGetGraph(node, child); },
                                     [&](api::CUgraph child) { return of(child); });
    case api::CU_GRAPH_NODE_TYPE_MEM_ALLOC:
      return by_answer<api::CUDA_MEM_ALLOC_NODE_PARAMS>(
          [&](auto* made) { return real::cuGraphMemAllocNodeGetParams(node, made); },
          [&](const auto& made) {
            const bool plain = made.poolProps.location.type == api::CU_MEM_LOCATION_TYPE_DEVICE;
            return plain ? bit_of(made.poolProps.location.id) : kAllDevices;
          });
    case api::CU_GRAPH_NODE_TYPE_MEM_FREE:
      return by_answer<api::CUdeviceptr>([&](auto* freed) { return real::cuGraphMemFreeNodeGetParams(node, freed); },
                                         [&](api::CUdeviceptr freed) {
                                           const Devices devices = reached_.at(freed);
                                           return devices != 0 ? devices : kAllDevices;
                                         });
    case api::CU_GRAPH_NODE_TYPE_HOST:
    case api::CU_GRAPH_NODE_TYPE_EMPTY:
    case api::CU_GRAPH_NODE_TYPE_WAIT_EVENT:
    case api::CU_GRAPH_NODE_TYPE_EVENT_RECORD:
      return 0;
    default:
      return kAllDevices;
  }
}

Devices GraphReach::of(const api::CUgraphNodeParams& node) {
  switch (node.type) {
    case api::CU_GRAPH_NODE_TYPE_MEMCPY:
      return reached_.of(node.memcpy.copyCtx) | with_elsewhere(memory_of(node.memcpy.copyParams));
    case api::CU_GRAPH_NODE_TYPE_MEMSET:
      return context_of(node.memset) | with_elsewhere(reached_.at(node.memset.dst));
    case api::CU_GRAPH_NODE_TYPE_GRAPH:
      return of(node.graph.graph);
    default:
      return 0;
  }
}

void GraphReach::adds(const api::CUgraphNodeParams& node) {
  if (node.type == api::CU_GRAPH_NODE_TYPE_MEMCPY)
    copies(reached_.of(node.memcpy.copyCtx), memory_of(node.memcpy.copyParams));
  if (node.type == api::CU_GRAPH_NODE_TYPE_MEMSET) copies(context_of(node.memset), reached_.at(node.memset.dst));
}

// No context is given: the memory's own.
Devices GraphReach::context_of(const api::CUDA_MEMSET_NODE_PARAMS_v2& set) {
  return set.ctx != nullptr ? reached_.of(set.ctx) : reached_.at(set.dst);
}

Devices GraphReach::memory_of(const api::CUDA_MEMCPY3D& copy) {
  const auto of = [&](api::CUmemorytype type, api::CUdeviceptr address, api::CUarray array) -> Devices {
    if (type == api::CU_MEMORYTYPE_HOST) return 0;
    return type == api::CU_MEMORYTYPE_ARRAY ? reached_.of_array(array) : reached_.at(address);
  };
  return of(copy.srcMemoryType, copy.srcDevice, copy.srcArray) | of(copy.dstMemoryType, copy.dstDevice, copy.dstArray);
}

Devices GraphReach::with_elsewhere(Devices memory) const {
  return memory != 0 ? memory | copy_elsewhere_.load(std::memory_order_relaxed) : kAllDevices;
}

Devices GraphReach::of_executable(const void* executable) const {
  if (others_launch_.load(std::memory_order_relaxed)) return kAllDevices;
  const std::lock_guard lock(mutex_);
  const auto known = executables_.find(executable);
  return known != executables_.end() ? known->second : kAllDevices;
}

void GraphReach::instantiated(api::CUgraphExec executable, Devices devices) {
  const std::lock_guard lock(mutex_);
  executables_[executable] = devices;
}

void GraphReach::extended(api::CUgraphExec executable, Devices devices) {
  const std::lock_guard lock(mutex_);
  const auto known = executables_.find(executable);
  if (known != executables_.end()) known->second |= devices;
}

void GraphReach::destroyed(api::CUgraphExec executable) {
  const std::lock_guard lock(mutex_);
  executables_.erase(executable);
}

}  // namespace rota::gate
