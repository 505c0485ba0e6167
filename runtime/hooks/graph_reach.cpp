// Records on which GPUs the nodes of graphs work (runtime/gate/graph_reach.h). While the process has used only one GPU,
// they are on that one, and nothing is looked up.
#include <cstddef>

#include "generated/driver_gates.h"
#include "generated/driver_real.h"
#include "runtime/core/runtime.h"
#include "runtime/hooks/graph_reach.h"
#include "runtime/hooks/overrides.h"

namespace rota::overrides {

using api::CUgraph;
using api::CUgraphExec;
using api::CUgraphNode;
using api::CUresult;

namespace {

gate::GraphReach& graphs() {
  return runtime().monitor.graphs();
}

CUresult instantiated(CUresult result, const CUgraphExec* executable, CUgraph graph, unsigned long long flags = 0) {
  if (result != api::CUDA_SUCCESS) return result;
  const monitor::Monitor& monitor = runtime().monitor;
  graphs().instantiated(*executable, monitor.several() ? graphs().of(graph) : monitor.touched());
  // Kernels launch it, wherever they run.
  if ((flags & api::CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH) != 0) graphs().launched_by_others();
  return result;
}

unsigned long long flags_of(const api::CUDA_GRAPH_INSTANTIATE_PARAMS* parameters) {
  return parameters != nullptr ? parameters->flags : 0;
}

CUresult changed(CUresult result, CUgraphExec executable, const api::CUgraphNodeParams& node) {
  if (result == api::CUDA_SUCCESS && runtime().monitor.several()) graphs().extended(executable, graphs().of(node));
  return result;
}

CUresult updated(CUresult result, CUgraphExec executable, CUgraph graph) {
  if (result == api::CUDA_SUCCESS && runtime().monitor.several()) graphs().extended(executable, graphs().of(graph));
  return result;
}

CUresult replaced_memory(CUresult result) {
  if (result == api::CUDA_SUCCESS && runtime().monitor.several()) graphs().replaces_memory();
  return result;
}

CUresult replaced(CUresult result, const api::CUgraphNodeParams* node) {
  const bool copies = result == api::CUDA_SUCCESS &&
                      (node->type == api::CU_GRAPH_NODE_TYPE_MEMCPY || node->type == api::CU_GRAPH_NODE_TYPE_MEMSET);
  return copies ? replaced_memory(result) : result;
}

}  // namespace

api::CUgraphNodeParams node_of(const api::CUDA_MEMCPY3D& copy, api::CUcontext context) {
  api::CUgraphNodeParams node{};
  node.type = api::CU_GRAPH_NODE_TYPE_MEMCPY;
  node.memcpy = {.flags = 0, .reserved = 0, .copyCtx = context, .copyParams = copy};
  return node;
}

api::CUgraphNodeParams node_of(const api::CUDA_MEMSET_NODE_PARAMS& set, api::CUcontext context) {
  api::CUgraphNodeParams node{};
  node.type = api::CU_GRAPH_NODE_TYPE_MEMSET;
  node.memset.dst = set.dst;
  node.memset.ctx = context;
  return node;
}

void node_added(const api::CUgraphNodeParams& node) {
  if (runtime().monitor.several()) graphs().adds(node);
}

CUresult cuGraphInstantiate(CUgraphExec* phGraphExec, CUgraph hGraph, CUgraphNode* phErrorNode, char* logBuffer,
                            std::size_t bufferSize) {
  return instantiated(gates::cuGraphInstantiate(phGraphExec, hGraph, phErrorNode, logBuffer, bufferSize), phGraphExec,
                      hGraph);
}

CUresult cuGraphInstantiate_v2(CUgraphExec* phGraphExec, CUgraph hGraph, CUgraphNode* phErrorNode, char* logBuffer,
                               std::size_t bufferSize) {
  return instantiated(gates::cuGraphInstantiate_v2(phGraphExec, hGraph, phErrorNode, logBuffer, bufferSize),
                      phGraphExec, hGraph);
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec* phGraphExec, CUgraph hGraph, unsigned long long flags) {
  return instantiated(gates::cuGraphInstantiateWithFlags(phGraphExec, hGraph, flags), phGraphExec, hGraph, flags);
}

CUresult cuGraphInstantiateWithParams(CUgraphExec* phGraphExec, CUgraph hGraph,
                                      api::CUDA_GRAPH_INSTANTIATE_PARAMS* instantiateParams) {
  const unsigned long long flags = flags_of(instantiateParams);
  return instantiated(gates::cuGraphInstantiateWithParams(phGraphExec, hGraph, instantiateParams), phGraphExec, hGraph,
                      flags);
}

CUresult cuGraphInstantiateWithParams_ptsz(CUgraphExec* phGraphExec, CUgraph hGraph,
                                           api::CUDA_GRAPH_INSTANTIATE_PARAMS* instantiateParams) {
  const unsigned long long flags = flags_of(instantiateParams);
  return instantiated(gates::cuGraphInstantiateWithParams_ptsz(phGraphExec, hGraph, instantiateParams), phGraphExec,
                      hGraph, flags);
}

CUresult cuGraphExecDestroy(CUgraphExec hGraphExec) {
  graphs().destroyed(hGraphExec);
  return real::cuGraphExecDestroy(hGraphExec);
}

CUresult cuGraphExecUpdate(CUgraphExec hGraphExec, CUgraph hGraph, CUgraphNode* hErrorNode_out,
                           api::CUgraphExecUpdateResult* updateResult_out) {
  return updated(gates::cuGraphExecUpdate(hGraphExec, hGraph, hErrorNode_out, updateResult_out), hGraphExec, hGraph);
}

CUresult cuGraphExecUpdate_v2(CUgraphExec hGraphExec, CUgraph hGraph, api::CUgraphExecUpdateResultInfo* resultInfo) {
  return updated(gates::cuGraphExecUpdate_v2(hGraphExec, hGraph, resultInfo), hGraphExec, hGraph);
}

CUresult cuGraphExecChildGraphNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode, CUgraph childGraph) {
  return updated(gates::cuGraphExecChildGraphNodeSetParams(hGraphExec, hNode, childGraph), hGraphExec, childGraph);
}

CUresult cuGraphExecMemcpyNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode, const api::CUDA_MEMCPY3D* copyParams,
                                        api::CUcontext ctx) {
  const CUresult result = gates::cuGraphExecMemcpyNodeSetParams(hGraphExec, hNode, copyParams, ctx);
  return result == api::CUDA_SUCCESS ? changed(result, hGraphExec, node_of(*copyParams, ctx)) : result;
}

CUresult cuGraphExecMemsetNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode,
                                        const api::CUDA_MEMSET_NODE_PARAMS* memsetParams, api::CUcontext ctx) {
  const CUresult result = gates::cuGraphExecMemsetNodeSetParams(hGraphExec, hNode, memsetParams, ctx);
  return result == api::CUDA_SUCCESS ? changed(result, hGraphExec, node_of(*memsetParams, ctx)) : result;
}

CUresult cuGraphExecNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode, api::CUgraphNodeParams* nodeParams) {
  const CUresult result = gates::cuGraphExecNodeSetParams(hGraphExec, hNode, nodeParams);
  return result == api::CUDA_SUCCESS ? changed(result, hGraphExec, *nodeParams) : result;
}

CUresult cuGraphAddMemcpyNode(CUgraphNode* phGraphNode, CUgraph hGraph, const CUgraphNode* dependencies,
                              std::size_t numDependencies, const api::CUDA_MEMCPY3D* copyParams, api::CUcontext ctx) {
  const CUresult result =
      gates::cuGraphAddMemcpyNode(phGraphNode, hGraph, dependencies, numDependencies, copyParams, ctx);
  if (result == api::CUDA_SUCCESS) node_added(node_of(*copyParams, ctx));
  return result;
}

CUresult cuGraphMemcpyNodeSetParams(CUgraphNode hNode, const api::CUDA_MEMCPY3D* nodeParams) {
  return replaced_memory(gates::cuGraphMemcpyNodeSetParams(hNode, nodeParams));
}

CUresult cuGraphMemsetNodeSetParams(CUgraphNode hNode, const api::CUDA_MEMSET_NODE_PARAMS* nodeParams) {
  return replaced_memory(gates::cuGraphMemsetNodeSetParams(hNode, nodeParams));
}

CUresult cuGraphNodeSetParams(CUgraphNode hNode, api::CUgraphNodeParams* nodeParams) {
  return replaced(gates::cuGraphNodeSetParams(hNode, nodeParams), nodeParams);
}

CUresult cuGraphNodeSetParams_v2(CUgraphNode hNode, api::CUgraphNodeParams* nodeParams) {
  return replaced(gates::cuGraphNodeSetParams_v2(hNode, nodeParams), nodeParams);
}

}  // namespace rota::overrides
