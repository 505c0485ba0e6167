// How extents come back: what was copied from the GPU is copied back to it, in one stream, with several extents in
// flight.
//
// While copies run, each cuMemSetAccess call takes 0.8 ms regardless of its size (measured on an H200), while an extent
// of 2 MiB is copied in 0.04 ms. So small extents are mapped first and what is adjacent of them, of whatever ranges,
// gets its access by one call (the driver accepts one for several reservations: tested on an H100, driver 580.159.04).
#include <fmt/format.h>

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

// How long the driver may have no room before this gives up for now; and as long as others are said to be making room,
// where the first of theirs arrives once an extent has crossed a bus that may be slow.
constexpr auto kNoRoom = 20ms;
constexpr auto kRoomComes = 250ms;
// How much of adjacent small extents is mapped at a time. The first copy waits until all of it is mapped.
constexpr std::uint64_t kMostOfSmall = std::uint64_t{64} << 20;

}  // namespace

// In order of address.
std::deque<SwapBackend::Lacking> SwapBackend::off_gpu(int ordinal) {
  std::deque<Lacking> all;
  const std::lock_guard lock(mutex_);
  for (const auto& [address, range] : ranges_) {
    if (range.device != ordinal || range.ending || range.failed) continue;
    for (const Extent& extent : range.extents) {
      if (!extent.piece && !extent.moving) all.push_back({extent.address, extent.bytes, range.id, range.own});
    }
  }
  return all;
}

