// Where the process's simulated GPU memory lies. Device pointers come from a window that host code cannot read or
// write (PROT_NONE), as on a machine with a GPU; the bytes lie at a fixed offset from there, and kernels get to them
// through storage(). Managed, pinned and registered memory has one address for both sides.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <shared_mutex>
#include <vector>

#include "tools/simgpu/driver/api.h"

namespace rota::sim {

enum class MemoryKind { kDevice, kManaged, kHost, kRegistered };

struct Allocation {
  uint64_t address = 0;
  uint64_t bytes = 0;  // as asked for
  MemoryKind kind = MemoryKind::kDevice;
  int gpu = 0;
  CUcontext context = nullptr;
  uint64_t charged = 0;     // plain device bytes taken from the shared state
  uint32_t managed_id = 0;  // in the shared state
  unsigned flags = 0;       // as given to cuMemHostAlloc, cuMemHostRegister or cuMemAllocManaged
  bool from_pool = false;   // cuMemAllocAsync
  bool freeing = false;     // cuMemFreeAsync was called; the stream has not got there
  uint64_t buffer_id = 0;   // CU_POINTER_ATTRIBUTE_BUFFER_ID: never given twice
  uint64_t mapped = 0;      // length of the window slot or mapping
};

class AddressSpace {
 public:
  // Of each window; less where the machine (an address space limit, ThreadSanitizer's layout) does not give so much.
  static constexpr uint64_t kWindowBytes = uint64_t{1} << 40;
  static constexpr uint64_t kWindowBytesAtLeast = uint64_t{8} << 30;
  // Device memory is handed out and charged in these steps; cuMemAlloc's addresses are at least this aligned.
  static constexpr uint64_t kGranularity = 512;

  // False if the machine refuses to reserve the windows (address space limit).
  bool reserve();

  // Each sets allocation.address (and mapped, buffer_id) and records it; false: no address space or host memory left.
  bool add_device(Allocation* allocation);
  bool add_mapped(Allocation* allocation);      // managed and pinned: memory of our own
  bool add_registered(Allocation* allocation);  // address given; false if it overlaps registered or own memory

  // The allocation that holds the address.
  std::optional<Allocation> find(uint64_t address) const;
  // Takes the record out, when address is its start; the bytes stay until release(): work may still use them.
  std::optional<Allocation> remove(uint64_t address);
  // False if it is being freed already.
  bool mark_freeing(uint64_t address);
  static void unmap(const Allocation& allocation, AddressSpace* space);

  // Host address of the bytes, or null unless [address, address + bytes) lies in one allocation.
  void* storage(uint64_t address, uint64_t bytes) const;
  bool in_device_window(uint64_t address) const { return address - window_ < window_bytes_; }

  // All allocations of a context, for its destruction.
  std::vector<Allocation> of_context(CUcontext context) const;

 private:
  mutable std::shared_mutex mutex_;
  std::map<uint64_t, Allocation> allocations_;      // by start
  std::multimap<uint64_t, uint64_t> free_by_size_;  // window slots given back: length -> start
  uint64_t window_ = 0;
  uint64_t window_bytes_ = 0;
  uint64_t offset_ = 0;  // storage = address + offset_
  uint64_t next_ = 0;    // first address of the window that was never used
  uint64_t next_buffer_id_ = 1;
};

}  // namespace rota::sim
