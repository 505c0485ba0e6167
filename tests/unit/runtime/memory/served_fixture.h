// Stream-ordered memory that rota serves in the place of a pool, over the fake driver.
#pragma once

#include <cstring>
#include <vector>

#include "tests/unit/runtime/memory/memory_fixture.h"

namespace rota::test {

inline const auto kPool = reinterpret_cast<api::CUmemoryPool>(0x9000);
inline const auto kStream = reinterpret_cast<api::CUstream>(0x5000);
inline const auto kOther = reinterpret_cast<api::CUstream>(0x6000);
// The fake GPU has 1 GiB: its pools grow by this.
inline constexpr std::uint64_t kSpan = 2 * kMiB;

inline int may_wait = 1;
inline std::uint64_t threshold = 0;
inline std::vector<api::CUevent> awaited;

inline api::CUmemPoolProps plain_pool() {
  api::CUmemPoolProps properties{};
  properties.allocType = api::CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {.type = api::CU_MEM_LOCATION_TYPE_DEVICE, .id = 0};
  return properties;
}

struct Served : Fixture {
  explicit Served(std::uint64_t limit = 64 * kMiB, memory::Choice backend = memory::Choice::kManaged)
      : Fixture({.backend = backend, .limit_bytes = limit}) {
    may_wait = 1;
    threshold = UINT64_MAX;
    awaited.clear();
    driver.set<api::cuDeviceGetDefaultMemPool_fn>(Symbol::k_cuDeviceGetDefaultMemPool,
                                                  [](api::CUmemoryPool* own, api::CUdevice) {
                                                    *own = kPool;
                                                    return api::CUDA_SUCCESS;
                                                  });
    driver.set<api::cuStreamGetId_fn>(Symbol::k_cuStreamGetId, [](api::CUstream stream, unsigned long long* number) {
      *number = reinterpret_cast<std::uintptr_t>(stream);
      return api::CUDA_SUCCESS;
    });
    driver.set<api::cuMemPoolGetAttribute_fn>(Symbol::k_cuMemPoolGetAttribute,
                                              [](api::CUmemoryPool, api::CUmemPool_attribute which, void* value) {
                                                if (which == api::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD)
                                                  std::memcpy(value, &threshold, sizeof threshold);
                                                if (which == api::CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES) {
                                                  std::memcpy(value, &may_wait, sizeof may_wait);
                                                }
                                                return api::CUDA_SUCCESS;
                                              });
    driver.set<api::cuStreamWaitEvent_fn>(Symbol::k_cuStreamWaitEvent, [](api::CUstream, api::CUevent event, unsigned) {
      awaited.push_back(event);
      return api::CUDA_SUCCESS;
    });
    context = driver.enter_context(0);
  }
  api::CUresult take(std::uint64_t bytes, api::CUdeviceptr* into, api::CUstream stream = kStream,
                     bool capturing = false) {
    return memory.allocate_async({.address = into, .bytes = bytes, .stream = stream, .capturing = capturing}, no_call);
  }
  api::CUdeviceptr taken(std::uint64_t bytes, api::CUstream stream = kStream) {
    api::CUdeviceptr address = 0;
    REQUIRE(take(bytes, &address, stream) == api::CUDA_SUCCESS);
    return address;
  }
  void free(api::CUdeviceptr address, api::CUstream stream = kStream) {
    REQUIRE(memory.free_async(address, stream, false, no_call) == api::CUDA_SUCCESS);
  }
  void work() { driver.submitted.fetch_add(1); }
  void finish() { driver.finished.store(driver.submitted.load()); }
  std::uint64_t attribute(api::CUmemPool_attribute which) {
    std::uint64_t value = 0;
    memory.add_pool_attribute(kPool, which, &value);
    return value;
  }
  // The live bytes after a sweep, which checks for several frees at a time whether the program's streams have passed
  // them.
  std::uint64_t live_bytes() {
    memory.sweep_deferred();
    return ledger.live_bytes(0);
  }
  void set_threshold(std::uint64_t bytes) {
    threshold = bytes;
    memory.pool_attribute_set(kPool, api::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD);
  }
  std::uint64_t reserved() { return attribute(api::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT); }
  api::CUcontext context = nullptr;
};

// Memory that a stream got behind its own work and that is freed without a stream is not reused before that work has
// finished.
inline void expect_to_wait_for_earlier_work(Served& f) {
  const api::CUdeviceptr first = f.taken(kSpan);
  f.work();
  f.free(first);
  REQUIRE(f.taken(kSpan) == first);
  REQUIRE(f.memory.free_waiting(first, false, no_call) == api::CUDA_SUCCESS);  // unused, so its own use is over
  CHECK(f.taken(kSpan, kOther) != first);
  f.finish();
  CHECK(f.taken(kSpan, kOther) == first);
  CHECK(f.live_bytes() == 2 * kSpan);
}

}  // namespace rota::test
