// Memory that a program creates with cuMemCreate, for tests of how it moves.
#pragma once

#include "tests/unit/runtime/memory/on_simgpu/moving.h"

namespace rota::test {

using Handle = CUmemGenericAllocationHandle;

inline constexpr std::size_t kPiece = 4 * kMiB;
inline constexpr std::size_t kNotKept = kGpuBytes / 32;  // too large to be cached for what is created next
inline constexpr CUmemLocation kGpu{.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0};

inline Handle create(std::size_t bytes = kPiece, CUmemAllocationHandleType type = CU_MEM_HANDLE_TYPE_NONE) {
  CUmemAllocationProp what{};
  what.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  what.requestedHandleTypes = type;
  what.location = kGpu;
  Handle handle = 0;
  EXPECT_OK(cu.cuMemCreate(&handle, bytes, &what, 0));
  return handle;
}

inline CUdeviceptr reserve(std::size_t bytes) {
  CUdeviceptr address = 0;
  EXPECT_OK(cu.cuMemAddressReserve(&address, bytes, 0, 0, 0));
  return address;
}

inline CUresult allow(CUdeviceptr address, std::size_t bytes,
                      CUmemAccess_flags flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE, CUmemLocation who = kGpu) {
  const CUmemAccessDesc access{.location = who, .flags = flags};
  return cu.cuMemSetAccess(address, bytes, &access, 1);
}

inline CUdeviceptr map(Handle handle, std::size_t bytes = kPiece) {
  const CUdeviceptr address = reserve(bytes);
  EXPECT_OK(cu.cuMemMap(address, bytes, 0, handle, 0));
  EXPECT_OK(allow(address, bytes));
  return address;
}

inline void unmap(CUdeviceptr address, std::size_t bytes = kPiece) {
  EXPECT_OK(cu.cuMemUnmap(address, bytes));
  EXPECT_OK(cu.cuMemAddressFree(address, bytes));
}

inline void fill(CUdeviceptr address, unsigned char pattern, std::size_t bytes = kPiece) {
  EXPECT_OK(cu.cuMemsetD8_v2(address, pattern, bytes));
  EXPECT_OK(cu.cuCtxSynchronize());
}

inline unsigned long long access_of(CUdeviceptr address, CUmemLocation who = kGpu) {
  unsigned long long flags = 99;
  EXPECT_OK(cu.cuMemGetAccess(&flags, &who, address));
  return flags;
}

inline unsigned long long number_of(CUpointer_attribute attribute, CUdeviceptr address) {
  unsigned long long number = 0;
  EXPECT_OK(cu.cuPointerGetAttribute(&number, attribute, address));
  return number;
}

inline void go(const Carrier& carrier) {
  const Swap::Moved moved = swap().evict(0, kAll, const_cast<Carrier&>(carrier).mover());
  EXPECT(!moved.failed && swap().resident_bytes(0) == swap().pinned_bytes(0));
}

inline void come(const Carrier& carrier) {
  const Swap::Moved moved = swap().restore(0, const_cast<Carrier&>(carrier).mover());
  EXPECT(!moved.failed && moved.lacking == 0 && swap().all_in_place());
  EXPECT(swap().use_if_in_place(rota::memory::kAllDevices, [] {}));
}

}  // namespace rota::test
