// How extents leave the GPU: what has changed since it was last copied to the host is copied there, in one stream, with
// several extents in flight; the rest leaves at once.
#include <algorithm>
#include <deque>
#include <functional>
#include <map>
#include <utility>

#include "generated/driver_real.h"
#include "runtime/driver/own_streams.h"
#include "runtime/memory/swap/flight.h"
#include "runtime/memory/swap/hand_over.h"
#include "runtime/memory/swap/swap.h"
#include "scheduler/protocol/host_memory.h"

namespace rota::memory {

namespace {

// What is examined before the first copy is less, so that this begins sooner: 1 GiB takes 0.6 ms (H200). Judgement.
constexpr std::uint64_t kExaminedFirst = std::uint64_t{256} << 20;

}  // namespace

// Extents on the GPU that are in use, in no order.
std::deque<Candidate> SwapBackend::on_gpu(int ordinal) {
  std::deque<Candidate> all;
  const std::lock_guard lock(mutex_);
  for (const auto& [address, range] : ranges_) {
    if (range.device != ordinal || range.kept || range.ending) continue;
    for (const Extent& extent : range.extents) {
      if (extent.in_place() && extent.reachable) all.push_back({extent.steady, extent.bytes, extent.address});
    }
  }
  return all;
}

// What the program has created becomes reachable by the addresses of its ranges.
void SwapBackend::make_reachable(int ordinal) {
  const std::lock_guard lock(mutex_);
  std::vector<Extent*> mapped;
  std::vector<Allowed> allowed;
  for (auto& [address, range] : ranges_) {
    if (range.device != ordinal || !range.own || range.kept) continue;
    for (Extent& extent : range.extents) {
      if (extent.reachable || !extent.in_place()) continue;
      extent.mapped =
          extent.mapped || real::cuMemMap(extent.address, extent.bytes, 0, extent.piece.handle, 0) == api::CUDA_SUCCESS;
      if (!extent.mapped) continue;
      mapped.push_back(&extent);
      allowed.push_back({.address = extent.address,
                         .bytes = extent.bytes,
                         .access = {{ordinal, api::CU_MEM_ACCESS_FLAGS_PROT_READWRITE}}});
    }
  }
  const bool together = give_access(std::move(allowed)) == api::CUDA_SUCCESS;
  for (Extent* const extent : mapped) {
    extent->reachable = together || give_access(extent->address, extent->bytes, ordinal, {}) == api::CUDA_SUCCESS;
  }
}

bool SwapBackend::prepare_host(const std::vector<Excess>& all) {
  // Blocks by size, the largest first, as they leave, and by where they are best.
  std::map<std::pair<std::uint64_t, int>, std::size_t, std::greater<>> wanted;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [ordinal, most] : all) {
      std::map<std::uint64_t, std::size_t, std::greater<>> lacking;
      std::uint64_t has = 0;
      for (const auto& [address, range] : ranges_) {
        if (range.device != ordinal || range.kept || range.ending || range.failed) continue;
        for (const Extent& extent : range.extents) {
          if (extent.host != nullptr) has += extent.bytes;
          if (extent.host == nullptr && extent.in_place() && !extent.zeros) ++lacking[extent.bytes];
        }
      }
      for (const auto& [bytes, count] : lacking) {
        for (std::size_t one = 0; one < count && has < most; ++one, has += bytes) {
          ++wanted[{bytes, host_.node_of(ordinal)}];
        }
      }
    }
  }
  for (const auto& [block, count] : wanted) {
    const auto& [bytes, node] = block;
    if (host_.kept(bytes, node) < count) return host_.prepare(bytes, node);
  }
  if (wanted.empty()) host_.drop_prepared();
  return false;
}

// One that is to leave.
struct SwapBackend::Leaving {
  std::uint64_t address = 0;
  std::uint64_t bytes = 0;
  std::uint64_t range = 0;               // its number, since an address can be reused
  std::shared_ptr<const Prints> copied;  // of its copy on the host, if that is there and they are known
  Fingerprints::Seen seen;
  bool unused = false;  // no allocation lies in it

  // What the copy on the host lacks, as [begin, end) within the extent.
  std::vector<Store::Part> changed() const {
    if (seen.zero || unused) return {};
    if (!copied || copied->size() != seen.chunks.size()) return {{0, bytes}};
    std::vector<Store::Part> parts;
    for (std::size_t chunk = 0; chunk < seen.chunks.size(); ++chunk) {
      if (seen.chunks[chunk] == (*copied)[chunk]) continue;
      const std::uint64_t begin = chunk * fingerprint::kChunkBytes;
      const std::uint64_t end = std::min(begin + fingerprint::kChunkBytes, bytes);
      if (!parts.empty() && parts.back().end == begin) {
        parts.back().end = end;
      } else {
        parts.push_back({begin, end});
      }
    }
    return parts;
  }
};

