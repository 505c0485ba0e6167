// What the rules about memory pools share.
#pragma once

#include "tests/simgpu/conformance/conformance.h"

inline CUmemPoolProps device_pool_properties(CUdevice device) {
  CUmemPoolProps properties{};
  properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = device;
  return properties;
}

// A pool of the rule's own, destroyed at the end.
class OwnPool {
 public:
  explicit OwnPool(const CUmemPoolProps& properties) { CHECK_OK(cu.cuMemPoolCreate(&pool_, &properties)); }
  explicit OwnPool(const Session& session) : OwnPool(device_pool_properties(session.device())) {}
  ~OwnPool() {
    if (pool_ != nullptr) cu.cuMemPoolDestroy(pool_);
  }
  OwnPool(const OwnPool&) = delete;
  OwnPool& operator=(const OwnPool&) = delete;
  operator CUmemoryPool() const { return pool_; }  // NOLINT(google-explicit-constructor)
  CUmemoryPool release() { return std::exchange(pool_, nullptr); }

 private:
  CUmemoryPool pool_ = nullptr;
};

template <class T>
T pool_attribute(CUmemoryPool pool, CUmemPool_attribute attribute) {
  T value{};
  CHECK_OK(cu.cuMemPoolGetAttribute(pool, attribute, &value));
  return value;
}
inline uint64_t used_now(CUmemoryPool pool) {
  return pool_attribute<uint64_t>(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT);
}
inline uint64_t reserved_now(CUmemoryPool pool) {
  return pool_attribute<uint64_t>(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);
}
inline void keep_everything(CUmemoryPool pool) {
  uint64_t threshold = UINT64_MAX;
  CHECK_OK(cu.cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold));
}
inline CUdeviceptr allocate_from(CUmemoryPool pool, size_t bytes, CUstream stream) {
  CUdeviceptr address = 0;
  CHECK_OK(cu.cuMemAllocFromPoolAsync(&address, bytes, pool, stream));
  return address;
}
inline constexpr size_t kMiB = size_t{1} << 20;
