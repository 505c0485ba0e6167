// What librota-nvml.so asks the core before it answers a query about memory. Plain C data, since the two are linked
// separately and may be of different builds.
#pragma once

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// Raise it with every change of the struct or of what its members mean.
enum { kRotaGpuMemoryVersion = 1 };

// Bytes of one GPU. In: what the driver says of the whole GPU. Out: what this process sees, free never above total.
struct RotaGpuMemory {
  uint64_t total;
  uint64_t free;
  // Out only: what this process has allocated there by CUDA.
  uint64_t own;
};

// `uuid` is the GPU's, as NVML writes it: "GPU-6ba7b810-9dad-11d1-80b4-00c04fd430c8". Returns 1 if `memory` was
// changed; 0 if the driver's figures apply: this process has no limit, this is not a GPU, or the version differs. With
// both null, 1 means that this process has a limit. Never throws, and waits no longer than rotad needs to say what a
// limit is. Any thread may call, also one that has never called CUDA and before rota_core_attach.
typedef int RotaCoreGpuMemory(uint32_t version, const char* uuid, struct RotaGpuMemory* memory);
#define ROTA_CORE_GPU_MEMORY_NAME "rota_core_gpu_memory"

// A process can have a limit only where this is set, or where the core is loaded already.
#define ROTA_LIMIT_VARIABLE "ROTA_GPU_MEM_LIMIT"

#ifdef __cplusplus
}
#endif
