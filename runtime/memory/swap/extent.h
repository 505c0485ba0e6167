// What is known of memory that can be evicted: address ranges, and the extents of physical memory mapped below them.
#pragma once

#include <algorithm>
#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "generated/driver_types.h"
#include "runtime/memory/swap/fingerprints.h"
#include "runtime/memory/swap/hand_over.h"
#include "runtime/memory/swap/store/store.h"

namespace rota::memory {

// GPUs that may use memory, and for what.
using Access = std::map<int, api::CUmemAccess_flags>;
using Prints = std::vector<Fingerprints::Sums>;

// Where the program has mapped memory that it creates itself.
struct Alias {
  std::uint64_t address = 0;
  Access access;  // the owner's included
};
using Aliases = std::vector<Alias>;

struct Extent {
  std::uint64_t address = 0;
  std::uint64_t bytes = 0;
  Aliases aliases;                       // changed only while the extent does not move
  PhysicalMemory physical;               // empty: not on the GPU
  Store::Slot host = nullptr;            // space for its contents, once it has been evicted
  bool saved = false;                    // the contents are there, as of its last eviction
  std::shared_ptr<const Prints> prints;  // of those contents; null: not known
  bool unchanged = false;                // its last eviction copied nothing
  bool zeros = false;                    // it then held nothing but zeros
  bool moving = false;
  // Whether it is mapped at its own address, and can be copied by it. Memory that the program creates gets both when it
  // may first be evicted: many programs create and release such memory all the time (JAX's platform allocator), and a
  // mapping and its access cost as much as the memory.
  bool mapped = true;
  bool reachable = true;
  bool was_open = false;   // in other processes: it serves nothing else, and returns to the driver
  std::uint64_t came = 0;  // how many times the GPU's gate had opened when it was restored
  bool in_place() const { return physical && !moving; }
};

struct Range {
  std::uint64_t address = 0;
  std::uint64_t bytes = 0;  // multiple of the granularity
  int device = 0;
  api::CUcontext context = nullptr;  // null: it ends with none
  std::uint64_t id = 0;
  bool cached = false;  // cached: unused and on the GPU, for the next allocation like it
  bool ending = false;  // its context ended while it was moving
  bool failed = false;  // its context has failed: none of it is on the GPU or has to be
  // Why it is pinned (protocol::Pin, a bit each): it stays on the GPU while any bit is set, and once it is freed it
  // serves nothing else.
  std::uint8_t pins = 0;
  unsigned open = 0;             // of the allocations in it, those that other processes have open
  bool begins_small = false;     // its first extents are smaller than they could be
  std::optional<Access> access;  // its pool's access; none: that of its GPU's plain memory
  std::optional<Making> own;     // how the program has created it; none: it is plain memory
  std::vector<Extent> extents;

  bool pinned() const { return pins != 0; }
  bool was_open() const {
    return std::any_of(extents.begin(), extents.end(), [](const Extent& extent) { return extent.was_open; });
  }
  bool moves() const {
    return std::any_of(extents.begin(), extents.end(), [](const Extent& extent) { return extent.moving; });
  }
  bool in_place() const {
    return std::all_of(extents.begin(), extents.end(), [](const Extent& extent) { return extent.in_place(); });
  }
};

// What an allocation and a cached range have in common if the range can serve the allocation.
struct Like {
  std::uint64_t bytes = 0;
  std::optional<Making> own;
  auto operator<=>(const Like&) const = default;
};

}  // namespace rota::memory
