// Which GPUs the nodes of graphs work on. That is looked up when a graph becomes executable, and again when an
// executable graph is changed, since the driver says nothing about the nodes of one. Any thread.
//
// Changes that cannot involve another GPU are ignored: the function of a kernel node may be replaced only by one of the
// same context, and device code can change only its arguments, its size and whether it runs. Nodes that rota does not
// understand, and graphs that it has not seen, count as on all GPUs.
#pragma once

#include <atomic>
#include <mutex>
#include <unordered_map>

#include "runtime/gate/reached.h"

namespace rota::gate {

class GraphReach {
 public:
  explicit GraphReach(Reached& reached) : reached_(reached) {}

  // The GPUs of a graph's nodes.
  Devices of(api::CUgraph graph);
  // The GPUs of an executable graph, by its handle.
  Devices of_executable(const void* executable) const;

  void instantiated(api::CUgraphExec executable, Devices devices);
  // From now on some nodes of it may be on these GPUs, too.
  void extended(api::CUgraphExec executable, Devices devices);
  // Before the driver may give its handle to another one.
  void destroyed(api::CUgraphExec executable);
  // Work on any GPU may launch a graph from now on.
  void launched_by_others() { others_launch_.store(true, std::memory_order_relaxed); }

  // The GPUs that a node's parameters name.
  Devices of(const api::CUgraphNodeParams& node);
  // Some graph gets a node that copies or sets memory of the GPUs `memory` in a context of the GPUs `works`. The driver
  // does not tell the context again (before CUDA 13.2), but the memory: so it matters if it is of other GPUs.
  void copies(Devices works, Devices memory) {
    if ((works & ~memory) != 0) copy_elsewhere_.fetch_or(works, std::memory_order_relaxed);
  }
  void adds(const api::CUgraphNodeParams& node);
  // The memory that such a node of some graph names has been replaced.
  void replaces_memory() { copies(kAllDevices, 0); }

 private:
  Devices of(api::CUgraphNode node);
  Devices memory_of(const api::CUDA_MEMCPY3D& copy);
  Devices context_of(const api::CUDA_MEMSET_NODE_PARAMS_v2& set);
  Devices with_elsewhere(Devices memory) const;

  Reached& reached_;
  mutable std::mutex mutex_;
  std::unordered_map<const void*, Devices> executables_;
  std::atomic<Devices> copy_elsewhere_{0};  // GPUs that copy or set memory of others in some graph
  std::atomic<bool> others_launch_{false};
};

}  // namespace rota::gate
