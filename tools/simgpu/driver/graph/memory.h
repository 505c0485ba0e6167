// Memory that graphs allocate. An allocation node fixes the address when it is created. It gets physical memory at the
// first launch of its graph (the device is charged then). The memory stays with the executable graph, so that later
// launches need not request it again, until that graph is destroyed or cuDeviceGraphMemTrim reclaims it. Memory that a
// device's graphs have released is cached for other graphs, and counts as used, until it is trimmed. All of it belongs
// to the device and outlives contexts. Measured on driver 580.159.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "tools/simgpu/driver/capture/capture.h"
#include "tools/simgpu/driver/driver.h"
#include "tools/simgpu/driver/graph/graph.h"
#include "tools/simgpu/state/shared_state.h"

namespace rota::sim {

struct GraphAllocation {
  ~GraphAllocation();
  uint64_t address = 0;
  uint64_t bytes = 0;  // of physical memory
  int gpu = 0;
  // Under the graphs' mutex:
  uint64_t owner = 0;            // serial of its graph
  bool freed_by_owner = false;   // its own graph has a free node for it
  unsigned freed_by_others = 0;  // number of free nodes for it in other graphs
  // Under GraphMemory's mutex:
  bool mapped = false;        // has physical memory
  bool live = false;          // allocated by a launch and not freed since, in the order of the program's calls
  bool instantiated = false;  // an executable graph holds it
  TaskPointer last_use;       // the last launch or free
};

// Any thread.
class GraphMemory {
 public:
  struct Use {          // bytes
    uint64_t used = 0;  // mapped to allocations, or cached
    uint64_t kept = 0;  // cached: no longer belongs to an allocation
    uint64_t used_high = 0;
    uint64_t reserved = 0;  // taken from the device
    uint64_t reserved_high = 0;
  };
  Use use(int gpu) const;
  void reset_high(int gpu, bool reserved);

  std::shared_ptr<GraphAllocation> find(uint64_t address) const;
  void add(const std::shared_ptr<GraphAllocation>& allocation);
  void remove(GraphAllocation& allocation);  // from its destructor
  // Gives them physical memory, all or none; false if a device is out of memory.
  bool map(const std::vector<std::shared_ptr<GraphAllocation>>& allocations);
  bool live(const GraphAllocation& allocation) const;
  TaskPointer last_use(const GraphAllocation& allocation) const;
  void used_by(GraphAllocation& allocation, const TaskPointer& task);
  // Call in the order of the program's calls. Live memory outlives its graph. free: false if it is not live.
  void allocate(const std::shared_ptr<GraphAllocation>& allocation);
  bool free(const std::shared_ptr<GraphAllocation>& allocation);
  void set_instantiated(GraphAllocation& allocation, bool instantiated);
  // Releases what no running or waiting launch uses.
  void trim(int gpu);

 private:
  bool map_locked(GraphAllocation& allocation);
  void unmap_locked(GraphAllocation& allocation);

  mutable std::mutex mutex_;
  std::array<Use, kMaxGpus> use_;
  std::map<uint64_t, std::weak_ptr<GraphAllocation>> by_address_;
  std::map<uint64_t, std::shared_ptr<GraphAllocation>> live_;
};

// Checks the parameters, fixes an address (dptr) and builds the operation of an allocation node.
CUresult make_graph_allocation(CUDA_MEM_ALLOC_NODE_PARAMS* parameters, Operation* operation);
// Under the graphs' mutex: builds the operation of a free node of that graph, and records that the graph frees the
// address.
CUresult make_graph_free(Graph& graph, uint64_t address, Operation* operation);
// The operation did not become a node, so the graph does not free the address after all.
void undo_graph_free(const Graph& graph, GraphAllocation& memory);

// cuMemAllocAsync and cuMemFreeAsync in a capturing stream: nodes of the captured graph.
CUresult capture_allocation(const StreamPointer& stream, const CapturePointer& capture, const CUmemPoolProps& pool,
                            uint64_t bytes, uint64_t* address);
CUresult capture_free(const StreamPointer& stream, const CapturePointer& capture, uint64_t address);

// Frees an address from an allocation node, for cuMemFree and cuMemFreeAsync.
bool is_graph_memory(uint64_t address);
CUresult free_graph_memory(uint64_t address, const ContextPointer& current);
CUresult free_graph_memory(uint64_t address, const StreamPointer& stream);

}  // namespace rota::sim
