// On which GPUs an executable graph works: what rota finds out when it is instantiated and changed.
#include <catch2/catch.hpp>
#include <map>
#include <vector>

#include "tests/unit/runtime/hooks/program.h"

using namespace rota;
using namespace rota::test;
using api::CUresult;

namespace {

constexpr gate::Devices kOne = 1;    // GPU 0
constexpr gate::Devices kOther = 2;  // GPU 1
constexpr gate::Devices kBoth = kOne | kOther;

CUresult answer = api::CUDA_SUCCESS;
int nodes_read = 0;
std::vector<api::CUgraphNodeParams> nodes;        // a handle is the index, plus 1
std::map<api::CUgraph, std::vector<int>> graphs;  // the nodes of each
api::CUcontext contexts[2];                       // of each GPU
api::CUdeviceptr memory_on[2];
const auto kExecutable = reinterpret_cast<api::CUgraphExec>(0xe0);

api::CUgraphNode handle_of(std::size_t index) {
  return reinterpret_cast<api::CUgraphNode>(index + 1);
}
const api::CUgraphNodeParams& node_at(api::CUgraphNode handle) {
  return nodes[reinterpret_cast<std::uintptr_t>(handle) - 1];
}

CUresult made(api::CUgraphExec* executable) {
  if (answer == api::CUDA_SUCCESS) *executable = kExecutable;
  return answer;
}

void install(FakeDriver& driver) {
#define ANSWERS(name) driver.set<api::name##_fn>(Symbol::k_##name, [](auto...) { return answer; });
  ANSWERS(cuGraphExecDestroy)
  ANSWERS(cuGraphExecUpdate)
  ANSWERS(cuGraphExecUpdate_v2)
  ANSWERS(cuGraphExecChildGraphNodeSetParams)
  ANSWERS(cuGraphExecMemcpyNodeSetParams)
  ANSWERS(cuGraphExecMemsetNodeSetParams)
  ANSWERS(cuGraphExecNodeSetParams)
  ANSWERS(cuGraphAddMemcpyNode)
  ANSWERS(cuGraphAddMemsetNode)
  ANSWERS(cuGraphAddNode)
  ANSWERS(cuGraphMemcpyNodeSetParams)
  ANSWERS(cuGraphMemsetNodeSetParams)
  ANSWERS(cuGraphNodeSetParams)
  ANSWERS(cuGraphNodeSetParams_v2)
#undef ANSWERS
#define MAKES(name) \
  driver.set<api::name##_fn>(Symbol::k_##name, [](api::CUgraphExec* executable, auto...) { return made(executable); });
  MAKES(cuGraphInstantiate)
  MAKES(cuGraphInstantiate_v2)
  MAKES(cuGraphInstantiateWithFlags)
  MAKES(cuGraphInstantiateWithParams)
  MAKES(cuGraphInstantiateWithParams_ptsz)
#undef MAKES
  driver.set<api::cuGraphGetNodes_fn>(Symbol::k_cuGraphGetNodes,
                                      [](api::CUgraph graph, api::CUgraphNode* out, std::size_t* count) {
                                        const std::vector<int>& found = graphs[graph];
                                        if (out == nullptr) *count = found.size();
                                        for (std::size_t i = 0; out != nullptr && i < *count; ++i)
                                          out[i] = handle_of(static_cast<std::size_t>(found[i]));
                                        return api::CUDA_SUCCESS;
                                      });
  driver.set<api::cuGraphNodeGetType_fn>(Symbol::k_cuGraphNodeGetType,
                                         [](api::CUgraphNode node, api::CUgraphNodeType* type) {
                                           ++nodes_read;
                                           *type = node_at(node).type;
                                           return api::CUDA_SUCCESS;
                                         });
  driver.set<api::cuGraphKernelNodeGetParams_v2_fn>(Symbol::k_cuGraphKernelNodeGetParams_v2,
                                                    [](api::CUgraphNode node, api::CUDA_KERNEL_NODE_PARAMS* out) {
                                                      out->ctx = node_at(node).kernel.ctx;
                                                      return api::CUDA_SUCCESS;
                                                    });
  driver.set<api::cuGraphMemcpyNodeGetParams_fn>(Symbol::k_cuGraphMemcpyNodeGetParams,
                                                 [](api::CUgraphNode node, api::CUDA_MEMCPY3D* out) {
                                                   *out = node_at(node).memcpy.copyParams;
                                                   return api::CUDA_SUCCESS;
                                                 });
  driver.set<api::cuGraphMemsetNodeGetParams_fn>(Symbol::k_cuGraphMemsetNodeGetParams,
                                                 [](api::CUgraphNode node, api::CUDA_MEMSET_NODE_PARAMS* out) {
                                                   out->dst = node_at(node).memset.dst;
                                                   return api::CUDA_SUCCESS;
                                                 });
  driver.set<api::cuGraphChildGraphNodeGetGraph_fn>(Symbol::k_cuGraphChildGraphNodeGetGraph,
                                                    [](api::CUgraphNode node, api::CUgraph* out) {
                                                      *out = node_at(node).graph.graph;
                                                      return api::CUDA_SUCCESS;
                                                    });
  driver.set<api::cuGraphMemAllocNodeGetParams_fn>(Symbol::k_cuGraphMemAllocNodeGetParams,
                                                   [](api::CUgraphNode node, api::CUDA_MEM_ALLOC_NODE_PARAMS* out) {
                                                     out->poolProps = node_at(node).alloc.poolProps;
                                                     return api::CUDA_SUCCESS;
                                                   });
  driver.set<api::cuGraphMemFreeNodeGetParams_fn>(Symbol::k_cuGraphMemFreeNodeGetParams,
                                                  [](api::CUgraphNode node, api::CUdeviceptr* out) {
                                                    *out = node_at(node).free.dptr;
                                                    return api::CUDA_SUCCESS;
                                                  });
}

void touch(FakeDriver& driver, int device) {
  contexts[device] = driver.enter_context(device);
  runtime().monitor.context_made(contexts[device], device, true);
  EXPECT(overrides::cuMemAlloc_v2(&memory_on[device], kMiB) == api::CUDA_SUCCESS);
}

// The last one's context is current.
void touch_both(FakeDriver& driver) {
  install(driver);
  for (const int device : {1, 0}) touch(driver, device);
}

api::CUgraphNodeParams node(api::CUgraphNodeType type) {
  api::CUgraphNodeParams what{};
  what.type = type;
  return what;
}
api::CUgraphNodeParams kernel(api::CUcontext context) {
  auto what = node(api::CU_GRAPH_NODE_TYPE_KERNEL);
  what.kernel.ctx = context;
  return what;
}
api::CUgraphNodeParams copy(api::CUdeviceptr to, api::CUdeviceptr from, api::CUcontext context = nullptr) {
  auto what = node(api::CU_GRAPH_NODE_TYPE_MEMCPY);
  what.memcpy.copyCtx = context;
  const auto type = [](api::CUdeviceptr address) {
    return address != 0 ? api::CU_MEMORYTYPE_DEVICE : api::CU_MEMORYTYPE_HOST;
  };
  what.memcpy.copyParams.dstMemoryType = type(to);
  what.memcpy.copyParams.dstDevice = to;
  what.memcpy.copyParams.srcMemoryType = type(from);
  what.memcpy.copyParams.srcDevice = from;
  return what;
}
api::CUgraphNodeParams set(api::CUdeviceptr to, api::CUcontext context = nullptr) {
  auto what = node(api::CU_GRAPH_NODE_TYPE_MEMSET);
  what.memset.dst = to;
  what.memset.ctx = context;
  return what;
}
api::CUgraphNodeParams child(api::CUgraph graph) {
  auto what = node(api::CU_GRAPH_NODE_TYPE_GRAPH);
  what.graph.graph = graph;
  return what;
}
api::CUgraphNodeParams allocation(api::CUmemLocationType type, int device) {
  auto what = node(api::CU_GRAPH_NODE_TYPE_MEM_ALLOC);
  what.alloc.poolProps.location = {.type = type, .id = device};
  return what;
}
api::CUgraphNodeParams release(api::CUdeviceptr address) {
  auto what = node(api::CU_GRAPH_NODE_TYPE_MEM_FREE);
  what.free.dptr = address;
  return what;
}

api::CUgraph graph_of(const std::vector<api::CUgraphNodeParams>& wanted) {
  const auto graph = reinterpret_cast<api::CUgraph>(0x1000 + graphs.size());
  graphs[graph];
  for (const api::CUgraphNodeParams& each : wanted) {
    graphs[graph].push_back(static_cast<int>(nodes.size()));
    nodes.push_back(each);
  }
  return graph;
}

gate::Devices reach() {
  return runtime().monitor.graphs().of_executable(kExecutable);
}

gate::Devices instantiate(api::CUgraph graph) {
  api::CUgraphExec executable = nullptr;
  EXPECT(overrides::cuGraphInstantiateWithFlags(&executable, graph, 0) == api::CUDA_SUCCESS);
  return reach();
}
gate::Devices with(const std::vector<api::CUgraphNodeParams>& wanted) {
  return instantiate(graph_of(wanted));
}

struct Instantiating {
  Symbol symbol;
  CUresult (*call)(api::CUgraphExec* executable, api::CUgraph graph, unsigned long long flags);
  bool takes_flags;
};
const Table<Instantiating> kInstantiating = {
    {Symbol::k_cuGraphInstantiate,
     [](api::CUgraphExec* executable, api::CUgraph graph, unsigned long long) {
       return overrides::cuGraphInstantiate(executable, graph, nullptr, nullptr, 0);
     },
     false},
    {Symbol::k_cuGraphInstantiate_v2,
     [](api::CUgraphExec* executable, api::CUgraph graph, unsigned long long) {
       return overrides::cuGraphInstantiate_v2(executable, graph, nullptr, nullptr, 0);
     },
     false},
    {Symbol::k_cuGraphInstantiateWithFlags,
     [](api::CUgraphExec* executable, api::CUgraph graph, unsigned long long flags) {
       return overrides::cuGraphInstantiateWithFlags(executable, graph, flags);
     },
     true},
    {Symbol::k_cuGraphInstantiateWithParams,
     [](api::CUgraphExec* executable, api::CUgraph graph, unsigned long long flags) {
       api::CUDA_GRAPH_INSTANTIATE_PARAMS parameters{};
       parameters.flags = flags;
       return overrides::cuGraphInstantiateWithParams(executable, graph, &parameters);
     },
     true},
    {Symbol::k_cuGraphInstantiateWithParams_ptsz,
     [](api::CUgraphExec* executable, api::CUgraph graph, unsigned long long flags) {
       api::CUDA_GRAPH_INSTANTIATE_PARAMS parameters{};
       parameters.flags = flags;
       return overrides::cuGraphInstantiateWithParams_ptsz(executable, graph, &parameters);
     },
     true},
};

// Each makes the executable graph copy, set or run something on GPU 1.
struct Changing {
  Symbol symbol;
  CUresult (*call)();
};
const Table<Changing> kChanging = {
    {Symbol::k_cuGraphExecUpdate,
     [] { return overrides::cuGraphExecUpdate(kExecutable, graph_of({kernel(contexts[1])}), nullptr, nullptr); }},
    {Symbol::k_cuGraphExecUpdate_v2,
     [] { return overrides::cuGraphExecUpdate_v2(kExecutable, graph_of({kernel(contexts[1])}), nullptr); }},
    {Symbol::k_cuGraphExecChildGraphNodeSetParams,
     [] {
       return overrides::cuGraphExecChildGraphNodeSetParams(kExecutable, handle_of(0), graph_of({kernel(contexts[1])}));
     }},
    {Symbol::k_cuGraphExecMemcpyNodeSetParams,
     [] {
       const auto what = copy(memory_on[0], 0).memcpy.copyParams;
       return overrides::cuGraphExecMemcpyNodeSetParams(kExecutable, handle_of(0), &what, contexts[1]);
     }},
    {Symbol::k_cuGraphExecMemcpyNodeSetParams,
     [] {
       const auto what = copy(memory_on[0], memory_on[1]).memcpy.copyParams;
       return overrides::cuGraphExecMemcpyNodeSetParams(kExecutable, handle_of(0), &what, contexts[0]);
     }},
    {Symbol::k_cuGraphExecMemsetNodeSetParams,
     [] {
       api::CUDA_MEMSET_NODE_PARAMS what{};
       what.dst = memory_on[0];
       return overrides::cuGraphExecMemsetNodeSetParams(kExecutable, handle_of(0), &what, contexts[1]);
     }},
    {Symbol::k_cuGraphExecNodeSetParams,
     [] {
       auto what = set(memory_on[1], contexts[0]);
       return overrides::cuGraphExecNodeSetParams(kExecutable, handle_of(0), &what);
     }},
    {Symbol::k_cuGraphExecNodeSetParams,
     [] {
       auto what = child(graph_of({kernel(contexts[1])}));
       return overrides::cuGraphExecNodeSetParams(kExecutable, handle_of(0), &what);
     }},
};

// Each adds or changes a node that copies or sets memory of GPU 0, in a context of GPU 1 or one that is not known.
const Table<Changing> kElsewhere = {
    {Symbol::k_cuGraphAddMemcpyNode,
     [] {
       const auto what = copy(memory_on[0], 0).memcpy.copyParams;
       return overrides::cuGraphAddMemcpyNode(nullptr, nullptr, nullptr, 0, &what, contexts[1]);
     }},
    {Symbol::k_cuGraphAddMemsetNode,
     [] {
       api::CUDA_MEMSET_NODE_PARAMS what{};
       what.dst = memory_on[0];
       return overrides::cuGraphAddMemsetNode(nullptr, nullptr, nullptr, 0, &what, contexts[1]);
     }},
    {Symbol::k_cuGraphAddNode,
     [] {
       auto what = copy(memory_on[0], 0, contexts[1]);
       return overrides::cuGraphAddNode(nullptr, nullptr, nullptr, 0, &what);
     }},
    {Symbol::k_cuGraphMemcpyNodeSetParams,
     [] {
       const auto what = copy(memory_on[0], 0).memcpy.copyParams;
       return overrides::cuGraphMemcpyNodeSetParams(handle_of(0), &what);
     }},
    {Symbol::k_cuGraphMemsetNodeSetParams,
     [] {
       api::CUDA_MEMSET_NODE_PARAMS what{};
       what.dst = memory_on[0];
       return overrides::cuGraphMemsetNodeSetParams(handle_of(0), &what);
     }},
    {Symbol::k_cuGraphNodeSetParams,
     [] {
       auto what = set(memory_on[0]);
       return overrides::cuGraphNodeSetParams(handle_of(0), &what);
     }},
    {Symbol::k_cuGraphNodeSetParams_v2,
     [] {
       auto what = copy(memory_on[0], 0);
       return overrides::cuGraphNodeSetParams_v2(handle_of(0), &what);
     }},
};

const Table<Changing> kDestroying = {
    {Symbol::k_cuGraphExecDestroy, [] { return overrides::cuGraphExecDestroy(kExecutable); }},
};

}  // namespace

