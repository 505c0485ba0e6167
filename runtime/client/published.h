// What rotad publishes of each GPU in the lease page (scheduler/protocol/pages.h), for the program's threads: what
// limits leave, what contexts take, and whether others' memory is evicted. Any thread asks; the monitor says where the
// page is.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <optional>

#include "runtime/core/devices.h"
#include "runtime/turn/machine.h"
#include "scheduler/protocol/pages.h"

namespace rota::client {

class Published {
 public:
  Published() { forget(); }

  // --- the monitor

  // Null: there is no rotad, and so no indices.
  void follow(const protocol::LeasePage* page) { page_.store(page, std::memory_order_release); }
  void forget();
  void set_index(int device, int index) { slot(device).index.store(index, std::memory_order_relaxed); }

  // --- any thread
  // Before the GPU is announced.
  void set_total(int device, std::uint64_t bytes) { slot(device).total.store(bytes, std::memory_order_relaxed); }
  // Null: no rotad serves this process.
  const protocol::LeasePage* page() const { return page_.load(std::memory_order_acquire); }
  // A GPU's record; nothing: it is not there.
  struct Gpu {
    const protocol::GpuLease& lease;
    int index;
  };
  std::optional<Gpu> gpu(int device) const;
  // Whether limits apply to this process.
  bool limited() const;
  // What this process has there beyond its allocations, as rotad counts it; 0 where it has no context.
  std::uint64_t context_bytes(int device) const;
  // The same for all of rotad's clients together, and what programs that rotad does not know have; 0 where it does not
  // say.
  std::uint64_t all_context_bytes(int device) const;
  // What other processes have reserved there that cannot be evicted; 0 where rotad does not say.
  std::uint64_t fixed_of_others_bytes(int device) const;
  // Whether memory of others is being evicted, could be, or could be later, when its work has finished.
  bool others_leave(int device) const;
  bool others_can_leave(int device) const;
  bool others_can_later(int device) const;
  // Whether rotad revokes the lease soon if it is not given back. A wait for memory has to end by then; it ends 0.2 s
  // after the last memory has become free.
  bool turn_ends(int device, turn::Time now) const;
  // Whether programs have had more there than fits, a short time ago.
  bool crowded(int device, turn::Time now);

 private:
  struct Slot {
    std::atomic<int> index{-1};
    std::atomic<std::uint64_t> total{0};
    std::atomic<turn::Time> crowded_until{};
  };
  Slot& slot(int device) { return slots_[static_cast<std::size_t>(device)]; }
  const Slot& slot(int device) const { return slots_[static_cast<std::size_t>(device)]; }

  std::atomic<const protocol::LeasePage*> page_{nullptr};
  std::array<Slot, kMaxDevices> slots_;
};

}  // namespace rota::client
