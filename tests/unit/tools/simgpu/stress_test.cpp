// Everything at once: many threads of one process, many processes of one machine. What it finds, it finds by the
// sanitizers' builds.
#include <catch2/catch.hpp>
#include <list>
#include <vector>

#include "tests/unit/tools/simgpu/stress_actions.h"

using namespace simgpu_test;

// A race ends the child that has it: a child leaves by _exit, where ThreadSanitizer would not change its status.
extern "C" const char* __tsan_default_options();
extern "C" const char* __tsan_default_options() {
  return "halt_on_error=1";
}

namespace {

constexpr unsigned kSeed = 20;
constexpr const char* kMemory = "512M";

}  // namespace

TEST_CASE("sixteen threads of a process use everything at once") {
  TemporaryFolder folder;
  Child child([&] {
    Library library(folder.file("state"), kMemory);
    return run_threads(library, kSeed, 16, 100, true);
  });
  CHECK(child.wait() == "");
}

TEST_CASE("eight processes use one GPU at once, and leave nothing behind") {
  TemporaryFolder folder;
  std::list<Child> children;
  for (unsigned process = 0; process < 8; ++process) {
    children.emplace_back([&folder, process] {
      Library library(folder.file("state"), kMemory);
      return run_threads(library, kSeed + process, 2, 60, false);
    });
  }
  for (Child& child : children) CHECK(child.wait() == "");
}

// Each process writes its own words of memory that the first one made, which then reads them all.
TEST_CASE("eight processes write memory and record events of one process") {
  constexpr unsigned kProcesses = 8;
  constexpr size_t kShare = 4096;
  TemporaryFolder folder;
  struct Handles {
    CUipcMemHandle memory;
    CUipcEventHandle event;
  };
  int to_children[2];
  int to_owner[2];
  REQUIRE(pipe(to_children) == 0);
  REQUIRE(pipe(to_owner) == 0);
  std::list<Child> children;
  children.emplace_back([&]() -> std::string {
    close(to_owner[1]);  // so that the end of all others is an end of file
    Library library(folder.file("state"), kMemory);
    CUcontext context = nullptr;
    CUdeviceptr memory = 0;
    CUevent event = nullptr;
    Handles handles{};
    EXPECT_OK(CU(cuInit)(0));
    EXPECT_OK(CU(cuDevicePrimaryCtxRetain)(&context, 0));
    EXPECT_OK(CU(cuCtxSetCurrent)(context));
    EXPECT_OK(CU(cuMemAlloc_v2)(&memory, kProcesses * kShare * sizeof(unsigned)));
    EXPECT_OK(CU(cuEventCreate)(&event, CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS));
    EXPECT_OK(CU(cuIpcGetMemHandle)(&handles.memory, memory));
    EXPECT_OK(CU(cuIpcGetEventHandle)(&handles.event, event));
    for (unsigned process = 0; process < kProcesses; ++process) {
      EXPECT(write(to_children[1], &handles, sizeof handles) == sizeof handles);
    }
    for (unsigned process = 0; process < kProcesses; ++process) {
      char done = 0;
      EXPECT(read(to_owner[0], &done, 1) == 1);
      EXPECT(done == 'd');
    }
    EXPECT_OK(CU(cuEventSynchronize)(event));
    std::vector<unsigned> words(kProcesses * kShare);
    EXPECT_OK(CU(cuMemcpyDtoH_v2)(words.data(), memory, words.size() * sizeof(unsigned)));
    for (size_t i = 0; i < words.size(); ++i) EXPECT(words[i] == i / kShare + 1);
    EXPECT_OK(CU(cuEventDestroy_v2)(event));
    EXPECT_OK(CU(cuMemFree_v2)(memory));
    return "";
  });
  for (unsigned process = 0; process < kProcesses; ++process) {
    children.emplace_back([&, process]() -> std::string {
      close(to_children[1]);
      Library library(folder.file("state"), kMemory);
      Handles handles{};
      EXPECT(read(to_children[0], &handles, sizeof handles) == sizeof handles);
      CUcontext context = nullptr;
      CUdeviceptr memory = 0;
      CUevent event = nullptr;
      CUstream stream = nullptr;
      EXPECT_OK(CU(cuInit)(0));
      EXPECT_OK(CU(cuDevicePrimaryCtxRetain)(&context, 0));
      EXPECT_OK(CU(cuCtxSetCurrent)(context));
      EXPECT_OK(CU(cuIpcOpenMemHandle_v2)(&memory, handles.memory, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
      EXPECT_OK(CU(cuIpcOpenEventHandle)(&event, handles.event));
      EXPECT_OK(CU(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING));
      for (int round = 0; round < 20; ++round) {
        EXPECT_OK(CU(cuStreamWaitEvent)(stream, event, 0));
        EXPECT_OK(CU(cuMemsetD32Async)(memory + process * kShare * sizeof(unsigned), process + 1, kShare, stream));
        EXPECT_OK(CU(cuEventRecord)(event, stream));
      }
      EXPECT_OK(CU(cuStreamSynchronize)(stream));
      EXPECT_OK(CU(cuEventDestroy_v2)(event));
      EXPECT_OK(CU(cuIpcCloseMemHandle)(memory));
      EXPECT(write(to_owner[1], "d", 1) == 1);
      return "";
    });
  }
  for (int end : {to_children[0], to_children[1], to_owner[0], to_owner[1]}) close(end);
  for (Child& child : children) CHECK(child.wait() == "");
}
