// Drivers of other CUDA versions: what a copy of the simulated driver exports, answers and calls itself.
#include <sys/stat.h>

#include <catch2/catch.hpp>
#include <cstring>
#include <fstream>
#include <sstream>

#include "generated/driver_releases.h"
#include "generated/driver_symbols.h"
#include "tests/unit/tools/simgpu/pose.h"

using namespace simgpu_test;
using rota::kSymbolCount;
using rota::kSymbolNames;
using rota::kSymbolSince;

namespace simgpu_test {

PoseResult run_pose(std::vector<std::string> arguments) {
  PoseResult result;
  int ends[2] = {-1, -1};
  if (pipe(ends) != 0) std::abort();
  arguments.insert(arguments.begin(), SIMGPU_POSE);
  std::vector<char*> pointers;
  for (std::string& argument : arguments) pointers.push_back(argument.data());
  pointers.push_back(nullptr);
  pid_t child = fork();
  if (child == 0) {
    dup2(ends[1], STDERR_FILENO);
    execv(SIMGPU_POSE, pointers.data());
    _exit(127);
  }
  close(ends[1]);
  char buffer[256];
  for (ssize_t length = 0; (length = read(ends[0], buffer, sizeof buffer)) > 0;) {
    result.error.append(buffer, static_cast<size_t>(length));
  }
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  result.status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return result;
}

std::string pose(const TemporaryFolder& folder, const std::string& version) {
  std::string path = folder.file(version + "/libcuda.so.1");
  return run_pose({"--version", version, "-o", path}).status == 0 ? path : "";
}

std::string pose(const TemporaryFolder& folder, int version) {
  return pose(folder, std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10));
}

}  // namespace simgpu_test

namespace {

// Every covered release, or a sample of them, and what lies before, between and behind them.
std::vector<int> all_versions() {
  std::vector<int> versions = {10010, 11010, 11020, 11030, 11060, 12070, rota::kNewestCovered + 10, 14000};
  versions.insert(versions.end(), std::begin(rota::kCoveredReleases), std::end(rota::kCoveredReleases));
  std::vector<int> chosen;
  for (std::size_t i = 0; i < versions.size(); i += ROTA_TEST_EVERY) chosen.push_back(versions[i]);
  return chosen;
}

// Runs a body in a child with a driver of the version; what it says is prefixed with the version.
std::string with_version(int version, const std::function<std::string(Library&)>& body) {
  TemporaryFolder folder;
  Child child([&]() -> std::string {
    std::string path = pose(folder, version);
    EXPECT(!path.empty());
    // The file's own version holds: its exports could not follow another.
    setenv("ROTA_SIM_DRIVER_VERSION", "12010", 1);  // NOLINT(concurrency-mt-unsafe)
    Library library(folder.file("state"), "64M", "0", path);
    return body(library);
  });
  std::string text = child.wait();
  return text.empty() ? "" : std::to_string(version) + ": " + text;
}

constexpr const char* kFuture = "cuRotaSimFutureCall";

}  // namespace

TEST_CASE("a driver of each version exports what that version has, and nothing newer") {
  for (int version : all_versions()) {
    CHECK(with_version(version, [&](Library& library) -> std::string {
            int said = 0;
            EXPECT_OK(CU(cuDriverGetVersion)(&said));
            EXPECT(said == version);
            for (size_t index = 0; index < kSymbolCount; ++index) {
              bool expected = kSymbolSince[index] <= version;  // 0: no header says since when; every driver has it
              if ((library.symbol(kSymbolNames[index]) != nullptr) != expected) {
                return std::string(kSymbolNames[index]) + (expected ? " is missing" : " should be absent");
              }
            }
            EXPECT((library.symbol(kFuture) != nullptr) == (version > rota::kNewestCovered));
            EXPECT(library.symbol("rota_sim_future_call") == nullptr);
            return "";
          }) == "");
  }
}

TEST_CASE("what frameworks test for by dlsym is absent from the drivers before it") {
  // From the recording of driver 580.159, not from the models.
  const std::pair<const char*, int> first[] = {
      {"cuMemCreate", 10020},      {"cuMemAllocAsync", 11020},     {"cuGetProcAddress", 11030},
      {"cuLaunchKernelEx", 11060}, {"cuGetProcAddress_v2", 12000}, {"cuMemPrefetchAsync_v2", 12020},
      {"cuGreenCtxCreate", 12040}, {"cuCtxRecordEvent", 12050},
  };
  for (int version : {10010, 11020, 11060, 12020, 12040, 12050, 13000}) {
    CHECK(with_version(version, [&](Library& library) -> std::string {
            for (const auto& [name, since] : first) {
              if ((library.symbol(name) != nullptr) != (since <= version)) return name;
            }
            return "";
          }) == "");
  }
}

