// A program that forks while its other threads are anywhere in rota. The child has a runtime of its own, whole.
//
// The driver's functions here take no lock: a lock of the test's own, held by a thread that the child does not have,
// would hang the child for a reason that is not rota's.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <cstdlib>
#include <thread>
#include <vector>

#include "generated/driver_gates.h"
#include "runtime/core/runtime.h"
#include "runtime/hooks/overrides.h"
#include "tests/unit/runtime/fake_driver.h"

using namespace rota;

// How often a process forks while its other threads are at work.
#ifndef FORKS
#define FORKS 300
#endif

namespace {

std::atomic<std::uint64_t> next_address{0x700000000000};
std::atomic<int> launches{0};
const auto kContext = reinterpret_cast<api::CUcontext>(0x1000);

void make_lock_free(test::FakeDriver& driver) {
  driver.set<api::cuCtxGetCurrent_fn>(Symbol::k_cuCtxGetCurrent, [](api::CUcontext* context) {
    *context = kContext;
    return api::CUDA_SUCCESS;
  });
  driver.set<api::cuCtxGetDevice_fn>(Symbol::k_cuCtxGetDevice, [](api::CUdevice* device) {
    *device = 0;
    return api::CUDA_SUCCESS;
  });
  driver.set<api::cuMemAlloc_v2_fn>(Symbol::k_cuMemAlloc_v2, [](api::CUdeviceptr* address, std::size_t) {
    *address = next_address.fetch_add(4096);
    return api::CUDA_SUCCESS;
  });
  driver.set<api::cuMemFree_v2_fn>(Symbol::k_cuMemFree_v2, [](api::CUdeviceptr) { return api::CUDA_SUCCESS; });
  driver.set<api::cuMemCreate_fn>(Symbol::k_cuMemCreate, [](api::CUmemGenericAllocationHandle* handle, std::size_t,
                                                            const api::CUmemAllocationProp*, unsigned long long) {
    *handle = next_address.fetch_add(4096);
    return api::CUDA_SUCCESS;
  });
  driver.set<api::cuMemRelease_fn>(Symbol::k_cuMemRelease,
                                   [](api::CUmemGenericAllocationHandle) { return api::CUDA_SUCCESS; });
  driver.set<api::cuDevicePrimaryCtxRetain_fn>(Symbol::k_cuDevicePrimaryCtxRetain,
                                               [](api::CUcontext* context, api::CUdevice) {
                                                 *context = kContext;
                                                 return api::CUDA_SUCCESS;
                                               });
  driver.set<api::cuLaunchKernel_fn>(Symbol::k_cuLaunchKernel,
                                     [](api::CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                                        unsigned, api::CUstream, void**, void**) {
                                       launches.fetch_add(1);
                                       return api::CUDA_SUCCESS;
                                     });
}

bool works() {
  api::CUcontext context = nullptr;
  if (overrides::cuDevicePrimaryCtxRetain(&context, 0) != api::CUDA_SUCCESS) return false;
  api::CUdeviceptr address = 0;
  if (overrides::cuMemAlloc_v2(&address, 100) != api::CUDA_SUCCESS) return false;
  if (gates::cuLaunchKernel(nullptr, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr) != api::CUDA_SUCCESS) return false;
  return overrides::cuMemFree_v2(address) == api::CUDA_SUCCESS;
}

// What a child finds; its exit code.
enum { kFine = 0, kParentsRuntime, kParentsMemory, kInside, kDoesNotWork };

int look_around(const Runtime* parents) {
  Runtime& own = runtime();
  if (&own == parents) return kParentsRuntime;
  if (own.ledger.entries() != 0 || own.ledger.live_bytes(0) != 0) return kParentsMemory;
  if (own.gate.traffic().inside != 0 || own.gate.standing() != 0) return kInside;
  return works() ? kFine : kDoesNotWork;
}

}  // namespace

