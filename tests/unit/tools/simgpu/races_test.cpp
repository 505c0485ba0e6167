// Calls that race with what takes away what they use: the call succeeds or is refused, and nothing stays behind.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <catch2/catch.hpp>
#include <string>
#include <thread>
#include <vector>

#include "tests/unit/tools/simgpu/with_driver.h"

using namespace simgpu_test;

namespace {

constexpr size_t kBytes = size_t{2} << 20;
constexpr const char* kMemory = "512M";
#ifndef RACE_ROUNDS
#define RACE_ROUNDS 50000
#endif

std::string frees_beside_captures(Library& library) {
  CUcontext context = nullptr;
  CUstream stream = nullptr;
  CUstream other = nullptr;
  CUmemoryPool pool = nullptr;
  size_t before = 0;
  size_t after = 0;
  size_t total = 0;
  EXPECT_OK(CU(cuCtxGetCurrent)(&context));
  EXPECT_OK(CU(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING));
  EXPECT_OK(CU(cuStreamCreate)(&other, CU_STREAM_NON_BLOCKING));
  EXPECT_OK(CU(cuDeviceGetDefaultMemPool)(&pool, 0));
  EXPECT_OK(CU(cuMemGetInfo_v2)(&before, &total));
  std::atomic<bool> over{false};
  std::thread capturing([&] {
    CU(cuCtxSetCurrent)(context);
    while (!over.load()) {
      CUgraph graph = nullptr;
      if (CU(cuStreamBeginCapture_v2)(stream, CU_STREAM_CAPTURE_MODE_RELAXED) != CUDA_SUCCESS) continue;
      CU(cuStreamEndCapture)(stream, &graph);
      if (graph != nullptr) CU(cuGraphDestroy)(graph);
    }
  });
  std::vector<CUdeviceptr> refused;
  std::string wrong;
  for (int round = 0; round < RACE_ROUNDS && wrong.empty(); ++round) {
    CUdeviceptr address = 0;
    CUresult result = CU(cuMemAllocAsync)(&address, kBytes, other);
    if (result != CUDA_SUCCESS) wrong = "an allocation gave " + std::to_string(result);
    result = CU(cuMemFreeAsync)(address, stream);
    if (result != CUDA_SUCCESS) refused.push_back(address);
    if (refused.size() == 16) {  // what was refused has changed nothing: the memory is there, and can be freed
      for (CUdeviceptr each : refused) {
        if (CU(cuMemFreeAsync)(each, other) != CUDA_SUCCESS) wrong = "a refused free took the memory";
      }
      refused.clear();
    }
  }
  over.store(true);
  capturing.join();
  if (!wrong.empty()) return wrong;
  for (CUdeviceptr each : refused) EXPECT_OK(CU(cuMemFreeAsync)(each, other));
  EXPECT_OK(CU(cuStreamSynchronize)(stream));
  EXPECT_OK(CU(cuStreamSynchronize)(other));
  EXPECT_OK(CU(cuMemPoolTrimTo)(pool, 0));
  EXPECT_OK(CU(cuMemGetInfo_v2)(&after, &total));
  EXPECT(after == before);
  return "";
}

// Makes everything that a context owns until it is told that there is no context any more. `kept` gets what no context
// owns: memory of pools.
void make_everything(Library& library, CUcontext context, std::atomic<int>& made, std::vector<CUdeviceptr>& kept) {
  CU(cuCtxSetCurrent)(context);
  CUDA_ARRAY_DESCRIPTOR shape{256, 256, CU_AD_FORMAT_FLOAT, 1};
  for (CUresult result = CUDA_SUCCESS; result == CUDA_SUCCESS; made.fetch_add(1)) {
    CUdeviceptr address = 0;
    void* host = nullptr;
    CUstream stream = nullptr;
    CUevent event = nullptr;
    CUarray array = nullptr;
    result = CU(cuMemAlloc_v2)(&address, kBytes / 8);
    if (result == CUDA_SUCCESS) result = CU(cuMemAllocManaged)(&address, kBytes / 8, CU_MEM_ATTACH_GLOBAL);
    if (result == CUDA_SUCCESS) result = CU(cuMemAllocHost_v2)(&host, kBytes / 8);
    if (result == CUDA_SUCCESS) result = CU(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING);
    if (result == CUDA_SUCCESS) result = CU(cuEventCreate)(&event, CU_EVENT_DEFAULT);
    if (result == CUDA_SUCCESS) result = CU(cuArrayCreate_v2)(&array, &shape);
    if (result == CUDA_SUCCESS) {
      result = CU(cuMemAllocAsync)(&address, kBytes / 8, stream);
      if (result == CUDA_SUCCESS) kept.push_back(address);
    }
    if (result == CUDA_SUCCESS) result = CU(cuMemsetD32Async)(address, 1, 16, stream);
    if (result == CUDA_SUCCESS) result = CU(cuEventRecord)(event, stream);
  }
}

std::string makes_beside_destruction(Library& library) {
  constexpr int kRounds = 30;
  CUcontext primary = nullptr;
  CUmemoryPool pool = nullptr;
  size_t before = 0;
  size_t after = 0;
  size_t total = 0;
  EXPECT_OK(CU(cuCtxGetCurrent)(&primary));
  EXPECT_OK(CU(cuDeviceGetDefaultMemPool)(&pool, 0));
  EXPECT_OK(CU(cuMemGetInfo_v2)(&before, &total));
  for (int round = 0; round < kRounds; ++round) {
    CUcontext context = nullptr;
    EXPECT_OK(CU(cuCtxCreate_v2)(&context, 0, 0));
    std::atomic<int> made{0};
    std::vector<std::thread> threads;
    std::array<std::vector<CUdeviceptr>, 3> kept;
    for (auto& own : kept) threads.emplace_back([&] { make_everything(library, context, made, own); });
    while (made.load() < round % 8) std::this_thread::yield();
    CUresult destroyed = CU(cuCtxDestroy_v2)(context);
    for (std::thread& thread : threads) thread.join();
    EXPECT_OK(destroyed);
    EXPECT_OK(CU(cuCtxSetCurrent)(primary));
    for (const auto& own : kept) {
      for (CUdeviceptr address : own) EXPECT_OK(CU(cuMemFree_v2)(address));
    }
  }
  EXPECT_OK(CU(cuMemPoolTrimTo)(pool, 0));
  EXPECT_OK(CU(cuMemGetInfo_v2)(&after, &total));
  EXPECT(after == before);
  return "";
}

// The module's file is a pipe: the call is under way, and goes on when the context is gone.
std::string load_beside_destruction(Library& library) {
  TemporaryFolder folder;
  std::string file = folder.file("module.ptx");
  CUcontext context = nullptr;
  CUmodule module = nullptr;
  CUresult loaded = CUDA_ERROR_UNKNOWN;
  EXPECT(mkfifo(file.c_str(), 0600) == 0);
  EXPECT_OK(CU(cuCtxCreate_v2)(&context, 0, 0));
  std::thread loading([&] {
    CU(cuCtxSetCurrent)(context);
    loaded = CU(cuModuleLoad)(&module, file.c_str());
  });
  int writer = open(file.c_str(), O_WRONLY | O_CLOEXEC);  // returns when the call reads
  CUresult destroyed = CU(cuCtxDestroy_v2)(context);
  std::string image = ".version 7.0\n.target sm_52\n.address_size 64\n.visible .entry _Z4fillPjmj()\n{\n  ret;\n}\n";
  bool written = write(writer, image.data(), image.size()) == static_cast<ssize_t>(image.size());
  close(writer);
  loading.join();
  EXPECT_OK(destroyed);
  EXPECT(written);
  EXPECT(loaded == CUDA_SUCCESS || loaded == CUDA_ERROR_CONTEXT_IS_DESTROYED);
  EXPECT(CU(cuModuleUnload)(module) == CUDA_ERROR_INVALID_HANDLE);
  return "";
}

}  // namespace

TEST_CASE("memory freed in a stream in which a capture begins is freed, or the call is refused") {
  CHECK(with_driver(frees_beside_captures, kMemory) == "");
}

TEST_CASE("what is made in a context that another thread destroys goes with it") {
  CHECK(with_driver(makes_beside_destruction, kMemory) == "");
  CHECK(with_driver(load_beside_destruction) == "");
}
