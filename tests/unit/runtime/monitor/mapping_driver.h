// A driver with just enough virtual memory management for swap memory that is neither evicted nor examined.
#pragma once

#include <atomic>
#include <cstdint>

#include "tests/unit/runtime/fake_driver.h"

namespace rota::test {

inline std::atomic<std::uint64_t> next_address;

inline void maps(FakeDriver& driver) {
  constexpr std::size_t kGranularity = std::size_t{2} << 20;
  next_address = 0x700000000;
  driver.set<api::cuMemGetAllocationGranularity_fn>(
      Symbol::k_cuMemGetAllocationGranularity,
      [](std::size_t* bytes, const api::CUmemAllocationProp*, api::CUmemAllocationGranularity_flags) {
        *bytes = kGranularity;
        return api::CUDA_SUCCESS;
      });
  driver.set<api::cuMemAddressReserve_fn>(
      Symbol::k_cuMemAddressReserve,
      [](api::CUdeviceptr* address, std::size_t bytes, std::size_t, api::CUdeviceptr, unsigned long long) {
        *address = next_address.fetch_add(bytes);
        return api::CUDA_SUCCESS;
      });
  driver.set<api::cuMemCreate_fn>(Symbol::k_cuMemCreate, [](api::CUmemGenericAllocationHandle* handle, std::size_t,
                                                            const api::CUmemAllocationProp*, unsigned long long) {
    *handle = 1;
    return api::CUDA_SUCCESS;
  });
  driver.set<api::cuMemMap_fn>(Symbol::k_cuMemMap,
                               [](api::CUdeviceptr, std::size_t, std::size_t, api::CUmemGenericAllocationHandle,
                                  unsigned long long) { return api::CUDA_SUCCESS; });
  driver.set<api::cuMemUnmap_fn>(Symbol::k_cuMemUnmap, [](api::CUdeviceptr, std::size_t) { return api::CUDA_SUCCESS; });
  driver.set<api::cuMemRelease_fn>(Symbol::k_cuMemRelease,
                                   [](api::CUmemGenericAllocationHandle) { return api::CUDA_SUCCESS; });
  driver.set<api::cuMemSetAccess_fn>(
      Symbol::k_cuMemSetAccess,
      [](api::CUdeviceptr, std::size_t, const api::CUmemAccessDesc*, std::size_t) { return api::CUDA_SUCCESS; });
}

}  // namespace rota::test
