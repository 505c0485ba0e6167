// An extent's physical memory: how it is created, and how it passes from one process to another instead of back to the
// driver, which zeroes freed memory before it allocates it again.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "generated/driver_types.h"
#include "runtime/driver/memory_descriptor.h"
#include "runtime/memory/move.h"

namespace rota::memory {

using PhysicalHandle = api::CUmemGenericAllocationHandle;  // 0: none

// Extents of at least this many bytes are handed over. Passing one on costs some 0.2 ms of driver calls whatever its
// size (measured on an H200), so small ones would cost more than zeroing.
inline constexpr std::uint64_t kLeastHandedOver = std::uint64_t{16} << 20;

// A large allocation on each GPU begins with extents of this size. While the first extent of a move is evicted, and
// while the last is restored, one of the two copy engines is idle: with these extents for a quarter of the time.
inline constexpr std::uint64_t kSmallExtent = std::uint64_t{32} << 20;

// The properties of memory that the program creates itself: memory that replaces it later gets the same.
struct Making {
  bool exportable = false;  // a descriptor of it can be made
  bool for_rdma = false;    // other devices can reach it
  auto operator<=>(const Making&) const = default;
};

// The properties to create a GPU's memory with. Where the device can decompress into plain memory, it can into all of
// this, too: a program need not have asked for that.
api::CUmemAllocationProp physical_properties(int device, const Making& making);
// Whether these properties ask for memory that the hardware can decompress into.
bool made_for_decompression(int device);
// The driver refuses to create such memory after all.
void make_without_decompression(int device);
// Whether the driver makes descriptors of this GPU's memory.
bool has_exportable_memory(int device);

// Physical memory that this process holds.
struct PhysicalMemory {
  PhysicalHandle handle = 0;
  // The descriptor with which another process handed it over: the driver creates descriptors only in the process that
  // allocated the memory (measured on an H100).
  SharedDescriptor memory;

  explicit operator bool() const { return handle != 0; }
};

// The descriptor to hand it over with; null: it goes back to the driver.
SharedDescriptor descriptor_of(const PhysicalMemory& physical, std::uint64_t bytes, const Exchange& exchange);

// Memory that has been handed over to this process and is not mapped yet. What is unused when this object ends goes
// back to the driver.
class HandedOver {
 public:
  // Gives an extent of this many bytes back to the driver.
  using Release = std::function<void(std::uint64_t bytes, PhysicalMemory&& physical)>;
  // `exchange` must outlive this object.
  HandedOver(int device, const Exchange& exchange, Release release)
      : device_(device), exchange_(exchange), release_(std::move(release)) {}
  ~HandedOver() { release(); }
  HandedOver(const HandedOver&) = delete;
  HandedOver& operator=(const HandedOver&) = delete;

  // Imports the extents that have arrived.
  void collect();
  bool has(std::uint64_t bytes) const;
  bool empty() const { return arrived_.empty(); }
  // An extent of this size; empty if there is none.
  PhysicalMemory take(std::uint64_t bytes);
  // Gives all of it back to the driver. Returns whether there was any.
  bool release();
  // Whether any extent has ever arrived.
  bool any_came() const { return any_came_; }

 private:
  struct Arrived {
    std::uint64_t bytes;
    PhysicalMemory physical;
  };
  const int device_;
  const Exchange& exchange_;
  const Release release_;
  std::vector<Arrived> arrived_;
  bool any_came_ = false;
};

}  // namespace rota::memory
