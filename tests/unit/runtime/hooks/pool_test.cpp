// Overrides of functions that create, import and select memory pools: to which GPU a pool's memory is charged.
// (allocation_test.cpp has the allocations themselves, pools_test.cpp the kinds of pool.)
#include <catch2/catch.hpp>

#include "tests/unit/runtime/hooks/program.h"

using namespace rota;
using namespace rota::test;
using api::CUmemoryPool;
using api::CUresult;

namespace {

const auto kPool = reinterpret_cast<CUmemoryPool>(0x9000);
CUresult answer = api::CUDA_SUCCESS;
CUmemoryPool chosen = nullptr;

CUresult make(CUmemoryPool* into, auto...) {
  if (answer == api::CUDA_SUCCESS) *into = kPool;
  return answer;
}

void install(FakeDriver& driver) {
  driver.set<api::cuMemPoolCreate_fn>(Symbol::k_cuMemPoolCreate, make);
  driver.set<api::cuMemGetDefaultMemPool_fn>(Symbol::k_cuMemGetDefaultMemPool, make);
  driver.set<api::cuMemGetMemPool_fn>(Symbol::k_cuMemGetMemPool, make);
  driver.set<api::cuMemPoolDestroy_fn>(Symbol::k_cuMemPoolDestroy, [](auto...) { return answer; });
  driver.set<api::cuDeviceSetMemPool_fn>(Symbol::k_cuDeviceSetMemPool, [](int, CUmemoryPool pool) {
    if (answer == api::CUDA_SUCCESS) chosen = pool;
    return answer;
  });
  driver.set<api::cuMemSetMemPool_fn>(Symbol::k_cuMemSetMemPool, [](auto*, auto, CUmemoryPool pool) {
    if (answer == api::CUDA_SUCCESS) chosen = pool;
    return answer;
  });
  driver.set<api::cuDeviceGetMemPool_fn>(Symbol::k_cuDeviceGetMemPool, [](CUmemoryPool* pool, int) {
    *pool = chosen;
    return api::CUDA_SUCCESS;
  });
  const auto give = [](api::CUdeviceptr* address, std::size_t bytes, auto...) {
    return FakeDriver::the().give_memory(address, bytes);
  };
  driver.set<api::cuMemAllocFromPoolAsync_fn>(Symbol::k_cuMemAllocFromPoolAsync, give);
  driver.set<api::cuMemAllocAsync_fn>(Symbol::k_cuMemAllocAsync, give);
  driver.enter_context(0);
}

// The GPU that a block of the pool is charged to.
int charged_to(CUmemoryPool pool) {
  api::CUdeviceptr address = 0;
  const CUresult result = pool == nullptr ? overrides::cuMemAllocAsync(&address, kMiB, nullptr)
                                          : overrides::cuMemAllocFromPoolAsync(&address, kMiB, pool, nullptr);
  EXPECT(result == api::CUDA_SUCCESS);
  const auto entry = runtime().ledger.find(address);
  EXPECT(entry.has_value());
  return entry ? entry->device : -99;
}

CUresult make_on(int device) {
  api::CUmemPoolProps what{};
  what.allocType = api::CU_MEM_ALLOCATION_TYPE_PINNED;
  what.location = {.type = api::CU_MEM_LOCATION_TYPE_DEVICE, .id = device};
  CUmemoryPool pool = nullptr;
  return overrides::cuMemPoolCreate(&pool, &what);
}

CUresult name_default_of(int device) {
  api::CUmemLocation where{.type = api::CU_MEM_LOCATION_TYPE_DEVICE, .id = device};
  CUmemoryPool pool = nullptr;
  return overrides::cuMemGetDefaultMemPool(&pool, &where, api::CU_MEM_ALLOCATION_TYPE_PINNED);
}

struct Naming {
  Symbol symbol;
  CUresult (*call)(int device);
};
CUresult name_current_of(int device) {
  api::CUmemLocation where{.type = api::CU_MEM_LOCATION_TYPE_DEVICE, .id = device};
  CUmemoryPool pool = nullptr;
  return overrides::cuMemGetMemPool(&pool, &where, api::CU_MEM_ALLOCATION_TYPE_PINNED);
}

const Table<Naming> kNaming = {{Symbol::k_cuMemPoolCreate, make_on},
                               {Symbol::k_cuMemGetMemPool, name_current_of},
                               {Symbol::k_cuMemGetDefaultMemPool, name_default_of}};

struct Choosing {
  Symbol symbol;
  CUresult (*call)(CUmemoryPool pool);
};
const Table<Choosing> kChoosing = {
    {Symbol::k_cuDeviceSetMemPool, [](CUmemoryPool pool) { return overrides::cuDeviceSetMemPool(0, pool); }},
    {Symbol::k_cuMemSetMemPool,
     [](CUmemoryPool pool) {
       api::CUmemLocation where{.type = api::CU_MEM_LOCATION_TYPE_DEVICE, .id = 0};
       return overrides::cuMemSetMemPool(&where, api::CU_MEM_ALLOCATION_TYPE_PINNED, pool);
     }},
};

struct Sharing {
  Symbol symbol;
  CUresult (*call)(CUmemoryPool pool, int accessing);
};
const Table<Sharing> kSharing = {{Symbol::k_cuMemPoolSetAccess, [](CUmemoryPool pool, int accessing) {
                                    const api::CUmemAccessDesc wanted{
                                        .location = {.type = api::CU_MEM_LOCATION_TYPE_DEVICE, .id = accessing},
                                        .flags = api::CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
                                    return overrides::cuMemPoolSetAccess(pool, &wanted, 1);
                                  }}};

struct Destroying {
  Symbol symbol;
  CUresult (*call)(CUmemoryPool pool);
};
const Table<Destroying> kDestroying = {{Symbol::k_cuMemPoolDestroy, overrides::cuMemPoolDestroy}};

}  // namespace

TEST_CASE("a pool's memory is charged to the GPU that the pool was made for, or is the default of") {
  for (const Naming& row : kNaming) {
    CHECK(holds({}, [&](FakeDriver& driver) {
      now_testing(name_of(row.symbol));
      install(driver);
      answer = api::CUDA_ERROR_NOT_SUPPORTED;
      EXPECT(row.call(5) == api::CUDA_ERROR_NOT_SUPPORTED);
      EXPECT(charged_to(kPool) == 0);  // the stream's GPU, as for any unknown pool
      answer = api::CUDA_SUCCESS;
      EXPECT(row.call(5) == api::CUDA_SUCCESS);
      EXPECT(charged_to(kPool) == 5);
    }));
  }
}

TEST_CASE("a pool is what it is until the driver has destroyed it, and its memory stays charged beyond that") {
  CHECK(holds({}, [](FakeDriver& driver) {
    install(driver);
    EXPECT(make_on(5) == api::CUDA_SUCCESS);
    EXPECT(charged_to(kPool) == 5);
    answer = api::CUDA_ERROR_INVALID_VALUE;
    EXPECT(kDestroying.front().call(kPool) == api::CUDA_ERROR_INVALID_VALUE);
    EXPECT(charged_to(kPool) == 5);
    answer = api::CUDA_SUCCESS;
    EXPECT(kDestroying.front().call(kPool) == api::CUDA_SUCCESS);
    EXPECT(runtime().ledger.live_bytes(5) == 2 * kMiB);
    EXPECT(charged_to(kPool) == 0);  // whichever pool has the handle now
  }));
}

TEST_CASE("a pool that the program made stays what it is when it is asked for as the current one") {
  CHECK(holds({}, [](FakeDriver& driver) {
    install(driver);
    EXPECT(make_on(5) == api::CUDA_SUCCESS);
    EXPECT(name_current_of(6) == api::CUDA_SUCCESS);
    EXPECT(charged_to(kPool) == 5);
  }));
}

TEST_CASE("a pool that the program chooses for its GPU is the one that cuMemAllocAsync is charged by") {
  for (const Choosing& row : kChoosing) {
    CHECK(holds({}, [&](FakeDriver& driver) {
      now_testing(name_of(row.symbol));
      install(driver);
      EXPECT(make_on(5) == api::CUDA_SUCCESS);
      EXPECT(charged_to(nullptr) == 0);
      answer = api::CUDA_ERROR_INVALID_VALUE;
      EXPECT(row.call(kPool) == api::CUDA_ERROR_INVALID_VALUE);
      EXPECT(charged_to(nullptr) == 0);
      answer = api::CUDA_SUCCESS;
      EXPECT(row.call(kPool) == api::CUDA_SUCCESS);
      EXPECT(charged_to(nullptr) == 5);
    }));
  }
}

TEST_CASE(
    "access to a pool that the driver grants is advised for each span that rota serves there, a refusal for none") {
  static int advised;
  CHECK(holds({.memory = "managed"}, [](FakeDriver& driver) {
    install(driver);
    driver.set<api::cuStreamGetId_fn>(Symbol::k_cuStreamGetId, [](auto...) { return api::CUDA_ERROR_NOT_SUPPORTED; });
    driver.set<api::cuMemPoolSetAccess_fn>(Symbol::k_cuMemPoolSetAccess, [](auto...) { return answer; });
    driver.set<api::cuMemAdvise_fn>(Symbol::k_cuMemAdvise,
                                    [](api::CUdeviceptr, std::size_t, api::CUmem_advise advice, api::CUdevice device) {
                                      if (advice == api::CU_MEM_ADVISE_SET_ACCESSED_BY && device == 1) ++advised;
                                      return api::CUDA_SUCCESS;
                                    });
    for (const Sharing& row : kSharing) {
      now_testing(name_of(row.symbol));
      answer = api::CUDA_SUCCESS;
      EXPECT(make_on(0) == api::CUDA_SUCCESS);
      for (int span = 0; span < 2; ++span) {
        EXPECT(charged_to(kPool) == 0);
        EXPECT(charged_to(kPool) == 0);
      }
      answer = api::CUDA_ERROR_INVALID_DEVICE;
      EXPECT(row.call(kPool, 1) == api::CUDA_ERROR_INVALID_DEVICE);
      answer = api::CUDA_SUCCESS;
      EXPECT(row.call(kPool, 0) == api::CUDA_SUCCESS);  // its own
      EXPECT(advised == 0);
      EXPECT(row.call(kPool, 1) == api::CUDA_SUCCESS);
      EXPECT(advised == 2);
      EXPECT(charged_to(kPool) == 0);
      EXPECT(advised == 3);
    }
  }));
}
