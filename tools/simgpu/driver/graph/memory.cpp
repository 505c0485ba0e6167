// The memory of allocation nodes: addresses, physical memory, and which graphs may free it.
#include "tools/simgpu/driver/graph/memory.h"

#include <algorithm>
#include <utility>

#include "tools/simgpu/driver/graph/state.h"

namespace rota::sim {
namespace {

// Physical memory is taken from the device in steps of this many bytes.
constexpr uint64_t kStep = uint64_t{2} << 20;

uint64_t stepped(uint64_t bytes) {
  return round_up(bytes, kStep);
}

CUresult check(const CUDA_MEM_ALLOC_NODE_PARAMS& asked) {
  const CUmemPoolProps& pool = asked.poolProps;
  bool here = pool.location.type == CU_MEM_LOCATION_TYPE_DEVICE && pool.location.id >= 0 &&
              pool.location.id < driver().state().gpus();
  if (asked.bytesize == 0 || pool.allocType != CU_MEM_ALLOCATION_TYPE_PINNED || !here) return CUDA_ERROR_INVALID_VALUE;
  if (pool.handleTypes != CU_MEM_HANDLE_TYPE_NONE) return CUDA_ERROR_NOT_SUPPORTED;
  if (asked.accessDescCount != 0 && asked.accessDescs == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (asked.accessDescCount > static_cast<size_t>(kMaxGpus)) return CUDA_ERROR_INVALID_VALUE;
  for (size_t index = 0; index < asked.accessDescCount; ++index) {
    const CUmemAccessDesc& access = asked.accessDescs[index];
    bool known = access.location.type == CU_MEM_LOCATION_TYPE_DEVICE && access.location.id >= 0 &&
                 access.location.id < driver().state().gpus() && access.flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    if (!known) return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

}  // namespace

GraphAllocation::~GraphAllocation() {
  graph_state().memory.remove(*this);
  if (auto record = driver().memory.remove(address)) driver().release(*record);
}

std::shared_ptr<GraphAllocation> GraphMemory::find(uint64_t address) const {
  std::lock_guard lock(mutex_);
  auto found = by_address_.find(address);
  return found == by_address_.end() ? nullptr : found->second.lock();
}

void GraphMemory::add(const std::shared_ptr<GraphAllocation>& allocation) {
  std::lock_guard lock(mutex_);
  by_address_[allocation->address] = allocation;
}

void GraphMemory::remove(GraphAllocation& allocation) {
  std::lock_guard lock(mutex_);
  by_address_.erase(allocation.address);
  unmap_locked(allocation);
}

bool GraphMemory::map(const std::vector<std::shared_ptr<GraphAllocation>>& allocations) {
  return driver().with_room([&] {
    std::lock_guard lock(mutex_);
    std::array<Use, kMaxGpus> before = use_;
    std::vector<GraphAllocation*> mapped;
    for (const auto& each : allocations) {
      if (each->mapped) continue;
      if (map_locked(*each)) {
        mapped.push_back(each.get());
        continue;
      }
      for (GraphAllocation* allocation : mapped) allocation->mapped = false;
      for (int gpu = 0; gpu < driver().state().gpus(); ++gpu) {
        auto index = static_cast<size_t>(gpu);
        uint64_t taken = use_[index].reserved - before[index].reserved;
        if (taken != 0) driver().state().give_back(gpu, taken);
      }
      use_ = before;
      return false;
    }
    return true;
  });
}

bool GraphMemory::map_locked(GraphAllocation& allocation) {
  Use& use = use_[static_cast<size_t>(allocation.gpu)];
  uint64_t from_kept = std::min(use.kept, allocation.bytes);
  uint64_t used = use.used + allocation.bytes - from_kept;
  if (stepped(used) > use.reserved) {
    Migration migration;
    if (!driver().state().take(allocation.gpu, stepped(used) - use.reserved, &migration)) return false;
    use.reserved = stepped(used);
    use.reserved_high = std::max(use.reserved_high, use.reserved);
  }
  use.kept -= from_kept;
  use.used = used;
  use.used_high = std::max(use.used_high, use.used);
  allocation.mapped = true;
  return true;
}

void GraphMemory::unmap_locked(GraphAllocation& allocation) {
  if (!allocation.mapped) return;
  Use& use = use_[static_cast<size_t>(allocation.gpu)];
  if (mutated(Mutation::freed_graph_memory_is_not_used)) {
    use.used -= allocation.bytes;
  } else {
    use.kept += allocation.bytes;
  }
  allocation.mapped = false;
}

bool GraphMemory::live(const GraphAllocation& allocation) const {
  std::lock_guard lock(mutex_);
  return allocation.live;
}

TaskPointer GraphMemory::last_use(const GraphAllocation& allocation) const {
  std::lock_guard lock(mutex_);
  return allocation.last_use;
}

void GraphMemory::used_by(GraphAllocation& allocation, const TaskPointer& task) {
  std::lock_guard lock(mutex_);
  allocation.last_use = task;
}

void GraphMemory::allocate(const std::shared_ptr<GraphAllocation>& allocation) {
  std::lock_guard lock(mutex_);
  allocation->live = true;
  live_[allocation->address] = allocation;
}

bool GraphMemory::free(const std::shared_ptr<GraphAllocation>& allocation) {
  std::lock_guard lock(mutex_);
  if (!allocation->live) return false;
  if (mutated(Mutation::freed_graph_memory_stays_allocated)) return true;
  allocation->live = false;
  live_.erase(allocation->address);  // not the last reference: the caller holds another
  if (!allocation->instantiated) unmap_locked(*allocation);
  return true;
}

void GraphMemory::set_instantiated(GraphAllocation& allocation, bool instantiated) {
  std::lock_guard lock(mutex_);
  allocation.instantiated = instantiated;
  if (!instantiated && !allocation.live) unmap_locked(allocation);
}

void GraphMemory::trim(int gpu) {
  std::vector<std::shared_ptr<GraphAllocation>> all;  // outlives each GPU's lock: a destructor takes it
  std::lock_guard lock(mutex_);
  for (const auto& [address, each] : by_address_) {
    if (auto allocation = each.lock()) all.push_back(std::move(allocation));
  }
  for (const auto& allocation : all) {
    if (allocation->gpu != gpu) continue;
    bool waiting = allocation->last_use && !allocation->last_use->done();
    if (!allocation->live && !waiting) unmap_locked(*allocation);
  }
  Use& use = use_[static_cast<size_t>(gpu)];
  use.used -= std::exchange(use.kept, 0);
  if (uint64_t left = stepped(use.used); left < use.reserved) {
    driver().state().give_back(gpu, use.reserved - left);
    use.reserved = left;
  }
}

GraphMemory::Use GraphMemory::use(int gpu) const {
  std::lock_guard lock(mutex_);
  if (mutated(Mutation::graph_memory_is_not_counted)) return {};
  return use_[static_cast<size_t>(gpu)];
}

void GraphMemory::reset_high(int gpu, bool reserved) {
  std::lock_guard lock(mutex_);
  Use& use = use_[static_cast<size_t>(gpu)];
  if (reserved) {
    use.reserved_high = use.reserved;
  } else {
    use.used_high = use.used;
  }
}

CUresult make_graph_allocation(CUDA_MEM_ALLOC_NODE_PARAMS* asked, Operation* operation) {
  ROTA_SIM_CHECK(check(*asked));
  uint64_t bytes = round_up(asked->bytesize, AddressSpace::kGranularity);
  if (bytes < asked->bytesize || bytes > driver().state().use(asked->poolProps.location.id).capacity) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  Allocation record;
  record.bytes = asked->bytesize;
  record.gpu = asked->poolProps.location.id;
  record.graph = true;
  if (!driver().memory.add_device(&record)) return CUDA_ERROR_OUT_OF_MEMORY;
  auto memory = std::make_shared<GraphAllocation>();
  memory->address = record.address;
  memory->bytes = bytes;
  memory->gpu = record.gpu;
  graph_state().memory.add(memory);
  asked->dptr = record.address;
  AllocationParameters parameters;
  parameters.allocation = *asked;
  parameters.allocation.accessDescs = nullptr;
  for (size_t index = 0; index < asked->accessDescCount; ++index)
    parameters.access.push_back(asked->accessDescs[index]);
  parameters.memory = std::move(memory);
  operation->type = CU_GRAPH_NODE_TYPE_MEM_ALLOC;
  operation->parameters = std::move(parameters);
  return CUDA_SUCCESS;
}

CUresult make_graph_free(Graph& graph, uint64_t address, Operation* operation) {
  auto memory = graph_state().memory.find(address);
  if (!memory) return CUDA_ERROR_INVALID_VALUE;
  bool own = memory->owner == graph.serial;
  bool again = std::any_of(graph.nodes.begin(), graph.nodes.end(), [address](const GraphNodePointer& node) {
    const auto* freed = node->get<FreeParameters>();
    return freed != nullptr && freed->address == address;
  });
  // Either its own graph frees it, or other graphs do.
  if (again || memory->freed_by_owner || (own && memory->freed_by_others != 0)) return CUDA_ERROR_INVALID_VALUE;
  if (own) {
    memory->freed_by_owner = true;
  } else {
    ++memory->freed_by_others;
  }
  operation->type = CU_GRAPH_NODE_TYPE_MEM_FREE;
  operation->parameters = FreeParameters{address, std::move(memory)};
  return CUDA_SUCCESS;
}

void undo_graph_free(const Graph& graph, GraphAllocation& memory) {
  std::lock_guard lock(graph_state().mutex);
  if (memory.owner == graph.serial) {
    memory.freed_by_owner = false;
  } else {
    --memory.freed_by_others;
  }
}

bool is_graph_memory(uint64_t address) {
  return graph_state().memory.find(address) != nullptr;
}

CUresult capture_allocation(const StreamPointer& stream, const CapturePointer& capture, const CUmemPoolProps& pool,
                            uint64_t bytes, uint64_t* address) {
  CUDA_MEM_ALLOC_NODE_PARAMS parameters{};
  parameters.poolProps = pool;
  parameters.bytesize = bytes;
  Operation operation;
  ROTA_SIM_CHECK(make_graph_allocation(&parameters, &operation));
  {
    std::lock_guard lock(driver().captures.mutex);
    if (stream->capture != capture) return CUDA_ERROR_ILLEGAL_STATE;  // ended by another thread meanwhile
    std::lock_guard lock_graphs(graph_state().mutex);
    std::get<AllocationParameters>(operation.parameters).memory->owner = capture->graph->serial;
  }
  ROTA_SIM_CHECK(driver().submit(stream, std::move(operation), nullptr, capture));
  *address = parameters.dptr;
  return CUDA_SUCCESS;
}

CUresult capture_free(const StreamPointer& stream, const CapturePointer& capture, uint64_t address) {
  Operation operation;
  GraphPointer graph;
  {
    std::lock_guard lock(driver().captures.mutex);
    if (stream->capture != capture) return CUDA_ERROR_ILLEGAL_STATE;
    graph = capture->graph;
    std::lock_guard lock_graphs(graph_state().mutex);
    ROTA_SIM_CHECK(make_graph_free(*graph, address, &operation));
  }
  std::shared_ptr<GraphAllocation> memory = std::get<FreeParameters>(operation.parameters).memory;
  CUresult result = driver().submit(stream, std::move(operation), nullptr, capture);
  if (result != CUDA_SUCCESS) undo_graph_free(*graph, *memory);
  return result;
}

CUresult free_graph_memory(uint64_t address, const ContextPointer& current) {
  auto memory = graph_state().memory.find(address);
  if (!memory || !graph_state().memory.live(*memory)) return CUDA_ERROR_INVALID_VALUE;
  if (!mutated(Mutation::free_does_not_wait)) {
    if (TaskPointer last = graph_state().memory.last_use(*memory)) last->wait();
    if (current) driver().wait_for(*current);
  }
  return graph_state().memory.free(memory) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult free_graph_memory(uint64_t address, const StreamPointer& stream) {
  auto memory = graph_state().memory.find(address);
  if (!memory || !graph_state().memory.live(*memory)) return CUDA_ERROR_INVALID_VALUE;
  if (mutated(Mutation::refused_frees_take_the_memory)) graph_state().memory.free(memory);
  // The queue prevents the address from being reused before the stream has reached the free.
  TaskPointer task;
  Operation operation;
  operation.run = [memory](Context&) {};
  ROTA_SIM_CHECK(driver().submit(stream, std::move(operation), &task, Driver::kNoCapture));
  if (!graph_state().memory.free(memory)) return CUDA_ERROR_INVALID_VALUE;  // another thread was first
  graph_state().memory.used_by(*memory, task);
  return CUDA_SUCCESS;
}

}  // namespace rota::sim