TEST_CASE("a child forked while other threads allocate and launch finds a runtime of its own, and works") {
  setenv("ROTA_SOCKET", "/nonexistent/rota/sock", 1);
  test::FakeDriver driver;
  make_lock_free(driver);
  const Runtime* parents = &runtime();
  REQUIRE(works());
  api::CUdeviceptr kept = 0;
  REQUIRE(overrides::cuMemAlloc_v2(&kept, 1000) == api::CUDA_SUCCESS);
  std::atomic<bool> stop{false};
  std::atomic<bool> failed{false};
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&] {
      api::CUmemAllocationProp property{};
      property.type = api::CU_MEM_ALLOCATION_TYPE_PINNED;
      property.location.type = api::CU_MEM_LOCATION_TYPE_DEVICE;
      while (!stop.load()) {
        if (!works()) failed.store(true);
        api::CUmemGenericAllocationHandle handle = 0;
        overrides::cuMemCreate(&handle, 4096, &property, 0);
        overrides::cuMemRelease(handle);
      }
    });
  }
  constexpr int kForks = FORKS;
  int fine = 0;
  for (int i = 0; i < kForks; ++i) {
    const pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      alarm(20);  // ends a child that hangs
      int found = look_around(parents);
      // And a child of its own.
      if (found == kFine && i % 10 == 0) {
        const Runtime* own = &runtime();
        const pid_t grandchild = fork();
        if (grandchild == 0) _exit(look_around(own));
        int status = -1;
        found = waitpid(grandchild, &status, 0) == grandchild && WIFEXITED(status) ? WEXITSTATUS(status) : 99;
      }
      _exit(found);
    }
    int status = -1;
    REQUIRE(waitpid(child, &status, 0) == child);
    INFO("status " << status);
    CHECK((WIFEXITED(status) && WEXITSTATUS(status) == kFine));
    fine += WIFEXITED(status) && WEXITSTATUS(status) == kFine ? 1 : 0;
  }
  CHECK(fine == kForks);
  stop.store(true);
  for (std::thread& thread : threads) thread.join();
  CHECK_FALSE(failed.load());
  CHECK(&runtime() == parents);
  CHECK(overrides::cuMemFree_v2(kept) == api::CUDA_SUCCESS);
  unsetenv("ROTA_SOCKET");
}

// A destroyed context's handle, given out again at once.
TEST_CASE("a context that gets the handle of one just destroyed keeps what it allocates") {
  setenv("ROTA_SOCKET", "/nonexistent/rota/sock", 1);
  test::FakeDriver driver;
  make_lock_free(driver);
  static std::atomic<int> alive;  // contexts that have the handle
  alive = 1;
  driver.set<api::cuCtxDestroy_v2_fn>(Symbol::k_cuCtxDestroy_v2, [](api::CUcontext) {
    alive.fetch_sub(1);
    for (int i = 0; i < 100; ++i) std::this_thread::yield();  // the handle is free, the call not back yet
    return api::CUDA_SUCCESS;
  });
  driver.set<api::cuCtxCreate_v2_fn>(Symbol::k_cuCtxCreate_v2, [](api::CUcontext* context, unsigned, api::CUdevice) {
    while (alive.load() != 0) std::this_thread::yield();
    alive.fetch_add(1);
    *context = kContext;
    return api::CUDA_SUCCESS;
  });
  Runtime& parts = runtime();
  parts.monitor.context_made(kContext, 0, false);
  const std::uint64_t before = parts.ledger.live_bytes(0);
  std::atomic<int> lost{0};
  constexpr int kRounds = 2000 / ROTA_TEST_EVERY;
  // Where other processes want the processors, each yield lasts a time slice of theirs.
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  for (int round = 0; round < kRounds && std::chrono::steady_clock::now() < deadline; ++round) {
    std::thread destroyer([] { overrides::cuCtxDestroy_v2(kContext); });
    api::CUcontext context = nullptr;
    overrides::cuCtxCreate_v2(&context, 0, 0);
    api::CUdeviceptr address = 0;
    overrides::cuMemAlloc_v2(&address, 1000);
    destroyer.join();
    if (!parts.ledger.find(address)) lost.fetch_add(1);
    overrides::cuMemFree_v2(address);
  }
  CHECK(lost.load() == 0);
  CHECK(parts.ledger.live_bytes(0) == before);
  unsetenv("ROTA_SOCKET");
}
