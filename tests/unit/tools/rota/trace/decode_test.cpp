// From a generated tracer to what `rota trace show` prints: every kind of argument, by name, and the program's own call
// unchanged.
#include <signal.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <sstream>

#include "generated/driver_types.h"
#include "tests/unit/tools/rota/trace/recording.h"
#include "tests/unit/tools/rota/trace/tracers.h"
#include "tools/rota/trace/decode.h"
#include "tools/rota/trace/output.h"

namespace rota::next {
void* table[kSymbolCount];
}

namespace rota::test {
namespace {

using namespace api;

template <class Function>
void answer_with(Symbol symbol, Function* function) {
  next::table[static_cast<std::size_t>(symbol)] = reinterpret_cast<void*>(function);
}

// Records what `work` calls and returns the listing's lines without time, program and duration.
std::vector<std::string> traced(const std::function<void()>& work) {
  const Folder folder;
  REQUIRE(record(options_for(folder), work) == 0);
  const Read read = read_all(folder.path());
  CHECK(read.problems.empty());
  std::vector<std::string> lines;
  for (const tool::TraceCall& call : read.calls) {
    std::string line(tool::function_name(call));
    line.append("(").append(render_arguments(call, tool::Syntax::kText)).append(")");
    if (call.returned) line.append(" = ").append(render_result(call, tool::Syntax::kText));
    const std::string outputs = render_outputs(call, tool::Syntax::kText);
    if (!outputs.empty()) line.append(" ").append(outputs);
    lines.push_back(line);
    // Whatever it is, its JSON form is JSON.
    CHECK_NOTHROW(nlohmann::json::parse(render_arguments(call, tool::Syntax::kJson)));
    CHECK_NOTHROW(nlohmann::json::parse(render_outputs(call, tool::Syntax::kJson)));
    CHECK_NOTHROW(nlohmann::json::parse(render_result(call, tool::Syntax::kJson)));
  }
  return lines;
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST_CASE("Sizes, addresses and what an out-parameter was given") {
  const auto lines = traced([] {
    answer_with(
        Symbol::k_cuMemAlloc_v2, +[](CUdeviceptr* address, std::size_t) -> CUresult {
          *address = 0x7f00aa00;
          return CUDA_SUCCESS;
        });
    CUdeviceptr address = 0;
    if (tracers::cuMemAlloc_v2(&address, 4096) != CUDA_SUCCESS || address != 0x7f00aa00) _exit(4);
  });
  REQUIRE(lines.size() == 1);
  CHECK(contains(lines[0], "cuMemAlloc_v2(dptr=0x"));
  CHECK(contains(lines[0], "bytesize=4096) = CUDA_SUCCESS *dptr=0x7f00aa00"));
}

TEST_CASE("A failed call shows its error by name and no outputs, and null out-parameters are passed on") {
  const auto lines = traced([] {
    answer_with(
        Symbol::k_cuMemAlloc_v2, +[](CUdeviceptr* address, std::size_t) -> CUresult {
          return address == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_OUT_OF_MEMORY;
        });
    answer_with(Symbol::k_cuDriverGetVersion, +[](int*) -> CUresult { return CUDA_SUCCESS; });
    CUdeviceptr address = 0;
    if (tracers::cuMemAlloc_v2(&address, 1) != CUDA_ERROR_OUT_OF_MEMORY) _exit(4);
    if (tracers::cuMemAlloc_v2(nullptr, 1) != CUDA_ERROR_INVALID_VALUE) _exit(5);
    if (tracers::cuDriverGetVersion(nullptr) != CUDA_SUCCESS) _exit(6);
  });
  REQUIRE(lines.size() == 3);
  CHECK(lines[0].ends_with("bytesize=1) = CUDA_ERROR_OUT_OF_MEMORY"));
  CHECK(lines[1] == "cuMemAlloc_v2(dptr=0x0, bytesize=1) = CUDA_ERROR_INVALID_VALUE");
  CHECK(lines[2] == "cuDriverGetVersion(driverVersion=0x0) = CUDA_SUCCESS");
}

TEST_CASE("Text that goes in, long text, text that comes back in a buffer and behind a pointer") {
  const auto lines = traced([] {
    answer_with(
        Symbol::k_cuModuleGetFunction,
        +[](CUfunction*, CUmodule, const char*) -> CUresult { return CUDA_ERROR_NOT_FOUND; });
    answer_with(
        Symbol::k_cuDeviceGetName, +[](char* name, int length, CUdevice) -> CUresult {
          if (length > 0) std::snprintf(name, static_cast<std::size_t>(length), "Simulated GPU");
          return CUDA_SUCCESS;
        });
    answer_with(
        Symbol::k_cuGetErrorString, +[](CUresult, const char** text) -> CUresult {
          *text = "out of \"memory\"";
          return CUDA_SUCCESS;
        });
    CUfunction function = nullptr;
    tracers::cuModuleGetFunction(&function, reinterpret_cast<CUmodule>(0x10), "_Z6vecAddPf");
    tracers::cuModuleGetFunction(&function, nullptr, std::string(5000, 'k').c_str());
    tracers::cuModuleGetFunction(&function, nullptr, nullptr);
    char name[64] = {};
    tracers::cuDeviceGetName(name, sizeof name, 0);
    tracers::cuDeviceGetName(name, -1, 0);  // an invalid call, whatever the driver says
    const char* text = nullptr;
    tracers::cuGetErrorString(CUDA_ERROR_OUT_OF_MEMORY, &text);
  });
  REQUIRE(lines.size() == 6);
  CHECK(contains(lines[0], "hmod=0x10, name=\"_Z6vecAddPf\") = CUDA_ERROR_NOT_FOUND"));
  CHECK(contains(lines[1], std::string("name=\"").append(4096, 'k').append("…\")")));
  CHECK(contains(lines[2], "name=0x0)"));
  CHECK(contains(lines[3], "len=64, dev=0) = CUDA_SUCCESS *name=\"Simulated GPU\""));
  CHECK(contains(lines[4], "len=-1, dev=0) = CUDA_SUCCESS *name=\"\""));
  CHECK(contains(lines[5], "cuGetErrorString(error=CUDA_ERROR_OUT_OF_MEMORY, pStr=0x"));
  CHECK(contains(lines[5], "*pStr=\"out of \\\"memory\\\"\""));
}

TEST_CASE("Enums by name, flags joined, unknown values as numbers") {
  const auto lines = traced([] {
    answer_with(
        Symbol::k_cuStreamCreate, +[](CUstream* stream, unsigned) -> CUresult {
          *stream = reinterpret_cast<CUstream>(0x51);
          return CUDA_SUCCESS;
        });
    answer_with(Symbol::k_cuCtxSetFlags, +[](unsigned) -> CUresult { return CUDA_SUCCESS; });
    answer_with(
        Symbol::k_cuDeviceGetAttribute,
        +[](int* value, CUdevice_attribute, CUdevice) -> CUresult { return *value = 9, CUDA_SUCCESS; });
    answer_with(Symbol::k_cuCtxSynchronize, +[]() -> CUresult { return static_cast<CUresult>(987654); });
    CUstream stream = nullptr;
    tracers::cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
    tracers::cuCtxSetFlags(CU_CTX_SCHED_SPIN | CU_CTX_MAP_HOST);
    tracers::cuCtxSetFlags(CU_CTX_MAP_HOST | 0x10000);
    int value = 0;
    tracers::cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 0);
    if (tracers::cuCtxSynchronize() != static_cast<CUresult>(987654)) _exit(4);
  });
  REQUIRE(lines.size() == 5);
  CHECK(contains(lines[0], "Flags=CU_STREAM_NON_BLOCKING) = CUDA_SUCCESS *phStream=0x51"));
  CHECK(contains(lines[1], "(flags=CU_CTX_SCHED_SPIN|CU_CTX_MAP_HOST)"));
  CHECK(contains(lines[2], "(flags=CU_CTX_MAP_HOST|0x10000)"));
  CHECK(contains(lines[3], "attrib=CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, dev=0) = CUDA_SUCCESS *pi=9"));
  CHECK(lines[4] == "cuCtxSynchronize() = 987654");
}

TEST_CASE("Structs behind pointers, by value, and UUIDs, and floating point") {
  const auto lines = traced([] {
    answer_with(
        Symbol::k_cuLaunchKernelEx,
        +[](const CUlaunchConfig*, CUfunction, void**, void**) -> CUresult { return CUDA_SUCCESS; });
    answer_with(
        Symbol::k_cuMemPrefetchAsync_v2,
        +[](CUdeviceptr, std::size_t, CUmemLocation location, unsigned, CUstream) -> CUresult {
          return location.id == 3 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
        });
    answer_with(
        Symbol::k_cuDeviceGetUuid, +[](CUuuid* uuid, CUdevice) -> CUresult {
          for (int i = 0; i < 16; ++i) uuid->bytes[i] = static_cast<char>(i + 0xa0);
          return CUDA_SUCCESS;
        });
    answer_with(Symbol::k_cuTexRefSetMipmapLevelBias, +[](CUtexref, float) -> CUresult { return CUDA_SUCCESS; });
    CUlaunchConfig config{};
    config.gridDimX = 128;
    config.blockDimX = 256;
    config.sharedMemBytes = 1024;
    tracers::cuLaunchKernelEx(&config, reinterpret_cast<CUfunction>(0xf), nullptr, nullptr);
    tracers::cuLaunchKernelEx(nullptr, reinterpret_cast<CUfunction>(0xf), nullptr, nullptr);
    CUmemLocation location{};
    location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    location.id = 3;
    if (tracers::cuMemPrefetchAsync_v2(0x1000, 64, location, 0, nullptr) != CUDA_SUCCESS) _exit(4);
    CUuuid uuid{};
    tracers::cuDeviceGetUuid(&uuid, 0);
    tracers::cuTexRefSetMipmapLevelBias(nullptr, 0.25F);
  });
  REQUIRE(lines.size() == 5);
  CHECK(contains(lines[0], "->{gridDimX=128, gridDimY=0, gridDimZ=0, blockDimX=256"));
  CHECK(contains(lines[0], "sharedMemBytes=1024, hStream=0x0"));
  CHECK(contains(lines[1], "(config=0x0, f=0xf"));
  CHECK(contains(lines[2], "(devPtr=0x1000, count=64, location={type=CU_MEM_LOCATION_TYPE_DEVICE, id=3"));
  CHECK(contains(lines[3], "*uuid=0xa0a1a2a3a4a5a6a7a8a9aaabacadaeaf"));
  CHECK(contains(lines[4], "bias=0.25)"));
}

TEST_CASE("Lists whose length another parameter says, in and out, also empty and too long") {
  const auto lines = traced([] {
    answer_with(
        Symbol::k_cuGraphGetNodes, +[](CUgraph, CUgraphNode* nodes, std::size_t* count) -> CUresult {
          if (nodes != nullptr) {
            for (std::size_t i = 0; i < 2; ++i) nodes[i] = reinterpret_cast<CUgraphNode>(0xa0 + i);
          }
          *count = 2;
          return CUDA_SUCCESS;
        });
    answer_with(
        Symbol::k_cuGraphAddEmptyNode, +[](CUgraphNode* node, CUgraph, const CUgraphNode*, std::size_t) -> CUresult {
          *node = reinterpret_cast<CUgraphNode>(0xee);
          return CUDA_SUCCESS;
        });
    CUgraphNode nodes[8] = {};
    std::size_t count = 8;
    tracers::cuGraphGetNodes(nullptr, nodes, &count);
    tracers::cuGraphGetNodes(nullptr, nullptr, &count);
    CUgraphNode node = nullptr;
    tracers::cuGraphAddEmptyNode(&node, nullptr, nodes, 2);
    // A dangling pointer beside a count of none must not be looked at.
    tracers::cuGraphAddEmptyNode(&node, nullptr, reinterpret_cast<CUgraphNode*>(8), 0);
    const std::vector<CUgraphNode> many(1000, reinterpret_cast<CUgraphNode>(0x77));
    tracers::cuGraphAddEmptyNode(&node, nullptr, many.data(), many.size());
  });
  REQUIRE(lines.size() == 5);
  CHECK(contains(lines[0], "*nodes=[0xa0, 0xa1], *numNodes=2"));
  CHECK(lines[1].ends_with("*numNodes=2"));
  CHECK(contains(lines[2], "->[0xa0, 0xa1], numDependencies=2) = CUDA_SUCCESS *phGraphNode=0xee"));
  CHECK(contains(lines[3], "dependencies=0x8->[], numDependencies=0)"));
  // 1 KiB of 8-byte handles is recorded, 16 are shown.
  CHECK(contains(lines[4], "0x77, … 112 more, and others that were not recorded], numDependencies=1000)"));
}

TEST_CASE("Every declared symbol has a tracer and every undeclared one has none") {
  const names::Api& api = names::driver();
  REQUIRE(api.functions.size() == kSymbolCount);
  for (std::size_t i = 0; i < kSymbolCount; ++i) {
    INFO(kSymbolNames[i]);
    CHECK(std::string(api.functions[i].name) == kSymbolNames[i]);
    CHECK((tracers::table[i] != nullptr) == api.functions[i].typed);
  }
  CHECK(api.schema == trace::kDriverSchema);
  CHECK(names::runtime().schema == trace::kRuntimeSchema);
  CHECK(tracers::table[static_cast<std::size_t>(Symbol::k_cuMemGetAttribute)] == nullptr);
}

TEST_CASE("Listing, JSON, summary and timeline of several processes, with a call that did not return") {
  const Folder folder;
  REQUIRE(record(options_for(folder), [] {
            answer_with(Symbol::k_cuCtxSynchronize, +[]() -> CUresult { return CUDA_SUCCESS; });
            answer_with(Symbol::k_cuInit, +[](unsigned) -> CUresult { return CUDA_ERROR_NO_DEVICE; });
            answer_with(
                Symbol::k_cuStreamSynchronize, +[](CUstream) -> CUresult {
                  tracers::cuCtxSynchronize();
                  kill(getpid(), SIGKILL);
                  return CUDA_SUCCESS;
                });
            tracers::cuInit(0);
            const pid_t child = fork();
            if (child == 0) tracers::cuStreamSynchronize(nullptr);
            waitpid(child, nullptr, 0);
            tracers::cuCtxSynchronize();
          }) == 0);
  std::vector<std::string> problems;
  const tool::TraceFiles files = tool::open_traces(folder.path(), problems);
  REQUIRE(files.size() == 2);

  std::ostringstream listing;
  tool::show_calls(files, {}, listing);
  std::vector<std::string> lines;
  std::istringstream input(listing.str());
  for (std::string line; std::getline(input, line);) lines.push_back(line);
  REQUIRE(lines.size() == 4);
  CHECK(contains(lines[0], "cuInit(Flags=0) = CUDA_ERROR_NO_DEVICE"));
  CHECK(contains(lines[1], "cuStreamSynchronize(hStream=null) = ? did not return"));
  CHECK(contains(lines[2], "  cuCtxSynchronize() = CUDA_SUCCESS"));
  CHECK(contains(lines[3], "] cuCtxSynchronize() = CUDA_SUCCESS"));
  CHECK(contains(lines[1], std::string("[").append(std::to_string(files[1]->pid())).append("/")));

  std::ostringstream only;
  tool::show_calls(files, {.selection = {.pid = files[0]->pid(), .functions = {"cuCtx*"}, .excluded = {}}}, only);
  const std::string selected = only.str();
  CHECK(std::count(selected.begin(), selected.end(), '\n') == 1);

  std::ostringstream json;
  tool::show_calls(files, {.json = true}, json);
  const auto list = nlohmann::json::parse(json.str());
  REQUIRE(list.size() == 4);
  CHECK(list[0]["function"] == "cuInit");
  CHECK(list[0]["result"] == "CUDA_ERROR_NO_DEVICE");
  CHECK(list[1]["returned"] == false);
  CHECK(list[1]["duration_ns"].is_null());
  CHECK(list[2]["depth"] == 1);

  std::ostringstream summary;
  CHECK(tool::print_summary(files, {}, summary));
  CHECK(contains(summary.str(), "4 calls in 2 processes, 1 of them did not return"));
  CHECK(contains(summary.str(), "cuStreamSynchronize (1 did not return)"));

  std::ostringstream timeline;
  tool::export_chrome(files, {}, timeline);
  const auto chrome = nlohmann::json::parse(timeline.str());
  std::size_t calls = 0;
  std::size_t names = 0;
  for (const auto& event : chrome["traceEvents"]) {
    if (event["ph"] == "M") {
      ++names;
      continue;
    }
    // Complete events only: a begin never lacks its end.
    REQUIRE(event["ph"] == "X");
    CHECK(event["ts"].get<double>() >= 0);
    CHECK(event["dur"].get<double>() >= 0);
    ++calls;
  }
  CHECK(calls == 4);
  CHECK(names == 6);  // name and command of two processes, and their threads
  const auto unfinished = std::find_if(chrome["traceEvents"].begin(), chrome["traceEvents"].end(),
                                       [](const auto& event) { return event["name"] == "cuStreamSynchronize"; });
  REQUIRE(unfinished != chrome["traceEvents"].end());
  CHECK((*unfinished)["args"]["returned"] == false);
}

}  // namespace
}  // namespace rota::test
