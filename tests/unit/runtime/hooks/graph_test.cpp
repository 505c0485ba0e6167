// Overrides of functions that make graphs allocate, and of functions that make the driver take or return memory for
// graphs. The GPU's graphs are charged with what the driver says that it has reserved for them, and nobody queries that
// before a graph allocates.
#include <catch2/catch.hpp>

#include "tests/unit/runtime/hooks/program.h"

using namespace rota;
using namespace rota::test;
using api::CUresult;

namespace {

constexpr std::uint64_t kReserved = 6 * kMiB;
CUresult answer = api::CUDA_SUCCESS;
std::uint64_t reserved = 0;
int questions = 0;

void install(FakeDriver& driver) {
#define ANSWERS(name) driver.set<api::name##_fn>(Symbol::k_##name, [](auto...) { return answer; });
  ANSWERS(cuGraphAddMemAllocNode)
  ANSWERS(cuGraphAddMemsetNode)
  ANSWERS(cuGraphAddNode)
  ANSWERS(cuGraphAddNode_v2)
  ANSWERS(cuGraphAddNode_v3)
  ANSWERS(cuGraphLaunch)
  ANSWERS(cuGraphLaunch_ptsz)
  ANSWERS(cuGraphUpload)
  ANSWERS(cuGraphUpload_ptsz)
  ANSWERS(cuDeviceGraphMemTrim)
#undef ANSWERS
  driver.set<api::cuDeviceGetGraphMemAttribute_fn>(
      Symbol::k_cuDeviceGetGraphMemAttribute, [](api::CUdevice device, api::CUgraphMem_attribute which, void* value) {
        ++questions;
        EXPECT(device == 1);
        EXPECT(which == api::CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT);
        *static_cast<api::cuuint64_t*>(value) = reserved;
        return api::CUDA_SUCCESS;
      });
  driver.set<api::cuMemAllocAsync_fn>(Symbol::k_cuMemAllocAsync,
                                      [](api::CUdeviceptr* address, std::size_t bytes, api::CUstream) {
                                        return FakeDriver::the().give_memory(address, bytes);
                                      });
  driver.enter_context(1);
}

api::CUgraphNodeParams node(api::CUgraphNodeType type) {
  api::CUgraphNodeParams what{};
  what.type = type;
  what.alloc.poolProps.location = {.type = api::CU_MEM_LOCATION_TYPE_DEVICE, .id = 1};
  return what;
}

struct Adding {
  Symbol symbol;
  CUresult (*call)(api::CUgraphNodeType type);
};
const Table<Adding> kAdding = {
    {Symbol::k_cuGraphAddMemAllocNode,
     [](api::CUgraphNodeType) {
       api::CUDA_MEM_ALLOC_NODE_PARAMS what{};
       what.poolProps.location = {.type = api::CU_MEM_LOCATION_TYPE_DEVICE, .id = 1};
       return overrides::cuGraphAddMemAllocNode(nullptr, nullptr, nullptr, 0, &what);
     }},
    {Symbol::k_cuGraphAddNode,
     [](api::CUgraphNodeType type) {
       auto what = node(type);
       return overrides::cuGraphAddNode(nullptr, nullptr, nullptr, 0, &what);
     }},
    {Symbol::k_cuGraphAddNode_v2,
     [](api::CUgraphNodeType type) {
       auto what = node(type);
       return overrides::cuGraphAddNode_v2(nullptr, nullptr, nullptr, nullptr, 0, &what);
     }},
    {Symbol::k_cuGraphAddNode_v3,
     [](api::CUgraphNodeType type) {
       auto what = node(type);
       return overrides::cuGraphAddNode_v3(nullptr, nullptr, nullptr, nullptr, 0, &what);
     }},
};

// The context that the driver gets for a node that sets memory.
api::CUcontext context_of_set = nullptr;

void note_sets(FakeDriver& driver) {
  driver.set<api::cuGraphAddMemsetNode_fn>(Symbol::k_cuGraphAddMemsetNode,
                                           [](api::CUgraphNode*, api::CUgraph, const api::CUgraphNode*, std::size_t,
                                              const api::CUDA_MEMSET_NODE_PARAMS*, api::CUcontext context) {
                                             context_of_set = context;
                                             return answer;
                                           });
  driver.set<api::cuGraphAddNode_v2_fn>(
      Symbol::k_cuGraphAddNode_v2, [](api::CUgraphNode*, api::CUgraph, const api::CUgraphNode*,
                                      const api::CUgraphEdgeData*, std::size_t, api::CUgraphNodeParams* parameters) {
        context_of_set = parameters->memset.ctx;
        return answer;
      });
}

struct Setting {
  Symbol symbol;
  CUresult (*call)(api::CUdeviceptr address, api::CUcontext context);
};
const Table<Setting> kSetting = {
    {Symbol::k_cuGraphAddMemsetNode,
     [](api::CUdeviceptr address, api::CUcontext context) {
       const api::CUDA_MEMSET_NODE_PARAMS what{
           .dst = address, .pitch = 0, .value = 0, .elementSize = 1, .width = 1, .height = 1};
       return overrides::cuGraphAddMemsetNode(nullptr, nullptr, nullptr, 0, &what, context);
     }},
    {Symbol::k_cuGraphAddNode_v2,
     [](api::CUdeviceptr address, api::CUcontext context) {
       auto what = node(api::CU_GRAPH_NODE_TYPE_MEMSET);
       what.memset.dst = address;
       what.memset.ctx = context;
       return overrides::cuGraphAddNode_v2(nullptr, nullptr, nullptr, nullptr, 0, &what);
     }},
};

struct Running {
  Symbol symbol;
  CUresult (*call)();
};
const Table<Running> kRunning = {
    {Symbol::k_cuGraphLaunch, [] { return overrides::cuGraphLaunch(nullptr, nullptr); }},
    {Symbol::k_cuGraphLaunch_ptsz, [] { return overrides::cuGraphLaunch_ptsz(nullptr, nullptr); }},
    {Symbol::k_cuGraphUpload, [] { return overrides::cuGraphUpload(nullptr, nullptr); }},
    {Symbol::k_cuGraphUpload_ptsz, [] { return overrides::cuGraphUpload_ptsz(nullptr, nullptr); }},
    {Symbol::k_cuDeviceGraphMemTrim, [] { return overrides::cuDeviceGraphMemTrim(1); }},
};

}  // namespace

