// How extents come back: what was copied from the GPU is copied there again, in one stream, several extents in flight.
#include <algorithm>
#include <chrono>
#include <deque>
#include <thread>
#include <utility>

#include "generated/driver_real.h"
#include "runtime/core/log.h"
#include "runtime/driver/own_streams.h"
#include "runtime/memory/swap/flight.h"
#include "runtime/memory/swap/swap.h"

namespace rota::memory {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

namespace {

// How long the driver may have no room before bringing in gives up for now: others may be clearing it.
constexpr auto kNoRoom = 20ms;

}  // namespace

// In order of address.
std::deque<SwapBackend::Lacking> SwapBackend::off_gpu(int ordinal) {
  std::deque<Lacking> all;
  const std::lock_guard lock(mutex_);
  for (const auto& [address, range] : ranges_) {
    if (range.device != ordinal || range.ending || range.failed) continue;
    for (const Extent& extent : range.extents) {
      if (!extent.piece && !extent.moving) all.push_back({extent.address, extent.bytes, range.own});
    }
  }
  return all;
}

SwapBackend::Moved SwapBackend::bring_in(int ordinal, const Mover& mover) {
  Moved moved;
  const std::size_t at = static_cast<std::size_t>(ordinal);
  struct Flight {
    std::uint64_t address = 0;  // the extent's
    std::uint64_t bytes = 0;
    api::CUevent event = nullptr;  // null: nothing to wait for
  };
  std::deque<Flight> flights;
  const auto land = [&] {
    const Flight flight = flights.front();
    flights.pop_front();
    const api::CUresult result = flight.event == nullptr ? api::CUDA_SUCCESS : wait_for(mover, flight.event);
    const bool there = result == api::CUDA_SUCCESS;
    if (flight.event != nullptr) mover.within([&] { real::cuEventDestroy_v2(flight.event); });
    if (there) {
      // Where the host is low its copy makes room for what others have to move out of the way.
      const bool low = host_.low();
      void* host = nullptr;
      bool copied = false;
      {
        const std::lock_guard lock(mutex_);
        Extent* extent = extent_at(flight.address);
        copied = extent->saved;
        extent->came = opened_;
        if (low && extent->saved) {
          host = std::exchange(extent->host, nullptr);
          extent->saved = false;
          extent->came = 0;
        }
      }
      if (host != nullptr) mover.within([&] { host_.end(host, flight.bytes); });
      (copied ? moved.bytes : moved.without_copy) += flight.bytes;
    } else {
      // Its contents are in the host still: off the GPU again.
      Extent back;
      {
        const std::lock_guard lock(mutex_);
        Extent* extent = extent_at(flight.address);
        back = *extent;
        extent->piece = {};
        out_[at] += flight.bytes;
      }
      unmap(back);
      take_resident(ordinal, flight.bytes);
      moved.failed = true;
      moved.error = result;
    }
    landed(flight.address);
  };
  bool exports = false;
  {
    const std::lock_guard lock(mutex_);
    exports = device(ordinal).exports;
  }
  HandedOver handed(ordinal, mover.exchange);
  std::deque<Lacking> all = off_gpu(ordinal);
  bool lacks_room = false;
  Clock::time_point last_room = Clock::now();
  while (!all.empty() && !moved.failed && !mover.stopping()) {
    // One for which there is memory that was handed over, else the next.
    handed.collect();
    auto next = std::find_if(all.begin(), all.end(),
                             [&](const Lacking& each) { return each.takes_any() && handed.has(each.bytes); });
    if (next == all.end()) next = all.begin();
    const Lacking chosen = *next;
    Piece piece = chosen.takes_any() ? handed.take(chosen.bytes) : Piece{};
    const bool used_before = static_cast<bool>(piece);
    add_resident(ordinal, chosen.bytes);
    api::CUresult result =
        used_before ? api::CUDA_SUCCESS : create(chosen.own, chosen.bytes, ordinal, exports, &piece.handle);
    if (result == api::CUDA_ERROR_OUT_OF_MEMORY) {
      take_resident(ordinal, chosen.bytes);
      if (drop_kept(ordinal, chosen.bytes) != 0 || handed.release()) continue;
      if (!flights.empty()) {
        land();  // who frees it need not wait for what comes next
        continue;
      }
      lacks_room = Clock::now() - last_room > kNoRoom;
      if (lacks_room) break;
      // Where memory is handed over the driver has none to give meanwhile, and a refusal keeps others from it.
      const Clock::time_point again = Clock::now() + (handed.any_came() ? 1ms : 100us);
      do {
        std::this_thread::sleep_for(50us);
        handed.collect();
      } while (handed.empty() && Clock::now() < again);
      continue;
    }
    last_room = Clock::now();
    all.erase(next);
    Extent coming;
    Access access;
    {
      const std::lock_guard lock(mutex_);
      Range* range = nullptr;
      Extent* extent = extent_at(chosen.address, &range);
      if (extent != nullptr && extent->bytes == chosen.bytes && !extent->piece && !range->ending) {
        extent->moving = true;
        coming = *extent;
        access = access_of(*range);
      }
    }
    if (coming.address == 0) {  // freed just now
      if (piece) real::cuMemRelease(piece.handle);
      take_resident(ordinal, chosen.bytes);
      continue;
    }
    if (result == api::CUDA_SUCCESS) result = map(coming, std::move(piece));
    const bool mapped = static_cast<bool>(coming.piece);
    if (mapped) result = give_access(coming.address, coming.bytes, ordinal, access);
    Flight flight{.address = coming.address, .bytes = coming.bytes};
    if (result == api::CUDA_SUCCESS && (coming.saved || used_before)) {
      const bool there = mover.within([&] {
        flight.event = driver::make_event();  // none: a full GPU has no room for one, and the copy is waited for here
        // Fresh memory of the driver's is zero, and a program may have come to rely on it.
        result = coming.saved ? real::cuMemcpyHtoDAsync_v2(coming.address, coming.host, coming.bytes, mover.stream)
                              : real::cuMemsetD8Async(coming.address, 0, coming.bytes, mover.stream);
        if (result == api::CUDA_SUCCESS) {
          result = flight.event != nullptr ? real::cuEventRecord(flight.event, mover.stream)
                                           : real::cuStreamSynchronize(mover.stream);
        }
        if (result == api::CUDA_SUCCESS) return;
        wait_for_stream(mover);
        if (flight.event != nullptr) real::cuEventDestroy_v2(flight.event);
      });
      if (!there) result = api::CUDA_ERROR_CONTEXT_IS_DESTROYED;
    }
    if (result != api::CUDA_SUCCESS) {
      unmap(coming);
      take_resident(ordinal, coming.bytes);
      landed(coming.address);
      log::debug("an extent of {} bytes cannot be brought back: error {}", coming.bytes, static_cast<int>(result));
      if (!mapped && used_before) {
        all.push_front(chosen);  // what was handed over is not what its owner said
        continue;
      }
      lacks_room = result == api::CUDA_ERROR_OUT_OF_MEMORY;
      moved.failed = !lacks_room;
      if (moved.failed) moved.error = result;
      break;
    }
    {
      const std::lock_guard lock(mutex_);
      Range* range = nullptr;
      Extent* extent = extent_at(coming.address, &range);
      extent->piece = coming.piece;
      out_[at] -= coming.bytes;
      catch_up(*range, *extent, access);
    }
    if (used_before) moved.taken_over += coming.bytes;
    flights.push_back(flight);
    if (flights.size() >= kInFlight) land();
  }
  while (!flights.empty()) land();
  if (lacks_room) moved.lacking = out_bytes(ordinal);
  if (moved.error == api::CUDA_ERROR_CONTEXT_IS_DESTROYED) moved.error = api::CUDA_SUCCESS;
  return moved;
}

}  // namespace rota::memory
