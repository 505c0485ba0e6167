// How much this process may have on each GPU, and the threads that wait until they may take more.
//
// A thread reserves its bytes in the ledger, then looks at the allowance here; the monitor publishes the allowance of a
// new grant, then looks at the ledger. The stores and loads are in one total order, so that one of the two notices: the
// thread waits, or the monitor does not open the gate (machine.h). Without the lease there is no allowance: none of
// this process's memory needs to be on the GPU, and its next grant covers what it has by then.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>

#include "runtime/memory/memory.h"
#include "runtime/turn/bell.h"
#include "runtime/turn/waiters.h"

namespace rota::turn {

class Room {
 public:
  static constexpr std::uint64_t kUnlimited = UINT64_MAX;

  Room(const memory::Ledger& ledger, Bell& bell) : ledger_(ledger), bell_(bell) {}

  // --- the program's threads; `device` is below memory::kMaxDevices

  // Whether this process has no more on the GPU than it may.
  bool covered(int device) const { return needed(device) <= allowed(device); }
  // Waits until that is so, or until nothing can forbid it any more, after release_all().
  void wait(int device);
  // Asks for the whole GPU, which has this many bytes, and waits until it may have them or nothing can forbid it any
  // more.
  void wait_for_all(int device, std::uint64_t bytes);
  // The process's bytes on the GPU may have become fewer.
  void changed();

  // --- the monitor
  void allow(int device, std::uint64_t bytes);
  std::uint64_t allowed(int device) const { return slot(device).allowed.load(); }
  // What the process has there and is about to take, together; or more, if a thread waits for the whole GPU.
  std::uint64_t needed(int device) const;
  // Threads that wait.
  std::uint32_t standing() const { return waiters_.count(); }
  // Any thread: no thread waits from now on.
  void release_all();

 private:
  struct Slot {
    std::atomic<std::uint64_t> allowed{kUnlimited};
    gate::Waiters want_all;  // threads
    std::atomic<std::uint64_t> total{0};
  };
  // `counted`: where it counts meanwhile; may be null.
  void wait(int device, gate::Waiters* counted);
  const Slot& slot(int device) const { return slots_[static_cast<std::size_t>(device)]; }

  const memory::Ledger& ledger_;
  Bell& bell_;
  std::array<Slot, memory::kMaxDevices> slots_;
  std::atomic<bool> released_{false};
  std::mutex mutex_;
  gate::Waiters waiters_;
};

}  // namespace rota::turn
