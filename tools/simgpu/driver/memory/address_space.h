// The layout of the process's simulated GPU memory. Device pointers come from a window that host code cannot read or
// write (PROT_NONE), as on a machine with a GPU; the bytes are at a fixed offset from it, and kernels access them
// through storage(). Managed, pinned and registered memory has one address for both sides.
//
// The bytes are pages of a memfd, which other processes can open through /proc (legacy IPC). A part of the window may
// map other pages than its own: physical memory mapped there, a pool's pages, or another process's.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <shared_mutex>
#include <vector>

#include "tools/simgpu/driver/api.h"
#include "tools/simgpu/driver/memory/free_ranges.h"

namespace rota::sim {

constexpr uint64_t round_up(uint64_t bytes, uint64_t step) {
  return (bytes + step - 1) / step * step;
}

class Pool;
struct Physical;

enum class MemoryKind { kDevice, kManaged, kHost, kRegistered };

struct Allocation {
  uint64_t address = 0;
  uint64_t bytes = 0;  // as requested
  MemoryKind kind = MemoryKind::kDevice;
  int gpu = 0;
  CUcontext context = nullptr;    // null: the memory belongs to the process, not to a context
  uint64_t charged = 0;           // plain device bytes taken from the shared state
  uint32_t managed_id = 0;        // in the shared state
  uint64_t shared_id = 0;         // in the shared state: exported to or opened from another process; not charged above
  unsigned flags = 0;             // as given to cuMemHostAlloc, cuMemHostRegister or cuMemAllocManaged
  bool freeing = false;           // cuMemFreeAsync was called, but the stream has not reached it
  bool imported = false;          // another process's memory, opened here
  bool graph = false;             // of a graph's memory node; the device's graph memory holds the charge
  uint64_t buffer_id = 0;         // CU_POINTER_ATTRIBUTE_BUFFER_ID: never reused
  uint64_t mapped = 0;            // length of the window slot or mapping
  std::shared_ptr<void> mapping;  // of managed and pinned memory: lives as long as any copy of this
  std::shared_ptr<Pool> pool;     // the pool that it was allocated (or imported) from
  std::shared_ptr<Physical> physical;  // mapped by cuMemMap
  // Which GPUs may use memory mapped by cuMemMap, one bit each.
  uint32_t readable = ~0U;
  uint32_t writable = ~0U;
  bool host_readable = false;  // for physical memory on the host
  bool host_writable = false;

  // Whether cuMemSetAccess or cuMemPoolSetAccess allows this GPU to use it. Peer access to other memory is not known
  // here.
  bool accessible(int accessing_gpu, bool write) const;
};

// Pages of a memfd.
struct Pages {
  int fd = -1;
  uint64_t offset = 0;
};

class AddressSpace {
 public:
  // The size of each window; smaller if the machine (an address space limit, ThreadSanitizer's layout) does not allow
  // it.
  static constexpr uint64_t kWindowBytes = uint64_t{1} << 40;
  static constexpr uint64_t kWindowBytesAtLeast = uint64_t{8} << 30;
  // Device memory is allocated and charged in multiples of this; cuMemAlloc's addresses have at least this alignment.
  static constexpr uint64_t kGranularity = 512;
  // Physical memory, reservations and mappings are multiples of this, which cuMemGetAllocationGranularity returns.
  static constexpr uint64_t kLargePage = uint64_t{2} << 20;
  // The memory of two GPUs is at least this far apart. NVIDIA's driver has it in separate large pages.
  static constexpr uint64_t kApart = uint64_t{64} << 10;

  // The name of the memfd that holds the process's device memory.
  static constexpr const char* kFileName = "simgpu-device-memory";

  // False if the machine refuses to reserve the windows (address space limit).
  bool reserve();

  // Each sets allocation.address (and mapped, buffer_id) and records it; false: no address space or host memory left.
  bool add_device(Allocation* allocation);
  bool add_mapped(Allocation* allocation);      // managed and pinned: allocated by simgpu
  bool add_registered(Allocation* allocation);  // address given; false if it overlaps registered or own memory
  bool add_in_segment(Allocation* allocation);  // address given, inside a segment; false: it is already in use
  bool add_foreign(Allocation* allocation, Pages pages);  // device memory that maps these pages

  // A part of the window that a pool allocates from in pieces. Kernels may access all of it while it exists, as they
  // may access memory that a real pool keeps mapped: work queued before a cuMemFreeAsync outlives the allocation's
  // record. 0: no address space left. If pages are given, it maps those.
  uint64_t add_segment(uint64_t bytes, int gpu, Pages pages);
  void remove_segment(uint64_t address);
  // The segment that holds the address.
  struct Block {
    uint64_t address = 0;
    uint64_t bytes = 0;
    uint64_t id = 0;  // CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID of everything in it
  };
  std::optional<Block> segment(uint64_t address) const;
  // A number that no buffer, segment or physical memory of this process has.
  uint64_t new_id();

