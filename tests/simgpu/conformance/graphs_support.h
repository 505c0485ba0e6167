// What the rules about graphs are made with.
#pragma once

#include <initializer_list>
#include <vector>

#include "tests/simgpu/conformance/conformance.h"

// Words set to a value.
inline CUDA_MEMSET_NODE_PARAMS set_parameters(CUdeviceptr to, unsigned value, size_t words) {
  CUDA_MEMSET_NODE_PARAMS set{};
  set.dst = to;
  set.value = value;
  set.elementSize = 4;
  set.width = words;
  set.height = 1;
  set.pitch = 4 * words;
  return set;
}

inline CUDA_MEMCPY3D copy_parameters(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
  CUDA_MEMCPY3D copy{};
  copy.srcMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.srcDevice = from;
  copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.dstDevice = to;
  copy.WidthInBytes = bytes;
  copy.Height = 1;
  copy.Depth = 1;
  return copy;
}

inline CUDA_KERNEL_NODE_PARAMS kernel_parameters(CUfunction function, unsigned blocks, unsigned threads,
                                                 void** arguments) {
  CUDA_KERNEL_NODE_PARAMS kernel{};
  kernel.func = function;
  kernel.gridDimX = blocks;
  kernel.gridDimY = kernel.gridDimZ = 1;
  kernel.blockDimX = threads;
  kernel.blockDimY = kernel.blockDimZ = 1;
  kernel.kernelParams = arguments;
  return kernel;
}

inline CUDA_MEM_ALLOC_NODE_PARAMS allocation_parameters(CUdevice device, size_t bytes) {
  CUDA_MEM_ALLOC_NODE_PARAMS allocation{};
  allocation.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  allocation.poolProps.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  allocation.poolProps.location.id = device;
  allocation.bytesize = bytes;
  return allocation;
}

// A graph that is destroyed at the end. Nodes are added in the current context.
class Graph {
 public:
  Graph() { CHECK_OK(cu.cuGraphCreate(&graph_, 0)); }
  ~Graph() {
    if (graph_ != nullptr) cu.cuGraphDestroy(graph_);
  }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  operator CUgraph() const { return graph_; }  // NOLINT(google-explicit-constructor)
  CUgraph release() { return std::exchange(graph_, nullptr); }

  using After = std::initializer_list<CUgraphNode>;
  CUgraphNode empty(After after = {}) {
    return added([&](CUgraphNode* node) { return cu.cuGraphAddEmptyNode(node, graph_, after.begin(), after.size()); });
  }
  CUgraphNode set(CUdeviceptr to, unsigned value, size_t words, After after = {}) {
    CUDA_MEMSET_NODE_PARAMS set = set_parameters(to, value, words);
    return added([&](CUgraphNode* node) {
      return cu.cuGraphAddMemsetNode(node, graph_, after.begin(), after.size(), &set, context());
    });
  }
  CUgraphNode copy(CUdeviceptr to, CUdeviceptr from, size_t bytes, After after = {}) {
    CUDA_MEMCPY3D copy = copy_parameters(to, from, bytes);
    return added([&](CUgraphNode* node) {
      return cu.cuGraphAddMemcpyNode(node, graph_, after.begin(), after.size(), &copy, context());
    });
  }
  CUgraphNode host(CUhostFn function, void* data, After after = {}) {
    CUDA_HOST_NODE_PARAMS host{function, data};
    return added(
        [&](CUgraphNode* node) { return cu.cuGraphAddHostNode(node, graph_, after.begin(), after.size(), &host); });
  }
  template <class... Arguments>
  CUgraphNode kernel(CUfunction function, unsigned blocks, unsigned threads, After after, Arguments... arguments) {
    void* pointers[] = {static_cast<void*>(&arguments)..., nullptr};
    CUDA_KERNEL_NODE_PARAMS kernel = kernel_parameters(function, blocks, threads, pointers);
    return added([&](CUgraphNode* node) {
      return cu.cuGraphAddKernelNode_v2(node, graph_, after.begin(), after.size(), &kernel);
    });
  }
  CUgraphNode child(CUgraph of, After after = {}) {
    return added(
        [&](CUgraphNode* node) { return cu.cuGraphAddChildGraphNode(node, graph_, after.begin(), after.size(), of); });
  }
  // The address that the node will allocate.
  CUgraphNode allocation(CUdevice device, size_t bytes, CUdeviceptr* address, After after = {}) {
    CUDA_MEM_ALLOC_NODE_PARAMS allocation = allocation_parameters(device, bytes);
    CUgraphNode made = added([&](CUgraphNode* node) {
      return cu.cuGraphAddMemAllocNode(node, graph_, after.begin(), after.size(), &allocation);
    });
    *address = allocation.dptr;
    return made;
  }
  CUgraphNode free(CUdeviceptr address, After after = {}) {
    return added([&](CUgraphNode* node) {
      return cu.cuGraphAddMemFreeNode(node, graph_, after.begin(), after.size(), address);
    });
  }

 private:
  template <class Add>
  static CUgraphNode added(Add add) {
    CUgraphNode node = nullptr;
    CHECK_OK(add(&node));
    return node;
  }
  static CUcontext context() {
    CUcontext current = nullptr;
    CHECK_OK(cu.cuCtxGetCurrent(&current));
    return current;
  }
  CUgraph graph_ = nullptr;
};

// An executable graph that is destroyed at the end.
class Executable {
 public:
  explicit Executable(CUgraph graph, unsigned long long flags = 0) {
    CHECK_OK(cu.cuGraphInstantiateWithFlags(&executable_, graph, flags));
  }
  ~Executable() {
    if (executable_ != nullptr) cu.cuGraphExecDestroy(executable_);
  }
  Executable(const Executable&) = delete;
  Executable& operator=(const Executable&) = delete;
  operator CUgraphExec() const { return executable_; }  // NOLINT(google-explicit-constructor)
  CUgraphExec release() { return std::exchange(executable_, nullptr); }

  // Launched into the stream, and waited for.
  void run(CUstream stream) const {
    CHECK_OK(cu.cuGraphLaunch(executable_, stream));
    CHECK_OK(cu.cuStreamSynchronize(stream));
  }

 private:
  CUgraphExec executable_ = nullptr;
};
