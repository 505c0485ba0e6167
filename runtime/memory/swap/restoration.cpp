#include "runtime/memory/swap/restoration.h"

#include <fmt/format.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "generated/driver_real.h"
#include "runtime/core/log.h"
#include "runtime/driver/own_streams.h"
#include "runtime/memory/swap/access.h"
#include "runtime/memory/swap/eviction_order.h"

namespace rota::memory {

using namespace std::chrono_literals;

namespace {

// How long the GPU may be full before a restoration ends for now. While others are evicting it may be full longer:
// their first extent has to cross a bus that may be slow.
constexpr auto kGpuFull = 20ms;
constexpr auto kOthersEvict = 250ms;
// How much of adjacent small extents is mapped at a time. The first copy waits until all of it is mapped.
constexpr std::uint64_t kMostOfSmall = std::uint64_t{64} << 20;

}  // namespace

Restoration::Restoration(const Movable& what, int device, const Move& move)
    : what_(what),
      device_(device),
      move_(move),
      exports_(what.devices.of(device).exports),
      handed_(device, move.exchange, [this](std::uint64_t bytes, PhysicalMemory&& physical) {
        mapper_.release_physical(device_, bytes, std::move(physical));
      }) {}

Moved Restoration::run() {
  mapper_.release_stuck(device_);  // it may be mapped where something is to be mapped
  all_ = off_gpu();
  last_memory_ = Clock::now();
  while (!all_.empty() && !moved_.failed && !move_.stopping() && step()) {
  }
  while (!flights_.empty()) land();
  times_.say("in", device_, moved_.bytes);
  if (out_of_memory_) moved_.lacking = regions_.out_bytes(device_);
  return moved_;
}

std::deque<Restoration::Absent> Restoration::off_gpu() {
  std::deque<Absent> all;
  const Regions::Lock lock = regions_.lock();
  for (const auto& [address, range] : regions_.ranges()) {
    if (range.device != device_ || range.ending || range.failed) continue;
    for (const Extent& extent : range.extents) {
      if (!extent.physical && !extent.moving) all.push_back({extent.address, extent.bytes, range.id, range.own});
    }
  }
  return all;
}

// Restores the next extent, with those that are mapped along with it. False: no more can be restored for now.
bool Restoration::step() {
  handed_.collect();
  const auto next =
      all_.begin() +
      static_cast<std::ptrdiff_t>(next_to_restore(
          all_.size(), [&](std::size_t index) { return all_[index].takes_any() && handed_.has(all_[index].bytes); },
          [&](std::size_t index) { return all_[index].bytes; }));
  const Absent chosen = *next;
  PhysicalMemory physical = chosen.takes_any() ? handed_.take(chosen.bytes) : PhysicalMemory{};
  const bool used_before = static_cast<bool>(physical);
  api::CUresult result =
      used_before ? api::CUDA_SUCCESS : Mapper::create(chosen.own, chosen.bytes, device_, exports_, &physical.handle);
  if (result == api::CUDA_ERROR_OUT_OF_MEMORY) return find_memory(chosen);
  last_memory_ = Clock::now();
  // Not earlier: while the driver refuses one request after the other, resident_bytes() must not count them.
  mapper_.add_resident(device_, chosen.bytes);
  const auto neighbour = all_.erase(next);
  std::deque<Coming> run = {set_out(chosen)};
  if (run.front().extent.address == 0) {  // it has just been freed
    if (physical) mapper_.release_physical(device_, chosen.bytes, std::move(physical));
    mapper_.take_resident(device_, chosen.bytes);
    return true;
  }
  if (result == api::CUDA_SUCCESS) result = mapper_.map(device_, run.front().extent, std::move(physical));
  const bool mapped = static_cast<bool>(run.front().extent.physical);
  if (mapped && chosen.bytes < kLeastHandedOver) map_along(chosen, neighbour, run);
  const Answer filled = fill(run, result, mapped, used_before);
  if (filled == api::CUDA_SUCCESS) return true;
  log::debug("an extent of {} bytes cannot be restored: {}", chosen.bytes,
             filled ? fmt::format("error {}", static_cast<int>(*filled)) : "its context has ended");
  for (Coming& coming : run) {
    mapper_.drop(device_, coming.extent);
    mapper_.take_resident(device_, coming.extent.bytes);
    regions_.landed(coming.extent.address);
  }
  if (!mapped && used_before) {
    all_.push_front(chosen);  // the handed-over memory is not what its owner said
    return true;
  }
  out_of_memory_ = filled == api::CUDA_ERROR_OUT_OF_MEMORY;
  moved_.failed = moved_.failed || !out_of_memory_;
  if (!out_of_memory_ && filled) moved_.error = *filled;
  return false;
}

// The driver has no memory for this extent: gives some back to it, or waits a moment for others. False: there has been
// none for a while.
bool Restoration::find_memory(const Absent& next) {
  if (regions_.drop_kept(device_, next.bytes) != 0 || handed_.release()) return true;
  const bool copies = !flights_.empty();
  // Others may wait for this process's share of the host's memory, without which they cannot evict.
  if (const std::uint64_t excess = what_.host.excess(); excess != 0 && !copies && move_.idle()) {
    std::uint64_t gone = 0;
    move_.within([&] { gone = what_.copies.give_back(excess, true); });
    if (gone != 0) return true;
  }
  out_of_memory_ = !copies && Clock::now() - last_memory_ > (move_.exchange.coming() ? kOthersEvict : kGpuFull);
  if (out_of_memory_) return false;
  // Where memory is handed over, the driver has none in the meantime, and a refused request keeps others from the
  // driver: so it is asked less often while copies run. Memory that arrives then is mapped during the copy, so that the
  // copy engine does not pause.
  const Clock::time_point again = Clock::now() + (handed_.any_came() ? 1ms : copies ? 500us : 100us);
  const auto over = [&] { return copies && is_over(move_, flights_.front().event); };
  do {
    std::this_thread::sleep_for(50us);
    handed_.collect();
  } while (handed_.empty() && Clock::now() < again && !over());
  if (handed_.empty() && over()) land();  // a thread that frees that extent need not wait for the following ones
  return true;
}

// The extent counts as moving from now on. Returns one without an address if it has just been freed.
Restoration::Coming Restoration::set_out(const Absent& what) {
  const Regions::Lock lock = regions_.lock();
  Range* range = nullptr;
  Extent* extent = regions_.extent_at(what.address, &range);
  if (extent == nullptr || range->id != what.range || extent->physical || range->ending) return {};
  extent->moving = true;
  extent->mapped = true;
  return {.extent = *extent, .access = regions_.access_of(*range)};
}

// Maps adjacent small extents as well, so that the driver sets access for all of them at once; of small memory that the
// program created, the next ones, wherever they are: the program's mappings of them are often adjacent. Extents for
// which that fails are restored separately.
void Restoration::map_along(const Absent& first, std::deque<Absent>::iterator neighbour, std::deque<Coming>& run) {
  std::uint64_t sum = first.bytes;
  const auto goes_along = [&](const Absent& other) {
    return other.own == first.own && other.bytes < kLeastHandedOver &&
           (first.own || other.address == first.address + sum);
  };
  while (sum < kMostOfSmall && neighbour != all_.end() && goes_along(*neighbour)) {
    PhysicalMemory more;
    if (Mapper::create(neighbour->own, neighbour->bytes, device_, exports_, &more.handle) != api::CUDA_SUCCESS) return;
    mapper_.add_resident(device_, neighbour->bytes);
    Coming coming = set_out(*neighbour);
    if (coming.extent.address == 0) {
      mapper_.release_physical(device_, neighbour->bytes, std::move(more));
    } else if (mapper_.map(device_, coming.extent, std::move(more)) != api::CUDA_SUCCESS) {
      regions_.landed(coming.extent.address);
    }
    if (!coming.extent.physical) return mapper_.take_resident(device_, neighbour->bytes);
    sum += coming.extent.bytes;
    run.push_back(std::move(coming));
    neighbour = all_.erase(neighbour);
  }
}

api::CUresult Restoration::allow(std::deque<Coming>::const_iterator first,
                                 std::deque<Coming>::const_iterator last) const {
  std::vector<Allowed> allowed;
  for (; first != last; ++first) add_allowed(allowed, first->extent, device_, first->access);
  return give_access(std::move(allowed));
}

// Gives the extents of `run` access, begins to copy their contents, and removes them from `run`. `result`: what has
// become of the first one so far. Nothing: the context has ended.
Answer Restoration::fill(std::deque<Coming>& run, api::CUresult result, bool mapped, bool used_before) {
  const bool together = run.size() > 1 && allow(run.begin(), run.end()) == api::CUDA_SUCCESS;
  for (; !run.empty(); run.pop_front()) {
    const Extent& coming = run.front().extent;
    if (mapped && !together) result = allow(run.begin(), run.begin() + 1);
    Flight flight{.address = coming.address, .bytes = coming.bytes};
    if (coming.saved) times_.starts();
    // Fresh memory from the driver is zero, and a program may rely on that.
    if (result == api::CUDA_SUCCESS && (coming.saved || used_before)) {
      const Answer refilled = refill(coming, &flight.event);
      if (!refilled) return std::nullopt;
      result = *refilled;
    }
    if (result != api::CUDA_SUCCESS) return result;
    arrived(run.front());
    if (used_before) moved_.taken_over += coming.bytes;
    flights_.push_back(flight);
    if (flights_.size() >= kInFlight) land();
  }
  return result;
}

// Fills an extent with its previous contents or zeros. `event`, if there is one, is recorded behind that.
Answer Restoration::refill(const Extent& extent, api::CUevent* event) {
  api::CUresult result = api::CUDA_SUCCESS;
  const bool there = move_.within([&] {
    *event = driver::make_event();  // null on a full GPU: then this waits for the copy
    result = extent.saved ? what_.store.get(extent.host, extent.bytes, extent.address, move_.stream)
                          : real::cuMemsetD8Async(extent.address, 0, extent.bytes, move_.stream);
    if (result == api::CUDA_SUCCESS) {
      result = *event != nullptr ? real::cuEventRecord(*event, move_.stream) : real::cuStreamSynchronize(move_.stream);
    }
    if (result == api::CUDA_SUCCESS) return;
    wait_for_stream(move_);
    if (*event != nullptr) real::cuEventDestroy_v2(*event);
  });
  return there ? Answer(result) : std::nullopt;
}

// The extent's memory counts as being on the GPU from now on; the extent still counts as moving.
void Restoration::arrived(const Coming& coming) {
  const Regions::Lock lock = regions_.lock();
  Range* range = nullptr;
  Extent* extent = regions_.extent_at(coming.extent.address, &range);
  extent->physical = coming.extent.physical;
  extent->reachable = true;
  regions_.count_in(*range, *extent);
  regions_.catch_up(*range, *extent, coming.access);
}

// Waits for the copy that began first.
void Restoration::land() {
  const Flight flight = flights_.front();
  flights_.pop_front();
  const Answer result = flight.event == nullptr ? api::CUDA_SUCCESS : wait_for(move_, flight.event);
  if (flight.event != nullptr) move_.within([&] { real::cuEventDestroy_v2(flight.event); });
  if (result == api::CUDA_SUCCESS) {
    bool copied = false;
    {
      const Regions::Lock lock = regions_.lock();
      Range* range = nullptr;
      Extent* extent = regions_.extent_at(flight.address, &range);
      copied = extent->saved;
      extent->came = regions_.opened(range->device);
      if (extent->host != nullptr) what_.host.add_copies(static_cast<std::int64_t>(flight.bytes));
    }
    if (copied) times_.ended();
    // If the host is low on memory, or others need this process's share of it, the copy there is released for what they
    // have to evict.
    if (copied && (what_.host.low() || what_.host.excess() != 0) && move_.idle()) give_copy_up(flight);
    (copied ? moved_.bytes : moved_.without_copy) += flight.bytes;
  } else {
    // The contents are still on the host: the extent is evicted again.
    Extent back;
    {
      const Regions::Lock lock = regions_.lock();
      Range* range = nullptr;
      Extent* extent = regions_.extent_at(flight.address, &range);
      back = *extent;
      extent->physical = {};
      regions_.count_out(*range, *extent);
    }
    mapper_.drop(device_, back);
    mapper_.take_resident(device_, flight.bytes);
    moved_.failed = true;
    if (result) moved_.error = *result;
  }
  regions_.landed(flight.address);
}

void Restoration::give_copy_up(const Flight& flight) {
  Store::Slot host = nullptr;
  {
    const Regions::Lock lock = regions_.lock();
    Extent* extent = regions_.extent_at(flight.address);
    host = std::exchange(extent->host, nullptr);
    extent->saved = false;
    extent->came = 0;
  }
  what_.host.add_copies(-static_cast<std::int64_t>(flight.bytes));
  if (!move_.within([&] { what_.store.release(host, flight.bytes); })) what_.store.discard(host, flight.bytes);
}

}  // namespace rota::memory
