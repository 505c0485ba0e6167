// What the driver says of each GPU's memory that can be evicted.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>

#include "runtime/memory/ledger.h"
#include "scheduler/protocol/memory_mode.h"

namespace rota::memory {

struct SwapDevice {
  bool serves = false;   // it has virtual memory management
  bool exports = false;  // its memory can be handed over
  std::uint64_t granularity = 1;
  std::uint64_t total = 0;
  protocol::MemoryMode untried = protocol::MemoryMode::kUnknown;  // untried.h
};

class SwapDevices {
 public:
  // Any thread. Asks the driver once; then one load.
  const SwapDevice& of(int ordinal) {
    Known& known = all_[static_cast<std::size_t>(ordinal)];
    if (!known.known.load(std::memory_order_acquire)) ask(ordinal, known);
    return known.device;
  }

 private:
  struct Known {
    std::atomic<bool> known{false};
    SwapDevice device;
  };
  void ask(int ordinal, Known& known);

  std::mutex mutex_;
  std::array<Known, kMaxDevices> all_;
};

}  // namespace rota::memory