TEST_CASE("cuGetProcAddress of an older driver finds what it exports, and answers no version above its own") {
  for (int version : all_versions()) {
    if (version < 11030) continue;  // has none
    CHECK(with_version(version, [&](Library& library) -> std::string {
            auto* get = CU(cuGetProcAddress);
            EXPECT(get != nullptr);
            EXPECT((CU(cuGetProcAddress_v2) != nullptr) == (version >= 12000));
            void* function = nullptr;
            EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, get("cuInit", &function, version + 10, 0));
            EXPECT_OK(get("cuInit", &function, version, 0));
            EXPECT(function == library.symbol("cuInit"));
            // What is found is an export, for every name that is one.
            for (size_t index = 0; index < kSymbolCount; ++index) {
              function = nullptr;
              int result = get(kSymbolNames[index], &function, version, 0);
              if (result == CUDA_ERROR_NOT_FOUND && function == nullptr) continue;
              Dl_info found{};
              if (result != CUDA_SUCCESS || dladdr(function, &found) == 0 || found.dli_sname == nullptr) {
                return std::string(kSymbolNames[index]) + " gives what is no export";
              }
            }
            bool has_record_event = get("cuCtxRecordEvent", &function, version, 0) == CUDA_SUCCESS;
            EXPECT(has_record_event == (version >= 12050));
            function = nullptr;  // this form leaves it alone when it finds nothing
            EXPECT_RESULT(version > rota::kNewestCovered ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND,
                          get(kFuture, &function, version, 0));
            EXPECT(function == library.symbol(kFuture));
            if (version > rota::kNewestCovered) {
              EXPECT_RESULT(CUDA_ERROR_NOT_FOUND, get(kFuture, &function, rota::kNewestCovered, 0));
            }
            return "";
          }) == "");
  }
}

TEST_CASE("a name that a driver is too old for is unknown to it, one that the asking program is too old for is not") {
  CHECK(with_version(12040, [](Library& library) -> std::string {
          auto* get = CU(cuGetProcAddress_v2);
          void* function = nullptr;
          auto status = CU_GET_PROC_ADDRESS_SUCCESS;
          EXPECT_OK(get("cuCtxRecordEvent", &function, 12040, 0, &status));
          EXPECT(function == nullptr && status == CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
          EXPECT_OK(get("cuGreenCtxCreate", &function, 12030, 0, &status));
          EXPECT(function == nullptr && status == CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
          EXPECT_OK(get("cuGreenCtxCreate", &function, 12040, 0, &status));
          EXPECT(function != nullptr && status == CU_GET_PROC_ADDRESS_SUCCESS);
          EXPECT_OK(get("cuCtxCreate", &function, 12040, 0, &status));
          EXPECT(function == library.symbol("cuCtxCreate_v3"));  // _v4 came with 12.5
          return "";
        }) == "");
}

TEST_CASE("as built the driver calls itself what ROTA_SIM_DRIVER_VERSION says, and answers like that version") {
  TemporaryFolder folder;
  Child child([&]() -> std::string {
    setenv("ROTA_SIM_DRIVER_VERSION", "12040", 1);  // NOLINT(concurrency-mt-unsafe)
    Library library(folder.file("state"));
    int said = 0;
    EXPECT_OK(CU(cuDriverGetVersion)(&said));
    EXPECT(said == 12040);
    void* function = nullptr;
    EXPECT_RESULT(CUDA_ERROR_NOT_FOUND, CU(cuGetProcAddress)("cuCtxRecordEvent", &function, 12040, 0));
    EXPECT(CU(cuCtxRecordEvent) != nullptr);  // its exports are fixed
    EXPECT(library.symbol(kFuture) == nullptr);
    return "";
  });
  CHECK(child.wait() == "");
}

TEST_CASE("the runtime of CUDA 13 refuses drivers older than 13.0 by its own error, and starts on all others") {
  for (int version : {11020, 11060, 12040, 13000, 14000}) {
    CHECK(with_version(version, [&](Library& library) -> std::string {
            // Finds the driver that is already loaded, by its SONAME.
            void* runtime = dlopen(SIMGPU_CUDART, RTLD_NOW | RTLD_LOCAL);
            EXPECT(runtime != nullptr);
            auto* get_device_count = reinterpret_cast<int (*)(int*)>(dlsym(runtime, "cudaGetDeviceCount"));
            auto* malloc_function = reinterpret_cast<int (*)(void**, size_t)>(dlsym(runtime, "cudaMalloc"));
            int count = -1;
            void* memory = nullptr;
            constexpr int kInsufficientDriver = 35;
            EXPECT_RESULT(version < 13000 ? kInsufficientDriver : 0, get_device_count(&count));
            EXPECT_RESULT(version < 13000 ? kInsufficientDriver : 0, malloc_function(&memory, 64));
            return "";
          }) == "");
  }
}

TEST_CASE("simgpu-driver refuses what is no version, what is no library of simgpu's, and a copy of a copy") {
  TemporaryFolder folder;
  std::string output = folder.file("out/libcuda.so.1");
  for (const char* version : {"12", "12.", "12.4.1", "-1.0", "0.0", "5.5", "twelve"}) {
    INFO(version);
    PoseResult result = run_pose({std::string("--version=") + version, "-o", output});
    CHECK(result.status != 0);
    CHECK(result.error.find(version) != std::string::npos);
  }
  std::string copy = pose(folder, 12040);
  REQUIRE(!copy.empty());
  for (const std::string& library : {copy, std::string("/proc/self/exe"), folder.file("none")}) {
    PoseResult result = run_pose({"--version", "12.4", "-o", output, "--library", library});
    CHECK(result.status == 1);
    CHECK(result.error.find(library) != std::string::npos);
  }
  CHECK_FALSE(std::filesystem::exists(output));
}

TEST_CASE("simgpu-driver takes nobody's device or pipe for its place") {
  TemporaryFolder folder;
  std::string pipe = folder.file("pipe");
  REQUIRE(mkfifo(pipe.c_str(), 0600) == 0);
  PoseResult result = run_pose({"--version", "12.4", "-o", pipe});
  CHECK(result.status == 1);
  CHECK(result.error.find(pipe) != std::string::npos);
  CHECK(std::filesystem::is_fifo(pipe));
}
