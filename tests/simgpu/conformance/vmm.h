// What the rules about virtual memory management share.
#pragma once

#include "tests/simgpu/conformance/conformance.h"

inline CUmemAllocationProp physical_properties(CUdevice device, bool exportable = false) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = device;
  if (exportable) properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  return properties;
}
inline size_t granularity(CUdevice device) {
  CUmemAllocationProp properties = physical_properties(device);
  size_t bytes = 0;
  CHECK_OK(cu.cuMemGetAllocationGranularity(&bytes, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
  return bytes;
}
inline CUmemGenericAllocationHandle create_physical(CUdevice device, size_t bytes, bool exportable = false) {
  CUmemAllocationProp properties = physical_properties(device, exportable);
  CUmemGenericAllocationHandle handle = 0;
  CHECK_OK(cu.cuMemCreate(&handle, bytes, &properties, 0));
  return handle;
}
inline CUdeviceptr reserve(size_t bytes, size_t alignment = 0) {
  CUdeviceptr address = 0;
  CHECK_OK(cu.cuMemAddressReserve(&address, bytes, alignment, 0, 0));
  return address;
}
inline CUresult set_access(CUdeviceptr address, size_t bytes, CUdevice device,
                           CUmemAccess_flags flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE) {
  CUmemAccessDesc wanted{};
  wanted.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  wanted.location.id = device;
  wanted.flags = flags;
  return cu.cuMemSetAccess(address, bytes, &wanted, 1);
}
inline unsigned long long access_of(CUdeviceptr address, CUdevice device) {
  CUmemLocation location{};
  location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  location.id = device;
  unsigned long long flags = 99;
  CHECK_OK(cu.cuMemGetAccess(&flags, &location, address));
  return flags;
}
// Maps the handle's memory in a new reservation, with access for the device.
inline CUdeviceptr map_somewhere(CUmemGenericAllocationHandle handle, size_t bytes, CUdevice device) {
  CUdeviceptr address = reserve(bytes);
  CHECK_OK(cu.cuMemMap(address, bytes, 0, handle, 0));
  CHECK_OK(set_access(address, bytes, device));
  return address;
}
inline void unmap_and_free(CUdeviceptr address, size_t bytes) {
  CHECK_OK(cu.cuMemUnmap(address, bytes));
  CHECK_OK(cu.cuMemAddressFree(address, bytes));
}
inline unsigned first_word(CUdeviceptr address) {
  unsigned word = 0;
  CHECK_OK(cu.cuMemcpyDtoH_v2(&word, address, sizeof word));
  return word;
}
inline void set_first_word(CUdeviceptr address, unsigned word) {
  CHECK_OK(cu.cuMemcpyHtoD_v2(address, &word, sizeof word));
}
inline size_t free_memory() {
  size_t free = 0;
  size_t total = 0;
  CHECK_OK(cu.cuMemGetInfo_v2(&free, &total));
  return free;
}
