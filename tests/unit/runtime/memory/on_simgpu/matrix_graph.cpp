// Memory of graphs.
#include "tests/unit/runtime/memory/on_simgpu/matrix.h"

namespace rota::test {
namespace {

constexpr std::size_t kPiece = 2 * kMiB;  // what simgpu reserves for graphs at once

CUDA_MEM_ALLOC_NODE_PARAMS allocation_on(int device) {
  CUDA_MEM_ALLOC_NODE_PARAMS what{};
  what.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  what.poolProps.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device};
  what.bytesize = kPiece;
  return what;
}

CUgraphNodeParams node_allocating_on(int device) {
  CUgraphNodeParams what{};
  what.type = CU_GRAPH_NODE_TYPE_MEM_ALLOC;
  const CUDA_MEM_ALLOC_NODE_PARAMS allocation = allocation_on(device);
  what.alloc = {.poolProps = allocation.poolProps,
                .accessDescs = nullptr,
                .accessDescCount = 0,
                .bytesize = allocation.bytesize,
                .dptr = 0};
  return what;
}

CUgraphNodeParams node_freeing(CUdeviceptr address) {
  CUgraphNodeParams what{};
  what.type = CU_GRAPH_NODE_TYPE_MEM_FREE;
  what.free = {.dptr = address};
  return what;
}

CUgraph new_graph() {
  CUgraph graph = nullptr;
  EXPECT_OK(cu.cuGraphCreate(&graph, 0));
  return graph;
}

void launch(CUgraphExec executable) {
  EXPECT_OK(cu.cuGraphLaunch(executable, nullptr));
  EXPECT_OK(cu.cuStreamSynchronize(nullptr));
}

CUgraphExec run_once(CUgraph graph) {
  CUgraphExec executable = nullptr;
  EXPECT_OK(cu.cuGraphInstantiateWithFlags(&executable, graph, 0));
  launch(executable);
  return executable;
}

void trim(int device) {
  EXPECT_OK(cu.cuDeviceGraphMemTrim(device));
}

// A graph that allocates on GPU 0 runs once; the program has the memory then, and frees it.
template <typename AddNode>
Taken allocated_by(const AddNode& add_node) {
  const CUgraph graph = new_graph();
  CUgraphNode node = nullptr;
  const CUdeviceptr address = add_node(&node, graph);
  const CUgraphExec executable = run_once(graph);
  return {0, [=] {
            EXPECT_OK(cu.cuMemFree_v2(address));
            EXPECT_OK(cu.cuGraphExecDestroy(executable));
            EXPECT_OK(cu.cuGraphDestroy(graph));
            trim(0);
          }};
}

Taken by_allocation_node() {
  return allocated_by([](CUgraphNode* node, CUgraph graph) {
    CUDA_MEM_ALLOC_NODE_PARAMS what = allocation_on(0);
    EXPECT_OK(cu.cuGraphAddMemAllocNode(node, graph, nullptr, 0, &what));
    return what.dptr;
  });
}

template <typename Function>
CUdeviceptr add_with_edges(Function* function, CUgraphNode* node, CUgraph graph) {
  CUgraphNodeParams what = node_allocating_on(0);
  EXPECT_OK(function(node, graph, nullptr, nullptr, 0, &what));
  return what.alloc.dptr;
}

// The node frees what by_allocation_node()'s graph allocated, when its own graph runs.
template <typename AddNode>
void free_by(CUdeviceptr address, const AddNode& add_node) {
  const CUgraph graph = new_graph();
  add_node(graph, address);
  const CUgraphExec executable = run_once(graph);
  EXPECT_OK(cu.cuGraphExecDestroy(executable));
  EXPECT_OK(cu.cuGraphDestroy(graph));
}

// `address` is the program's; give_back() frees the rest.
Taken allocated_by_graph() {
  const CUgraph graph = new_graph();
  CUgraphNode node = nullptr;
  CUDA_MEM_ALLOC_NODE_PARAMS what = allocation_on(0);
  EXPECT_OK(cu.cuGraphAddMemAllocNode(&node, graph, nullptr, 0, &what));
  const CUgraphExec executable = run_once(graph);
  return {what.dptr, [=] {
            EXPECT_OK(cu.cuGraphExecDestroy(executable));
            EXPECT_OK(cu.cuGraphDestroy(graph));
            trim(0);
          }};
}

template <typename Function>
void free_with_edges(Function* function, const Taken& taken) {
  free_by(taken.address, [function](CUgraph graph, CUdeviceptr address) {
    CUgraphNode node = nullptr;
    CUgraphNodeParams what = node_freeing(address);
    EXPECT_OK(function(&node, graph, nullptr, nullptr, 0, &what));
  });
  taken.give_back();
}

}  // namespace

