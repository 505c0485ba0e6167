// Overrides of calls about one context's access to another's memory: what converted memory is advised for them.
#include <atomic>
#include <catch2/catch.hpp>
#include <thread>

#include "generated/driver_real.h"
#include "tests/unit/runtime/hooks/program.h"

using namespace rota;
using namespace rota::test;
using api::CUcontext;
using api::CUresult;

namespace {

CUresult answer = api::CUDA_SUCCESS;
std::atomic<int> set_count{0};
std::atomic<int> unset_count{0};

struct Access {
  Symbol symbol;
  CUresult (*call)(CUcontext peer);
  std::atomic<int>& advised;
};
const Table<Access> kAccess = {
    {Symbol::k_cuCtxEnablePeerAccess, [](CUcontext peer) { return overrides::cuCtxEnablePeerAccess(peer, 0); },
     set_count},
    {Symbol::k_cuCtxDisablePeerAccess, [](CUcontext peer) { return overrides::cuCtxDisablePeerAccess(peer); },
     unset_count},
};

void install(FakeDriver& driver) {
  driver.set<api::cuCtxEnablePeerAccess_fn>(Symbol::k_cuCtxEnablePeerAccess, [](auto...) { return answer; });
  driver.set<api::cuCtxDisablePeerAccess_fn>(Symbol::k_cuCtxDisablePeerAccess, [](auto...) { return answer; });
  driver.set<api::cuMemAdvise_fn>(Symbol::k_cuMemAdvise,
                                  [](api::CUdeviceptr, std::size_t, api::CUmem_advise advice, api::CUdevice) {
                                    if (advice == api::CU_MEM_ADVISE_SET_ACCESSED_BY) ++set_count;
                                    if (advice == api::CU_MEM_ADVISE_UNSET_ACCESSED_BY) ++unset_count;
                                    return api::CUDA_SUCCESS;
                                  });
}

void take(int count) {
  for (int i = 0; i < count; ++i) {
    api::CUdeviceptr address = 0;
    EXPECT(overrides::cuMemAlloc_v2(&address, kMiB) == api::CUDA_SUCCESS);
  }
}

}  // namespace

TEST_CASE("access that the driver grants or takes back advises each range of the peer's once, a refusal none") {
  CHECK(holds({.memory = "managed"}, [](FakeDriver& driver) {
    install(driver);
    const CUcontext peer = driver.enter_context(1);
    take(3);
    driver.enter_context(0);
    take(2);
    for (const Access& row : kAccess) {
      now_testing(name_of(row.symbol));
      answer = api::CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
      EXPECT(row.call(peer) == answer);
      EXPECT(row.advised == 0);
      answer = api::CUDA_SUCCESS;
      EXPECT(row.call(peer) == api::CUDA_SUCCESS);
      EXPECT(row.advised == 3);
    }
    take(1);
    EXPECT(set_count == 3);
  }));
}

TEST_CASE("whichever comes first, an allocation or the access to its context, the memory is advised") {
  CHECK(holds({.memory = "managed"}, [](FakeDriver& driver) {
    install(driver);
    const CUcontext peer = driver.enter_context(1);
    driver.enter_context(0);
    runtime();  // made by the thread that attaches, as always
    constexpr int kRounds = 200;
    for (int round = 0; round < kRounds; ++round) {
      set_count = 0;
      std::atomic<bool> go{false};
      std::thread allocates([&] {
        api::CUcontext popped = nullptr;
        EXPECT(real::cuCtxPushCurrent_v2(peer) == api::CUDA_SUCCESS);
        while (!go.load()) std::this_thread::yield();
        api::CUdeviceptr address = 0;
        EXPECT(overrides::cuMemAlloc_v2(&address, kMiB) == api::CUDA_SUCCESS);
        EXPECT(real::cuCtxPopCurrent_v2(&popped) == api::CUDA_SUCCESS);
      });
      go = true;
      EXPECT(overrides::cuCtxEnablePeerAccess(peer, 0) == api::CUDA_SUCCESS);
      allocates.join();
      EXPECT(set_count >= round + 1);  // those of the rounds before, and this one's
      EXPECT(overrides::cuCtxDisablePeerAccess(peer) == api::CUDA_SUCCESS);
    }
    EXPECT(driver.dead_uses == 0);
  }));
}