// Removes the first extents from `all` that together make `bytes` of room, the last one no larger than necessary, or as
// many as are examined at a time: `most` bytes, or one. Larger ones that were skipped stay in `all`: the one chosen may
// be unable to leave.
std::deque<SwapBackend::Leaving> SwapBackend::choose(std::deque<Candidate>& all, std::uint64_t bytes,
                                                     std::uint64_t most) {
  std::deque<Leaving> chosen;
  std::uint64_t sum = 0;
  const std::lock_guard lock(mutex_);
  while (sum < bytes && !all.empty()) {
    const auto next = next_to_evict(all, bytes - sum, chosen.empty() ? UINT64_MAX : most - std::min(most, sum));
    if (!next) break;
    Range* range = nullptr;
    const Extent* extent = extent_at(next->address, &range);
    if (extent == nullptr || !extent->in_place() || range->kept || range->ending) continue;  // it has just been freed
    if (!extent->reachable) continue;  // and other memory has been created at its address
    chosen.push_back({.address = extent->address,
                      .bytes = extent->bytes,
                      .range = range->id,
                      .copied = extent->saved ? extent->prints : nullptr,
                      .seen = {},
                      .unused = false});
    sum += extent->bytes;
  }
  return chosen;
}

// With the lock held: marks it as moving, unless it has been freed since it was chosen.
SwapBackend::Extent* SwapBackend::set_out(const Leaving& leaving) {
  Range* range = nullptr;
  Extent* extent = extent_at(leaving.address, &range);
  if (extent == nullptr || range->id != leaving.range) return nullptr;
  if (!extent->in_place() || range->kept || range->ending) return nullptr;
  extent->moving = true;
  ++out_of_place(range->device);
  return extent;
}

// Checks on the GPU what they contain. They count as moving during that, since they have to stay mapped. What no
// allocation lies in needs no look: nothing has been written there since the gate closed.
void SwapBackend::look_at(std::deque<Leaving>& chosen, const Mover& mover) {
  for (Leaving& each : chosen) each.unused = !in_use(each.address, each.bytes);
  if (mover.context == nullptr) return;
  std::vector<Leaving*> looked;
  {
    const std::lock_guard lock(mutex_);
    for (Leaving& each : chosen) {
      if (!each.unused && set_out(each) != nullptr) looked.push_back(&each);
    }
  }
  std::vector<Fingerprints::Memory> all;
  for (const Leaving* each : looked) all.push_back({each->address, each->bytes});
  std::vector<Fingerprints::Seen> seen =
      fingerprints_.look(all, mover.context, mover.within, [&](api::CUevent event) { return wait_for(mover, event); });
  for (std::size_t index = 0; index < looked.size(); ++index) {
    looked[index]->seen = std::move(seen[index]);
    landed(looked[index]->address);
  }
}

// Starts its copy, or none if nothing has to be copied.
struct SwapBackend::Departure {
  std::uint64_t address = 0;  // the extent's
  std::uint64_t bytes = 0;
  std::uint64_t copied = 0;
  api::CUevent event = nullptr;  // null: nothing to wait for
  Fingerprints::Seen seen;
  bool unused = false;
};

