// An extent's physical memory: how it is made, and how it goes from one process to another instead of back to the
// driver, which scrubs what it is given before anybody gets it again.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "generated/driver_types.h"
#include "runtime/driver/memory_descriptor.h"

namespace rota::memory {

using driver::Handed;
using driver::MemoryDescriptor;
using driver::SharedDescriptor;

using PhysicalHandle = api::CUmemGenericAllocationHandle;  // 0: none

// Extents of at least so many bytes are handed over. Passing one on costs some 0.2 ms of driver calls whatever its size
// (measured on an H200), so small ones would cost more than scrubbing does.
inline constexpr std::uint64_t kLeastHandedOver = std::uint64_t{16} << 20;

// How a program wants memory made that it makes itself: what is made in its place later is made the same way.
struct Making {
  bool exportable = false;  // a descriptor of it can be made
  bool for_rdma = false;    // other devices can reach it
  bool operator==(const Making&) const = default;
};

// Of a GPU's memory.
api::CUmemAllocationProp physical_properties(int device, const Making& making);
// Whether the driver makes descriptors of this GPU's memory.
bool has_exportable_memory(int device);

// How memory goes to other processes and comes from them. Either may be empty: it does not.
struct Exchange {
  // Passes a piece on to whoever takes it.
  std::function<void(int descriptor, std::uint64_t bytes)> give;
  // The next piece that has arrived, or nothing. Does not wait.
  std::function<std::optional<Handed>()> take;
};

// Physical memory as this process has it.
struct Piece {
  PhysicalHandle handle = 0;
  // By which it came, where another process has handed it over: the driver makes descriptors of memory only in the
  // process that it was created in (measured on an H100).
  SharedDescriptor memory;

  explicit operator bool() const { return handle != 0; }
};

// A descriptor of it goes to whoever takes it; the handle stays the caller's.
void hand_over(const Piece& piece, std::uint64_t bytes, const Exchange& exchange);

// What has been handed over to this process and is mapped nowhere yet. What nobody has used by its end goes back to the
// driver.
class HandedOver {
 public:
  // Both outlive this.
  HandedOver(int device, const Exchange& exchange) : device_(device), exchange_(exchange) {}
  ~HandedOver() { release(); }
  HandedOver(const HandedOver&) = delete;
  HandedOver& operator=(const HandedOver&) = delete;

  // Looks at what has arrived.
  void collect();
  bool has(std::uint64_t bytes) const;
  bool empty() const { return pieces_.empty(); }
  // A piece of this size; an empty one: there is none.
  Piece take(std::uint64_t bytes);
  // Gives all of it to the driver. Whether there was any.
  bool release();
  // Whether any piece has ever come.
  bool any_came() const { return any_came_; }

 private:
  struct Arrived {
    std::uint64_t bytes;
    Piece piece;
  };
  const int device_;
  const Exchange& exchange_;
  std::vector<Arrived> pieces_;
  bool any_came_ = false;
};

}  // namespace rota::memory
