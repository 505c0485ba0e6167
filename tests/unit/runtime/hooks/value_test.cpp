// Overrides of functions that refuse Unified Memory: the driver's answer is returned. After a refusal that rota has
// caused, new allocations are the driver's own memory.
#include <array>
#include <catch2/catch.hpp>

#include "tests/unit/runtime/hooks/program.h"

using namespace rota;
using namespace rota::test;
using api::CUdeviceptr;
using api::CUresult;

namespace {

CUresult answer = api::CUDA_SUCCESS;

struct Refusing {
  Symbol symbol;
  void (*install)(FakeDriver& driver);
  CUresult (*call)(CUdeviceptr address);
};

CUresult refuse(auto...) {
  return answer;
}

template <Symbol kSymbol, typename Function>
void install_refusal(FakeDriver& driver) {
  driver.set<Function>(kSymbol, refuse);
}

template <auto* kOverride>
CUresult value(CUdeviceptr address) {
  return kOverride(nullptr, address, 1, 0);
}

template <auto* kOverride>
CUresult batch(CUdeviceptr address) {
  std::array<api::CUstreamBatchMemOpParams, 2> operations{};
  operations[0].operation = api::CU_STREAM_MEM_OP_BARRIER;
  operations[1].writeValue.operation = api::CU_STREAM_MEM_OP_WRITE_VALUE_64;
  operations[1].writeValue.address = address;
  return kOverride(nullptr, static_cast<unsigned>(operations.size()), operations.data(), 0);
}

#define VALUE(name) {Symbol::k_##name, install_refusal<Symbol::k_##name, api::name##_fn>, value<overrides::name>}
#define VALUES(name) VALUE(name), VALUE(name##_ptsz), VALUE(name##_v2), VALUE(name##_v2_ptsz)
#define BATCH(name) {Symbol::k_##name, install_refusal<Symbol::k_##name, api::name##_fn>, batch<overrides::name>}
const Table<Refusing> kRefusing = {
    VALUES(cuStreamWaitValue32),
    VALUES(cuStreamWaitValue64),
    VALUES(cuStreamWriteValue32),
    VALUES(cuStreamWriteValue64),
    BATCH(cuStreamBatchMemOp),
    BATCH(cuStreamBatchMemOp_ptsz),
    BATCH(cuStreamBatchMemOp_v2),
    BATCH(cuStreamBatchMemOp_v2_ptsz),
    {Symbol::k_cuMemGetHandleForAddressRange,
     install_refusal<Symbol::k_cuMemGetHandleForAddressRange, api::cuMemGetHandleForAddressRange_fn>,
     [](CUdeviceptr address) {
       int handle = -1;
       return overrides::cuMemGetHandleForAddressRange(&handle, address, kMiB, api::CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD,
                                                       0);
     }},
};
#undef BATCH
#undef VALUES
#undef VALUE

// Whether the program gets Unified Memory.
bool converts(std::size_t bytes) {
  CUdeviceptr address = 0;
  EXPECT(overrides::cuMemAlloc_v2(&address, bytes) == api::CUDA_SUCCESS);
  return runtime().ledger.find(address)->kind.converted();
}

}  // namespace

TEST_CASE("a refusal of converted memory is the program's answer, and leaves later allocations native") {
  for (const Refusing& row : kRefusing) {
    CHECK(holds({.memory = "managed"}, [&](FakeDriver& driver) {
      now_testing(name_of(row.symbol));
      row.install(driver);
      driver.enter_context(0);
      CUdeviceptr address = 0;
      EXPECT(overrides::cuMemAlloc_v2(&address, kMiB) == api::CUDA_SUCCESS);
      answer = api::CUDA_SUCCESS;
      EXPECT(row.call(address + 8) == api::CUDA_SUCCESS);
      EXPECT(converts(kMiB));
      answer = api::CUDA_ERROR_NOT_SUPPORTED;
      EXPECT(row.call(0x4444) == api::CUDA_ERROR_NOT_SUPPORTED);  // not rota's memory: refused for another reason
      EXPECT(converts(kMiB));
      EXPECT(row.call(address + 8) == api::CUDA_ERROR_NOT_SUPPORTED);
      EXPECT(!converts(kMiB));
    }));
  }
}

TEST_CASE("a refused request for tokens of converted memory makes later allocations native, other attributes do not") {
  CHECK(holds({.memory = "managed"}, [](FakeDriver& driver) {
    driver.set<api::cuPointerGetAttribute_fn>(Symbol::k_cuPointerGetAttribute,
                                              [](auto...) { return api::CUDA_ERROR_INVALID_VALUE; });
    driver.enter_context(0);
    CUdeviceptr address = 0;
    EXPECT(overrides::cuMemAlloc_v2(&address, kMiB) == api::CUDA_SUCCESS);
    std::array<std::uint64_t, 2> tokens{};
    EXPECT(overrides::cuPointerGetAttribute(tokens.data(), api::CU_POINTER_ATTRIBUTE_HOST_POINTER, address) ==
           api::CUDA_ERROR_INVALID_VALUE);
    EXPECT(converts(kMiB));
    EXPECT(overrides::cuPointerGetAttribute(tokens.data(), api::CU_POINTER_ATTRIBUTE_P2P_TOKENS, address) ==
           api::CUDA_ERROR_INVALID_VALUE);
    EXPECT(!converts(kMiB));
  }));
}

TEST_CASE("small allocations stay the driver's own where others are converted, up to a total") {
  CHECK(holds({.memory = "managed", .small = "64K"}, [](FakeDriver& driver) {
    driver.enter_context(0);
    EXPECT(!converts(64 << 10));
    EXPECT(converts((64 << 10) + 1));
    EXPECT(runtime().ledger.small_bytes(0) == 64 << 10);
    EXPECT(runtime().ledger.fixed_bytes(0) == 64 << 10);
    for (int rest = 1; rest < 512; ++rest) EXPECT(!converts(64 << 10));
    EXPECT(converts(4));  // 32 MiB of them
    CUdeviceptr address = 0;
    driver.mutex.lock();
    address = driver.memory.begin()->first;
    driver.mutex.unlock();
    EXPECT(overrides::cuMemFree_v2(address) == api::CUDA_SUCCESS);
    EXPECT(!converts(4));
  }));
}
