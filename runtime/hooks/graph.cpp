// Graphs that allocate: their nodes, and the calls by which the driver takes memory for them or gives it back.
#include <cstddef>

#include "generated/driver_gates.h"
#include "generated/driver_real.h"
#include "runtime/core/runtime.h"
#include "runtime/hooks/overrides.h"

namespace rota::overrides {

using api::CUresult;

namespace {

void allocates(const api::CUmemPoolProps& pool) {
  if (pool.location.type == api::CU_MEM_LOCATION_TYPE_DEVICE) runtime().memory.graph_allocates(pool.location.id);
}

CUresult added(CUresult result, const api::CUgraphNodeParams* parameters) {
  if (result == api::CUDA_SUCCESS && parameters->type == api::CU_GRAPH_NODE_TYPE_MEM_ALLOC) {
    allocates(parameters->alloc.poolProps);
  }
  return result;
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
  return added(gates::cuGraphAddNode(phGraphNode, hGraph, dependencies, numDependencies, nodeParams), nodeParams);
}

CUresult cuGraphAddNode_v2(api::CUgraphNode* phGraphNode, api::CUgraph hGraph, const api::CUgraphNode* dependencies,
                           const api::CUgraphEdgeData* dependencyData, std::size_t numDependencies,
                           api::CUgraphNodeParams* nodeParams) {
  return added(gates::cuGraphAddNode_v2(phGraphNode, hGraph, dependencies, dependencyData, numDependencies, nodeParams),
               nodeParams);
}

CUresult cuGraphAddNode_v3(api::CUgraphNode* phGraphNode, api::CUgraph hGraph, const api::CUgraphNode* dependencies,
                           const api::CUgraphEdgeData* dependencyData, std::size_t numDependencies,
                           api::CUgraphNodeParams* nodeParams) {
  return added(gates::cuGraphAddNode_v3(phGraphNode, hGraph, dependencies, dependencyData, numDependencies, nodeParams),
               nodeParams);
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
