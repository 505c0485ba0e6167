// Memory of two simulated GPUs.
#include <catch2/catch.hpp>
#include <cstdlib>
#include <set>
#include <vector>

#include "tests/unit/tools/simgpu/with_driver.h"

using namespace simgpu_test;

TEST_CASE("small pieces of memory of two GPUs lie apart, whoever frees some in between") {
  TemporaryFolder folder;
  Child child([&]() -> std::string {
    setenv("ROTA_SIM_GPUS", "2", 1);
    Library library(folder.file("state"));
    EXPECT_OK(CU(cuInit)(0));
    std::vector<CUcontext> contexts(2);
    for (int gpu = 0; gpu < 2; ++gpu) EXPECT_OK(CU(cuDevicePrimaryCtxRetain)(&contexts.at(gpu), gpu));
    std::vector<std::set<CUdeviceptr>> blocks(2);
    for (int turn = 0; turn < 200; ++turn) {
      const int gpu = turn / 3 % 2;
      EXPECT_OK(CU(cuCtxSetCurrent)(contexts.at(gpu)));
      const std::size_t bytes = turn % 5 == 0 ? 40'000 : 4096;
      CUdeviceptr memory = 0;
      EXPECT_OK(CU(cuMemAlloc_v2)(&memory, bytes));
      for (const CUdeviceptr byte : {memory, memory + bytes - 1}) {
        blocks.at(gpu).insert(byte >> 16);
        EXPECT(!blocks.at(1 - gpu).contains(byte >> 16));
      }
      // What was one's memory becomes the other's in large pages only.
      if (turn % 4 == 0) EXPECT_OK(CU(cuMemFree_v2)(memory));
    }
    return "";
  });
  CHECK(child.wait() == "");
}
