// Overrides of advice and prefetches: what the program has requested is recorded for exactly that memory, once the
// driver has accepted it.
#include <array>
#include <catch2/catch.hpp>

#include "tests/unit/runtime/hooks/program.h"

using namespace rota;
using namespace rota::test;
using api::CUdeviceptr;
using api::CUmemLocation;
using api::CUresult;
using Placed = memory::Allocation::Placed;

namespace {

CUresult answer = api::CUDA_SUCCESS;

CUresult answered(auto...) {
  return answer;
}

template <Symbol kSymbol, typename Function>
void install_answer(FakeDriver& driver) {
  driver.set<Function>(kSymbol, answered);
}

constexpr CUmemLocation kHost{.type = api::CU_MEM_LOCATION_TYPE_HOST, .id = 0};
constexpr CUmemLocation kNode{.type = api::CU_MEM_LOCATION_TYPE_HOST_NUMA, .id = 0};
constexpr CUmemLocation kGpu{.type = api::CU_MEM_LOCATION_TYPE_DEVICE, .id = 0};

struct Placing {
  Symbol symbol;
  void (*install)(FakeDriver& driver);
  // To GPU 0, or to the host.
  CUresult (*call)(CUdeviceptr address, bool to_gpu);
};

template <auto* kOverride>
CUresult advise(CUdeviceptr address, bool to_gpu) {
  return kOverride(address, kMiB, api::CU_MEM_ADVISE_SET_PREFERRED_LOCATION, to_gpu ? 0 : -1);
}
template <auto* kOverride>
CUresult advise2(CUdeviceptr address, bool to_gpu) {
  return kOverride(address, kMiB, api::CU_MEM_ADVISE_SET_PREFERRED_LOCATION, to_gpu ? kGpu : kNode);
}
template <auto* kOverride>
CUresult prefetch(CUdeviceptr address, bool to_gpu) {
  return kOverride(address, kMiB, to_gpu ? 0 : -1, nullptr);
}
template <auto* kOverride>
CUresult prefetch2(CUdeviceptr address, bool to_gpu) {
  return kOverride(address, kMiB, to_gpu ? kGpu : kHost, 0, nullptr);
}
// Two ranges, of which only the second is rota's memory, and goes to the second location.
template <auto* kOverride>
CUresult batch(CUdeviceptr address, bool to_gpu) {
  std::array<CUdeviceptr, 2> addresses{0x10, address};
  std::array<std::size_t, 2> sizes{kMiB, kMiB};
  std::array<CUmemLocation, 2> locations{to_gpu ? kHost : kGpu, to_gpu ? kGpu : kHost};
  std::array<std::size_t, 2> first{0, 1};
  return kOverride(addresses.data(), sizes.data(), 2, locations.data(), first.data(), 2, 0, nullptr);
}

#define ROW(name, form) {Symbol::k_##name, install_answer<Symbol::k_##name, api::name##_fn>, form<overrides::name>}
const Table<Placing> kPlacing = {
    ROW(cuMemAdvise, advise),
    ROW(cuMemAdvise_v2, advise2),
    ROW(cuMemPrefetchAsync, prefetch),
    ROW(cuMemPrefetchAsync_ptsz, prefetch),
    ROW(cuMemPrefetchAsync_v2, prefetch2),
    ROW(cuMemPrefetchAsync_v2_ptsz, prefetch2),
    ROW(cuMemPrefetchBatchAsync, batch),
    ROW(cuMemPrefetchBatchAsync_ptsz, batch),
    ROW(cuMemDiscardAndPrefetchBatchAsync, batch),
    ROW(cuMemDiscardAndPrefetchBatchAsync_ptsz, batch),
};
#undef ROW

Placed placed(CUdeviceptr address) {
  return runtime().ledger.find(address)->placed;
}

}  // namespace

TEST_CASE("where the program wants memory is noted of it once the driver has agreed") {
  for (const Placing& row : kPlacing) {
    CHECK(holds({.memory = "managed"}, [&](FakeDriver& driver) {
      now_testing(name_of(row.symbol));
      driver.enter_context(0);
      CUdeviceptr converted = 0;
      EXPECT(overrides::cuMemAlloc_v2(&converted, kMiB) == api::CUDA_SUCCESS);
      CUdeviceptr own = 0;
      EXPECT(overrides::cuMemAllocManaged(&own, kMiB, api::CU_MEM_ATTACH_GLOBAL) == api::CUDA_SUCCESS);
      row.install(driver);
      for (const CUdeviceptr address : {converted, own}) {
        EXPECT(placed(address) == Placed::kUnsaid);
        answer = api::CUDA_ERROR_INVALID_VALUE;
        EXPECT(row.call(address, false) == answer);
        EXPECT(placed(address) == Placed::kUnsaid);
        answer = api::CUDA_SUCCESS;
        EXPECT(row.call(address, false) == answer);
        EXPECT(placed(address) == Placed::kElsewhere);
        EXPECT(row.call(address, true) == answer);
        EXPECT(placed(address) == Placed::kHere);
      }
    }));
  }
}

TEST_CASE("withdrawn advice leaves nothing noted, and advice of another kind says nothing about the place") {
  CHECK(holds({.memory = "managed"}, [](FakeDriver& driver) {
    driver.enter_context(0);
    CUdeviceptr address = 0;
    EXPECT(overrides::cuMemAlloc_v2(&address, kMiB) == api::CUDA_SUCCESS);
    for (const auto advice : {api::CU_MEM_ADVISE_SET_READ_MOSTLY, api::CU_MEM_ADVISE_SET_ACCESSED_BY}) {
      EXPECT(overrides::cuMemAdvise(address, kMiB, advice, -1) == api::CUDA_SUCCESS);
      EXPECT(placed(address) == Placed::kUnsaid);
    }
    EXPECT(overrides::cuMemAdvise(address, kMiB, api::CU_MEM_ADVISE_SET_PREFERRED_LOCATION, -1) == api::CUDA_SUCCESS);
    EXPECT(overrides::cuMemAdvise(address, kMiB, api::CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION, -1) == api::CUDA_SUCCESS);
    EXPECT(placed(address) == Placed::kUnsaid);
  }));
}

TEST_CASE("the program's own managed memory is advised and prefetched by nobody but the program") {
  CHECK(holds({.memory = "managed"}, [](FakeDriver& driver) {
    static int advised = 0;
    driver.set<api::cuMemAdvise_fn>(Symbol::k_cuMemAdvise, [](auto...) {
      ++advised;
      return api::CUDA_SUCCESS;
    });
    driver.enter_context(0);
    CUdeviceptr own = 0;
    EXPECT(overrides::cuMemAllocManaged(&own, kMiB, api::CU_MEM_ATTACH_GLOBAL) == api::CUDA_SUCCESS);
    EXPECT(runtime().memory.bring(0, nullptr, runtime().memory.to_bring(0, UINT64_MAX)) == 0);
    EXPECT(advised == 0);
    EXPECT(driver.prefetches == 0);
  }));
}