// With its previous contents or zeros. `event`, if there is one, is recorded behind the copy.
SwapBackend::Answer SwapBackend::refill(const Extent& extent, const Mover& mover, api::CUevent* event) {
  api::CUresult result = api::CUDA_SUCCESS;
  const bool there = mover.within([&] {
    *event = driver::make_event();  // none: a full GPU has no room for one, so this waits for the copy
    result = extent.saved ? store_.get(extent.host, extent.bytes, extent.address, mover.stream)
                          : real::cuMemsetD8Async(extent.address, 0, extent.bytes, mover.stream);
    if (result == api::CUDA_SUCCESS) {
      result = *event != nullptr ? real::cuEventRecord(*event, mover.stream) : real::cuStreamSynchronize(mover.stream);
    }
    if (result == api::CUDA_SUCCESS) return;
    wait_for_stream(mover);
    if (*event != nullptr) real::cuEventDestroy_v2(*event);
  });
  return there ? Answer(result) : std::nullopt;
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
  CopyTimes times;
  const auto land = [&] {
    const Flight flight = flights.front();
    flights.pop_front();
    const Answer result = flight.event == nullptr ? api::CUDA_SUCCESS : wait_for(mover, flight.event);
    const bool there = result == api::CUDA_SUCCESS;
    if (flight.event != nullptr) mover.within([&] { real::cuEventDestroy_v2(flight.event); });
    if (there) {
      bool copied = false;
      {
        const std::lock_guard lock(mutex_);
        Range* range = nullptr;
        Extent* extent = extent_at(flight.address, &range);
        copied = extent->saved;
        extent->came = opened_[static_cast<std::size_t>(range->device)];
        if (extent->host != nullptr) host_.add_copies(static_cast<std::int64_t>(flight.bytes));
      }
      if (copied) times.ended();
      // If the host is low on memory, or others need this process's share of it, the copy there is released for what
      // they have to move out.
      if (copied && (host_.low() || host_.excess() != 0) && mover.idle()) {
        Store::Slot host = nullptr;
        {
          const std::lock_guard lock(mutex_);
          Extent* extent = extent_at(flight.address);
          host = std::exchange(extent->host, nullptr);
          extent->saved = false;
          extent->came = 0;
        }
        host_.add_copies(-static_cast<std::int64_t>(flight.bytes));
        if (!mover.within([&] { store_.release(host, flight.bytes); })) store_.discard(host, flight.bytes);
      }
      (copied ? moved.bytes : moved.without_copy) += flight.bytes;
    } else {
      // Its contents are still on the host: take it off the GPU again.
      Extent back;
      {
        const std::lock_guard lock(mutex_);
        Extent* extent = extent_at(flight.address);
        back = *extent;
        extent->piece = {};
        out_[at] += flight.bytes;
      }
      drop(ordinal, back);
      take_resident(ordinal, flight.bytes);
      moved.failed = true;
      if (result) moved.error = *result;
    }
    landed(flight.address);
  };
  bool exports = false;
  {
    const std::lock_guard lock(mutex_);
    exports = device(ordinal).exports;
  }
  release_stuck(ordinal);  // it may lie where something is to be mapped
  HandedOver handed(ordinal, mover.exchange, [this, ordinal](std::uint64_t bytes, Piece&& piece) {
    release_piece(ordinal, bytes, std::move(piece));
  });
  std::deque<Lacking> all = off_gpu(ordinal);
  bool lacks_room = false;
  Clock::time_point last_room = Clock::now();
  while (!all.empty() && !moved.failed && !mover.stopping()) {
    handed.collect();
    const auto next =
        all.begin() +
        static_cast<std::ptrdiff_t>(next_to_restore(
            all.size(), [&](std::size_t index) { return all[index].takes_any() && handed.has(all[index].bytes); },
            [&](std::size_t index) { return all[index].bytes; }));
    const Lacking chosen = *next;
    Piece piece = chosen.takes_any() ? handed.take(chosen.bytes) : Piece{};
    const bool used_before = static_cast<bool>(piece);
    bool ended = false;
    api::CUresult result =
        used_before ? api::CUDA_SUCCESS : create(chosen.own, chosen.bytes, ordinal, exports, &piece.handle);
    if (result == api::CUDA_ERROR_OUT_OF_MEMORY) {
      if (drop_kept(ordinal, chosen.bytes) != 0 || handed.release()) continue;
      const bool copies = !flights.empty();
      // They may wait for this process's share of the host's memory, without which theirs cannot leave.
      if (const std::uint64_t excess = host_.excess(); excess != 0 && !copies && mover.idle()) {
        std::uint64_t gone = 0;
        mover.within([&] { gone = give_host_back(excess, true); });
        if (gone != 0) continue;
      }
      lacks_room = !copies && Clock::now() - last_room > (mover.exchange.coming() ? kRoomComes : kNoRoom);
      if (lacks_room) break;
      // Where memory is handed over the driver has none in the meantime, and a refused request keeps others from the
      // driver: while copies run it is made less often. What arrives then is mapped during the copy, so that the engine
      // goes on.
      const Clock::time_point again = Clock::now() + (handed.any_came() ? 1ms : copies ? 500us : 100us);
      const auto over = [&] { return copies && is_over(mover, flights.front().event); };
      do {
        std::this_thread::sleep_for(50us);
        handed.collect();
      } while (handed.empty() && Clock::now() < again && !over());
      if (handed.empty() && over()) land();  // a thread that frees it need not wait for the following extents
      continue;
    }
    last_room = Clock::now();
    // Not before: while the driver refuses one request after the other, what is counted has to be what is there.
    add_resident(ordinal, chosen.bytes);
    auto beside = all.erase(next);
    struct Coming {
      Extent extent;
      Access access;
    };
    const auto set_out = [&](const Lacking& what) {
      Coming coming;
      const std::lock_guard lock(mutex_);
      Range* range = nullptr;
      Extent* extent = extent_at(what.address, &range);
      if (extent == nullptr || range->id != what.range || extent->piece || range->ending) return coming;
      extent->moving = true;
      extent->mapped = true;
      coming = {.extent = *extent, .access = access_of(*range)};
      return coming;
    };
    std::deque<Coming> run = {set_out(chosen)};
    if (run.front().extent.address == 0) {  // it has just been freed
      if (piece) release_piece(ordinal, chosen.bytes, std::move(piece));
      take_resident(ordinal, chosen.bytes);
      continue;
    }
    if (result == api::CUDA_SUCCESS) result = map(ordinal, run.front().extent, std::move(piece));
    const bool mapped = static_cast<bool>(run.front().extent.piece);
    std::uint64_t sum = chosen.bytes;
    // Adjacent small extents as well, so that the driver sets access for all of them at once, and of the small pieces
    // that the program created the next ones: wherever those are, the program's mappings of them often lie together.
    // Extents for which that fails come separately.
    const auto goes_along = [&](const Lacking& other) {
      return other.own == chosen.own && other.bytes < kLeastHandedOver &&
             (chosen.own || other.address == chosen.address + sum);
    };
    while (mapped && chosen.bytes < kLeastHandedOver && sum < kMostOfSmall && beside != all.end() &&
           goes_along(*beside)) {
      Piece more;
      if (create(beside->own, beside->bytes, ordinal, exports, &more.handle) != api::CUDA_SUCCESS) break;
      add_resident(ordinal, beside->bytes);
      Coming coming = set_out(*beside);
      if (coming.extent.address == 0) {
        release_piece(ordinal, beside->bytes, std::move(more));
      } else if (map(ordinal, coming.extent, std::move(more)) != api::CUDA_SUCCESS) {
        landed(coming.extent.address);
      }
      if (!coming.extent.piece) {
        take_resident(ordinal, beside->bytes);
        break;
      }
      sum += coming.extent.bytes;
      run.push_back(std::move(coming));
      beside = all.erase(beside);
    }
    const auto allow = [&](auto first, auto last) {
      std::vector<Allowed> allowed;
      for (; first != last; ++first) add_allowed(allowed, first->extent, ordinal, first->access);
      return give_access(std::move(allowed));
    };
    const bool together = run.size() > 1 && allow(run.begin(), run.end()) == api::CUDA_SUCCESS;
    for (; !run.empty(); run.pop_front()) {
      const auto& [coming, access] = run.front();
      if (mapped && !together) result = allow(run.begin(), run.begin() + 1);
      Flight flight{.address = coming.address, .bytes = coming.bytes};
      if (coming.saved) times.starts();
      // Fresh memory from the driver is zero, and a program may rely on that.
      if (result == api::CUDA_SUCCESS && (coming.saved || used_before)) {
        const Answer refilled = refill(coming, mover, &flight.event);
        ended = !refilled;
        result = refilled.value_or(api::CUDA_SUCCESS);
      }
      if (ended || result != api::CUDA_SUCCESS) break;
      {
        const std::lock_guard lock(mutex_);
        Range* range = nullptr;
        Extent* extent = extent_at(coming.address, &range);
        extent->piece = coming.piece;
        extent->reachable = true;
        out_[at] -= coming.bytes;
        catch_up(*range, *extent, access);
      }
      if (used_before) moved.taken_over += coming.bytes;
      flights.push_back(flight);
      if (flights.size() >= kInFlight) land();
    }
    if (!ended && result == api::CUDA_SUCCESS) continue;
    log::debug("an extent of {} bytes cannot be brought back: {}", chosen.bytes,
               ended ? "its context has ended" : fmt::format("error {}", static_cast<int>(result)));
    for (Coming& coming : run) {
      drop(ordinal, coming.extent);
      take_resident(ordinal, coming.extent.bytes);
      landed(coming.extent.address);
    }
    if (!mapped && used_before) {
      all.push_front(chosen);  // the handed-over memory is not what its owner said
      continue;
    }
    lacks_room = result == api::CUDA_ERROR_OUT_OF_MEMORY;
    moved.failed = moved.failed || !lacks_room;
    if (!lacks_room && !ended) moved.error = result;
    break;
  }
  while (!flights.empty()) land();
  times.say("in", ordinal, moved.bytes);
  count_copies();
  if (lacks_room) moved.lacking = out_bytes(ordinal);
  return moved;
}

}  // namespace rota::memory
