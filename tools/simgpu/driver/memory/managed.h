// A program's advice for ranges of managed memory, and their last prefetch location. Kept per page, as in the driver;
// the actual location of pages is in the shared state.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>

#include "tools/simgpu/driver/api.h"

namespace rota::sim {

// A location of memory. kNowhere: not given, or not the same for every page.
struct Location {
  static constexpr int kNowhere = -2;  // CU_DEVICE_INVALID
  static constexpr int kHost = -1;     // CU_DEVICE_CPU
  CUmemLocationType type = CU_MEM_LOCATION_TYPE_INVALID;
  int id = kNowhere;  // GPU or NUMA node
  bool operator==(const Location&) const = default;
};

struct ManagedAdvice {
  bool read_mostly = false;
  Location preferred;
  uint32_t accessed_by = 0;  // bit g: GPU g; kAccessedByHost: the processor
  Location last_prefetch;
  static constexpr uint32_t kAccessedByHost = uint32_t{1} << 31;
  bool operator==(const ManagedAdvice&) const = default;
};

class ManagedRanges {
 public:
  static constexpr uint64_t kPage = 4096;

  // Calls change(ManagedAdvice&) for all of [address, address + bytes), widened to pages.
  template <class Change>
  void change(uint64_t address, uint64_t bytes, Change change) {
    std::lock_guard lock(mutex_);
    uint64_t end = page_end(address + bytes);
    auto first = split(page_start(address));
    auto last = split(end);
    for (auto range = first; range != last; ++range) change(range->second);
  }
  // Calls look(const ManagedAdvice&) for each part of the range with uniform advice.
  template <class Look>
  void visit(uint64_t address, uint64_t bytes, Look look) const {
    std::lock_guard lock(mutex_);
    uint64_t end = page_end(address + bytes);
    auto range = ranges_.upper_bound(page_start(address));
    if (range == ranges_.begin()) {
      look(ManagedAdvice{});
    } else {
      --range;
    }
    for (; range != ranges_.end() && range->first < end; ++range) look(range->second);
  }
  // The memory was freed.
  void forget(uint64_t address, uint64_t bytes);

 private:
  static uint64_t page_start(uint64_t address) { return address / kPage * kPage; }
  static uint64_t page_end(uint64_t address) { return page_start(address + kPage - 1); }
  // The entry that starts exactly there, created if necessary.
  std::map<uint64_t, ManagedAdvice>::iterator split(uint64_t address);

  mutable std::mutex mutex_;
  std::map<uint64_t, ManagedAdvice> ranges_;  // by start; each extends to the next entry
};

}  // namespace rota::sim
