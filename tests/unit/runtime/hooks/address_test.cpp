// Overrides of queries about addresses and pools, where rota serves stream-ordered memory itself.
#include <array>
#include <catch2/catch.hpp>
#include <cstring>

#include "tests/unit/runtime/hooks/program.h"

using namespace rota;
using namespace rota::test;
using api::CUdeviceptr;
using api::CUresult;

namespace {

const auto kPool = reinterpret_cast<api::CUmemoryPool>(0x9000);
constexpr std::uint64_t kOfDriver = 0x1234567;  // what the driver answers everything with
CUdeviceptr asked_for = 0;

CUresult tell(void* data) {
  std::memcpy(data, &kOfDriver, sizeof kOfDriver);
  return api::CUDA_SUCCESS;
}

void install(FakeDriver& driver) {
  driver.set<api::cuDeviceGetDefaultMemPool_fn>(Symbol::k_cuDeviceGetDefaultMemPool, [](api::CUmemoryPool* own, int) {
    *own = kPool;
    return api::CUDA_SUCCESS;
  });
  driver.set<api::cuMemPoolGetAttribute_fn>(
      Symbol::k_cuMemPoolGetAttribute, [](api::CUmemoryPool, api::CUmemPool_attribute which, void* value) {
        // 32 bits for the policies, 64 for the rest.
        std::memset(value, 0, which <= api::CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES ? 4 : 8);
        return api::CUDA_SUCCESS;
      });
  driver.set<api::cuMemPoolSetAttribute_fn>(Symbol::k_cuMemPoolSetAttribute, [](auto...) { return api::CUDA_SUCCESS; });
  driver.set<api::cuMemPoolTrimTo_fn>(Symbol::k_cuMemPoolTrimTo, [](auto...) { return api::CUDA_SUCCESS; });
  driver.set<api::cuPointerGetAttribute_fn>(Symbol::k_cuPointerGetAttribute,
                                            [](void* data, api::CUpointer_attribute, CUdeviceptr address) {
                                              asked_for = address;
                                              return tell(data);
                                            });
  driver.set<api::cuPointerGetAttributes_fn>(
      Symbol::k_cuPointerGetAttributes,
      [](unsigned count, api::CUpointer_attribute*, void** data, CUdeviceptr address) {
        asked_for = address;
        for (unsigned index = 0; index < count; ++index) tell(data[index]);
        return api::CUDA_SUCCESS;
      });
  driver.set<api::cuMemGetAddressRange_v2_fn>(Symbol::k_cuMemGetAddressRange_v2,
                                              [](CUdeviceptr* base, std::size_t* bytes, CUdeviceptr address) {
                                                asked_for = address;
                                                if (base != nullptr) *base = kOfDriver;
                                                if (bytes != nullptr) *bytes = kOfDriver;
                                                return api::CUDA_SUCCESS;
                                              });
  driver.enter_context(0);
}

constexpr std::array kAttributes = {api::CU_POINTER_ATTRIBUTE_CONTEXT,
                                    api::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
                                    api::CU_POINTER_ATTRIBUTE_RANGE_SIZE,
                                    api::CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR,
                                    api::CU_POINTER_ATTRIBUTE_MAPPING_SIZE,
                                    api::CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE,
                                    api::CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES};
using Answers = std::array<std::uint64_t, kAttributes.size()>;

struct Asking {
  Symbol symbol;
  Answers (*all)(CUdeviceptr address);
};
const Table<Asking> kAsking = {
    {Symbol::k_cuPointerGetAttribute,
     [](CUdeviceptr address) {
       Answers answers{};
       for (std::size_t index = 0; index < answers.size(); ++index) {
         EXPECT(overrides::cuPointerGetAttribute(&answers[index], kAttributes[index], address) == api::CUDA_SUCCESS);
       }
       return answers;
     }},
    {Symbol::k_cuPointerGetAttributes,
     [](CUdeviceptr address) {
       Answers answers{};
       std::array<void*, kAttributes.size()> into{};
       for (std::size_t index = 0; index < into.size(); ++index) into[index] = &answers[index];
       auto attributes = kAttributes;
       EXPECT(overrides::cuPointerGetAttributes(static_cast<unsigned>(attributes.size()), attributes.data(),
                                                into.data(), address) == api::CUDA_SUCCESS);
       return answers;
     }},
};

struct Range {
  Symbol symbol;
  CUresult (*call)(CUdeviceptr* base, std::size_t* bytes, CUdeviceptr address);
};
const Table<Range> kRanges = {{Symbol::k_cuMemGetAddressRange_v2, overrides::cuMemGetAddressRange_v2}};

// No memory of rota's has a 32-bit address: every query gets the driver's answer.
const Table<Range> kNarrowRanges = {
    {Symbol::k_cuMemGetAddressRange, [](CUdeviceptr* base, std::size_t* bytes, CUdeviceptr address) {
       unsigned narrow_base = 0;
       unsigned narrow_bytes = 0;
       const CUresult result =
           overrides::cuMemGetAddressRange(&narrow_base, &narrow_bytes, static_cast<unsigned>(address));
       *base = narrow_base;
       *bytes = narrow_bytes;
       return result;
     }}};

// For memory that is no extent, the driver is asked about the same address.
struct Passed {
  Symbol symbol;
  void (*install)(FakeDriver& driver);
  CUresult (*call)(CUdeviceptr address);
};
const Table<Passed> kPassed = {
    {Symbol::k_cuMemGetAccess,
     [](FakeDriver& driver) {
       driver.set<api::cuMemGetAccess_fn>(Symbol::k_cuMemGetAccess,
                                          [](unsigned long long*, const api::CUmemLocation*, CUdeviceptr address) {
                                            asked_for = address;
                                            return api::CUDA_ERROR_INVALID_VALUE;
                                          });
     },
     [](CUdeviceptr address) { return overrides::cuMemGetAccess(nullptr, nullptr, address); }},
    {Symbol::k_cuMemRangeGetAttribute,
     [](FakeDriver& driver) {
       driver.set<api::cuMemRangeGetAttribute_fn>(
           Symbol::k_cuMemRangeGetAttribute,
           [](void*, std::size_t, api::CUmem_range_attribute, CUdeviceptr address, std::size_t) {
             asked_for = address;
             return api::CUDA_ERROR_INVALID_VALUE;
           });
     },
     [](CUdeviceptr address) {
       return overrides::cuMemRangeGetAttribute(nullptr, 4, api::CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, address, 64);
     }},
    {Symbol::k_cuMemRangeGetAttributes,
     [](FakeDriver& driver) {
       driver.set<api::cuMemRangeGetAttributes_fn>(
           Symbol::k_cuMemRangeGetAttributes,
           [](void**, std::size_t*, api::CUmem_range_attribute*, std::size_t, CUdeviceptr address, std::size_t) {
             asked_for = address;
             return api::CUDA_ERROR_INVALID_VALUE;
           });
     },
     [](CUdeviceptr address) { return overrides::cuMemRangeGetAttributes(nullptr, nullptr, nullptr, 0, address, 64); }},
};

std::uint64_t bytes_of(api::CUmemPool_attribute which) {
  std::uint64_t bytes = 99;
  EXPECT(overrides::cuMemPoolGetAttribute(kPool, which, &bytes) == api::CUDA_SUCCESS);
  return bytes;
}

struct PoolCall {
  Symbol symbol;
  void (*sees)();
};
const Table<PoolCall> kPoolCalls = {
    {Symbol::k_cuMemPoolGetAttribute,
     [] {
       EXPECT(bytes_of(api::CU_MEMPOOL_ATTR_USED_MEM_CURRENT) == 1024);
       EXPECT(bytes_of(api::CU_MEMPOOL_ATTR_USED_MEM_HIGH) == 2048);
       EXPECT(bytes_of(api::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) == 2 * kMiB);
       EXPECT(bytes_of(api::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH) == 2 * kMiB);
       EXPECT(bytes_of(api::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD) == 0);
       std::array<int, 2> policy{7, 7};
       EXPECT(overrides::cuMemPoolGetAttribute(kPool, api::CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC, policy.data()) ==
              api::CUDA_SUCCESS);
       EXPECT(policy[0] == 0 && policy[1] == 7);
     }},
    {Symbol::k_cuMemPoolSetAttribute,
     [] {
       std::uint64_t zero = 0;
       EXPECT(overrides::cuMemPoolSetAttribute(kPool, api::CU_MEMPOOL_ATTR_USED_MEM_HIGH, &zero) == api::CUDA_SUCCESS);
       EXPECT(bytes_of(api::CU_MEMPOOL_ATTR_USED_MEM_HIGH) == 1024);
       EXPECT(bytes_of(api::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH) == 2 * kMiB);
     }},
    {Symbol::k_cuMemPoolTrimTo,
     [] {
       CUdeviceptr large = 0;
       EXPECT(overrides::cuMemAllocAsync(&large, 4 * kMiB, nullptr) == api::CUDA_SUCCESS);
       EXPECT(overrides::cuMemFreeAsync(large, nullptr) == api::CUDA_SUCCESS);
       EXPECT(overrides::cuMemPoolTrimTo(kPool, 0) == api::CUDA_SUCCESS);
       EXPECT(runtime().memory.has_deferred());
       EXPECT(bytes_of(api::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) == 2 * kMiB);
     }},
};

}  // namespace

