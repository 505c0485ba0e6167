// The runtime API's shim as it is used: preloaded into a program whose libcudart is loaded late and RTLD_LOCAL.
#include <signal.h>

#include <algorithm>
#include <cstdlib>
#include <set>
#include <string>

#include "tests/unit/trace/recording.h"
#include "tools/rota/trace_decode.h"

namespace rota::test {
namespace {

// Runs the program with the shims before it; its wait status.
int run(const std::string& trace_folder) {
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    setenv("LD_PRELOAD", ROTA_TEST_SHIMS "/librota.so:" ROTA_TEST_SHIMS "/librota-cudart.so", 1);
    if (trace_folder.empty()) {
      unsetenv("ROTA_TRACE");
    } else {
      setenv("ROTA_TRACE", trace_folder.c_str(), 1);
    }
    // No driver is needed: the nested call answers that there is none.
    setenv("ROTA_REAL_LIBCUDA", "/nonexistent/libcuda.so.1", 1);
    setenv("ROTA_SOCKET", (trace_folder + "/none.sock").c_str(), 1);
    // Closed, so that what the program prints would land in the trace if it kept a descriptor.
    close(STDOUT_FILENO);
    close(STDERR_FILENO);
    execl(ROTA_TEST_PROGRAM, ROTA_TEST_PROGRAM, ROTA_TEST_PLUGIN, static_cast<char*>(nullptr));
    _exit(127);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  return status;
}

TEST_CASE("Runtime calls of a library loaded RTLD_LOCAL are recorded, every answer unchanged") {
  const Folder folder;
  REQUIRE(run(folder.path()) == 0);
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
  const auto has = [&](const std::string& line, const std::string& part) {
    INFO(line);
    CHECK(line.find(part) != std::string::npos);
  };
  // The ninth, __cudaRegisterUnifiedTable, has no known signature: it works and is not recorded.
  REQUIRE(lines.size() == 8);
  has(lines[0], "cudaMalloc(devPtr=0x");
  has(lines[0], "size=100) = cudaSuccess *devPtr=0x");
  has(lines[1], "cudaMalloc(devPtr=0x0, size=100) = cudaErrorInvalidValue ");
  has(lines[2], "size=5000) = cudaErrorMemoryAllocation ");
  has(lines[3], "cudaCreateChannelDesc(x=8, y=16, z=24, w=32, f=cudaChannelFormatKindFloat) = {x=8, y=16, z=24, w=32");
  has(lines[4], "pitch=512, xsize=3, ysize=4}, value=7, extent={width=10, height=20, depth=30}) = cudaSuccess");
  has(lines[5], "gridDim={x=2, y=3, z=4}, blockDim={x=5, y=6, z=7}");
  has(lines[5], "sharedMem=99, stream=0x0) = cudaSuccess");
  has(lines[6], "cudaGetErrorString(error=cudaErrorMemoryAllocation) = \"out of memory\"");
  has(lines[7], "cudaFree(devPtr=0x");
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
  CHECK(run("") == 0);
}

}  // namespace
}  // namespace rota::test