  // cuMemAddressReserve: alignment 0 or a power of two; the hint is used if that part of the window is free. 0: no
  // address space left.
  uint64_t add_reservation(uint64_t bytes, uint64_t alignment, uint64_t hint);
  // Start and length must be the reservation's. Also invalid value while something is mapped there.
  CUresult remove_reservation(uint64_t address, uint64_t bytes);
  struct Reservation {
    uint64_t address = 0;
    uint64_t bytes = 0;
  };
  std::optional<Reservation> reservation(uint64_t address) const;
  // Maps physical memory in a reservation; no GPU has access yet.
  CUresult map(uint64_t address, uint64_t bytes, const std::shared_ptr<Physical>& physical);
  // Whether the range consists of whole mappings without gaps.
  bool whole_mappings(uint64_t address, uint64_t bytes) const;
  CUresult unmap(uint64_t address, uint64_t bytes);
  CUresult set_access(uint64_t address, uint64_t bytes, int gpu, bool read, bool write);
  // The host's access to physical memory on the host.
  CUresult set_host_access(uint64_t address, uint64_t bytes, bool read, bool write);

  // The allocation that contains the address, or, for memory freed in stream order, the segment of its pool, where work
  // queued earlier may still run.
  std::optional<Allocation> find_for_work(uint64_t address) const;
  // The allocation that contains the address.
  std::optional<Allocation> find(uint64_t address) const;
  // Removes the record if address is its start. The bytes stay until release(), since work may still use them. With a
  // buffer id, removes only that buffer, not a later one at its address.
  std::optional<Allocation> remove(uint64_t address, uint64_t buffer_id = 0);
  // False if it is being freed already, or gone.
  bool mark_freeing(uint64_t address, uint64_t buffer_id);
  void unmark_freeing(uint64_t address, uint64_t buffer_id);  // the stream did not accept the free
  // Marks the allocation as shared with other processes. False: it does not exist, or is already shared.
  bool mark_shared(uint64_t address, uint64_t shared_id);
  // Releases the bytes. Without `reuse` the slot is never used again: another process uses its pages.
  static void unmap(const Allocation& allocation, AddressSpace* space, bool reuse = true);

  // Host address of the bytes; null unless [address, address + bytes) is inside one allocation (adjacent mappings of
  // physical memory count as one) that the GPU may use. gpu -1: any GPU.
  void* storage(uint64_t address, uint64_t bytes, int gpu = -1, bool write = false) const;
  // False if cuMemSetAccess or cuMemPoolSetAccess did not give the GPU this access to all of the bytes; true for other
  // memory.
  bool allowed(uint64_t address, uint64_t bytes, int gpu, bool write) const;
  void* storage_of(const Allocation& device_allocation) const {
    return reinterpret_cast<void*>(device_allocation.address + offset_);
  }
  bool in_device_window(uint64_t address) const { return address - window_ < window_bytes_; }
  // The pages at a device address allocated by add_device().
  Pages pages(uint64_t address) const { return {storage_fd_, address - window_}; }

  // Pages of the process's memfd that are not in the window until they are mapped. UINT64_MAX offset: none left.
  Pages take_pages(uint64_t bytes);
  void give_back_pages(uint64_t offset, uint64_t bytes);

  // All allocations of a context, for its destruction.
  std::vector<Allocation> of_context(CUcontext context) const;

 private:
  struct Segment {
    uint64_t bytes = 0;
    int gpu = 0;
    uint64_t id = 0;
  };
  // Under the mutex. Slots that are smaller than a large page share it with those of the same GPU only, as the
  // driver's.
  uint64_t take_slot(uint64_t bytes, uint64_t step, int gpu, uint64_t* length);
  void give_slot(uint64_t start, uint64_t length, int gpu);
  static int owner_of(uint64_t length, int gpu) { return length < kLargePage ? gpu : kNoGpu; }
  bool show(uint64_t address, uint64_t bytes, Pages pages) const;
  bool show_own(uint64_t address, uint64_t bytes) const;
  void hide_from_host(uint64_t address, uint64_t bytes) const;
  const Allocation* at(uint64_t address) const;
  bool tiled(uint64_t address, uint64_t bytes) const;

  mutable std::shared_mutex mutex_;
  std::map<uint64_t, Allocation> allocations_;    // by start
  std::map<uint64_t, Segment> segments_;          // by start
  std::map<uint64_t, Reservation> reservations_;  // by start
  std::set<uint64_t> were_mapped_;                // for the mutation access_outlives_mappings
  static constexpr int kNoGpu = -1;
  std::map<int, std::multimap<uint64_t, uint64_t>> free_by_size_;  // free window slots, by owner: length -> start
  FreeRanges free_pages_;                                          // of the pages after the window's own
  uint64_t window_ = 0;
  uint64_t window_bytes_ = 0;
  uint64_t offset_ = 0;  // storage = address + offset_
  uint64_t next_ = 0;    // first address of the window that has never been used
  int before_next_ = 0;  // the owner of what lies before that
  uint64_t next_buffer_id_ = 1;
  int storage_fd_ = -1;  // its first window_bytes_ are the window's own pages
};

}  // namespace rota::sim
