// The part of NVML's interface that rota uses: rota's own declarations, with their sizes checked. Every function
// returns an int (nvmlReturn_t), but for nvmlErrorString.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace rota::nvml {

// nvmlReturn_t
inline constexpr int kSuccess = 0;
inline constexpr int kLibraryNotFound = 12;
inline constexpr int kFunctionNotFound = 13;

using Device = void*;  // nvmlDevice_t

// Later structs begin with their size and, in the highest byte, their version.
template <class Struct>
inline constexpr uint32_t version_word(uint32_t version) {
  return static_cast<uint32_t>(sizeof(Struct)) | version << 24;
}

// nvmlMemory_t. All in bytes.
struct Memory {
  uint64_t total;
  uint64_t free;
  uint64_t used;
};

// nvmlMemory_v2_t
struct MemoryV2 {
  uint32_t version;
  uint64_t total;
  uint64_t reserved;  // by the driver and the GPU's firmware
  uint64_t free;
  uint64_t used;
};
inline constexpr uint32_t kMemoryV2 = version_word<MemoryV2>(2);

// For a process whose memory the driver does not know.
inline constexpr uint64_t kNotAvailable = ~uint64_t{0};

// nvmlProcessInfo_v1_t, for the functions without a suffix.
struct ProcessInfoV1 {
  uint32_t pid;
  uint64_t used_memory;
};

// nvmlProcessInfo_v2_t, for _v2 and _v3.
struct ProcessInfoV2 {
  uint32_t pid;
  uint64_t used_memory;
  uint32_t gpu_instance;
  uint32_t compute_instance;
};

// nvmlProcessDetail_v1_t
struct ProcessDetail {
  uint32_t pid;
  uint64_t used_memory;
  uint32_t gpu_instance;
  uint32_t compute_instance;
  uint64_t used_protected_memory;
};

// nvmlProcessDetailList_v1_t
struct ProcessDetailList {
  uint32_t version;
  uint32_t mode;
  uint32_t count;
  ProcessDetail* processes;
};
inline constexpr uint32_t kProcessDetailListV1 = version_word<ProcessDetailList>(1);

static_assert(sizeof(Memory) == 24 && kMemoryV2 == 0x02000028 && offsetof(MemoryV2, reserved) == 16);
static_assert(sizeof(ProcessInfoV1) == 16 && sizeof(ProcessInfoV2) == 24 && sizeof(ProcessDetail) == 32);
static_assert(kProcessDetailListV1 == 0x01000018 && offsetof(ProcessDetailList, processes) == 16);

}  // namespace rota::nvml