TEST_CASE("an executable graph works on the GPUs of its nodes: of their contexts and of the memory that they name") {
  CHECK(holds({}, [](FakeDriver& driver) {
    touch_both(driver);
    EXPECT(with({kernel(contexts[0])}) == kOne);
    EXPECT(with({kernel(contexts[1])}) == kOther);
    EXPECT(with({kernel(contexts[1]), kernel(contexts[0])}) == kBoth);
    EXPECT(with({copy(memory_on[0], memory_on[0])}) == kOne);
    EXPECT(with({copy(memory_on[0], memory_on[1])}) == kBoth);
    EXPECT(with({copy(0, memory_on[1])}) == kOther);
    EXPECT(with({set(memory_on[1])}) == kOther);
    EXPECT(with({kernel(contexts[0]), child(graph_of({child(graph_of({kernel(contexts[1])}))}))}) == kBoth);
    EXPECT(with({allocation(api::CU_MEM_LOCATION_TYPE_DEVICE, 1), release(memory_on[0])}) == kBoth);
    EXPECT(with({kernel(contexts[0]), node(api::CU_GRAPH_NODE_TYPE_EMPTY), node(api::CU_GRAPH_NODE_TYPE_HOST),
                 node(api::CU_GRAPH_NODE_TYPE_EVENT_RECORD), node(api::CU_GRAPH_NODE_TYPE_WAIT_EVENT)}) == kOne);
    EXPECT(with({}) == 0);
  }));
}

