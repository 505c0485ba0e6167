// Stream-ordered memory: whom each pool's memory is charged to, and how long.
#include "tests/unit/runtime/memory/memory_fixture.h"

using namespace rota;
using namespace rota::memory;
using namespace rota::test;

namespace {

const auto kStream = reinterpret_cast<api::CUstream>(0x5000);

api::CUmemoryPool pool(std::uintptr_t number) {
  return reinterpret_cast<api::CUmemoryPool>(number);
}

api::CUmemoryPool default_pool_of(int device) {
  return pool(0x9000 + static_cast<std::uintptr_t>(device) * 16);
}

struct Pooled : Fixture {
  explicit Pooled(Settings settings) : Fixture(settings) {
    driver.set<api::cuDeviceGetCount_fn>(Symbol::k_cuDeviceGetCount, [](int* count) {
      *count = 2;
      return api::CUDA_SUCCESS;
    });
    driver.set<api::cuDeviceGetDefaultMemPool_fn>(Symbol::k_cuDeviceGetDefaultMemPool,
                                                  [](api::CUmemoryPool* own, api::CUdevice device) {
                                                    *own = default_pool_of(device);
                                                    return api::CUDA_SUCCESS;
                                                  });
  }
  api::CUresult take(std::uint64_t bytes, api::CUmemoryPool from = nullptr) {
    return memory.allocate_async({.address = &address, .bytes = bytes, .pool = from, .stream = kStream},
                                 [&] { return driver.give_memory(&address, bytes); });
  }
  void make(api::CUmemoryPool which, api::CUmemLocationType type, int id,
            api::CUmemAllocationType kind = api::CU_MEM_ALLOCATION_TYPE_PINNED) {
    api::CUmemLocation location{.type = type, .id = id};
    memory.pools().made(which, Pools::described(location, kind));
  }
  api::CUdeviceptr address = 0;
};

}  // namespace

TEST_CASE("stream-ordered memory is charged to the GPU of its stream") {
  Pooled f(limited(10 * kMiB));
  static api::CUcontext of_stream;
  of_stream = f.driver.enter_context(1);
  const auto current = f.driver.enter_context(0);
  f.driver.set<api::cuStreamGetCtx_fn>(Symbol::k_cuStreamGetCtx, [](api::CUstream, api::CUcontext* context) {
    *context = of_stream;
    return api::CUDA_SUCCESS;
  });
  REQUIRE(f.take(8 * kMiB) == api::CUDA_SUCCESS);
  CHECK(f.ledger.live_bytes(0) == 0);
  CHECK(f.ledger.live_bytes(1) == 8 * kMiB);
  Memory::ContextEnd(f.memory, current).gone();
  CHECK(f.ledger.live_bytes(1) == 8 * kMiB);
  // A thread without a current context does not evade the limit.
  f.driver.leave_context();
  f.driver.leave_context();
  CHECK(f.take(8 * kMiB) == api::CUDA_ERROR_OUT_OF_MEMORY);
}

TEST_CASE("memory of a pool outlives the context that it was allocated in, and stays charged") {
  Pooled f(limited(48 * kMiB));
  const auto context = f.driver.enter_context(0);
  REQUIRE(f.take(40 * kMiB) == api::CUDA_SUCCESS);
  const api::CUdeviceptr first = f.address;
  Memory::ContextEnd(f.memory, context).gone();
  CHECK(f.ledger.live_bytes(0) == 40 * kMiB);
  f.driver.enter_context(0);
  CHECK(f.take(40 * kMiB) == api::CUDA_ERROR_OUT_OF_MEMORY);
  REQUIRE(f.memory.free_async(first, kStream, false, [] { return api::CUDA_SUCCESS; }) == api::CUDA_SUCCESS);
  CHECK(f.ledger.live_bytes(0) == 0);
}

