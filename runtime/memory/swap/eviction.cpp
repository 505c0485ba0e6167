#include "runtime/memory/swap/eviction.h"

#include <algorithm>
#include <utility>

#include "generated/driver_real.h"
#include "runtime/driver/own_streams.h"
#include "runtime/memory/swap/access.h"

namespace rota::memory {

namespace {

// Less is examined before the first copy, so that the copy begins sooner: 1 GiB takes 0.6 ms (H200). Judgement.
constexpr std::uint64_t kExaminedFirst = std::uint64_t{256} << 20;

}  // namespace

Moved Eviction::run(std::uint64_t bytes) {
  moved_.without_copy = regions_.drop_kept(device_, bytes, move_.exchange);
  if (moved_.without_copy < bytes) evict_unused(bytes - moved_.without_copy);
  if (moved_.without_copy >= bytes) return moved_;
  make_reachable();
  const bool gives = move_.exchange.give && move_.exchange.gives();
  std::deque<Candidate> candidates = on_gpu();
  for (Candidate& each : candidates)
    each.without_copy = each.without_copy || !what_.contents->in_use(each.address, each.bytes);
  candidates = eviction_order(std::move(candidates), gives ? bytes : 0);
  std::deque<Leaving> chosen;
  std::uint64_t most = kExaminedFirst;
  while (!moved_.failed && !move_.stopping()) {
    if (chosen.empty()) {
      if (evicted_so_far() >= bytes) break;
      chosen = choose(candidates, bytes - evicted_so_far(), std::exchange(most, Fingerprints::kMost));
      if (chosen.empty()) break;
      examine(chosen);
      continue;
    }
    Leaving next = std::move(chosen.front());
    chosen.pop_front();
    depart(std::move(next));
  }
  while (!flights_.empty()) land();
  times_.say("out", device_, moved_.bytes);
  return moved_;
}

// --- which extents

// Extents on the GPU that are in use, in no order.
std::deque<Candidate> Eviction::on_gpu() {
  std::deque<Candidate> all;
  const Regions::Lock lock = regions_.lock();
  for (const auto& [address, range] : regions_.ranges()) {
    if (range.device != device_ || range.cached || range.ending || range.pinned()) continue;
    for (const Extent& extent : range.extents) {
      if (extent.in_place() && extent.reachable) all.push_back({extent.unchanged, extent.bytes, extent.address});
    }
  }
  return all;
}

// Evicts extents that were restored after the gate last closed: they equal the host's copy, or were never written.
void Eviction::evict_unused(std::uint64_t bytes) {
  std::uint64_t sum = 0;
  for (const auto& [without_copy, size, address] : eviction_order(on_gpu())) {
    if (sum >= bytes) break;
    Uncounted leaving;
    {
      const Regions::Lock lock = regions_.lock();
      Range* range = nullptr;
      Extent* extent = regions_.extent_at(address, &range);
      if (extent == nullptr || !regions_.unused(*range, *extent) || range->cached || range->ending) continue;
      leaving = uncount(*range, *extent);
      regions_.begin_moving(*range, *extent);
    }
    if (unmap(std::move(leaving))) sum += size;
  }
  moved_.spared += sum;
  moved_.without_copy += sum;
}

// Maps memory that the program has created itself at the addresses of its ranges, so that it can be copied.
void Eviction::make_reachable() {
  const Regions::Lock lock = regions_.lock();
  std::vector<Extent*> mapped;
  std::vector<Allowed> allowed;
  for (auto& [address, range] : regions_.ranges()) {
    if (range.device != device_ || !range.own || range.cached) continue;
    for (Extent& extent : range.extents) {
      if (extent.reachable || !extent.in_place()) continue;
      extent.mapped = extent.mapped ||
                      real::cuMemMap(extent.address, extent.bytes, 0, extent.physical.handle, 0) == api::CUDA_SUCCESS;
      if (!extent.mapped) continue;
      mapped.push_back(&extent);
      allowed.push_back({.address = extent.address,
                         .bytes = extent.bytes,
                         .access = {{device_, api::CU_MEM_ACCESS_FLAGS_PROT_READWRITE}}});
    }
  }
  const bool together = give_access(std::move(allowed)) == api::CUDA_SUCCESS;
  for (Extent* const extent : mapped) {
    extent->reachable = together || give_access(extent->address, extent->bytes, device_, {}) == api::CUDA_SUCCESS;
  }
}

// Removes from `all` the first extents that together have `bytes`, or as many as are examined at a time: `most` bytes,
// or one extent.
std::deque<Eviction::Leaving> Eviction::choose(std::deque<Candidate>& all, std::uint64_t bytes, std::uint64_t most) {
  std::deque<Leaving> chosen;
  std::uint64_t sum = 0;
  const Regions::Lock lock = regions_.lock();
  while (sum < bytes && !all.empty()) {
    const auto next = next_to_evict(all, bytes - sum, chosen.empty() ? UINT64_MAX : most - std::min(most, sum));
    if (!next) break;
    Range* range = nullptr;
    const Extent* extent = regions_.extent_at(next->address, &range);
    if (extent == nullptr || !extent->in_place() || range->cached || range->ending) continue;  // it has just been freed
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

// Checks on the GPU what the extents contain. They count as moving meanwhile, since they have to stay mapped. Extents
// without an allocation are not examined: their contents do not matter, and the gate is closed.
void Eviction::examine(std::deque<Leaving>& chosen) {
  for (Leaving& each : chosen) each.unused = !what_.contents->in_use(each.address, each.bytes);
  if (move_.context == nullptr) return;
  std::vector<Leaving*> examined;
  {
    const Regions::Lock lock = regions_.lock();
    for (Leaving& each : chosen) {
      if (!each.unused && set_out(each) != nullptr) examined.push_back(&each);
    }
  }
  std::vector<Fingerprints::Memory> all;
  for (const Leaving* each : examined) all.push_back({each->address, each->bytes});
  std::vector<Fingerprints::Seen> seen = what_.fingerprints.examine(
      all, move_.context, move_.within, [&](api::CUevent event) { return wait_for(move_, event); });
  for (std::size_t index = 0; index < examined.size(); ++index) {
    examined[index]->seen = std::move(seen[index]);
    regions_.landed(examined[index]->address);
  }
}

std::vector<Store::Part> Eviction::Leaving::changed() const {
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

// --- how one is evicted

// With the lock held: marks it as moving, unless it has been freed since it was chosen.
Extent* Eviction::set_out(const Leaving& leaving) {
  Range* range = nullptr;
  Extent* extent = regions_.extent_at(leaving.address, &range);
  if (extent == nullptr || range->id != leaving.range) return nullptr;
  if (!extent->in_place() || range->cached || range->ending) return nullptr;
  regions_.begin_moving(*range, *extent);
  return extent;
}

// Begins the extent's copy; one that needs none is evicted at once.
void Eviction::depart(Leaving&& leaving) {
  std::vector<Store::Part> parts;
  Store::Slot host = nullptr;
  {
    const Regions::Lock lock = regions_.lock();
    Extent* extent = set_out(leaving);
    if (extent == nullptr) return;
    if (!extent->saved) leaving.copied = nullptr;  // the copy has been given up since it was chosen
    parts = leaving.changed();
    if (!parts.empty()) extent->saved = false;
    host = extent->host;
  }
  Departure flight{
      .address = leaving.address, .bytes = leaving.bytes, .seen = std::move(leaving.seen), .unused = leaving.unused};
  if (parts.empty()) return finish(std::move(flight));
  const bool begun = begin_copy(flight, &host, parts);
  {
    const Regions::Lock lock = regions_.lock();
    regions_.extent_at(flight.address)->host = host;
  }
  if (!begun) return regions_.landed(flight.address);  // others may have space there from an earlier eviction
  if (flight.event == nullptr) {
    times_.ended();
    return finish(std::move(flight));
  }
  under_way_ += flight.bytes;
  flights_.push_back(std::move(flight));
  if (flights_.size() >= kInFlight) land();
}

// False: the host has no memory for it, or the driver refuses.
bool Eviction::begin_copy(Departure& flight, Store::Slot* host, const std::vector<Store::Part>& parts) {
  bool begun = false;
  bool no_host = false;
  move_.within([&] {
    if (*host == nullptr) *host = what_.copies.reserve(device_, flight.bytes);
    no_host = *host == nullptr;
    if (no_host) return;
    flight.event = driver::make_event();  // null on a full GPU: then this waits for the copy
    times_.starts();
    api::CUresult result = what_.store.put(*host, flight.bytes, flight.address, parts, move_.stream);
    for (const auto& [begin, end] : parts) flight.copied += end - begin;
    if (result == api::CUDA_SUCCESS) {
      result = flight.event != nullptr ? real::cuEventRecord(flight.event, move_.stream)
                                       : real::cuStreamSynchronize(move_.stream);
    }
    begun = result == api::CUDA_SUCCESS;
    if (begun) return;
    wait_for_stream(move_);
    if (flight.event != nullptr) real::cuEventDestroy_v2(flight.event);
  });
  if (begun) return true;
  moved_.lacks_host = moved_.lacks_host || no_host;
  moved_.failed = !no_host;
  return false;
}

// Waits for the copy that began first.
void Eviction::land() {
  Departure flight = std::move(flights_.front());
  flights_.pop_front();
  under_way_ -= flight.bytes;
  const Answer result = wait_for(move_, flight.event);
  times_.ended();
  move_.within([&] { real::cuEventDestroy_v2(flight.event); });
  if (result == api::CUDA_SUCCESS) return finish(std::move(flight));
  moved_.failed = true;
  if (result) moved_.error = *result;
  regions_.landed(flight.address);
}

// An extent's contents are on the host, or all zeros: takes it off the GPU.
void Eviction::finish(Departure&& flight) {
  Uncounted leaving;
  Store::Slot unread = nullptr;
  {
    const Regions::Lock lock = regions_.lock();
    Range* range = nullptr;
    Extent* extent = regions_.extent_at(flight.address, &range);
    leaving = uncount(*range, *extent);
    const bool fresh = flight.seen.zero || flight.unused;
    extent->saved = !fresh;  // otherwise it is restored as fresh memory
    extent->unchanged = flight.copied == 0 && !flight.unused;
    extent->zeros = flight.seen.zero;
    extent->prints =
        flight.seen.chunks.empty() ? nullptr : std::make_shared<const Prints>(std::move(flight.seen.chunks));
    if (fresh) unread = std::exchange(extent->host, nullptr);
  }
  if (unread != nullptr) what_.store.discard(unread, flight.bytes);
  if (!unmap(std::move(leaving))) return;
  moved_.bytes += flight.copied;
  moved_.without_copy += flight.bytes - flight.copied;
  moved_.spared += flight.bytes - flight.copied;
}

// With the lock held: from now on its memory does not count as being on the GPU.
Eviction::Uncounted Eviction::uncount(const Range& range, Extent& extent) {
  Uncounted gone{.extent = extent, .access = regions_.access_of(range)};
  extent.physical = {};
  regions_.count_out(range, extent);
  return gone;
}

// The extent still counts as moving: no thread maps or frees it in the meantime. False: the driver refuses. The extent
// is then where it was, or it has been evicted and the driver holds its memory (Mapper::Stuck).
bool Eviction::unmap(Uncounted&& gone) {
  const api::CUresult result = what_.mapper.unmap(device_, gone.extent, move_.exchange);
  if (gone.extent.physical) {
    const Regions::Lock lock = regions_.lock();
    Range* range = nullptr;
    Extent* const extent = regions_.extent_at(gone.extent.address, &range);
    extent->physical = std::move(gone.extent.physical);
    regions_.count_in(*range, *extent);
    regions_.catch_up(*range, *extent, gone.access);
  } else {
    what_.mapper.take_resident(device_, gone.extent.bytes);
  }
  regions_.landed(gone.extent.address);
  if (result == api::CUDA_SUCCESS) return true;
  moved_.failed = true;
  moved_.error = result;
  return false;
}

}  // namespace rota::memory
