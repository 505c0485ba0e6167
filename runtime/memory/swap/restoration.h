// One restoration: what was copied from the GPU is copied back to it, in one stream, with several extents in flight.
//
// While copies run, each cuMemSetAccess call takes 0.8 ms regardless of its size (measured on an H200), while an extent
// of 2 MiB is copied in 0.04 ms. So small extents are mapped first, and one call gives access to those that are
// adjacent, whatever ranges they belong to (the driver accepts one call for several reservations: tested on an H100,
// driver 580.159.04).
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <optional>

#include "runtime/memory/swap/flight.h"
#include "runtime/memory/swap/mover.h"

namespace rota::memory {

class Restoration {
 public:
  // All of these outlive this object.
  Restoration(const Movable& what, int device, const Move& move);

  // Restores as much as the driver has memory for. To be called once.
  Moved run();

 private:
  using Clock = std::chrono::steady_clock;
  // An extent that is not on the GPU.
  struct Absent {
    std::uint64_t address;
    std::uint64_t bytes;
    std::uint64_t range;  // its number, since an address can be reused
    std::optional<Making> own;
    // Whether memory that another process hands over will do. Memory with special properties has to be created here.
    bool takes_any() const { return !own || *own == Making{}; }
  };
  // An extent that is being restored.
  struct Coming {
    Extent extent;
    Access access;
  };
  struct Flight {
    std::uint64_t address = 0;  // the extent's
    std::uint64_t bytes = 0;
    api::CUevent event = nullptr;  // null: nothing to wait for
  };

  std::deque<Absent> off_gpu();
  bool step();
  bool find_memory(const Absent& next);
  Coming set_out(const Absent& what);
  void map_along(const Absent& first, std::deque<Absent>::iterator neighbour, std::deque<Coming>& run);
  api::CUresult allow(std::deque<Coming>::const_iterator first, std::deque<Coming>::const_iterator last) const;
  Answer fill(std::deque<Coming>& run, api::CUresult result, bool mapped, bool used_before);
  Answer refill(const Extent& extent, api::CUevent* event);
  void arrived(const Coming& coming);
  void land();
  void give_copy_up(const Flight& flight);

  const Movable& what_;
  Mapper& mapper_ = what_.mapper;
  Regions& regions_ = what_.regions;
  const int device_;
  const Move& move_;
  const bool exports_;
  HandedOver handed_;
  std::deque<Absent> all_;  // in order of address
  std::deque<Flight> flights_;
  Moved moved_;
  CopyTimes times_;
  bool out_of_memory_ = false;
  Clock::time_point last_memory_;
};

}  // namespace rota::memory
