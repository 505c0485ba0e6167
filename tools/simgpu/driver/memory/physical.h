// Physical memory, created by cuMemCreate and mapped by cuMemMap. It lives as long as handles, mappings or other
// processes hold it.
#pragma once

#include <memory>
#include <mutex>
#include <unordered_map>

#include "tools/simgpu/driver/memory/address_space.h"

namespace rota::sim {

struct Physical {
  CUmemAllocationProp properties{};
  uint64_t bytes = 0;
  uint64_t block_id = 0;   // CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID: the same wherever the handle is mapped
  int gpu = 0;             // 0 for memory on the host
  Pages pages;             // in the process's memfd, or in a separate one if it can be exported
  bool own_file = false;   // pages.fd belongs to it
  uint64_t charged = 0;    // plain device bytes taken from the shared state
  uint64_t shared_id = 0;  // in the shared state, instead of `charged`

  Physical() = default;
  ~Physical();  // releases everything
  Physical(const Physical&) = delete;
  Physical& operator=(const Physical&) = delete;

  bool on_gpu() const { return properties.location.type == CU_MEM_LOCATION_TYPE_DEVICE; }
};
using PhysicalPointer = std::shared_ptr<Physical>;

// The handles to physical memory that the program holds. A handle counts its references (cuMemRetainAllocationHandle).
class PhysicalMemory {
 public:
  // Invalid value: the properties contradict each other; invalid device; out of memory.
  CUresult create(uint64_t bytes, const CUmemAllocationProp& properties, CUmemGenericAllocationHandle* handle);
  PhysicalPointer find(CUmemGenericAllocationHandle handle) const;
  CUmemGenericAllocationHandle retain(const PhysicalPointer& physical);
  CUresult release(CUmemGenericAllocationHandle handle);

  // A new descriptor that identifies the memory in any process.
  CUresult export_file(CUmemGenericAllocationHandle handle, int* file) const;
  CUresult import_file(int file, CUmemGenericAllocationHandle* handle);

  // What is wrong with the properties, or success.
  static CUresult check(const CUmemAllocationProp& properties);

 private:
  struct Held {
    PhysicalPointer physical;
    unsigned references = 0;
  };
  mutable std::mutex mutex_;
  std::unordered_map<CUmemGenericAllocationHandle, Held> held_;
};

// Whether the GPUs can decompress at all, and whether they can with memory of this allocation, which must be plain or
// created for that.
bool decompresses();
bool decompressible(const Allocation& allocation);

// A memfd of this length with `text` in its name; -1 on failure.
int make_named_file(const char* name, uint64_t bytes);
// The name of a memfd; empty: not a memfd.
std::string file_name(int file);

}  // namespace rota::sim
