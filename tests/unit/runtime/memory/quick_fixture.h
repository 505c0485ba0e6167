// Stream-ordered memory that rota serves with extents behind it, over the fake driver: frees go to the quick list.
#pragma once

#include "tests/unit/runtime/memory/served_fixture.h"
#include "tests/unit/runtime/turn/mapping_driver.h"

namespace rota::test {

struct Swapped : Served {
  explicit Swapped(std::uint64_t limit = 64 * kMiB) : Served(limit, memory::Choice::kSwap) {
    maps(driver);
    memory.set_served(true);
    memory.swap().set_asked(true);
    driver.set<api::cuDeviceGetAttribute_fn>(
        Symbol::k_cuDeviceGetAttribute, [](int* value, api::CUdevice_attribute which, api::CUdevice) {
          *value = which != api::CU_DEVICE_ATTRIBUTE_MPS_ENABLED &&
                   which != api::CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES;
          return api::CUDA_SUCCESS;
        });
  }
};

}  // namespace rota::test
