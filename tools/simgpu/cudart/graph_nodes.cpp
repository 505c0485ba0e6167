// Graph nodes whose parameters the runtime describes in its own way: kernels by their host functions, copies by
// cudaMemcpy3DParms, symbols, and all kinds by cudaGraphNodeParams.
#include <cstring>

#include "tools/simgpu/cudart/copy_parameters.h"
#include "tools/simgpu/cudart/forward.h"

using namespace rota::sim::cudart;  // NOLINT

namespace {

struct KernelNode {  // cudaKernelNodeParams
  void* function;
  Dim3 grid, block;
  unsigned shared;
  void** parameters;
  void** extra;
};
static_assert(sizeof(KernelNode) == 56);
using Nodes = const CUgraphNode*;

template <class DriverNode>
int kernel_node(const KernelNode* node, DriverNode* out) {
  if (node == nullptr) return kInvalidValue;
  *out = {};
  if (int error = kernel_of(node->function, &out->kern); error != kSuccess) return error;
  out->gridDimX = node->grid.x;
  out->gridDimY = node->grid.y;
  out->gridDimZ = node->grid.z;
  out->blockDimX = node->block.x;
  out->blockDimY = node->block.y;
  out->blockDimZ = node->block.z;
  out->sharedMemBytes = node->shared;
  out->kernelParams = node->parameters;
  out->extra = node->extra;
  return kSuccess;
}

// The context that nodes belong to: the calling thread's.
int context_of_thread(CUcontext* context) {
  if (int error = ensure_context(); error != kSuccess) return error;
  return static_cast<int>(driver().cuCtxGetCurrent(context));
}

// A copy of `bytes` to or from a device variable.
int symbol_copy(bool to_symbol, const void* symbol, void* memory, size_t bytes, size_t offset, int kind,
                CUDA_MEMCPY3D* out) {
  CUdeviceptr begin = 0;
  size_t size = 0;
  if (kind != 3 && kind != 4 && kind != (to_symbol ? 1 : 2)) return kInvalidMemcpyDirection;
  if (int error = variable_of(symbol, &begin, &size); error != kSuccess) return error;
  if (offset > size || bytes > size - offset) return kInvalidValue;
  auto* part = reinterpret_cast<void*>(begin + offset);
  return to_symbol ? to_driver(part, memory, bytes, kind, out) : to_driver(memory, part, bytes, kind, out);
}

int add_copy(CUgraphNode* node, CUgraph graph, Nodes before, size_t count, int error, const CUDA_MEMCPY3D& copy) {
  CUcontext context = nullptr;
  if (error == kSuccess) error = context_of_thread(&context);
  if (error != kSuccess) return done(error);
  const CUDA_MEMCPY3D* parameters = &copy;
  return call(&Driver::cuGraphAddMemcpyNode, node, graph, before, count, parameters, context);
}
int set_copy(CUgraphNode node, int error, const CUDA_MEMCPY3D& copy) {
  if (error != kSuccess) return done(error);
  const CUDA_MEMCPY3D* parameters = &copy;
  return call(&Driver::cuGraphMemcpyNodeSetParams, node, parameters);
}
int set_copy(CUgraphExec executable, CUgraphNode node, int error, const CUDA_MEMCPY3D& copy) {
  CUcontext context = nullptr;
  if (error == kSuccess) error = context_of_thread(&context);
  if (error != kSuccess) return done(error);
  const CUDA_MEMCPY3D* parameters = &copy;
  return call(&Driver::cuGraphExecMemcpyNodeSetParams, executable, node, parameters, context);
}
int box_copy(const Copy3D* box, CUDA_MEMCPY3D* out) {
  if (box == nullptr) return kInvalidValue;
  if (int error = ensure_context(); error != kSuccess) return error;
  return to_driver(*box, out);
}

}  // namespace

