// Graphs: nodes, executable graphs, user objects.
#include "tests/programs/unwaiting_calls/calls.h"

namespace {

using behind_kernel::Objects;

CUDA_BATCH_MEM_OP_NODE_PARAMS batch_parameters(const Objects& o, CUstreamBatchMemOpParams* write) {
  write->writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
  write->writeValue.address = o.pinned_address;
  CUDA_BATCH_MEM_OP_NODE_PARAMS batch{};
  batch.ctx = o.context;
  batch.count = 1;
  batch.paramArray = write;
  return batch;
}
CUresult add_batch_node(Objects& o, CUgraphNode* node) {
  CUstreamBatchMemOpParams write{};
  CUDA_BATCH_MEM_OP_NODE_PARAMS batch = batch_parameters(o, &write);
  return cu.cuGraphAddBatchMemOpNode(node, o.empty_graph, nullptr, 0, &batch);
}
CUresult set_batch_node(Objects& o) {
  CUgraphNode node = nullptr;
  CUresult added = add_batch_node(o, &node);
  if (added != CUDA_SUCCESS) return added;
  CUstreamBatchMemOpParams write{};
  CUDA_BATCH_MEM_OP_NODE_PARAMS batch = batch_parameters(o, &write);
  return cu.cuGraphBatchMemOpNodeSetParams(node, &batch);
}
CUresult set_batch_node_of_executable(Objects& o) {
  CUgraphNode node = nullptr;
  CUresult result = add_batch_node(o, &node);
  CUgraphExec executable = nullptr;
  if (result == CUDA_SUCCESS) result = cu.cuGraphInstantiateWithFlags(&executable, o.empty_graph, 0);
  if (result != CUDA_SUCCESS) return result;
  CUstreamBatchMemOpParams write{};
  CUDA_BATCH_MEM_OP_NODE_PARAMS batch = batch_parameters(o, &write);
  return cu.cuGraphExecBatchMemOpNodeSetParams(executable, node, &batch);
}

CUresult add_memory_nodes(Objects& o) {
  CUgraphNode node = nullptr;
  CUDA_MEM_ALLOC_NODE_PARAMS allocation = allocation_parameters(o.device, 4096);
  CUresult added = cu.cuGraphAddMemAllocNode(&node, o.empty_graph, nullptr, 0, &allocation);
  if (added != CUDA_SUCCESS) return added;
  return cu.cuGraphAddMemFreeNode(o.any, o.empty_graph, &node, 1, allocation.dptr);
}

CUgraphNodeParams set_node_parameters(const Objects& o) {
  CUgraphNodeParams parameters{};
  parameters.type = CU_GRAPH_NODE_TYPE_MEMSET;
  parameters.memset.dst = o.plain;
  parameters.memset.elementSize = 4;
  parameters.memset.width = 16;
  parameters.memset.height = 1;
  parameters.memset.ctx = o.context;
  return parameters;
}
CUresult add_any_node(Objects& o) {
  CUgraphNodeParams parameters = set_node_parameters(o);
  return cu.cuGraphAddNode_v2(o.any, o.empty_graph, nullptr, nullptr, 0, &parameters);
}
CUresult set_any_node(Objects& o) {
  CUgraphNodeParams parameters = set_node_parameters(o);
  return cu.cuGraphNodeSetParams(o.set_node, &parameters);
}
CUresult set_any_node_of_executable(Objects& o) {
  CUgraphNodeParams parameters = set_node_parameters(o);
  return cu.cuGraphExecNodeSetParams(o.executable, o.set_node, &parameters);
}

CUresult create_user_object(Objects& o) {
  return cu.cuUserObjectCreate(o.any, o.pinned, [](void*) {}, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC);
}
CUresult retain_and_release_for_graph(Objects& o) {
  CUresult retained = cu.cuGraphRetainUserObject(o.graph, o.object, 1, 0);
  return retained == CUDA_SUCCESS ? cu.cuGraphReleaseUserObject(o.graph, o.object, 1) : retained;
}

}  // namespace

