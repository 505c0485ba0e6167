// What the rules about managed memory share.
#pragma once

#include "tests/simgpu/conformance/release.h"

namespace conformance {

inline constexpr size_t kMiB = size_t{1} << 20;

inline CUmemLocation location(CUmemLocationType type, int id) {
  CUmemLocation value{};
  value.type = type;
  value.id = id;
  return value;
}

inline int range_attribute(CUdeviceptr address, size_t bytes, CUmem_range_attribute which) {
  int value = 12345;
  CHECK_OK(cu.cuMemRangeGetAttribute(&value, sizeof value, which, address, bytes));
  return value;
}

// Managed memory, freed at the end. Skips the rule where the GPU has no concurrent managed access.
class Managed {
 public:
  explicit Managed(size_t bytes) : bytes_(bytes) {
    int concurrent = 0;
    CUdevice device = 0;
    CHECK_OK(cu.cuCtxGetDevice(&device));
    CHECK_OK(cu.cuDeviceGetAttribute(&concurrent, CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, device));
    SKIP_UNLESS(concurrent != 0, "needs concurrent managed access");
    CHECK_OK(cu.cuMemAllocManaged(&address_, bytes, CU_MEM_ATTACH_GLOBAL));
  }
  ~Managed() { cu.cuMemFree_v2(address_); }
  Managed(const Managed&) = delete;
  Managed& operator=(const Managed&) = delete;

  operator CUdeviceptr() const { return address_; }  // NOLINT(google-explicit-constructor)
  CUdeviceptr address() const { return address_; }
  unsigned* words() const { return reinterpret_cast<unsigned*>(address_); }
  int attribute(CUmem_range_attribute which) const { return range_attribute(address_, bytes_, which); }
  void set_preferred(size_t bytes, CUdevice device) const {
    CHECK_OK(cu.cuMemAdvise(address_, bytes, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, device));
  }

 private:
  CUdeviceptr address_ = 0;
  size_t bytes_;
};

}  // namespace conformance
