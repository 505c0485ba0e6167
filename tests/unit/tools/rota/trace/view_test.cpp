// How a listing names what a program works with: handles, device memory, kernels; and the listing as a whole, which two
// runs of one program share.
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "generated/driver_types.h"
#include "runtime/trace/record.h"
#include "tests/unit/tools/rota/trace/recording.h"
#include "tests/unit/tools/rota/trace/tracers.h"
#include "tools/rota/trace/output.h"

namespace rota::next {
extern void* table[kSymbolCount];
}

namespace rota::test {
namespace {

using namespace api;

template <class Function>
void answer_with(Symbol symbol, Function* function) {
  next::table[static_cast<std::size_t>(symbol)] = reinterpret_cast<void*>(function);
}

// What the next function that hands out a handle or an address gives.
std::uintptr_t g_next = 0;
template <class T>
T given() {
  return (T)(g_next);
}

// A driver that succeeds at everything that these tests call.
void answer_all() {
  answer_with(Symbol::k_cuStreamCreate, +[](CUstream* s, unsigned) { return *s = given<CUstream>(), CUDA_SUCCESS; });
  answer_with(Symbol::k_cuStreamDestroy_v2, +[](CUstream) { return CUDA_SUCCESS; });
  answer_with(Symbol::k_cuStreamSynchronize, +[](CUstream) { return CUDA_SUCCESS; });
  answer_with(Symbol::k_cuEventCreate, +[](CUevent* e, unsigned) { return *e = given<CUevent>(), CUDA_SUCCESS; });
  answer_with(Symbol::k_cuEventRecord, +[](CUevent, CUstream) { return CUDA_SUCCESS; });
  answer_with(Symbol::k_cuMemAlloc_v2, +[](CUdeviceptr* p, size_t) { return *p = g_next, CUDA_SUCCESS; });
  answer_with(Symbol::k_cuMemFree_v2, +[](CUdeviceptr) { return CUDA_SUCCESS; });
  answer_with(Symbol::k_cuMemHostAlloc, +[](void** p, size_t, unsigned) { return *p = given<void*>(), CUDA_SUCCESS; });
  answer_with(Symbol::k_cuMemcpyHtoD_v2, +[](CUdeviceptr, const void*, size_t) { return CUDA_SUCCESS; });
  answer_with(
      Symbol::k_cuModuleGetFunction,
      +[](CUfunction* f, CUmodule, const char*) { return *f = given<CUfunction>(), CUDA_SUCCESS; });
  answer_with(
      Symbol::k_cuModuleLoadData, +[](CUmodule* m, const void*) { return *m = given<CUmodule>(), CUDA_SUCCESS; });
  answer_with(Symbol::k_cuModuleUnload, +[](CUmodule) { return CUDA_SUCCESS; });
  answer_with(
      Symbol::k_cuLibraryGetKernel,
      +[](CUkernel* k, CUlibrary, const char*) { return *k = given<CUkernel>(), CUDA_SUCCESS; });
  answer_with(
      Symbol::k_cuKernelGetFunction, +[](CUfunction* f, CUkernel) { return *f = given<CUfunction>(), CUDA_SUCCESS; });
  answer_with(
      Symbol::k_cuFuncGetName, +[](const char** name, CUfunction) { return *name = "_Z5laterv", CUDA_SUCCESS; });
  answer_with(
      Symbol::k_cuLaunchKernel, +[](CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                                    CUstream, void**, void**) { return CUDA_SUCCESS; });
  answer_with(
      Symbol::k_cuLaunchKernelEx, +[](const CUlaunchConfig*, CUfunction, void**, void**) { return CUDA_SUCCESS; });
  answer_with(
      Symbol::k_cuGraphAddKernelNode_v2,
      +[](CUgraphNode* node, CUgraph, const CUgraphNode*, size_t, const CUDA_KERNEL_NODE_PARAMS*) {
        return *node = given<CUgraphNode>(), CUDA_SUCCESS;
      });
  answer_with(
      Symbol::k_cuGraphAddNode_v2, +[](CUgraphNode* node, CUgraph, const CUgraphNode*, const CUgraphEdgeData*, size_t,
                                       CUgraphNodeParams*) { return *node = given<CUgraphNode>(), CUDA_SUCCESS; });
}

// The listing of what `work` calls, without times.
std::vector<std::string> listed(const std::function<void()>& work, tool::ShowOptions options = {}) {
  const Folder folder;
  REQUIRE(record(options_for(folder), [&] {
            answer_all();
            work();
          }) == 0);
  std::vector<std::string> problems;
  const tool::TraceFiles files = tool::open_traces(folder.path(), problems);
  CHECK(problems.empty());
  options.times = false;
  std::ostringstream out;
  tool::show_calls(files, options, out);
  std::vector<std::string> lines;
  std::istringstream input(out.str());
  for (std::string line; std::getline(input, line);) {
    lines.push_back(options.json ? line : line.substr(line.find(' ') + 1));
    UNSCOPED_INFO(line);
  }
  return lines;
}

nlohmann::json listed_json(const std::function<void()>& work) {
  std::string text;
  for (const std::string& line : listed(work, {.json = true})) {
    text += line + "\n";
  }
  return nlohmann::json::parse(text);
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

CUstream create_stream(std::uintptr_t address) {
  CUstream stream = nullptr;
  g_next = address;
  tracers::cuStreamCreate(&stream, 0);
  return stream;
}

CUdeviceptr allocate(std::uintptr_t address, std::size_t bytes) {
  CUdeviceptr pointer = 0;
  g_next = address;
  tracers::cuMemAlloc_v2(&pointer, bytes);
  return pointer;
}

// A record of the runtime API: there is no libcudart in this test.
std::uint32_t runtime_function(std::string_view name) {
  const auto& functions = names::runtime().functions;
  for (std::size_t i = 0; i < functions.size(); ++i) {
    if (functions[i].name == name) return static_cast<std::uint32_t>(i);
  }
  FAIL("no runtime function " << name);
  return 0;
}

template <class... Values>
void runtime_begins(std::string_view name, const Values&... values) {
  trace::enter(trace::kRuntimeApi, runtime_function(name), values...);
}
template <class... Values>
void runtime_returns(std::string_view name, const Values&... values) {
  trace::Thread& thread = trace::this_thread();
  trace::leave(thread, trace::returned(thread), trace::kRuntimeApi, runtime_function(name), 0, values...);
}

TEST_CASE("A handle is its kind and a number in the order of first appearance, and null and special ones have names") {
  const auto lines = listed([] {
    CUstream first = create_stream(0x9000);
    CUstream second = create_stream(0x1000);
    CUevent event = nullptr;
    g_next = 0x9000;  // as a stream's: kinds are numbered by themselves
    tracers::cuEventCreate(&event, 0);
    tracers::cuEventRecord(event, second);
    tracers::cuStreamSynchronize(first);
    tracers::cuStreamSynchronize(nullptr);
    tracers::cuStreamSynchronize(reinterpret_cast<CUstream>(1));
    tracers::cuStreamSynchronize(reinterpret_cast<CUstream>(2));
    tracers::cuStreamSynchronize(reinterpret_cast<CUstream>(0x777));  // made before the trace began
  });
  REQUIRE(lines.size() == 9);
  CHECK(contains(lines[0], "(phStream=&, Flags=CU_STREAM_DEFAULT) = CUDA_SUCCESS [*phStream=stream#1]"));
  CHECK(contains(lines[1], "[*phStream=stream#2]"));
  CHECK(contains(lines[2], "[*phEvent=event#1]"));
  CHECK(contains(lines[3], "cuEventRecord(hEvent=event#1, hStream=stream#2)"));
  CHECK(contains(lines[4], "(hStream=stream#1)"));
  CHECK(contains(lines[5], "(hStream=null)"));
  CHECK(contains(lines[6], "(hStream=CU_STREAM_LEGACY)"));
  CHECK(contains(lines[7], "(hStream=CU_STREAM_PER_THREAD)"));
  CHECK(contains(lines[8], "(hStream=stream#3)"));
}

TEST_CASE("The same calls with other addresses give the same listing, and raw addresses are there for the asking") {
  const auto work = [](std::uintptr_t base) {
    return [base] {
      CUstream stream = create_stream(base);
      const CUdeviceptr memory = allocate(base << 8, 64);
      std::vector<char> host(static_cast<std::size_t>(base), 'x');
      tracers::cuMemcpyHtoD_v2(memory + 16, host.data(), 8);
      tracers::cuStreamDestroy_v2(stream);
    };
  };
  const auto lines = listed(work(0x5000));
  CHECK(lines == listed(work(0x7700)));
  REQUIRE(lines.size() == 4);
  tool::ShowOptions raw;
  raw.render.raw_addresses = true;
  const auto numbers = listed(work(0x5000), raw);
  CHECK(contains(numbers[0], "*phStream=0x5000"));
  CHECK(contains(numbers[2], "dstDevice=0x500010"));
}

TEST_CASE("Names do not depend on which lines are shown") {
  const auto work = [] {
    create_stream(0x10);
    tracers::cuStreamSynchronize(create_stream(0x20));
  };
  tool::ShowOptions only;
  only.selection.functions = {"cuStreamSync*"};
  const auto lines = listed(work, only);
  REQUIRE(lines.size() == 1);
  CHECK(contains(lines[0], "hStream=stream#2"));
}

TEST_CASE("An address that is handed out again is a new object, also after a failed destruction of another") {
  const auto lines = listed([] {
    CUstream stream = create_stream(0x100);
    tracers::cuStreamDestroy_v2(stream);
    tracers::cuStreamSynchronize(stream);  // the program's mistake: still the old one
    stream = create_stream(0x100);
    tracers::cuStreamSynchronize(stream);
  });
  REQUIRE(lines.size() == 5);
  CHECK(contains(lines[2], "stream#1"));
  CHECK(contains(lines[3], "*phStream=stream#2"));
  CHECK(contains(lines[4], "stream#2"));
}

TEST_CASE("The runtime's stream is the driver's, and its memory too") {
  const auto lines = listed([] {
    std::uint64_t stream = 0xabc0;
    runtime_begins("cudaStreamCreate", std::uint64_t{0x7ff0});
    create_stream(stream);
    runtime_returns("cudaStreamCreate", trace::memory(&stream, 1, 8));
    std::uint64_t pointer = 0x70000;
    runtime_begins("cudaMalloc", std::uint64_t{0x7ff8}, std::uint64_t{4096});
    allocate(pointer, 4096);
    runtime_returns("cudaMalloc", trace::memory(&pointer, 1, 8));
    runtime_begins("cudaStreamSynchronize", stream);
    tracers::cuStreamSynchronize(reinterpret_cast<CUstream>(stream));
    runtime_returns("cudaStreamSynchronize");
    runtime_begins("cudaStreamSynchronize", std::uint64_t{1});
    runtime_returns("cudaStreamSynchronize");
    runtime_begins("cudaFree", pointer);
    tracers::cuMemFree_v2(pointer);
    runtime_returns("cudaFree");
  });
  REQUIRE(lines.size() == 9);
  CHECK(contains(lines[0], "[*pStream=stream#1]"));
  CHECK(contains(lines[1], "[*phStream=stream#1]"));
  CHECK(contains(lines[2], "[*devPtr=dptr#1]"));
  CHECK(contains(lines[3], "[*dptr=dptr#1]"));
  CHECK(contains(lines[4], "cudaStreamSynchronize(stream=stream#1)"));
  CHECK(contains(lines[5], "cuStreamSynchronize(hStream=stream#1)"));
  CHECK(contains(lines[6], "(stream=cudaStreamLegacy)"));
  CHECK(contains(lines[7], "cudaFree(devPtr=dptr#1)"));
  CHECK(contains(lines[8], "cuMemFree_v2(dptr=dptr#1)"));
}

TEST_CASE("Device memory is an allocation and an offset, and freed and handed out again it is another") {
  const auto lines = listed([] {
    const CUdeviceptr first = allocate(0x10000, 256);
    tracers::cuMemcpyHtoD_v2(first + 0xff, nullptr, 1);
    tracers::cuMemcpyHtoD_v2(first + 0x100, nullptr, 1);  // beyond it
    tracers::cuMemFree_v2(first);
    allocate(0x10080, 64);  // another place in the same stretch
    tracers::cuMemcpyHtoD_v2(0x10081, nullptr, 1);
    void* pinned = nullptr;
    g_next = 0x500000;
    tracers::cuMemHostAlloc(&pinned, 4096, 0);
    tracers::cuMemcpyHtoD_v2(0x10080, static_cast<char*>(pinned) + 8, 1);
  });
  REQUIRE(lines.size() == 8);
  CHECK(contains(lines[1], "dstDevice=dptr#1+0xff,"));
  CHECK(contains(lines[2], "dstDevice=&,"));
  CHECK(contains(lines[3], "dptr=dptr#1"));
  CHECK(contains(lines[4], "*dptr=dptr#2"));
  CHECK(contains(lines[5], "dstDevice=dptr#2+0x1,"));
  CHECK(contains(lines[6], "*pp=hostptr#1"));
  CHECK(contains(lines[7], "dstDevice=dptr#2, srcHost=hostptr#1+0x8,"));
}

TEST_CASE("What another thread was given while this one gave it back keeps the two apart") {
  tool::ObjectNames names;
  const tool::Handle handle{"stream", 0x100};
  names.made(handle, {.begin_ns = 0, .end_ns = 1, .thread = 1});
  CHECK(names.handle(handle, {.begin_ns = 2, .end_ns = 3, .thread = 1}, false) == "stream#1");
  // Thread 2 begins to create at 10 and returns at 30; thread 1 destroys from 20 to 40, as the records have it.
  names.made(handle, {.begin_ns = 10, .end_ns = 30, .thread = 2});
  CHECK(names.handle(handle, {.begin_ns = 10, .end_ns = 30, .thread = 2}, true) == "stream#2");
  CHECK(names.handle(handle, {.begin_ns = 20, .end_ns = 40, .thread = 1}, false) == "stream#1");
  names.ended(handle, {.begin_ns = 20, .end_ns = 40, .thread = 1});
  CHECK(names.handle(handle, {.begin_ns = 50, .end_ns = 51, .thread = 1}, false) == "stream#2");

  names.memory_made(0x1000, 16, false, true, {.begin_ns = 0, .end_ns = 1, .thread = 1});
  names.memory_made(0x1000, 64, false, true, {.begin_ns = 10, .end_ns = 30, .thread = 2});
  CHECK(names.memory(0x1000, {.begin_ns = 20, .end_ns = 40, .thread = 1}, true, false) == "dptr#1");
  CHECK(names.memory(0x1000, {.begin_ns = 50, .end_ns = 51, .thread = 1}, true, false) == "dptr#2");
}

TEST_CASE("A launch says the kernel's name and its geometry, whatever way the handle came") {
  const auto work = [] {
    CUmodule module = nullptr;
    g_next = 0x1000;
    tracers::cuModuleLoadData(&module, nullptr);
    CUfunction function = nullptr;
    g_next = 0x2000;
    tracers::cuModuleGetFunction(&function, module, "_Z5saxpyif");
    CUstream stream = create_stream(0x3000);
    tracers::cuLaunchKernel(function, 32, 2, 1, 256, 1, 1, 48, stream, nullptr, nullptr);
    CUkernel kernel = nullptr;
    g_next = 0x4000;
    tracers::cuLibraryGetKernel(&kernel, reinterpret_cast<CUlibrary>(0x11), "plain");
    // The driver takes a CUkernel for a CUfunction.
    tracers::cuLaunchKernel(reinterpret_cast<CUfunction>(kernel), 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr);
    g_next = 0x5000;
    tracers::cuKernelGetFunction(&function, kernel);
    CUlaunchConfig config{};
    config.gridDimX = 7;
    config.gridDimY = config.gridDimZ = config.blockDimY = config.blockDimZ = 1;
    config.blockDimX = 64;
    config.sharedMemBytes = 16;
    config.hStream = stream;
    tracers::cuLaunchKernelEx(&config, function, nullptr, nullptr);
    // Unknown, then asked for.
    tracers::cuLaunchKernel(reinterpret_cast<CUfunction>(0x6000), 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr);
    const char* name = nullptr;
    tracers::cuFuncGetName(&name, reinterpret_cast<CUfunction>(0x6000));
    tracers::cuLaunchKernel(reinterpret_cast<CUfunction>(0x6000), 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr);
    // The module goes, and its function's address is another's.
    tracers::cuModuleUnload(module);
    g_next = 0x2000;
    tracers::cuModuleGetFunction(&function, reinterpret_cast<CUmodule>(0x1700), "_Z5saxpyif");
  };
  const auto lines = listed(work);
  REQUIRE(lines.size() == 13);
  CHECK(contains(lines[1], "*hfunc=function#1"));
  CHECK(contains(lines[3],
                 "(kernel=\"saxpy(int, float)\" grid=(32,2,1) block=(256,1,1) shared=48 stream#1, f=function#1"));
  CHECK(contains(lines[5], "(kernel=\"plain\" grid=(1,1,1) block=(1,1,1) shared=0 null-stream, f=kernel#1"));
  CHECK(contains(lines[7], "(kernel=\"plain\" grid=(7,1,1) block=(64,1,1) shared=16 stream#1, config=&{"));
  CHECK(contains(lines[8], "(kernel=function#3 grid="));
  CHECK(contains(lines[10], "(kernel=\"later()\" grid="));
  CHECK(contains(lines[12], "*hfunc=function#4"));
  tool::ShowOptions mangled;
  mangled.render.mangled = true;
  CHECK(contains(listed(work, mangled)[3], "kernel=\"_Z5saxpyif\""));

  const auto calls = listed_json(work);
  const auto launch = calls[3]["launch"];
  CHECK(launch["kernel"] == "saxpy(int, float)");
  CHECK(launch["mangled"] == "_Z5saxpyif");
  CHECK(launch["grid"] == nlohmann::json({32, 2, 1}));
  CHECK(launch["block"] == nlohmann::json({256, 1, 1}));
  CHECK(launch["shared"] == 48);
  CHECK(launch["stream"]["name"] == "stream#1");
  CHECK(launch["stream"]["address"] == "0x3000");
  CHECK(calls[8]["launch"]["kernel"].is_null());
  CHECK(calls[3]["arguments"]["gridDimX"] == 32);
  CHECK_FALSE(calls[2].contains("launch"));
}

TEST_CASE("Launch attributes and other arrays that a struct points to are shown where the pointer stands") {
  const auto work = [] {
    CUlaunchAttribute attributes[2] = {};
    attributes[0].id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
    attributes[0].value.clusterDim = {2, 1, 1};
    attributes[1].id = CU_LAUNCH_ATTRIBUTE_PRIORITY;
    attributes[1].value.priority = -5;
    CUlaunchConfig config{};
    config.gridDimX = 1;
    config.attrs = attributes;
    config.numAttrs = 2;
    tracers::cuLaunchKernelEx(&config, nullptr, nullptr, nullptr);
    config.numAttrs = 0;
    config.attrs = reinterpret_cast<CUlaunchAttribute*>(8);  // not to be looked at
    tracers::cuLaunchKernelEx(&config, nullptr, nullptr, nullptr);
    tracers::cuLaunchKernelEx(nullptr, nullptr, nullptr, nullptr);
  };
  const auto lines = listed(work);
  REQUIRE(lines.size() == 3);
  CHECK(contains(lines[0],
                 "config=&{attrs=&[{id=CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, value={clusterDim={x=2, y=1, z=1}}}, "
                 "{id=CU_LAUNCH_ATTRIBUTE_PRIORITY, value={priority=-5}}], numAttrs=2}"));
  CHECK(contains(lines[1], "config=&{attrs=&, numAttrs=0}"));
  CHECK(contains(lines[2], "(config=null, "));
  const auto calls = listed_json(work);
  const auto attributes = calls[0]["arguments"]["config"]["value"]["attrs"]["value"];
  CHECK(attributes[0]["value"]["clusterDim"]["x"] == 2);
}

TEST_CASE("Kernel nodes of graphs are launches too") {
  const auto lines = listed([] {
    CUfunction function = nullptr;
    g_next = 0x2000;
    tracers::cuModuleGetFunction(&function, nullptr, "_Z3addv");
    CUDA_KERNEL_NODE_PARAMS node{};
    node.func = function;
    node.gridDimX = 3;
    node.gridDimY = node.gridDimZ = node.blockDimX = node.blockDimY = node.blockDimZ = 1;
    CUgraphNode handle = nullptr;
    g_next = 0x9000;
    tracers::cuGraphAddKernelNode_v2(&handle, reinterpret_cast<CUgraph>(0x8000), nullptr, 0, &node);
    CUgraphNodeParams params{};
    params.type = CU_GRAPH_NODE_TYPE_KERNEL;
    std::memcpy(&params.kernel, &node, sizeof node);
    g_next = 0x9100;
    tracers::cuGraphAddNode_v2(&handle, reinterpret_cast<CUgraph>(0x8000), nullptr, nullptr, 0, &params);
    params = {};
    params.type = CU_GRAPH_NODE_TYPE_MEMSET;
    params.memset.dst = allocate(0x70000, 64);
    g_next = 0x9200;
    tracers::cuGraphAddNode_v2(&handle, reinterpret_cast<CUgraph>(0x8000), nullptr, nullptr, 0, &params);
  });
  REQUIRE(lines.size() == 5);
  CHECK(contains(lines[1], "(kernel=\"add()\" grid=(3,1,1) block=(1,1,1) shared=0, phGraphNode=&, hGraph=graph#1"));
  CHECK(contains(lines[1], "func=function#1"));
  CHECK(contains(lines[1], "*phGraphNode=node#1"));
  CHECK(contains(lines[2], "(kernel=\"add()\" grid=(3,1,1) block=(1,1,1) shared=0, "));
  CHECK(contains(lines[2], "type=CU_GRAPH_NODE_TYPE_KERNEL, kernel={func=function#1"));
  CHECK_FALSE(contains(lines[4], "kernel="));
  CHECK(contains(lines[4], "type=CU_GRAPH_NODE_TYPE_MEMSET, memset={dst=dptr#1"));
}

TEST_CASE("A runtime launch finds the kernel by its function in the host program") {
  struct Extent {
    unsigned x, y, z;
  };
  const auto lines = listed([] {
    const std::uint64_t none = 0;
    runtime_begins("__cudaRegisterFunction", std::uint64_t{0x100}, std::uint64_t{0x4000}, std::uint64_t{0x4001},
                   std::uint64_t{0x4002}, std::uint32_t{0}, none, none, none, none, none, trace::string("_Z6squarePf"));
    runtime_returns("__cudaRegisterFunction");
    const Extent grid{4, 2, 1};
    const Extent block{8, 1, 1};
    runtime_begins("cudaLaunchKernel", std::uint64_t{0x4000}, grid, block, none, std::uint64_t{12}, none);
    runtime_returns("cudaLaunchKernel");
    const std::uint64_t kernel = 0x5000;
    runtime_begins("cudaGetKernel", std::uint64_t{0x7ff0}, std::uint64_t{0x4000});
    runtime_returns("cudaGetKernel", trace::memory(&kernel, 1, 8));
    // The runtime takes a kernel's handle too.
    runtime_begins("cudaLaunchKernel", kernel, grid, block, none, std::uint64_t{12}, std::uint64_t{2});
    runtime_returns("cudaLaunchKernel");
  });
  REQUIRE(lines.size() == 4);
  CHECK(contains(lines[2], "[*kernelPtr=kernel#1]"));
  CHECK(contains(lines[3],
                 "(kernel=\"square(float*)\" grid=(4,2,1) block=(8,1,1) shared=12 cudaStreamPerThread, func=kernel#1"));
  CHECK(contains(lines[0], "deviceName=\"_Z6squarePf\""));
  CHECK(contains(lines[1],
                 "cudaLaunchKernel(kernel=\"square(float*)\" grid=(4,2,1) block=(8,1,1) shared=12 "
                 "null-stream, func=\"square(float*)\", args=null)"));
}

TEST_CASE("JSON has addresses and names, and null for null") {
  const auto calls = listed_json([] {
    CUstream stream = create_stream(0x42);
    tracers::cuStreamSynchronize(stream);
    tracers::cuStreamSynchronize(nullptr);
    tracers::cuMemcpyHtoD_v2(allocate(0x9000, 16) + 4, reinterpret_cast<void*>(0xdead), 1);
  });
  REQUIRE(calls.size() == 5);
  CHECK(calls[0]["outputs"]["phStream"] == nlohmann::json({{"address", "0x42"}, {"name", "stream#1"}}));
  CHECK(calls[1]["arguments"]["hStream"]["name"] == "stream#1");
  CHECK(calls[2]["arguments"]["hStream"].is_null());
  CHECK(calls[4]["arguments"]["dstDevice"] == nlohmann::json({{"address", "0x9004"}, {"name", "dptr#1+0x4"}}));
  CHECK(calls[4]["arguments"]["srcHost"] == "0xdead");
  CHECK(calls[0]["process"] == 1);
  CHECK_FALSE(calls[0].contains("time_ns"));
}

}  // namespace
}  // namespace rota::test
