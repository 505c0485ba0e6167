// The runtime API's shim as it is used: preloaded into a program whose libcudart is loaded late and RTLD_LOCAL.
#include <signal.h>

#include <algorithm>
#include <cstdlib>
#include <set>
#include <string>
#include <vector>

#include "tests/unit/tools/rota/trace/recording.h"
#include "tools/rota/trace/decode.h"

namespace rota::test {
namespace {

const std::vector<int> kMajors = {11, 12, 13};

// Runs the program, which uses a libcudart of each of these majors, with the shims preloaded. Returns its wait status.
int run(const std::string& trace_folder, const std::vector<int>& majors = {13}) {
  std::vector<std::string> words{ROTA_TEST_PROGRAM};
  for (const int major : majors) words.push_back(ROTA_TEST_PLUGINS + std::to_string(major) + ".so");
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    setenv("LD_PRELOAD", ROTA_TEST_SHIMS "/librota.so:" ROTA_TEST_SHIMS "/librota-cudart.so", 1);
    if (trace_folder.empty()) {
      unsetenv("ROTA_TRACE");
    } else {
      setenv("ROTA_TRACE", trace_folder.c_str(), 1);
    }
    // No driver is needed: the nested driver call says that there is none.
    setenv("ROTA_REAL_LIBCUDA", "/nonexistent/libcuda.so.1", 1);
    setenv("ROTA_SOCKET", (trace_folder + "/none.sock").c_str(), 1);
    // Closed: if the trace file kept descriptor 1 or 2, what the program prints would land in it.
    close(STDOUT_FILENO);
    close(STDERR_FILENO);
    execv(ROTA_TEST_PROGRAM, arguments.data());
    _exit(127);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  return status;
}

// The recorded calls of the runtime API, as text.
std::vector<std::string> runtime_lines(const Folder& folder) {
  const Read read = read_all(folder.path());
  CHECK(read.problems.empty());
  REQUIRE(read.files.size() == 1);
  std::vector<std::string> lines;
  for (const tool::TraceCall& call : read.calls) {
    if (call.api != trace::kRuntimeApi) continue;
    std::string line(tool::function_name(call));
    line.append("(").append(render_arguments(call, tool::Syntax::kText)).append(") = ");
    line.append(render_result(call, tool::Syntax::kText)).append(" ").append(render_outputs(call, tool::Syntax::kText));
    lines.push_back(line);
  }
  return lines;
}

TEST_CASE("Runtime calls of a library loaded RTLD_LOCAL are recorded, every answer unchanged") {
  const Folder folder;
  REQUIRE(run(folder.path()) == 0);
  const std::vector<std::string> lines = runtime_lines(folder);
  const auto has = [&](const std::string& line, const std::string& part) {
    INFO(line);
    CHECK(line.find(part) != std::string::npos);
  };
  // The tenth, __cudaRegisterUnifiedTable, has no known signature: it works and is not recorded.
  REQUIRE(lines.size() == 9);
  has(lines[0], "cudaMalloc(devPtr=0x");
  has(lines[0], "size=100) = cudaSuccess *devPtr=0x");
  has(lines[1], "cudaMalloc(devPtr=0x0, size=100) = cudaErrorInvalidValue ");
  has(lines[2], "size=5000) = cudaErrorMemoryAllocation ");
  has(lines[3], "cudaCreateChannelDesc(x=8, y=16, z=24, w=32, f=cudaChannelFormatKindFloat) = {x=8, y=16, z=24, w=32");
  has(lines[4], "pitch=512, xsize=3, ysize=4}, value=7, extent={width=10, height=20, depth=30}) = cudaSuccess");
  has(lines[5], "gridDim={x=2, y=3, z=4}, blockDim={x=5, y=6, z=7}");
  has(lines[5], "sharedMem=99, stream=0x0) = cudaSuccess");
  has(lines[6], "cudaGetErrorString(error=cudaErrorMemoryAllocation) = \"out of memory\"");
  has(lines[7], "cudaMemPrefetchAsync(devPtr=0x");
  has(lines[7], "count=77, location={type=cudaMemLocationTypeDevice, ");
  has(lines[7], "flags=0, stream=0x");
  has(lines[8], "cudaFree(devPtr=0x");
}

TEST_CASE("Each libcudart of a process is recorded with the signatures of its own major") {
  const Folder folder;
  REQUIRE(run(folder.path(), kMajors) == 0);
  std::vector<std::string> prefetches;
  std::size_t gone_since = 0;
  for (const std::string& line : runtime_lines(folder)) {
    if (line.starts_with("cudaMemPrefetchAsync(")) prefetches.push_back(line);
    if (line.starts_with("cudaThreadSynchronize(")) ++gone_since;
  }
  REQUIRE(prefetches.size() == 3);
  CHECK(prefetches[0].find("count=77, dstDevice=5, stream=0x") != std::string::npos);
  CHECK(prefetches[1].find("count=77, dstDevice=5, stream=0x") != std::string::npos);
  CHECK(prefetches[2].find("location={type=cudaMemLocationTypeDevice") != std::string::npos);
  CHECK(gone_since == 1);
}

TEST_CASE("A program of any major alone is recorded in full") {
  for (const int major : kMajors) {
    const Folder folder;
    REQUIRE(run(folder.path(), {major}) == 0);
    CHECK(runtime_lines(folder).size() == (major == 11 ? 10 : 9));
  }
}

TEST_CASE("A driver call lies within the runtime call that made it") {
  const Folder folder;
  REQUIRE(run(folder.path()) == 0);
  const Read read = read_all(folder.path());
  const auto inner = std::find_if(read.calls.begin(), read.calls.end(),
                                  [](const auto& call) { return tool::function_name(call) == "cuInit"; });
  REQUIRE(inner != read.calls.end());
  REQUIRE(inner != read.calls.begin());
  const auto outer = inner - 1;
  CHECK(tool::function_name(*outer) == "cudaMalloc");
  CHECK(inner->depth == outer->depth + 1);
  CHECK(inner->begin_ns >= outer->begin_ns);
  CHECK(inner->end_ns <= outer->end_ns);
  CHECK(inner->thread == outer->thread);
}

TEST_CASE("Preloaded without ROTA_TRACE the runtime's shim passes everything on and leaves nothing behind") {
  CHECK(run("", kMajors) == 0);
}

}  // namespace
}  // namespace rota::test
