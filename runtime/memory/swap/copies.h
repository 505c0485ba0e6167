// The copies of extents in the host's memory. They stay there once an extent has been restored, so that only what has
// changed need be copied when it is evicted again. They are given up when the host's memory is short.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/memory/swap/eviction_order.h"
#include "runtime/memory/swap/regions.h"
#include "runtime/memory/swap/store/host_pool.h"
#include "runtime/memory/swap/store/store.h"

namespace rota::memory {

// The monitor, with no lock held.
class Copies {
 public:
  Copies(Regions& regions, HostPool& host, Store& store) : regions_(regions), host_(host), store_(store) {}

  // Prepares a little more space on the host for extents on these GPUs that have none there yet, up to as many bytes as
  // may have to be evicted. False: there is enough, or the host has none to spare. Space that is not needed is
  // released.
  bool prepare(const std::vector<Overcommitment>& all);
  // Space for an extent of this GPU; null: there is none. Copies of this GPU's extents stay: those are evicted next, to
  // the same places. With some context current.
  Store::Slot reserve(int device, std::uint64_t bytes);
  // Releases host memory without which nothing is lost, until it adds up to this many bytes: cached blocks, then copies
  // of what is on the GPU, the most useful last. Copies of extents that were restored and not used yet, which can be
  // evicted again without further host memory, are given up only if `unused_too`. Returns the bytes. With some context
  // current.
  std::uint64_t give_back(std::uint64_t bytes = UINT64_MAX, bool unused_too = false);
  // Counts those copies anew, for what the host pool says to rotad.
  void count();

 private:
  std::vector<Copy> all() const;
  Store::Slot take(const Copy& copy);

  Regions& regions_;
  HostPool& host_;
  Store& store_;
};

}  // namespace rota::memory
