// What the swap backend asks of the allocator above it: what lies in its ranges.
#pragma once

#include <cstdint>

namespace rota::memory {

// Called with no lock held.
class Contents {
 public:
  virtual ~Contents() = default;
  // Whether an allocation lies in this part of a range, or may. The contents of other parts need not be preserved.
  // Called by the monitor.
  virtual bool in_use(std::uint64_t address, std::uint64_t bytes) = 0;
  // Whether free_unused() may find any.
  virtual bool has_unused() const = 0;
  // No more ranges fit on the GPU: frees unused ones that wait to be freed. Returns whether there were any.
  virtual bool free_unused(int device) = 0;
  // Whether the allocation of this number (Found::buffer_id) still begins at the address. A thread of rota's.
  virtual bool lives(std::uint64_t address, std::uint64_t id) = 0;
  // No other process has this freed allocation open any more. `serial`: as Exports::ends() returned it. A thread of
  // rota's.
  virtual void closed_by_others(std::uint64_t serial) = 0;
  // The allocation at this address is open in other processes for the first time. A thread of rota's.
  virtual void opened_by_others(std::uint64_t address) = 0;
  // The pinned memory of a GPU has changed. A thread of rota's.
  virtual void pins_changed(int device) = 0;
};

// All of each range is one allocation, which nobody else opens.
class WholeRanges final : public Contents {
 public:
  bool in_use(std::uint64_t, std::uint64_t) override { return true; }
  bool has_unused() const override { return false; }
  bool free_unused(int) override { return false; }
  bool lives(std::uint64_t, std::uint64_t) override { return false; }
  void closed_by_others(std::uint64_t) override {}
  void opened_by_others(std::uint64_t) override {}
  void pins_changed(int) override {}
};

}  // namespace rota::memory
