// Operations of explicit graph nodes.
#include "tools/simgpu/driver/graph/nodes.h"

#include <algorithm>
#include <cstring>

#include "tools/simgpu/driver/copy/copies.h"
#include "tools/simgpu/driver/graph/state.h"
#include "tools/simgpu/driver/launch/host_function.h"
#include "tools/simgpu/driver/stream/memory_operations.h"

namespace rota::sim {
namespace {

// The driver's limit for one node or call.
constexpr unsigned kMemoryOperations = 256;

// Limits of simgpu: the driver is limited only by memory.
constexpr size_t kCopiedNodes = size_t{1} << 14;
constexpr unsigned kNestedGraphs = 64;

bool zero(const void* from, const void* to) {
  return std::all_of(static_cast<const unsigned char*>(from), static_cast<const unsigned char*>(to),
                     [](unsigned char each) { return each == 0; });
}

size_t bytes_of(CUgraphNodeType type) {
  switch (type) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
      return sizeof(CUDA_KERNEL_NODE_PARAMS_v3);
    case CU_GRAPH_NODE_TYPE_MEMCPY:
      return sizeof(CUDA_MEMCPY_NODE_PARAMS);
    case CU_GRAPH_NODE_TYPE_MEMSET:
      return sizeof(CUDA_MEMSET_NODE_PARAMS_v2);
    case CU_GRAPH_NODE_TYPE_HOST:
      return sizeof(CUDA_HOST_NODE_PARAMS_v2);
    case CU_GRAPH_NODE_TYPE_GRAPH:
      return sizeof(CUDA_CHILD_GRAPH_NODE_PARAMS);
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
      return sizeof(CUDA_EVENT_WAIT_NODE_PARAMS);
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
      return sizeof(CUDA_EVENT_RECORD_NODE_PARAMS);
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
      return sizeof(CUDA_MEM_ALLOC_NODE_PARAMS_v2);
    case CU_GRAPH_NODE_TYPE_MEM_FREE:
      return sizeof(CUDA_MEM_FREE_NODE_PARAMS);
    case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP:
      return sizeof(CUDA_BATCH_MEM_OP_NODE_PARAMS_v2);
    case CU_GRAPH_NODE_TYPE_EMPTY:
      return 0;
    default:
      return sizeof(CUgraphNodeParams::asBytes);
  }
}

}  // namespace

bool cooperative(const KernelParameters& kernel) {
  auto found = kernel.attributes.find(CU_LAUNCH_ATTRIBUTE_COOPERATIVE);
  return found != kernel.attributes.end() && found->second.cooperative != 0;
}

bool kernel_attribute(CUlaunchAttributeID attribute) {
  switch (attribute) {
    case CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW:
    case CU_LAUNCH_ATTRIBUTE_COOPERATIVE:
    case CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION:
    case CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE:
    case CU_LAUNCH_ATTRIBUTE_PRIORITY:
    case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP:
    case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN:
    case CU_LAUNCH_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
      return true;
    default:
      return false;
  }
}

CUDA_KERNEL_NODE_PARAMS widened(const CUDA_KERNEL_NODE_PARAMS_v1& parameters) {
  CUDA_KERNEL_NODE_PARAMS wide{};
  std::memcpy(&wide, &parameters, sizeof parameters);
  return wide;
}

CUresult check_kernel_context(const CUgraphNodeParams& parameters) {
  if (parameters.type != CU_GRAPH_NODE_TYPE_KERNEL) return CUDA_SUCCESS;
  if (parameters.kernel.func == nullptr || parameters.kernel.ctx == nullptr) return CUDA_SUCCESS;
  FunctionPointer function = driver().functions.find(parameters.kernel.func);
  return function && function->context != parameters.kernel.ctx ? CUDA_ERROR_INVALID_CONTEXT : CUDA_SUCCESS;
}

void keep(const Operation& before, Operation* after) {
  if (after->home.expired()) after->home = before.home;
  const auto* old = std::get_if<KernelParameters>(&before.parameters);
  auto* kernel = std::get_if<KernelParameters>(&after->parameters);
  if (old != nullptr && kernel != nullptr) kernel->attributes = old->attributes;
}

