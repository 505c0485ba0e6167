// Machines on which swap memory was never tried.
#include "runtime/memory/swap/untried.h"

#include <catch2/catch.hpp>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "tests/unit/runtime/memory/memory_fixture.h"
#include "tests/unit/scheduler/machine.h"

using namespace rota;
using namespace rota::test;
using protocol::MemoryMode;

namespace {

enum class Mps { kUnknown, kOff, kOn };
Mps mps;
bool coherent;
bool pages;
const char* gpu_name;

api::CUresult attribute(int* value, api::CUdevice_attribute which, api::CUdevice) {
  *value = 1;
  if (which == api::CU_DEVICE_ATTRIBUTE_MPS_ENABLED) {
    if (mps == Mps::kUnknown) return api::CUDA_ERROR_INVALID_VALUE;
    *value = mps == Mps::kOn ? 1 : 0;
  }
  if (which == api::CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES) *value = coherent ? 1 : 0;
  if (which == api::CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS) *value = pages ? 1 : 0;
  return api::CUDA_SUCCESS;
}

// A GPU with virtual memory management.
void simulate(FakeDriver& driver) {
  mps = Mps::kOff;
  coherent = false;
  pages = true;
  gpu_name = "NVIDIA H200";
  driver.set<api::cuDeviceGetAttribute_fn>(Symbol::k_cuDeviceGetAttribute, attribute);
  driver.set<api::cuDeviceGetName_fn>(Symbol::k_cuDeviceGetName, [](char* name, int length, api::CUdevice) {
    std::strncpy(name, gpu_name, static_cast<std::size_t>(length));
    return api::CUDA_SUCCESS;
  });
  driver.set<api::cuMemGetAllocationGranularity_fn>(
      Symbol::k_cuMemGetAllocationGranularity,
      [](std::size_t* bytes, const api::CUmemAllocationProp*, api::CUmemAllocationGranularity_flags) {
        *bytes = 2 * kMiB;
        return api::CUDA_SUCCESS;
      });
}

}  // namespace

TEST_CASE("what swap memory was never tried on is known by name, and an ordinary GPU is none of it") {
  FakeDriver driver;
  const Machine machine;
  simulate(driver);
  unsetenv("CUDA_MPS_PIPE_DIRECTORY");  // NOLINT(concurrency-mt-unsafe): no other thread
  CHECK(memory::untried(0, machine.root) == MemoryMode::kUnknown);
  SECTION("MPS") {
    mps = Mps::kOn;
    CHECK(memory::untried(0, machine.root) == MemoryMode::kUnifiedMps);
  }
  SECTION("MPS, of which the driver does not tell") {
    mps = Mps::kUnknown;
    CHECK(memory::untried(0, machine.root) == MemoryMode::kUnknown);
    machine.file("/tmp/nvidia-mps/control", "");
    CHECK(memory::untried(0, machine.root) == MemoryMode::kUnifiedMps);
    mps = Mps::kOff;
    CHECK(memory::untried(0, machine.root) == MemoryMode::kUnknown);
    mps = Mps::kUnknown;
    setenv("CUDA_MPS_PIPE_DIRECTORY", "/run/mps", 1);  // NOLINT(concurrency-mt-unsafe)
    CHECK(memory::untried(0, machine.root) == MemoryMode::kUnknown);
    machine.file("/run/mps/control", "");
    CHECK(memory::untried(0, machine.root) == MemoryMode::kUnifiedMps);
    unsetenv("CUDA_MPS_PIPE_DIRECTORY");  // NOLINT(concurrency-mt-unsafe)
  }
  SECTION("MIG") {
    gpu_name = "NVIDIA A100-SXM4-40GB MIG 1g.5gb";
    CHECK(memory::untried(0, machine.root) == MemoryMode::kUnifiedMig);
  }
  SECTION("a confidential virtual machine") {
    machine.file(GENERATE("/sys/class/misc/sev-guest/dev", "/sys/class/misc/tdx_guest/dev"), "");
    CHECK(memory::untried(0, machine.root) == MemoryMode::kUnifiedConfidential);
  }
  SECTION("Grace") {
    coherent = true;
    CHECK(memory::untried(0, machine.root) == MemoryMode::kUnifiedCoherent);
  }
}

TEST_CASE("a program that requests swap memory where it was never tried gets the default memory, and is told why") {
  Fixture f({.backend = memory::Choice::kSwap});
  simulate(f.driver);
  f.driver.enter_context(0);
  api::CUdeviceptr address = 0;
  SECTION("Unified Memory") {
    coherent = true;
    f.memory.set_served(true);
    CHECK(f.memory.mode(0) == MemoryMode::kUnifiedCoherent);
    REQUIRE(f.memory.allocate(&address, kMiB) == api::CUDA_SUCCESS);
    CHECK(f.driver.managed_allocations.load() == 1);
    CHECK_FALSE(f.memory.swap().any());
  }
  SECTION("native memory, where the GPU does not page") {
    gpu_name = "NVIDIA A100-SXM4-40GB MIG 1g.5gb";
    pages = false;
    f.memory.set_served(true);
    CHECK(f.memory.mode(0) == MemoryMode::kNativeNoPaging);
    REQUIRE(f.memory.allocate(&address, kMiB) == api::CUDA_SUCCESS);
    CHECK(f.driver.managed_allocations.load() == 0);
    CHECK_FALSE(f.memory.swap().any());
  }
}

TEST_CASE("under WSL and on vGPUs, which do not page managed memory, memory swaps only where that is asked for") {
  for (const auto& [choice, mode] :
       {std::pair{memory::Choice::kAuto, MemoryMode::kNativeNoPaging}, {memory::Choice::kSwap, MemoryMode::kSwap}}) {
    Fixture f({.backend = choice});
    simulate(f.driver);
    pages = false;
    f.memory.set_served(true);
    CHECK(f.memory.mode(0) == mode);
    pages = true;
    Fixture on_a_gpu({.backend = choice});
    simulate(on_a_gpu.driver);
    on_a_gpu.memory.set_served(true);
    CHECK(on_a_gpu.memory.mode(0) == MemoryMode::kSwap);
  }
}
