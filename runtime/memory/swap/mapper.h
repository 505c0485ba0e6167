// The driver's side of extents: reserves addresses, creates physical memory, maps it there and unmaps it.
//
// The driver may refuse to take memory back. Where the program's mappings still exist, or can be made again, the extent
// is not evicted: nothing of it is handed over, since this process could still write there. Otherwise its memory is
// *stuck*: it is on the GPU, so it counts as there, although nobody uses it. The driver is asked again with each move.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <set>
#include <vector>

#include "runtime/memory/heap.h"
#include "runtime/memory/swap/access.h"
#include "runtime/memory/swap/extent.h"
#include "runtime/memory/swap/hand_over.h"
#include "runtime/memory/turns.h"

namespace rota::memory {

// All functions: any thread, with no lock held but that of the ranges where it says so.
class Mapper {
 public:
  // Whom to tell when resident_bytes() has changed. Call it before there are ranges.
  void set_turns(Turns& turns) { turns_ = &turns; }

  // What this process has on the GPU, used or not.
  std::uint64_t resident_bytes(int device) const { return resident_[static_cast<std::size_t>(device)].load(); }
  void add_resident(int device, std::uint64_t bytes);
  void take_resident(int device, std::uint64_t bytes);

  // `own`: for what the program creates itself.
  api::CUresult reserve_addresses(bool own, std::uint64_t bytes, api::CUdeviceptr* address);
  // The driver refuses to free addresses at which memory is stuck; those that rota hands out itself are lost then.
  void free_addresses(bool own, std::uint64_t address, std::uint64_t bytes);

  // Creates memory; `own`: with the properties that the program has asked for.
  static api::CUresult create(const std::optional<Making>& own, std::uint64_t bytes, int device, bool exports,
                              PhysicalHandle* handle);
  // Maps the memory, which is the extent's from now on; on failure it is released. No GPU has access yet.
  api::CUresult map(int device, Extent& extent, PhysicalMemory&& physical);
  // Creates and maps all of a range, or nothing.
  api::CUresult populate(Range& range, const Access& access, bool exports);

  // Passes the extent's physical memory to another process by `exchange`, with its contents, or to the driver. If the
  // driver refuses, nothing is handed over, and either all is as it was, or the memory is stuck and `extent.physical`
  // empty.
  api::CUresult unmap(int device, Extent& extent, const Exchange& exchange = {});
  // The same for an extent that no longer counts as mapped. False: its memory is stuck.
  bool drop(int device, Extent& extent, const Exchange& exchange = {});
  // Releases memory that is mapped nowhere.
  void release_physical(int device, std::uint64_t bytes, PhysicalMemory&& physical);
  // Tries again what the driver has refused before. Returns the bytes that it has taken back.
  std::uint64_t release_stuck(int device);

 private:
  struct Stuck {
    int device = 0;
    std::uint64_t bytes = 0;
    PhysicalMemory physical;
    std::vector<std::uint64_t> mapped;  // the addresses at which it still is
  };

  static api::CUresult create(std::uint64_t bytes, int device, bool exports, PhysicalHandle* handle);
  static api::CUresult map_aliases(std::uint64_t bytes, const Aliases& aliases, PhysicalHandle handle,
                                   std::size_t* mapped);
  void add_stuck(Stuck&& stuck);
  bool is_stuck_at(std::uint64_t address, std::uint64_t bytes) const;

  Turns* turns_ = &WithoutTurns::instance();
  std::array<std::atomic<std::uint64_t>, kMaxDevices> resident_{};
  std::mutex mutex_;  // the fields below; taken after the lock of the ranges
  std::vector<Stuck> stuck_;
  std::multiset<std::uint64_t> being_released_;  // where memory is mapped that release_stuck() has taken from stuck_
  // The addresses of what the program creates itself, cut from large reservations that stay: some programs create and
  // release such memory all the time, and a reservation for each would cost two driver calls.
  Heap own_addresses_;
};

}  // namespace rota::memory
