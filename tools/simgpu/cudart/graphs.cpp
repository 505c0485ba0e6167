// Graphs of the runtime API: everything but the nodes whose parameters the runtime describes in its own way
// (graph_nodes.cpp).
#include "tools/simgpu/cudart/forward.h"

using namespace rota::sim::cudart;  // NOLINT

ROTA_FORWARD(2, cudaGraphCreate, cuGraphCreate)
ROTA_FORWARD(1, cudaGraphDestroy, cuGraphDestroy)
ROTA_FORWARD(2, cudaGraphClone, cuGraphClone)
ROTA_FORWARD(3, cudaGraphNodeFindInClone, cuGraphNodeFindInClone)
ROTA_FORWARD(2, cudaGraphNodeGetType, cuGraphNodeGetType)
ROTA_FORWARD(3, cudaGraphGetNodes, cuGraphGetNodes)
ROTA_FORWARD(3, cudaGraphGetRootNodes, cuGraphGetRootNodes)
ROTA_FORWARD(5, cudaGraphGetEdges, cuGraphGetEdges_v2)
ROTA_FORWARD(4, cudaGraphNodeGetDependencies, cuGraphNodeGetDependencies_v2)
ROTA_FORWARD(4, cudaGraphNodeGetDependentNodes, cuGraphNodeGetDependentNodes_v2)
ROTA_FORWARD(5, cudaGraphAddDependencies, cuGraphAddDependencies_v2)
ROTA_FORWARD(5, cudaGraphRemoveDependencies, cuGraphRemoveDependencies_v2)
ROTA_FORWARD(1, cudaGraphDestroyNode, cuGraphDestroyNode)
ROTA_FORWARD(3, cudaGraphDebugDotPrint, cuGraphDebugDotPrint)

ROTA_FORWARD(3, cudaGraphInstantiate, cuGraphInstantiateWithFlags)
ROTA_FORWARD(3, cudaGraphInstantiateWithFlags, cuGraphInstantiateWithFlags)
ROTA_FORWARD_FORMS(3, cudaGraphInstantiateWithParams, cuGraphInstantiateWithParams)
ROTA_FORWARD(2, cudaGraphExecGetFlags, cuGraphExecGetFlags)
ROTA_FORWARD_FORMS(2, cudaGraphUpload, cuGraphUpload)
ROTA_FORWARD_FORMS(2, cudaGraphLaunch, cuGraphLaunch)
ROTA_FORWARD(3, cudaGraphExecUpdate, cuGraphExecUpdate_v2)
ROTA_FORWARD(1, cudaGraphExecDestroy, cuGraphExecDestroy)
ROTA_FORWARD(3, cudaGraphNodeSetEnabled, cuGraphNodeSetEnabled)
ROTA_FORWARD(3, cudaGraphNodeGetEnabled, cuGraphNodeGetEnabled)

// cudaHostNodeParams has the layout of the driver's.
ROTA_FORWARD(5, cudaGraphAddHostNode, cuGraphAddHostNode)
ROTA_FORWARD(2, cudaGraphHostNodeGetParams, cuGraphHostNodeGetParams)
ROTA_FORWARD(2, cudaGraphHostNodeSetParams, cuGraphHostNodeSetParams)
ROTA_FORWARD(3, cudaGraphExecHostNodeSetParams, cuGraphExecHostNodeSetParams)
ROTA_FORWARD(5, cudaGraphAddChildGraphNode, cuGraphAddChildGraphNode)
ROTA_FORWARD(2, cudaGraphChildGraphNodeGetGraph, cuGraphChildGraphNodeGetGraph)
ROTA_FORWARD(3, cudaGraphExecChildGraphNodeSetParams, cuGraphExecChildGraphNodeSetParams)
ROTA_FORWARD(4, cudaGraphAddEmptyNode, cuGraphAddEmptyNode)
ROTA_FORWARD(5, cudaGraphAddEventRecordNode, cuGraphAddEventRecordNode)
ROTA_FORWARD(2, cudaGraphEventRecordNodeGetEvent, cuGraphEventRecordNodeGetEvent)
ROTA_FORWARD(2, cudaGraphEventRecordNodeSetEvent, cuGraphEventRecordNodeSetEvent)
ROTA_FORWARD(3, cudaGraphExecEventRecordNodeSetEvent, cuGraphExecEventRecordNodeSetEvent)
ROTA_FORWARD(5, cudaGraphAddEventWaitNode, cuGraphAddEventWaitNode)
ROTA_FORWARD(2, cudaGraphEventWaitNodeGetEvent, cuGraphEventWaitNodeGetEvent)
ROTA_FORWARD(2, cudaGraphEventWaitNodeSetEvent, cuGraphEventWaitNodeSetEvent)
ROTA_FORWARD(3, cudaGraphExecEventWaitNodeSetEvent, cuGraphExecEventWaitNodeSetEvent)
// So have cudaMemAllocNodeParams and the attributes of kernel nodes.
ROTA_FORWARD(5, cudaGraphAddMemAllocNode, cuGraphAddMemAllocNode)
ROTA_FORWARD(2, cudaGraphMemAllocNodeGetParams, cuGraphMemAllocNodeGetParams)
ROTA_FORWARD(5, cudaGraphAddMemFreeNode, cuGraphAddMemFreeNode)
ROTA_FORWARD(2, cudaGraphMemFreeNodeGetParams, cuGraphMemFreeNodeGetParams)
ROTA_FORWARD(2, cudaGraphKernelNodeCopyAttributes, cuGraphKernelNodeCopyAttributes)
ROTA_FORWARD(3, cudaGraphKernelNodeGetAttribute, cuGraphKernelNodeGetAttribute)
ROTA_FORWARD(3, cudaGraphKernelNodeSetAttribute, cuGraphKernelNodeSetAttribute)

ROTA_FORWARD(5, cudaUserObjectCreate, cuUserObjectCreate)
ROTA_FORWARD(2, cudaUserObjectRetain, cuUserObjectRetain)
ROTA_FORWARD(2, cudaUserObjectRelease, cuUserObjectRelease)
ROTA_FORWARD(4, cudaGraphRetainUserObject, cuGraphRetainUserObject)
ROTA_FORWARD(3, cudaGraphReleaseUserObject, cuGraphReleaseUserObject)

ROTA_CUDART_EXPORT int cudaGraphConditionalHandleCreate(CUgraphConditionalHandle* out, CUgraph graph, unsigned value,
                                                        unsigned flags) {
  if (int error = ensure_context(); error != kSuccess) return done(error);
  CUcontext context = nullptr;
  driver().cuCtxGetCurrent(&context);
  return call(&Driver::cuGraphConditionalHandleCreate, out, graph, context, value, flags);
}