TEST_CASE("a graph with an allocation node is charged with what the driver reserves for graphs, once it has run") {
  for (const Adding& adding : kAdding) {
    for (const Running& running : kRunning) {
      CHECK(holds({}, [&](FakeDriver& driver) {
        now_testing(std::string(name_of(adding.symbol)) + ", " + name_of(running.symbol));
        install(driver);
        EXPECT(adding.call(api::CU_GRAPH_NODE_TYPE_MEM_ALLOC) == api::CUDA_SUCCESS);
        EXPECT(live_bytes() == 0);
        reserved = kReserved;
        EXPECT(running.call() == api::CUDA_SUCCESS);
        EXPECT(runtime().ledger.live_bytes(1) == kReserved);
        EXPECT(runtime().ledger.fixed_bytes(1) == kReserved);
        reserved = kMiB;
        EXPECT(running.call() == api::CUDA_SUCCESS);
        EXPECT(live_bytes() == kMiB);
        reserved = 0;
        answer = api::CUDA_ERROR_OUT_OF_MEMORY;
        EXPECT(running.call() == api::CUDA_ERROR_OUT_OF_MEMORY);
        EXPECT(live_bytes() == kMiB);
        answer = api::CUDA_SUCCESS;
        EXPECT(running.call() == api::CUDA_SUCCESS);
        EXPECT(live_bytes() == 0);
      }));
    }
  }
}

TEST_CASE("a node that sets memory of the driver's gets the context that it was given, or none") {
  CHECK(holds({}, [](FakeDriver& driver) {
    install(driver);
    note_sets(driver);
    const auto given = reinterpret_cast<api::CUcontext>(0x77);
    api::CUdeviceptr address = 0;
    EXPECT(overrides::cuMemAlloc_v2(&address, kMiB) == api::CUDA_SUCCESS);
    for (const Setting& setting : kSetting) {
      now_testing(name_of(setting.symbol));
      EXPECT(setting.call(address, given) == api::CUDA_SUCCESS);
      EXPECT(context_of_set == given);
      EXPECT(setting.call(address, nullptr) == api::CUDA_SUCCESS);
      EXPECT(context_of_set == nullptr);
    }
    EXPECT(overrides::cuGraphAddMemsetNode(nullptr, nullptr, nullptr, 0, nullptr, given) == api::CUDA_SUCCESS);
  }));
}

TEST_CASE("the driver is not asked what graphs reserve while none of them allocates") {
  CHECK(holds({}, [](FakeDriver& driver) {
    install(driver);
    reserved = kReserved;
    for (const Adding& adding : kAdding) {
      now_testing(name_of(adding.symbol));
      if (adding.symbol != Symbol::k_cuGraphAddMemAllocNode) {
        EXPECT(adding.call(api::CU_GRAPH_NODE_TYPE_EMPTY) == api::CUDA_SUCCESS);
      }
      answer = api::CUDA_ERROR_INVALID_VALUE;
      EXPECT(adding.call(api::CU_GRAPH_NODE_TYPE_MEM_ALLOC) == api::CUDA_ERROR_INVALID_VALUE);
      answer = api::CUDA_SUCCESS;
    }
    for (const Running& running : kRunning) EXPECT(running.call() == api::CUDA_SUCCESS);
    EXPECT(questions == 0);
    EXPECT(live_bytes() == 0);
  }));
}

TEST_CASE("what a stream allocates under capture is charged with the graph, and leaves no memory next to it") {
  CHECK(holds({.limit = "8M"}, [](FakeDriver& driver) {
    install(driver);
    api::CUdeviceptr address = 0;
    const auto stream = reinterpret_cast<api::CUstream>(0x5000);
    const auto done = [] { return api::CUDA_SUCCESS; };
    EXPECT(runtime().contexts.begin_capture(stream, false, done) == api::CUDA_SUCCESS);
    driver.capturing = true;
    EXPECT(overrides::cuMemAllocAsync(&address, kReserved, stream) == api::CUDA_SUCCESS);
    EXPECT(live_bytes() == 0);
    driver.capturing = false;
    EXPECT(runtime().contexts.end_capture(stream, false, done) == api::CUDA_SUCCESS);
    reserved = kReserved;
    // If no launch has reported it, a call that needs room queries it.
    std::size_t free = 0;
    std::size_t total = 0;
    EXPECT(overrides::cuMemGetInfo_v2(&free, &total) == api::CUDA_SUCCESS);
    EXPECT(free == 2 * kMiB);
    EXPECT(overrides::cuMemAlloc_v2(&address, 2 * kMiB + 1) == api::CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT(overrides::cuMemAlloc_v2(&address, 2 * kMiB) == api::CUDA_SUCCESS);
    // More than the limit: nothing is free, and nothing underflows.
    reserved = 20 * kMiB;
    EXPECT(overrides::cuMemGetInfo_v2(&free, &total) == api::CUDA_SUCCESS);
    EXPECT(free == 0);
    EXPECT(total == 8 * kMiB);
  }));
}