std::map<Symbol, Takes> graph_takes() {
  std::map<Symbol, Takes> rows;
  rows[Symbol::k_cuGraphAddMemAllocNode] = {by_allocation_node, 0, kPiece};
  rows[Symbol::k_cuGraphAddNode] = {[] {
                                      return allocated_by([](CUgraphNode* node, CUgraph graph) {
                                        CUgraphNodeParams what = node_allocating_on(0);
                                        EXPECT_OK(cu.cuGraphAddNode(node, graph, nullptr, 0, &what));
                                        return what.alloc.dptr;
                                      });
                                    },
                                    0, kPiece};
  rows[Symbol::k_cuGraphAddNode_v2] = {[] {
                                         return allocated_by([](CUgraphNode* node, CUgraph graph) {
                                           return add_with_edges(cu.cuGraphAddNode_v2, node, graph);
                                         });
                                       },
                                       0, kPiece};
  rows[Symbol::k_cuGraphAddNode_v3] = {[] {
                                         return allocated_by([](CUgraphNode* node, CUgraph graph) {
                                           return add_with_edges(cu.cuGraphAddNode_v3, node, graph);
                                         });
                                       },
                                       0, kPiece};
  return rows;
}

std::map<Symbol, GivesBack> graph_gives() {
  std::map<Symbol, GivesBack> rows;
  rows[Symbol::k_cuGraphAddMemFreeNode] = {allocated_by_graph,
                                           [](const Taken& taken) {
                                             free_by(taken.address, [](CUgraph graph, CUdeviceptr address) {
                                               CUgraphNode node = nullptr;
                                               EXPECT_OK(cu.cuGraphAddMemFreeNode(&node, graph, nullptr, 0, address));
                                             });
                                             taken.give_back();
                                           },
                                           0, kPiece};
  rows[Symbol::k_cuGraphAddNode] = {allocated_by_graph,
                                    [](const Taken& taken) {
                                      free_by(taken.address, [](CUgraph graph, CUdeviceptr address) {
                                        CUgraphNode node = nullptr;
                                        CUgraphNodeParams what = node_freeing(address);
                                        EXPECT_OK(cu.cuGraphAddNode(&node, graph, nullptr, 0, &what));
                                      });
                                      taken.give_back();
                                    },
                                    0, kPiece};
  rows[Symbol::k_cuGraphAddNode_v2] = {
      allocated_by_graph, [](const Taken& taken) { free_with_edges(cu.cuGraphAddNode_v2, taken); }, 0, kPiece};
  rows[Symbol::k_cuGraphAddNode_v3] = {
      allocated_by_graph, [](const Taken& taken) { free_with_edges(cu.cuGraphAddNode_v3, taken); }, 0, kPiece};
  rows[Symbol::k_cuDeviceGraphMemTrim] = {[] {
                                            const Taken taken = allocated_by_graph();
                                            EXPECT_OK(cu.cuMemFree_v2(taken.address));
                                            return taken;
                                          },
                                          [](const Taken& taken) { taken.give_back(); }, 0, kPiece};
  return rows;
}

}  // namespace rota::test