TEST_CASE("what is not understood in a graph counts as on all GPUs") {
  CHECK(holds({}, [](FakeDriver& driver) {
    touch_both(driver);
    auto array = copy(memory_on[0], memory_on[0]);
    array.memcpy.copyParams.srcMemoryType = api::CU_MEMORYTYPE_ARRAY;
    array.memcpy.copyParams.srcArray = reinterpret_cast<api::CUarray>(0x6000);
    const std::vector<api::CUgraphNodeParams> unknown = {
        kernel(nullptr),
        kernel(reinterpret_cast<api::CUcontext>(0x77)),
        copy(0, 0),
        array,
        set(0x5000),
        allocation(api::CU_MEM_LOCATION_TYPE_HOST, 0),
        release(0x5000),
        node(api::CU_GRAPH_NODE_TYPE_CONDITIONAL),
        node(api::CU_GRAPH_NODE_TYPE_BATCH_MEM_OP),
        node(api::CU_GRAPH_NODE_TYPE_EXT_SEMAS_WAIT),
        node(static_cast<api::CUgraphNodeType>(99)),
    };
    for (const api::CUgraphNodeParams& each : unknown) {
      now_testing("a node of type " + std::to_string(each.type));
      EXPECT(with({kernel(contexts[0]), each}) == gate::kAllDevices);
    }
    now_testing("a driver without the query");
    driver.set<api::cuGraphKernelNodeGetParams_v2_fn>(Symbol::k_cuGraphKernelNodeGetParams_v2,
                                                      [](auto...) { return api::CUDA_ERROR_NOT_FOUND; });
    EXPECT(with({kernel(contexts[0])}) == gate::kAllDevices);
    EXPECT(runtime().monitor.graphs().of_executable(reinterpret_cast<api::CUgraphExec>(0x99)) == gate::kAllDevices);
  }));
}

