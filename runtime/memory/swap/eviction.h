// One eviction: what has changed in extents since it was last copied to the store is copied there, in one stream, with
// several extents in flight; the rest is evicted at once. An extent for which the host has no memory now stays on the
// GPU.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "runtime/memory/swap/eviction_order.h"
#include "runtime/memory/swap/flight.h"
#include "runtime/memory/swap/mover.h"

namespace rota::memory {

class Eviction {
 public:
  // All of these outlive this object.
  Eviction(const Movable& what, int device, const Move& move) : what_(what), device_(device), move_(move) {}

  // Evicts until this many bytes have left the GPU. To be called once.
  Moved run(std::uint64_t bytes);

 private:
  // An extent that has been chosen.
  struct Leaving {
    std::uint64_t address = 0;
    std::uint64_t bytes = 0;
    std::uint64_t range = 0;               // its number, since an address can be reused
    std::shared_ptr<const Prints> copied;  // of its copy on the host, if there is one and they are known
    Fingerprints::Seen seen;
    bool unused = false;  // no allocation lies in it
    // The parts that differ from the copy on the host.
    std::vector<Store::Part> changed() const;
  };
  // One whose copy has begun, or that needs none.
  struct Departure {
    std::uint64_t address = 0;
    std::uint64_t bytes = 0;
    std::uint64_t copied = 0;
    api::CUevent event = nullptr;  // null: nothing to wait for
    Fingerprints::Seen seen;
    bool unused = false;
  };
  // One whose memory no longer counts as being on the GPU.
  struct Uncounted {
    Extent extent;
    Access access;
  };

  std::uint64_t evicted_so_far() const { return moved_.without_copy + moved_.bytes + under_way_; }
  std::deque<Candidate> on_gpu();
  void evict_unused(std::uint64_t bytes);
  void make_reachable();
  std::deque<Leaving> choose(std::deque<Candidate>& all, std::uint64_t bytes, std::uint64_t most);
  void examine(std::deque<Leaving>& chosen);
  Extent* set_out(const Leaving& leaving);
  void depart(Leaving&& leaving);
  bool begin_copy(Departure& flight, Store::Slot* host, const std::vector<Store::Part>& parts);
  void land();
  void finish(Departure&& flight);
  Uncounted uncount(const Range& range, Extent& extent);
  bool unmap(Uncounted&& gone);

  const Movable& what_;
  Regions& regions_ = what_.regions;
  const int device_;
  const Move& move_;
  Moved moved_;
  std::deque<Departure> flights_;
  std::uint64_t under_way_ = 0;
  CopyTimes times_;
};

}  // namespace rota::memory