TEST_CASE("questions about access and settings of memory that is no extent go to the driver as they are") {
  for (const Passed& row : kPassed) {
    CHECK(holds({.memory = "managed"}, [&](FakeDriver& driver) {
      now_testing(name_of(row.symbol));
      install(driver);
      row.install(driver);
      CUdeviceptr address = 0;
      EXPECT(overrides::cuMemAlloc_v2(&address, 2 * kMiB) == api::CUDA_SUCCESS);
      for (const CUdeviceptr where : {address + 8, CUdeviceptr{0x4444}}) {
        EXPECT(row.call(where) == api::CUDA_ERROR_INVALID_VALUE);
        EXPECT(asked_for == where);
      }
    }));
  }
}

TEST_CASE("each block of a span is told as the allocation that it is, and freed ones as nobody's") {
  for (const Asking& row : kAsking) {
    CHECK(holds({.memory = "managed"}, [&](FakeDriver& driver) {
      now_testing(name_of(row.symbol));
      install(driver);
      CUdeviceptr first = 0;
      CUdeviceptr second = 0;
      EXPECT(overrides::cuMemAllocAsync(&first, 1000, nullptr) == api::CUDA_SUCCESS);
      EXPECT(overrides::cuMemAllocAsync(&second, 2000, nullptr) == api::CUDA_SUCCESS);
      const auto pool = reinterpret_cast<std::uintptr_t>(kPool);
      EXPECT(row.all(second + 1999) == Answers{0, second, 2000, first, 2 * kMiB, pool, kOfDriver});
      EXPECT(asked_for == second + 1999);
      EXPECT(overrides::cuMemFreeAsync(second, nullptr) == api::CUDA_SUCCESS);
      Answers of_driver;
      of_driver.fill(kOfDriver);
      EXPECT(row.all(second) == of_driver);
      EXPECT(asked_for != second);  // the driver still has memory there
      EXPECT(row.all(0x4444) == of_driver);
      EXPECT(asked_for == 0x4444);
    }));
  }
}