TEST_CASE("every way to instantiate a graph examines its nodes once there are two GPUs, and none before") {
  for (const Instantiating& row : kInstantiating) {
    CHECK(holds({}, [&](FakeDriver& driver) {
      now_testing(name_of(row.symbol));
      install(driver);
      touch(driver, 0);
      api::CUgraphExec executable = nullptr;
      const api::CUgraph graph = graph_of({kernel(contexts[0])});
      EXPECT(row.call(&executable, graph, 0) == api::CUDA_SUCCESS);
      EXPECT(reach() == kOne);
      EXPECT(nodes_read == 0);
      touch(driver, 1);
      EXPECT(reach() == kOne);
      EXPECT(row.call(&executable, graph_of({kernel(contexts[1])}), 0) == api::CUDA_SUCCESS);
      EXPECT(reach() == kOther);
      answer = api::CUDA_ERROR_INVALID_VALUE;
      EXPECT(row.call(&executable, graph, 0) == api::CUDA_ERROR_INVALID_VALUE);
      EXPECT(reach() == kOther);
      answer = api::CUDA_SUCCESS;
      // From then on kernels may launch it.
      EXPECT(row.call(&executable, graph, api::CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH) == api::CUDA_SUCCESS);
      EXPECT(reach() == (row.takes_flags ? gate::kAllDevices : kOne));
    }));
  }
}