ROTA_CUDART_EXPORT int cudaGraphAddKernelNode(CUgraphNode* out, CUgraph graph, Nodes before, size_t count,
                                              const KernelNode* node) {
  CUDA_KERNEL_NODE_PARAMS converted;
  if (int error = kernel_node(node, &converted); error != kSuccess) return done(error);
  const CUDA_KERNEL_NODE_PARAMS* parameters = &converted;
  return call(&Driver::cuGraphAddKernelNode_v2, out, graph, before, count, parameters);
}
ROTA_CUDART_EXPORT int cudaGraphKernelNodeGetParams(CUgraphNode node, KernelNode* out) {
  if (out == nullptr) return done(kInvalidValue);
  CUDA_KERNEL_NODE_PARAMS has{};
  if (int error = call(&Driver::cuGraphKernelNodeGetParams_v2, node, &has); error != kSuccess) return error;
  *out = {const_cast<void*>(host_function_of(has.kern, has.func)),
          {has.gridDimX, has.gridDimY, has.gridDimZ},
          {has.blockDimX, has.blockDimY, has.blockDimZ},
          has.sharedMemBytes,
          has.kernelParams,
          has.extra};
  return kSuccess;
}
ROTA_CUDART_EXPORT int cudaGraphKernelNodeSetParams(CUgraphNode node, const KernelNode* wanted) {
  CUDA_KERNEL_NODE_PARAMS converted;
  if (int error = kernel_node(wanted, &converted); error != kSuccess) return done(error);
  const CUDA_KERNEL_NODE_PARAMS* parameters = &converted;
  return call(&Driver::cuGraphKernelNodeSetParams_v2, node, parameters);
}
ROTA_CUDART_EXPORT int cudaGraphExecKernelNodeSetParams(CUgraphExec executable, CUgraphNode node,
                                                        const KernelNode* wanted) {
  CUDA_KERNEL_NODE_PARAMS converted;
  if (int error = kernel_node(wanted, &converted); error != kSuccess) return done(error);
  const CUDA_KERNEL_NODE_PARAMS* parameters = &converted;
  return call(&Driver::cuGraphExecKernelNodeSetParams_v2, executable, node, parameters);
}

// Copies: a box, a row of bytes, a device variable's bytes; added, changed in the graph, changed in an executable one.
#define ROTA_COPY_NODES(Suffix, prepare, ...)                                                                         \
  ROTA_CUDART_EXPORT int cudaGraphAddMemcpyNode##Suffix(CUgraphNode* node, CUgraph graph, Nodes before, size_t nodes, \
                                                        __VA_ARGS__) {                                                \
    CUDA_MEMCPY3D copy{};                                                                                             \
    int error = prepare;                                                                                              \
    return add_copy(node, graph, before, nodes, error, copy);                                                         \
  }                                                                                                                   \
  ROTA_CUDART_EXPORT int cudaGraphMemcpyNodeSetParams##Suffix(CUgraphNode node, __VA_ARGS__) {                        \
    CUDA_MEMCPY3D copy{};                                                                                             \
    int error = prepare;                                                                                              \
    return set_copy(node, error, copy);                                                                               \
  }                                                                                                                   \
  ROTA_CUDART_EXPORT int cudaGraphExecMemcpyNodeSetParams##Suffix(CUgraphExec executable, CUgraphNode node,           \
                                                                  __VA_ARGS__) {                                      \
    CUDA_MEMCPY3D copy{};                                                                                             \
    int error = prepare;                                                                                              \
    return set_copy(executable, node, error, copy);                                                                   \
  }
ROTA_COPY_NODES(, box_copy(box, &copy), const Copy3D* box)
ROTA_COPY_NODES(1D, to_driver(to, from, bytes, kind, &copy), void* to, const void* from, size_t bytes, int kind)
ROTA_COPY_NODES(ToSymbol, symbol_copy(true, symbol, const_cast<void*>(from), bytes, offset, kind, &copy),
                const void* symbol, const void* from, size_t bytes, size_t offset, int kind)
ROTA_COPY_NODES(FromSymbol, symbol_copy(false, symbol, to, bytes, offset, kind, &copy), void* to, const void* symbol,
                size_t bytes, size_t offset, int kind)

ROTA_CUDART_EXPORT int cudaGraphMemcpyNodeGetParams(CUgraphNode node, Copy3D* out) {
  if (out == nullptr) return done(kInvalidValue);
  CUDA_MEMCPY3D has{};
  if (int error = call(&Driver::cuGraphMemcpyNodeGetParams, node, &has); error != kSuccess) return error;
  return done(from_driver(has, out));
}