RETURNS(cuGraphCreate, o.any, 0)
RETURNS(cuGraphClone, o.any, o.graph)
RETURNS(cuGraphDestroy, o.child)
RETURNS(cuGraphDestroyNode, o.empty_node)
RETURNS(cuGraphAddEmptyNode, o.any, o.graph, nullptr, 0)
RETURNS(cuGraphAddKernelNode_v2, o.any, o.graph, nullptr, 0, &o.kernel_parameters)
RETURNS(cuGraphAddMemsetNode, o.any, o.graph, nullptr, 0, &o.set_parameters, o.context)
RETURNS(cuGraphAddMemcpyNode, o.any, o.graph, nullptr, 0, &o.copy_parameters, o.context)
RETURNS(cuGraphAddHostNode, o.any, o.graph, nullptr, 0, &o.host_parameters)
RETURNS(cuGraphAddChildGraphNode, o.any, o.graph, nullptr, 0, o.child)
RETURNS(cuGraphAddEventRecordNode, o.any, o.graph, nullptr, 0, o.event)
RETURNS(cuGraphAddEventWaitNode, o.any, o.graph, nullptr, 0, o.event)
BEHIND_KERNEL(cuGraphAddBatchMemOpNode, true, add_batch_node(o, o.any))
BEHIND_KERNEL(cuGraphAddMemAllocNode, true, add_memory_nodes(o))
BEHIND_KERNEL(cuGraphAddMemFreeNode, true, add_memory_nodes(o))
BEHIND_KERNEL(cuGraphAddNode_v2, true, add_any_node(o))
RETURNS(cuGraphKernelNodeSetParams_v2, o.kernel_node, &o.kernel_parameters)
RETURNS(cuGraphMemsetNodeSetParams, o.set_node, &o.set_parameters)
RETURNS(cuGraphMemcpyNodeSetParams, o.copy_node, &o.copy_parameters)
RETURNS(cuGraphHostNodeSetParams, o.host_node, &o.host_parameters)
BEHIND_KERNEL(cuGraphBatchMemOpNodeSetParams, true, set_batch_node(o))
BEHIND_KERNEL(cuGraphNodeSetParams, true, set_any_node(o))
ANSWERS(cuGraphKernelNodeSetAttribute, o.kernel_node, CU_LAUNCH_ATTRIBUTE_PRIORITY, o.any)
RETURNS(cuGraphKernelNodeGetAttribute, o.kernel_node, CU_LAUNCH_ATTRIBUTE_PRIORITY, o.any)
RETURNS(cuGraphKernelNodeCopyAttributes, o.kernel_node, o.kernel_node)
RETURNS(cuGraphKernelNodeGetParams_v2, o.kernel_node, o.any)
RETURNS(cuGraphMemsetNodeGetParams, o.set_node, o.any)
RETURNS(cuGraphMemcpyNodeGetParams, o.copy_node, o.any)
RETURNS(cuGraphHostNodeGetParams, o.host_node, o.any)
RETURNS(cuGraphChildGraphNodeGetGraph, o.child_node, o.any)
RETURNS(cuGraphEventRecordNodeGetEvent, o.record_node, o.any)
RETURNS(cuGraphEventRecordNodeSetEvent, o.record_node, o.event)
RETURNS(cuGraphEventWaitNodeGetEvent, o.wait_node, o.any)
RETURNS(cuGraphEventWaitNodeSetEvent, o.wait_node, o.event)
RETURNS(cuGraphNodeGetType, o.empty_node, o.any)
RETURNS(cuGraphGetNodes, o.graph, nullptr, o.any)
RETURNS(cuGraphGetRootNodes, o.graph, nullptr, o.any)
RETURNS(cuGraphNodeSetEnabled, o.executable, o.set_node, 1)
RETURNS(cuGraphNodeGetEnabled, o.executable, o.set_node, o.any)

RETURNS_FORMS(cuGraphUpload, o.executable, o.stream)
RETURNS_FORMS(cuGraphLaunch, o.executable, o.stream)
RETURNS(cuGraphExecDestroy, o.executable)
RETURNS(cuGraphExecUpdate_v2, o.executable, o.graph, o.any)
RETURNS(cuGraphExecGetFlags, o.executable, o.any)
RETURNS(cuGraphExecKernelNodeSetParams_v2, o.executable, o.kernel_node, &o.kernel_parameters)
RETURNS(cuGraphExecMemsetNodeSetParams, o.executable, o.set_node, &o.set_parameters, o.context)
RETURNS(cuGraphExecMemcpyNodeSetParams, o.executable, o.copy_node, &o.copy_parameters, o.context)
RETURNS(cuGraphExecHostNodeSetParams, o.executable, o.host_node, &o.host_parameters)
RETURNS(cuGraphExecChildGraphNodeSetParams, o.executable, o.child_node, o.child)
RETURNS(cuGraphExecEventRecordNodeSetEvent, o.executable, o.record_node, o.event)
RETURNS(cuGraphExecEventWaitNodeSetEvent, o.executable, o.wait_node, o.event)
BEHIND_KERNEL(cuGraphExecBatchMemOpNodeSetParams, true, set_batch_node_of_executable(o))
BEHIND_KERNEL(cuGraphExecNodeSetParams, true, set_any_node_of_executable(o))
RETURNS(cuDeviceGraphMemTrim, o.device)
RETURNS(cuDeviceGetGraphMemAttribute, o.device, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT, o.any)
RETURNS(cuDeviceSetGraphMemAttribute, o.device, CU_GRAPH_MEM_ATTR_USED_MEM_HIGH, o.any)

BEHIND_KERNEL(cuUserObjectCreate, true, create_user_object(o))
RETURNS(cuUserObjectRetain, o.object, 1)
RETURNS(cuUserObjectRelease, o.object, 1)
BEHIND_KERNEL(cuGraphRetainUserObject, true, retain_and_release_for_graph(o))
BEHIND_KERNEL(cuGraphReleaseUserObject, true, retain_and_release_for_graph(o))
