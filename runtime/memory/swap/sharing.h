// Which GPUs may use memory: its own, those that have peer access to plain memory, and those with access to a pool or
// to a mapping of the program's own.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "runtime/core/devices.h"
#include "runtime/memory/swap/regions.h"

namespace rota::memory {

// Any thread, with no lock held. Waits for no work.
class Sharing {
 public:
  explicit Sharing(Regions& regions) : regions_(regions) {}

  // The GPUs whose work may use memory of this one: itself, and those that have ever been given access to any of it.
  Devices reachers(int device) const { return reachers_[static_cast<std::size_t>(device)].load() | bit_of(device); }
  // All GPUs whose memory work of these may use.
  Devices reachable(Devices devices) const;

  // From now on this process may or may not use the memory of the GPU `owner` from `accessing`, except memory from
  // pools.
  void set_peer(int accessing, int owner, bool may);
  // For the pool's span that begins here.
  void set_access(api::CUdeviceptr address, int accessing, api::CUmemAccess_flags flags);
  // With the lock of the regions held or not.
  void may_reach(int owner, int accessing) { reachers_[static_cast<std::size_t>(owner)].fetch_or(bit_of(accessing)); }

 private:
  Regions& regions_;
  std::array<std::atomic<Devices>, kMaxDevices> reachers_{};  // not always with the GPU itself
};

}  // namespace rota::memory