TEST_CASE(
    "small plain memory, of which several share what the driver knows as one, is told as allocations of its own") {
  for (const Asking& row : kAsking) {
    CHECK(holds({.memory = "managed"}, [&](FakeDriver& driver) {
      now_testing(name_of(row.symbol));
      install(driver);
      CUdeviceptr first = 0;
      CUdeviceptr second = 0;
      EXPECT(overrides::cuMemAlloc_v2(&first, 100'000) == api::CUDA_SUCCESS);
      EXPECT(overrides::cuMemAlloc_v2(&second, 200'000) == api::CUDA_SUCCESS);
      EXPECT(driver.managed_allocations == 1);
      // The driver says which context it has, and that it belongs to no pool.
      EXPECT(row.all(second + 199'999) == Answers{kOfDriver, second, 200'000, second, 200'000, kOfDriver, kOfDriver});
      std::uint64_t blocks[2] = {};
      for (const CUdeviceptr address : {first, second}) {
        EXPECT(overrides::cuPointerGetAttribute(&blocks[address == first ? 0 : 1],
                                                api::CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID,
                                                address) == api::CUDA_SUCCESS);
      }
      EXPECT(blocks[0] != blocks[1]);
      CUdeviceptr base = 0;
      std::size_t bytes = 0;
      EXPECT(overrides::cuMemGetAddressRange_v2(&base, &bytes, second + 1) == api::CUDA_SUCCESS);
      EXPECT(base == second && bytes == 200'000);
      EXPECT(overrides::cuMemFree_v2(second) == api::CUDA_SUCCESS);
      Answers of_driver;
      of_driver.fill(kOfDriver);
      EXPECT(row.all(second) == of_driver);
      EXPECT(asked_for != second);
    }));
  }
}

TEST_CASE("converted memory is synchronous when the program has said so, whatever the driver says of managed memory") {
  for (const bool several : {false, true}) {
    CHECK(holds({.memory = "managed"}, [&](FakeDriver& driver) {
      install(driver);  // answers kOfDriver, whose last byte is 0x67
      driver.set<api::cuPointerSetAttribute_fn>(Symbol::k_cuPointerSetAttribute,
                                                [](auto...) { return api::CUDA_SUCCESS; });
      CUdeviceptr address = 0;
      EXPECT(overrides::cuMemAlloc_v2(&address, kMiB) == api::CUDA_SUCCESS);
      const auto asked = [&](CUdeviceptr where) {
        std::uint64_t answer = 0;
        api::CUpointer_attribute attribute = api::CU_POINTER_ATTRIBUTE_SYNC_MEMOPS;
        void* into = &answer;
        const CUresult result = several ? overrides::cuPointerGetAttributes(1, &attribute, &into, where)
                                        : overrides::cuPointerGetAttribute(&answer, attribute, where);
        EXPECT(result == api::CUDA_SUCCESS);
        return answer & 0xff;
      };
      EXPECT(asked(address + 8) == 0);
      const unsigned on = 1;
      EXPECT(overrides::cuPointerSetAttribute(&on, api::CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, address) ==
             api::CUDA_SUCCESS);
      EXPECT(asked(address + 8) == 1);
      EXPECT(asked(0x4444) == (kOfDriver & 0xff));
    }));
  }
}

TEST_CASE(
    "once the process's memory is lost, its P2P tokens are refused with that error, and the driver is not asked") {
  for (const bool several : {false, true}) {
    CHECK(holds({.memory = "managed"}, [&](FakeDriver& driver) {
      install(driver);
      runtime().gate.close();
      gate::out_of_place.store(true);
      runtime().gate.refuse(api::CUDA_ERROR_ECC_UNCORRECTABLE);
      asked_for = 0;
      std::array<std::uint64_t, 2> tokens{};
      api::CUpointer_attribute attribute = api::CU_POINTER_ATTRIBUTE_P2P_TOKENS;
      void* into = tokens.data();
      const CUresult result = several ? overrides::cuPointerGetAttributes(1, &attribute, &into, 0x4444)
                                      : overrides::cuPointerGetAttribute(into, attribute, 0x4444);
      EXPECT(result == api::CUDA_ERROR_ECC_UNCORRECTABLE);
      EXPECT(asked_for == 0);
    }));
  }
}

TEST_CASE("the range around an address of stream-ordered memory is the allocation, also where one half is asked for") {
  for (const Range& row : kRanges) {
    CHECK(holds({.memory = "managed"}, [&](FakeDriver& driver) {
      now_testing(name_of(row.symbol));
      install(driver);
      CUdeviceptr first = 0;
      EXPECT(overrides::cuMemAllocAsync(&first, 1000, nullptr) == api::CUDA_SUCCESS);
      CUdeviceptr base = 0;
      std::size_t bytes = 0;
      EXPECT(row.call(&base, &bytes, first + 10) == api::CUDA_SUCCESS);
      EXPECT(base == first && bytes == 1000);
      base = 0;
      EXPECT(row.call(&base, nullptr, first) == api::CUDA_SUCCESS && base == first);
      bytes = 0;
      EXPECT(row.call(nullptr, &bytes, first) == api::CUDA_SUCCESS && bytes == 1000);
      EXPECT(overrides::cuMemFreeAsync(first, nullptr) == api::CUDA_SUCCESS);
      EXPECT(row.call(&base, &bytes, first) == api::CUDA_SUCCESS && asked_for != first);
      EXPECT(row.call(&base, &bytes, 0x4444) == api::CUDA_SUCCESS && base == kOfDriver);
    }));
  }
}

TEST_CASE("the range around a 32-bit address is what the driver says") {
  for (const Range& row : kNarrowRanges) {
    CHECK(holds({.memory = "managed"}, [&](FakeDriver& driver) {
      now_testing(name_of(row.symbol));
      install(driver);
      driver.set<api::cuMemGetAddressRange_fn>(Symbol::k_cuMemGetAddressRange,
                                               [](unsigned* base, unsigned* bytes, unsigned address) {
                                                 *base = address - 1;
                                                 *bytes = 77;
                                                 return api::CUDA_SUCCESS;
                                               });
      CUdeviceptr base = 0;
      std::size_t bytes = 0;
      EXPECT(row.call(&base, &bytes, 0x4444) == api::CUDA_SUCCESS);
      EXPECT(base == 0x4443 && bytes == 77);
    }));
  }
}

TEST_CASE("a pool's figures hold what rota serves in its place") {
  for (const PoolCall& row : kPoolCalls) {
    CHECK(holds({.memory = "managed"}, [&](FakeDriver& driver) {
      now_testing(name_of(row.symbol));
      install(driver);
      CUdeviceptr first = 0;
      CUdeviceptr second = 0;
      EXPECT(overrides::cuMemAllocAsync(&first, 1000, nullptr) == api::CUDA_SUCCESS);
      EXPECT(overrides::cuMemAllocAsync(&second, 1000, nullptr) == api::CUDA_SUCCESS);
      EXPECT(overrides::cuMemFreeAsync(second, nullptr) == api::CUDA_SUCCESS);
      row.sees();
    }));
  }
}