// As far as the host has memory for it now.
SwapBackend::Moved SwapBackend::move_out_now(int ordinal, std::uint64_t bytes, const Mover& mover) {
  Moved moved;
  moved.without_copy = drop_kept(ordinal, bytes, mover.exchange);
  if (moved.without_copy < bytes) {
    moved.spared = drop_unused(ordinal, bytes - moved.without_copy, mover.exchange, moved);
    moved.without_copy += moved.spared;
  }
  if (moved.without_copy >= bytes) return moved;
  std::deque<Departure> flights;
  std::uint64_t under_way = 0;
  CopyTimes times;
  const auto land = [&] {
    Departure flight = std::move(flights.front());
    flights.pop_front();
    under_way -= flight.bytes;
    const Answer result = wait_for(mover, flight.event);
    times.ended();
    mover.within([&] { real::cuEventDestroy_v2(flight.event); });
    if (result == api::CUDA_SUCCESS) {
      left(ordinal, std::move(flight), mover.exchange, moved);
    } else {
      moved.failed = true;
      if (result) moved.error = *result;
      landed(flight.address);
    }
  };
  make_reachable(ordinal);
  const bool gives = mover.exchange.give && mover.exchange.gives();
  std::deque<Candidate> candidates = on_gpu(ordinal);
  for (Candidate& each : candidates) each.without_copy = each.without_copy || !in_use(each.address, each.bytes);
  candidates = eviction_order(std::move(candidates), gives ? bytes : 0);
  std::deque<Leaving> chosen;
  std::uint64_t most = kExaminedFirst;
  while (!moved.failed && !mover.stopping()) {
    if (chosen.empty()) {
      const std::uint64_t sum = moved.without_copy + moved.bytes + under_way;
      if (sum >= bytes) break;
      chosen = choose(candidates, bytes - sum, std::exchange(most, Fingerprints::kMost));
      if (chosen.empty()) break;
      look_at(chosen, mover);
      continue;
    }
    Leaving leaving = std::move(chosen.front());
    chosen.pop_front();
    std::vector<Store::Part> parts;
    Store::Slot host = nullptr;
    {
      const std::lock_guard lock(mutex_);
      Extent* extent = set_out(leaving);
      if (extent == nullptr) continue;
      if (!extent->saved) leaving.copied = nullptr;  // the copy has been given up since it was chosen
      parts = leaving.changed();
      if (!parts.empty()) extent->saved = false;
      host = extent->host;
    }
    Departure flight{
        .address = leaving.address, .bytes = leaving.bytes, .seen = std::move(leaving.seen), .unused = leaving.unused};
    if (parts.empty()) {
      left(ordinal, std::move(flight), mover.exchange, moved);
      continue;
    }
    bool started = false;
    bool no_host = false;
    mover.within([&] {
      if (host == nullptr) host = place_on_host(ordinal, flight.bytes);
      no_host = host == nullptr;
      if (no_host) return;
      flight.event = driver::make_event();  // none: a full GPU has no room for one, and the copy is waited for here
      times.starts();
      api::CUresult result = store_.put(host, flight.bytes, flight.address, parts, mover.stream);
      for (const auto& [begin, end] : parts) flight.copied += end - begin;
      if (result == api::CUDA_SUCCESS) {
        result = flight.event != nullptr ? real::cuEventRecord(flight.event, mover.stream)
                                         : real::cuStreamSynchronize(mover.stream);
      }
      started = result == api::CUDA_SUCCESS;
      if (started) return;
      wait_for_stream(mover);
      if (flight.event != nullptr) real::cuEventDestroy_v2(flight.event);
    });
    {
      const std::lock_guard lock(mutex_);
      extent_at(flight.address)->host = host;
    }
    if (!started) {
      landed(flight.address);
      moved.lacks_host = moved.lacks_host || no_host;
      moved.failed = !no_host;
      continue;  // others may have been swapped out before and have room there
    }
    if (flight.event == nullptr) {
      times.ended();
      left(ordinal, std::move(flight), mover.exchange, moved);
      continue;
    }
    under_way += flight.bytes;
    flights.push_back(std::move(flight));
    if (flights.size() >= kInFlight) land();
  }
  while (!flights.empty()) land();
  times.say("out", ordinal, moved.bytes);
  return moved;
}

// An extent's contents are on the host, or all zeros: it leaves the GPU.
void SwapBackend::left(int ordinal, Departure&& flight, const Exchange& exchange, Moved& moved) {
  Gone leaving;
  Store::Slot unread = nullptr;
  {
    const std::lock_guard lock(mutex_);
    Range* range = nullptr;
    Extent* extent = extent_at(flight.address, &range);
    leaving = take_out(*range, *extent);
    const bool fresh = flight.seen.zero || flight.unused;
    extent->saved = !fresh;  // otherwise it comes back as fresh memory
    extent->steady = flight.copied == 0 && !flight.unused;
    extent->zeros = flight.seen.zero;
    extent->prints =
        flight.seen.chunks.empty() ? nullptr : std::make_shared<const Prints>(std::move(flight.seen.chunks));
    if (fresh) unread = std::exchange(extent->host, nullptr);
  }
  if (unread != nullptr) store_.discard(unread, flight.bytes);
  if (const api::CUresult result = leave(ordinal, std::move(leaving), exchange); result != api::CUDA_SUCCESS) {
    moved.failed = true;
    moved.error = result;
    return;
  }
  moved.bytes += flight.copied;
  moved.without_copy += flight.bytes - flight.copied;
  moved.spared += flight.bytes - flight.copied;
}

}  // namespace rota::memory