TEST_CASE("an executable graph that is changed works on further GPUs, and one that is destroyed is forgotten") {
  for (const Changing& row : kChanging) {
    CHECK(holds({}, [&](FakeDriver& driver) {
      now_testing(name_of(row.symbol));
      touch_both(driver);
      EXPECT(with({kernel(contexts[0])}) == kOne);
      answer = api::CUDA_ERROR_INVALID_VALUE;
      EXPECT(row.call() == api::CUDA_ERROR_INVALID_VALUE);
      EXPECT(reach() == kOne);
      answer = api::CUDA_SUCCESS;
      EXPECT(row.call() == api::CUDA_SUCCESS);
      EXPECT(reach() == kBoth);
      EXPECT(kDestroying.front().call() == api::CUDA_SUCCESS);
      EXPECT(row.call() == api::CUDA_SUCCESS);
      EXPECT(reach() == gate::kAllDevices);
    }));
  }
}

TEST_CASE(
    "where a graph copies or sets memory of one GPU in another's context, graphs that copy work on that one, too") {
  for (const Changing& row : kElsewhere) {
    CHECK(holds({}, [&](FakeDriver& driver) {
      now_testing(name_of(row.symbol));
      touch_both(driver);
      answer = api::CUDA_ERROR_INVALID_VALUE;
      EXPECT(row.call() == api::CUDA_ERROR_INVALID_VALUE);
      answer = api::CUDA_SUCCESS;
      EXPECT(with({set(memory_on[0])}) == kOne);
      EXPECT(row.call() == api::CUDA_SUCCESS);
      EXPECT((with({set(memory_on[0])}) & kBoth) == kBoth);
      EXPECT((with({copy(memory_on[0], 0)}) & kBoth) == kBoth);
      EXPECT(with({kernel(contexts[0])}) == kOne);
    }));
  }
}