CUresult make_kernel_node(const CUDA_KERNEL_NODE_PARAMS& asked, Operation* operation) {
  if ((asked.func == nullptr) == (asked.kern == nullptr)) return CUDA_ERROR_INVALID_VALUE;
  if (asked.kernelParams != nullptr && asked.extra != nullptr) return CUDA_ERROR_INVALID_VALUE;
  FunctionPointer function;
  ContextPointer context;
  if (asked.kern != nullptr) {
    ROTA_SIM_CHECK(driver().context_of(asked.ctx, &context));
    ROTA_SIM_CHECK(function_for_launch(reinterpret_cast<CUfunction>(asked.kern), context, &function));
  } else {
    FunctionPointer named = driver().functions.find(asked.func);
    if (!named) return CUDA_ERROR_INVALID_HANDLE;
    // A function belongs to a context, which need not be the current one.
    ROTA_SIM_CHECK(driver().context_of(named->context, &context));
    ROTA_SIM_CHECK(function_for_launch(asked.func, context, &function));
  }
  KernelParameters launch;
  launch.function = function;
  launch.kernel = asked.kern;
  const unsigned grid[] = {asked.gridDimX, asked.gridDimY, asked.gridDimZ};
  const unsigned block[] = {asked.blockDimX, asked.blockDimY, asked.blockDimZ};
  std::copy(grid, grid + 3, launch.grid);
  std::copy(block, block + 3, launch.block);
  launch.shared_bytes = asked.sharedMemBytes;
  ROTA_SIM_CHECK(pack_arguments(asked.kernelParams, asked.extra, &launch));
  launch.packed = asked.extra != nullptr;
  ROTA_SIM_CHECK(make_launch(launch, operation));
  operation->home = context;
  return CUDA_SUCCESS;
}

CUresult make_copy_node(const CUDA_MEMCPY3D& asked, CUcontext handle, Operation* operation) {
  ContextPointer context;
  ROTA_SIM_CHECK(driver().context_of(handle, &context));
  ROTA_SIM_CHECK(make_copy(*context, asked, operation));
  operation->home = context;
  return CUDA_SUCCESS;
}

// Measured on an H200, driver 580.159.
CUresult find_set_context(CUdeviceptr address, CUcontext* context) {
  if (*context != nullptr || mutated(Mutation::sets_find_any_context)) return CUDA_SUCCESS;
  auto allocation = driver().memory.find(address);
  if (!allocation || allocation->physical || allocation->pool) return CUDA_ERROR_INVALID_VALUE;
  *context = allocation->context;
  return CUDA_SUCCESS;
}

CUresult make_set_node(const CUDA_MEMSET_NODE_PARAMS& asked, CUcontext handle, Operation* operation) {
  ContextPointer context;
  ROTA_SIM_CHECK(driver().context_of(handle, &context));
  ROTA_SIM_CHECK(make_set(*context, asked, operation));
  operation->home = context;
  return CUDA_SUCCESS;
}

CUresult make_host_node(CUhostFn function, void* data, Operation* operation) {
  if (function == nullptr) return CUDA_ERROR_INVALID_VALUE;
  operation->type = CU_GRAPH_NODE_TYPE_HOST;
  operation->parameters = HostParameters{function, data};
  operation->run = [function, data](Context&) { run_host_function(function, data); };
  return CUDA_SUCCESS;
}

CUresult make_event_node(CUgraphNodeType type, CUevent handle, Operation* operation) {
  EventPointer event = driver().events.find(handle);
  if (!event) return CUDA_ERROR_INVALID_VALUE;
  operation->type = type;
  operation->parameters = EventParameters{handle, std::move(event)};
  return CUDA_SUCCESS;
}

