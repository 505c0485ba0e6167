// Moves extents: copies them out to the store and back, with several copies in flight, so that the driver's work on one
// extent (mapping, unmapping) is done while others are on the bus. The monitor, with no lock held, nothing of the
// process running and its gate closed.
//
// Restored memory keeps its copy on the host until the gate opens, and if the gate does not open it is evicted without
// being copied. So a process that could not restore all of its memory can undo that without further host memory, and
// the process that ran before can always run again: two processes that are short of host memory do not each end up with
// a part of the GPU that neither can give up.
//
// The copies also stay on the host after the gate has opened. Before an extent is evicted, the GPU checks what has
// changed in it (fingerprints.h): only that is copied, and nothing that is all zeros.
#pragma once

#include <cstdint>
#include <utility>

#include "runtime/memory/move.h"
#include "runtime/memory/swap/contents.h"
#include "runtime/memory/swap/copies.h"
#include "runtime/memory/swap/fingerprints.h"
#include "runtime/memory/swap/mapper.h"
#include "runtime/memory/swap/regions.h"
#include "runtime/memory/swap/store/host_pool.h"
#include "runtime/memory/swap/store/store.h"
#include "runtime/memory/swap/swap_devices.h"

namespace rota::memory {

// What a move works on.
struct Movable {
  SwapDevices& devices;
  Mapper& mapper;
  Regions& regions;
  Copies& copies;
  HostPool& host;
  Store& store;
  Fingerprints& fingerprints;
  Contents* contents;
};

class Mover {
 public:
  explicit Mover(Movable what) : what_(std::move(what)) {}
  // Before there are ranges.
  void set_contents(Contents& contents) { what_.contents = &contents; }

  // Frees `bytes`, or as much as possible: cached ranges first, then extents that were restored and not used, then
  // others (eviction_order.h). Where the host has no memory for them, waits until other processes have given theirs
  // back, as long as some comes.
  Moved evict(int device, std::uint64_t bytes, const Move& move);
  // Restores everything. Gives up when the driver has had no memory for a while.
  Moved restore(int device, const Move& move);

 private:
  Movable what_;
};

}  // namespace rota::memory
