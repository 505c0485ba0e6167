// How much this process may have on each GPU, and the threads that wait until they may take more.
//
// A thread reserves its bytes in the ledger, then looks at the allowance here; the monitor publishes the allowance of a
// new grant, then looks at the ledger. Each is one total order of stores and loads, so that one of the two notices: the
// thread waits, or the monitor does not open the gate (machine.h). Without the lease nothing is allowed or forbidden:
// nothing of this process needs to be on the GPU, and its next grant covers what it has by then.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>

#include "runtime/memory/memory.h"
#include "runtime/turn/bell.h"

namespace rota::turn {

class Room {
 public:
  static constexpr std::uint64_t kUnlimited = UINT64_MAX;

  Room(const memory::Ledger& ledger, Bell& bell) : ledger_(ledger), bell_(bell) {}

  // --- the program's threads; `device` is below memory::kMaxDevices

  // Whether this process has no more on the GPU than it may.
  bool covered(int device) const { return needed(device) <= allowed(device); }
  // Returns once it does, or nobody can say that it may not: after release_all().
  void wait(int device);
  // Needs all of this GPU, which has so many bytes, until it may have them, or nobody can say that it may not.
  void wait_for_all(int device, std::uint64_t bytes);
  // The bytes on the GPU have become fewer, perhaps.
  void changed();

  // --- the monitor
  void allow(int device, std::uint64_t bytes);
  std::uint64_t allowed(int device) const { return slot(device).allowed.load(); }
  // What the process has there and is about to take, in all, or more where a thread waits for the whole GPU.
  std::uint64_t needed(int device) const;
  // Threads that wait.
  std::uint32_t standing() const { return waiting_.load(); }
  // Any thread: nobody waits from now on.
  void release_all();

 private:
  struct Slot {
    std::atomic<std::uint64_t> allowed{kUnlimited};
    std::atomic<std::uint32_t> want_all{0};  // threads
    std::atomic<std::uint64_t> total{0};
  };
  const Slot& slot(int device) const { return slots_[static_cast<std::size_t>(device)]; }

  const memory::Ledger& ledger_;
  Bell& bell_;
  std::array<Slot, memory::kMaxDevices> slots_;
  std::atomic<std::uint32_t> waiting_{0};
  std::atomic<bool> released_{false};
  std::mutex mutex_;
  std::condition_variable changed_;
};

}  // namespace rota::turn