TEST_CASE("a stream that captures a copy of another GPU's memory only is one more GPU of graphs that copy") {
  CHECK(holds({}, [](FakeDriver& driver) {
    touch_both(driver);
    static const auto stream = reinterpret_cast<api::CUstream>(0x5000);
    driver.set<api::cuStreamGetCtx_fn>(Symbol::k_cuStreamGetCtx, [](api::CUstream, api::CUcontext* context) {
      *context = contexts[1];
      return api::CUDA_SUCCESS;
    });
    const auto captured = [](api::CUdeviceptr to, api::CUdeviceptr from) {
      return runtime().monitor.reached({.symbol = Symbol::k_cuMemcpyDtoDAsync_v2,
                                        .stream = stream,
                                        .has_stream = true,
                                        .per_thread = false,
                                        .reaches = driver::Reaches::kAddresses,
                                        .first = reinterpret_cast<const void*>(to),
                                        .second = reinterpret_cast<const void*>(from)});
    };
    // Not captured.
    EXPECT(captured(memory_on[0], memory_on[0]) == kBoth);
    const auto done = [] { return api::CUDA_SUCCESS; };
    EXPECT(runtime().contexts.begin_capture(stream, false, done) == api::CUDA_SUCCESS);
    driver.capturing = true;
    EXPECT(captured(memory_on[1], memory_on[0]) == kBoth);
    EXPECT(captured(memory_on[1], memory_on[1]) == kOther);
    EXPECT(with({copy(memory_on[0], memory_on[0])}) == kOne);
    EXPECT(captured(memory_on[0], memory_on[0]) == kBoth);
    EXPECT(with({copy(memory_on[0], memory_on[0])}) == kBoth);
  }));
}