// cudaMemsetParams has the layout of the driver's.
ROTA_FORWARD(2, cudaGraphMemsetNodeGetParams, cuGraphMemsetNodeGetParams)
ROTA_FORWARD(2, cudaGraphMemsetNodeSetParams, cuGraphMemsetNodeSetParams)
ROTA_CUDART_EXPORT int cudaGraphAddMemsetNode(CUgraphNode* node, CUgraph graph, Nodes before, size_t count,
                                              const CUDA_MEMSET_NODE_PARAMS* set) {
  CUcontext context = nullptr;
  if (int error = context_of_thread(&context); error != kSuccess) return done(error);
  return call(&Driver::cuGraphAddMemsetNode, node, graph, before, count, set, context);
}
ROTA_CUDART_EXPORT int cudaGraphExecMemsetNodeSetParams(CUgraphExec executable, CUgraphNode node,
                                                        const CUDA_MEMSET_NODE_PARAMS* set) {
  CUcontext context = nullptr;
  if (int error = context_of_thread(&context); error != kSuccess) return done(error);
  return call(&Driver::cuGraphExecMemsetNodeSetParams, executable, node, set, context);
}

namespace {

struct AnyNode {  // cudaGraphNodeParams
  CUgraphNodeType type;
  int reserved0[3];
  union {
    long long bytes[29];
    KernelNode kernel;
    struct {
      int flags;
      int reserved[3];
      Copy3D copy;
    } memcpy;
  };
  long long reserved2;
};
static_assert(sizeof(AnyNode) == sizeof(CUgraphNodeParams) && offsetof(AnyNode, bytes) == 16);

int any_node(const AnyNode* node, CUgraphNodeParams* out) {
  if (node == nullptr) return kInvalidValue;
  CUcontext context = nullptr;
  if (int error = context_of_thread(&context); error != kSuccess) return error;
  *out = {};
  out->type = node->type;
  switch (node->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
      return kernel_node(&node->kernel, &out->kernel);
    case CU_GRAPH_NODE_TYPE_MEMCPY:
      out->memcpy.flags = node->memcpy.flags;
      out->memcpy.copyCtx = context;
      return to_driver(node->memcpy.copy, &out->memcpy.copyParams);
    default:
      break;
  }
  std::memcpy(out->reserved1, node->bytes, sizeof node->bytes);
  if (node->type == CU_GRAPH_NODE_TYPE_MEMSET) out->memset.ctx = context;
  if (node->type == CU_GRAPH_NODE_TYPE_CONDITIONAL) out->conditional.ctx = context;
  return kSuccess;
}

// What the driver answers in the parameters: an allocation's address, the graphs of a conditional node.
void give_back(const CUgraphNodeParams& from, AnyNode* to) {
  if (to->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC)
    std::memcpy(to->bytes, from.reserved1, sizeof(CUDA_MEM_ALLOC_NODE_PARAMS_v2));
  if (to->type == CU_GRAPH_NODE_TYPE_CONDITIONAL) {
    std::memcpy(to->bytes, from.reserved1, offsetof(CUDA_CONDITIONAL_NODE_PARAMS, ctx));
  }
}

}  // namespace

ROTA_CUDART_EXPORT int cudaGraphAddNode(CUgraphNode* out, CUgraph graph, Nodes before, const CUgraphEdgeData* edges,
                                        size_t count, AnyNode* node) {
  CUgraphNodeParams converted;
  if (int error = any_node(node, &converted); error != kSuccess) return done(error);
  int error = call(&Driver::cuGraphAddNode_v2, out, graph, before, edges, count, &converted);
  if (error == kSuccess) give_back(converted, node);
  return error;
}
ROTA_CUDART_EXPORT int cudaGraphNodeSetParams(CUgraphNode node, AnyNode* wanted) {
  CUgraphNodeParams converted;
  if (int error = any_node(wanted, &converted); error != kSuccess) return done(error);
  return call(&Driver::cuGraphNodeSetParams, node, &converted);
}
ROTA_CUDART_EXPORT int cudaGraphExecNodeSetParams(CUgraphExec executable, CUgraphNode node, AnyNode* wanted) {
  CUgraphNodeParams converted;
  if (int error = any_node(wanted, &converted); error != kSuccess) return done(error);
  return call(&Driver::cuGraphExecNodeSetParams, executable, node, &converted);
}