CUresult make_batch_node(const CUDA_BATCH_MEM_OP_NODE_PARAMS& asked, Operation* operation) {
  ContextPointer context;
  if (asked.count == 0 || asked.count > kMemoryOperations || asked.paramArray == nullptr || asked.flags != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  ROTA_SIM_CHECK(driver().context_of(asked.ctx, &context));
  ROTA_SIM_CHECK(make_memory_operations(asked.paramArray, asked.count, asked.flags, context, operation));
  operation->home = context;
  return CUDA_SUCCESS;
}

CUresult make_child_node(const GraphPointer& parent, CUgraph handle, bool move, Operation* operation) {
  GraphPointer child;
  ROTA_SIM_CHECK(find_graph(handle, &child));
  std::lock_guard lock(graph_state().mutex);
  // Otherwise a few calls could nest copies of copies without limit.
  if (child->all_nodes() > kCopiedNodes || parent->level + child->depth() >= kNestedGraphs) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  if (move) {
    // A graph that contained its own parent would never end.
    if (child->owned || child->contains(*parent)) return CUDA_ERROR_INVALID_VALUE;
  } else {
    if (child->has_memory_nodes()) return CUDA_ERROR_NOT_SUPPORTED;
    if (!mutated(Mutation::child_graphs_are_not_copied) || child->contains(*parent)) {
      child = child->clone(true);
      driver().graphs.add(child);
    }
  }
  child->owned = true;
  child->set_level(parent->level);
  operation->type = CU_GRAPH_NODE_TYPE_GRAPH;
  operation->parameters = ChildParameters{std::move(child)};
  return CUDA_SUCCESS;
}

bool well_formed(const CUgraphNodeParams& parameters) {
  const char* start = parameters.asBytes;
  return zero(parameters.reserved0, parameters.reserved0 + 3) && parameters.reserved2 == 0 &&
         zero(start + bytes_of(parameters.type), start + sizeof parameters.asBytes);
}

CUresult make_node(const CUgraphNodeParams& asked, Operation* operation) {
  switch (asked.type) {
    case CU_GRAPH_NODE_TYPE_KERNEL: {
      CUDA_KERNEL_NODE_PARAMS kernel;
      static_assert(sizeof kernel == sizeof asked.kernel);
      std::memcpy(&kernel, &asked.kernel, sizeof kernel);
      return make_kernel_node(kernel, operation);
    }
    case CU_GRAPH_NODE_TYPE_MEMCPY:
      if (asked.memcpy.flags != 0 || asked.memcpy.reserved != 0) return CUDA_ERROR_INVALID_VALUE;
      return make_copy_node(asked.memcpy.copyParams, asked.memcpy.copyCtx, operation);
    case CU_GRAPH_NODE_TYPE_MEMSET: {
      CUDA_MEMSET_NODE_PARAMS set;
      std::memcpy(&set, &asked.memset, sizeof set);
      return make_set_node(set, asked.memset.ctx, operation);
    }
    case CU_GRAPH_NODE_TYPE_HOST:
      return make_host_node(asked.host.fn, asked.host.userData, operation);
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
      return make_event_node(asked.type, asked.eventWait.event, operation);
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
      return make_event_node(asked.type, asked.eventRecord.event, operation);
    case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP: {
      CUDA_BATCH_MEM_OP_NODE_PARAMS batch;
      static_assert(sizeof batch == sizeof asked.memOp);
      std::memcpy(&batch, &asked.memOp, sizeof batch);
      return make_batch_node(batch, operation);
    }
    case CU_GRAPH_NODE_TYPE_EMPTY:
      operation->type = CU_GRAPH_NODE_TYPE_EMPTY;
      return CUDA_SUCCESS;
    case CU_GRAPH_NODE_TYPE_EXT_SEMAS_SIGNAL:
    case CU_GRAPH_NODE_TYPE_EXT_SEMAS_WAIT:
    case CU_GRAPH_NODE_TYPE_CONDITIONAL:
    case CU_GRAPH_NODE_TYPE_MEMCPY_BATCH:
    case CU_GRAPH_NODE_TYPE_FABRIC_CPY_BATCH:
      return CUDA_ERROR_NOT_SUPPORTED;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

CUDA_KERNEL_NODE_PARAMS describe_kernel(GraphNode& node) {
  const auto& kernel = *node.get<KernelParameters>();
  CUDA_KERNEL_NODE_PARAMS answer{};
  // For both (measured on an H200, 580.159.04).
  if (ContextPointer home = node.operation->home.lock()) answer.ctx = home->handle();
  if (kernel.kernel != nullptr) {
    answer.kern = kernel.kernel;
  } else {
    answer.func = kernel.function->handle();
  }
  answer.gridDimX = kernel.grid[0];
  answer.gridDimY = kernel.grid[1];
  answer.gridDimZ = kernel.grid[2];
  answer.blockDimX = kernel.block[0];
  answer.blockDimY = kernel.block[1];
  answer.blockDimZ = kernel.block[2];
  answer.sharedMemBytes = kernel.shared_bytes;
  answer.kernelParams = kernel.packed ? nullptr : node.arguments();
  answer.extra = kernel.packed ? node.extra() : nullptr;
  return answer;
}

CUDA_BATCH_MEM_OP_NODE_PARAMS describe_batch(const GraphNode& node) {
  const auto& batch = *node.get<MemoryOperationParameters>();
  CUDA_BATCH_MEM_OP_NODE_PARAMS answer{};
  if (ContextPointer home = node.operation->home.lock()) answer.ctx = home->handle();
  answer.count = static_cast<unsigned>(batch.operations.size());
  answer.paramArray = const_cast<CUstreamBatchMemOpParams*>(batch.operations.data());
  answer.flags = batch.flags;
  return answer;
}

CUDA_MEM_ALLOC_NODE_PARAMS describe_allocation(const GraphNode& node) {
  const auto& kept = *node.get<AllocationParameters>();
  CUDA_MEM_ALLOC_NODE_PARAMS answer = kept.allocation;
  answer.accessDescs = kept.access.empty() ? nullptr : kept.access.data();
  return answer;
}

CUresult describe(GraphNode& node, CUgraphNodeParams* answer) {
  *answer = {};
  answer->type = node.type();
  CUcontext home = nullptr;
  if (ContextPointer context = node.operation->home.lock()) home = context->handle();
  if (node.get<KernelParameters>() != nullptr) {
    CUDA_KERNEL_NODE_PARAMS kernel = describe_kernel(node);
    std::memcpy(&answer->kernel, &kernel, sizeof kernel);
  } else if (const auto* copied = node.get<CopyParameters>()) {
    answer->memcpy.copyCtx = home;
    answer->memcpy.copyParams = copied->copy;
  } else if (const auto* set = node.get<SetParameters>()) {
    std::memcpy(&answer->memset, &set->set, sizeof set->set);
    answer->memset.ctx = home;
  } else if (const auto* host = node.get<HostParameters>()) {
    answer->host.fn = host->function;
    answer->host.userData = host->data;
  } else if (const auto* child = node.get<ChildParameters>()) {
    answer->graph.graph = child->graph->handle();
    answer->graph.ownership = CU_GRAPH_CHILD_GRAPH_OWNERSHIP_INVALID;  // documented: the result must not be used again
  } else if (const auto* event = node.get<EventParameters>()) {
    answer->eventRecord.event = event->handle;
  } else if (node.get<AllocationParameters>() != nullptr) {
    CUDA_MEM_ALLOC_NODE_PARAMS allocation = describe_allocation(node);
    static_assert(sizeof allocation == sizeof answer->alloc);
    std::memcpy(&answer->alloc, &allocation, sizeof allocation);
  } else if (const auto* freed = node.get<FreeParameters>()) {
    answer->free.dptr = freed->address;
  } else if (node.get<MemoryOperationParameters>() != nullptr) {
    CUDA_BATCH_MEM_OP_NODE_PARAMS batch = describe_batch(node);
    std::memcpy(&answer->memOp, &batch, sizeof batch);
  }
  return CUDA_SUCCESS;
}

}  // namespace rota::sim