TEST_CASE("a pool's memory is charged to the pool's GPU, whichever stream it is allocated in") {
  Pooled f(limited(10 * kMiB));
  f.driver.enter_context(0);
  f.make(pool(0x100), api::CU_MEM_LOCATION_TYPE_DEVICE, 1);
  REQUIRE(f.take(8 * kMiB, pool(0x100)) == api::CUDA_SUCCESS);
  CHECK(f.ledger.live_bytes(0) == 0);
  CHECK(f.ledger.live_bytes(1) == 8 * kMiB);
  // A default pool is recognised although nobody has created it.
  CHECK(f.take(8 * kMiB, default_pool_of(1)) == api::CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(f.take(8 * kMiB, default_pool_of(0)) == api::CUDA_SUCCESS);
  CHECK(f.ledger.live_bytes(0) == 8 * kMiB);
}

TEST_CASE("pools of host memory are charged to no GPU, and no GPU's limit refuses them") {
  Pooled f(limited(10 * kMiB));
  f.driver.enter_context(0);
  f.make(pool(0x100), api::CU_MEM_LOCATION_TYPE_HOST, 0);
  f.make(pool(0x200), api::CU_MEM_LOCATION_TYPE_HOST_NUMA, 0);
  f.make(pool(0x300), api::CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT, 0);
  for (const auto which : {pool(0x100), pool(0x200), pool(0x300)}) {
    REQUIRE(f.take(64 * kMiB, which) == api::CUDA_SUCCESS);
    CHECK(f.ledger.find(f.address + 5)->device == kNobody);
  }
  CHECK(f.ledger.live_bytes(0) == 0);
  REQUIRE(f.memory.free_async(f.address, kStream, false, [] { return api::CUDA_SUCCESS; }) == api::CUDA_SUCCESS);
  CHECK(f.ledger.entries() == 2);
}

TEST_CASE("a managed pool may exceed the GPU, as cuMemAllocManaged may, but not the limit") {
  Pooled f({.backend = Choice::kManaged, .limit_bytes = 200 * kMiB});
  f.driver.device_bytes = 64 * kMiB;
  f.driver.enter_context(0);
  f.make(pool(0x100), api::CU_MEM_LOCATION_TYPE_DEVICE, 0, api::CU_MEM_ALLOCATION_TYPE_MANAGED);
  f.make(pool(0x200), api::CU_MEM_LOCATION_TYPE_NONE, 0, api::CU_MEM_ALLOCATION_TYPE_MANAGED);
  CHECK(f.take(96 * kMiB, pool(0x100)) == api::CUDA_SUCCESS);
  CHECK(f.take(96 * kMiB, pool(0x200)) == api::CUDA_SUCCESS);
  CHECK(f.take(96 * kMiB, pool(0x100)) == api::CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(f.ledger.live_bytes(0) == 192 * kMiB);
  CHECK(f.ledger.fixed_bytes(0) == 0);
}

TEST_CASE("cuMemAllocAsync takes from the pool that the program has set for the GPU") {
  Pooled f(limited(10 * kMiB));
  f.driver.enter_context(0);
  f.make(pool(0x100), api::CU_MEM_LOCATION_TYPE_HOST, 0);
  f.driver.set<api::cuDeviceGetMemPool_fn>(Symbol::k_cuDeviceGetMemPool, [](api::CUmemoryPool* own, api::CUdevice) {
    *own = pool(0x100);
    return api::CUDA_SUCCESS;
  });
  CHECK(f.take(64 * kMiB) == api::CUDA_ERROR_OUT_OF_MEMORY);
  f.memory.pools().chosen();
  CHECK(f.take(64 * kMiB) == api::CUDA_SUCCESS);
  CHECK(f.ledger.live_bytes(0) == 0);
}

TEST_CASE("a pool's handle that was destroyed and given again is what it is now, and its memory stays what it was") {
  Pooled f(limited(10 * kMiB));
  f.driver.enter_context(0);
  f.make(pool(0x100), api::CU_MEM_LOCATION_TYPE_HOST, 0);
  REQUIRE(f.take(64 * kMiB, pool(0x100)) == api::CUDA_SUCCESS);
  const api::CUdeviceptr of_host = f.address;
  CHECK(f.memory.pools().forget(pool(0x100)));
  f.make(pool(0x100), api::CU_MEM_LOCATION_TYPE_DEVICE, 0);
  CHECK(f.take(64 * kMiB, pool(0x100)) == api::CUDA_ERROR_OUT_OF_MEMORY);
  REQUIRE(f.memory.free_async(of_host, kStream, false, [] { return api::CUDA_SUCCESS; }) == api::CUDA_SUCCESS);
  CHECK(f.ledger.live_bytes(0) == 0);
}
