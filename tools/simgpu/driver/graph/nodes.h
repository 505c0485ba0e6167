// Converts programs' parameters into operations of explicit graph nodes, and back.
#pragma once

#include "tools/simgpu/driver/driver.h"
#include "tools/simgpu/driver/graph/graph.h"

namespace rota::sim {

// Each checks its parameters as the driver does when a node is added, and needs the driver to be ready. A null context
// is the calling thread's current one.
CUresult make_kernel_node(const CUDA_KERNEL_NODE_PARAMS& parameters, Operation* operation);
CUresult make_copy_node(const CUDA_MEMCPY3D& parameters, CUcontext context, Operation* operation);
// For a new node that sets memory: its context, which is given or found by the address.
CUresult find_set_context(CUdeviceptr address, CUcontext* context);
CUresult make_set_node(const CUDA_MEMSET_NODE_PARAMS& parameters, CUcontext context, Operation* operation);
CUresult make_host_node(CUhostFn function, void* data, Operation* operation);
CUresult make_event_node(CUgraphNodeType type, CUevent event, Operation* operation);
CUresult make_batch_node(const CUDA_BATCH_MEM_OP_NODE_PARAMS& parameters, Operation* operation);
// The node's own copy of the graph, or (`move`) the graph itself, which then belongs to the node.
CUresult make_child_node(const GraphPointer& parent, CUgraph child, bool move, Operation* operation);

// The tagged union of cuGraphAddNode and its kin, of every type but child graphs and memory, which depend on the graph.
// CUDA_ERROR_NOT_SUPPORTED: a type that is not simulated.
CUresult make_node(const CUgraphNodeParams& parameters, Operation* operation);
// Bytes that no member uses must be zero.
bool well_formed(const CUgraphNodeParams& parameters);

// Under the graphs' mutex: the node's parameters. Pointers in them belong to the node.
CUDA_KERNEL_NODE_PARAMS describe_kernel(GraphNode& node);
CUDA_BATCH_MEM_OP_NODE_PARAMS describe_batch(const GraphNode& node);
CUDA_MEM_ALLOC_NODE_PARAMS describe_allocation(const GraphNode& node);
CUresult describe(GraphNode& node, CUgraphNodeParams* parameters);

// What a node keeps when its parameters are replaced: its context, and a kernel's attributes.
void keep(const Operation& before, Operation* after);
bool cooperative(const KernelParameters& kernel);
// Whether kernel nodes have this attribute.
bool kernel_attribute(CUlaunchAttributeID attribute);
// The first version of the parameters has no CUkernel.
CUDA_KERNEL_NODE_PARAMS widened(const CUDA_KERNEL_NODE_PARAMS_v1& parameters);
// CUDA_ERROR_INVALID_CONTEXT for a kernel node with a function of another context than the given one.
CUresult check_kernel_context(const CUgraphNodeParams& parameters);

}  // namespace rota::sim
