// Stream-ordered memory that rota serves with extents behind it, over the fake driver: frees go to the quick list.
#pragma once

#include "tests/unit/runtime/memory/served_fixture.h"
#include "tests/unit/runtime/monitor/mapping_driver.h"

namespace rota::test {

struct Swapped : Served {
  // `free`: the GPU's free memory according to the driver.
  explicit Swapped(std::uint64_t limit = 64 * kMiB, std::size_t free = 1024 * kMiB)
      : Served(limit, memory::Choice::kSwap) {
    maps(driver);
    free_on_gpu = free;
    driver.set<api::cuMemGetInfo_v2_fn>(Symbol::k_cuMemGetInfo_v2, [](std::size_t* left, std::size_t* total) {
      *left = free_on_gpu;
      *total = 1024 * kMiB;
      return api::CUDA_SUCCESS;
    });
    memory.set_served(true);
    driver.set<api::cuDeviceGetAttribute_fn>(
        Symbol::k_cuDeviceGetAttribute, [](int* value, api::CUdevice_attribute which, api::CUdevice) {
          *value = which != api::CU_DEVICE_ATTRIBUTE_MPS_ENABLED &&
                   which != api::CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES;
          return api::CUDA_SUCCESS;
        });
  }
  static inline std::size_t free_on_gpu;
};

}  // namespace rota::test
