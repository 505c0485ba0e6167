// Nodes of graphs: those that allocate, with the calls by which the driver takes memory for them or gives it back, and
// those that set memory.
#include <cstddef>

#include "generated/driver_gates.h"
#include "generated/driver_real.h"
#include "runtime/core/runtime.h"
#include "runtime/hooks/graph_reach.h"
#include "runtime/hooks/overrides.h"

namespace rota::overrides {

using api::CUresult;

namespace {

void allocates(const api::CUmemPoolProps& pool) {
  if (pool.location.type == api::CU_MEM_LOCATION_TYPE_DEVICE) runtime().memory.graph_allocates(pool.location.id);
}

CUresult added(CUresult result, const api::CUgraphNodeParams* parameters) {
  if (result != api::CUDA_SUCCESS) return result;
  if (parameters->type == api::CU_GRAPH_NODE_TYPE_MEM_ALLOC) allocates(parameters->alloc.poolProps);
  node_added(*parameters);
  return result;
}

// The context of a node that sets memory, if none is given: that of the memory, if that is plain. The driver finds it
// by the address, but not for memory that is mapped, nor for a pool's (measured on an H200, 580.159.04).
api::CUcontext context_of_set(api::CUcontext given, api::CUdeviceptr address) {
  return given != nullptr ? given : runtime().memory.context_of_plain(address);
}

// The parameters that the driver is called with, perhaps a copy.
api::CUgraphNodeParams* with_context(api::CUgraphNodeParams* given, api::CUgraphNodeParams& copy) {
  if (given == nullptr || given->type != api::CU_GRAPH_NODE_TYPE_MEMSET || given->memset.ctx != nullptr) return given;
  copy = *given;
  copy.memset.ctx = context_of_set(nullptr, given->memset.dst);
  return &copy;
}

CUresult ran(CUresult result) {
  if (result == api::CUDA_SUCCESS) runtime().memory.graph_memory_changed();
  return result;
}

}  // namespace

CUresult cuGraphAddMemAllocNode(api::CUgraphNode* phGraphNode, api::CUgraph hGraph,
                                const api::CUgraphNode* dependencies, std::size_t numDependencies,
                                api::CUDA_MEM_ALLOC_NODE_PARAMS* nodeParams) {
  const CUresult result = real::cuGraphAddMemAllocNode(phGraphNode, hGraph, dependencies, numDependencies, nodeParams);
  if (result == api::CUDA_SUCCESS) allocates(nodeParams->poolProps);
  return result;
}

CUresult cuGraphAddNode(api::CUgraphNode* phGraphNode, api::CUgraph hGraph, const api::CUgraphNode* dependencies,
                        std::size_t numDependencies, api::CUgraphNodeParams* nodeParams) {
  api::CUgraphNodeParams copy;
  return added(
      gates::cuGraphAddNode(phGraphNode, hGraph, dependencies, numDependencies, with_context(nodeParams, copy)),
      nodeParams);
}

CUresult cuGraphAddNode_v2(api::CUgraphNode* phGraphNode, api::CUgraph hGraph, const api::CUgraphNode* dependencies,
                           const api::CUgraphEdgeData* dependencyData, std::size_t numDependencies,
                           api::CUgraphNodeParams* nodeParams) {
  api::CUgraphNodeParams copy;
  return added(gates::cuGraphAddNode_v2(phGraphNode, hGraph, dependencies, dependencyData, numDependencies,
                                        with_context(nodeParams, copy)),
               nodeParams);
}

CUresult cuGraphAddNode_v3(api::CUgraphNode* phGraphNode, api::CUgraph hGraph, const api::CUgraphNode* dependencies,
                           const api::CUgraphEdgeData* dependencyData, std::size_t numDependencies,
                           api::CUgraphNodeParams* nodeParams) {
  api::CUgraphNodeParams copy;
  return added(gates::cuGraphAddNode_v3(phGraphNode, hGraph, dependencies, dependencyData, numDependencies,
                                        with_context(nodeParams, copy)),
               nodeParams);
}

CUresult cuGraphAddMemsetNode(api::CUgraphNode* phGraphNode, api::CUgraph hGraph, const api::CUgraphNode* dependencies,
                              std::size_t numDependencies, const api::CUDA_MEMSET_NODE_PARAMS* memsetParams,
                              api::CUcontext ctx) {
  if (memsetParams != nullptr) ctx = context_of_set(ctx, memsetParams->dst);
  const CUresult result =
      gates::cuGraphAddMemsetNode(phGraphNode, hGraph, dependencies, numDependencies, memsetParams, ctx);
  if (result == api::CUDA_SUCCESS && memsetParams != nullptr) node_added(node_of(*memsetParams, ctx));
  return result;
}

// The first launch, or an upload before it, takes the memory.
CUresult cuGraphLaunch(api::CUgraphExec hGraphExec, api::CUstream hStream) {
  return ran(gates::cuGraphLaunch(hGraphExec, hStream));
}

CUresult cuGraphLaunch_ptsz(api::CUgraphExec hGraphExec, api::CUstream hStream) {
  return ran(gates::cuGraphLaunch_ptsz(hGraphExec, hStream));
}

CUresult cuGraphUpload(api::CUgraphExec hGraphExec, api::CUstream hStream) {
  return ran(gates::cuGraphUpload(hGraphExec, hStream));
}

CUresult cuGraphUpload_ptsz(api::CUgraphExec hGraphExec, api::CUstream hStream) {
  return ran(gates::cuGraphUpload_ptsz(hGraphExec, hStream));
}

// Memory that graphs no longer use stays reserved until this call.
CUresult cuDeviceGraphMemTrim(api::CUdevice device) {
  return ran(real::cuDeviceGraphMemTrim(device));
}

}  // namespace rota::overrides
