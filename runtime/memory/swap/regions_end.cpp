// How ranges end: they are cached for the next allocation like them, or their memory, their copies on the host and
// their addresses are released.
#include <algorithm>
#include <bit>
#include <utility>

#include "runtime/memory/swap/regions.h"

namespace rota::memory {

namespace {

// The most that is cached for the next allocations: a 64th of the GPU.
constexpr std::uint64_t kCachedPart = 64;

unsigned pin_bit(protocol::Pin why) {
  return 1U << static_cast<unsigned>(why);
}

// The reason under which pinned bytes are counted. Not for 0.
std::size_t first_of(std::uint8_t pins) {
  return static_cast<std::size_t>(std::countr_zero(pins));
}

}  // namespace

// With the lock held: no longer counts the range. destroy() releases what it has.
void Regions::uncount(const Range& range) {
  if (range.failed) return;
  Accounting& accounting = accounting_[static_cast<std::size_t>(range.device)];
  if (range.begins_small) --accounting.begin_small;
  if (range.pinned()) {
    pinned_[static_cast<std::size_t>(range.device)] -= range.bytes;
    pinned_by_[static_cast<std::size_t>(range.device)][first_of(range.pins)] -= range.bytes;
  }
  if (!range.cached) needed(range.device) -= range.bytes;
  for (const Extent& extent : range.extents) {
    if (!extent.physical) count_in(range, extent);
    if (!extent.in_place()) --out_of_place(range.device);
  }
  if (!range.cached) return;
  accounting.cached -= range.bytes;
  const auto [first, last] = accounting.cached_alike.equal_range(like(range));
  accounting.cached_alike.erase(
      std::find_if(first, last, [&](const auto& each) { return each.second == range.address; }));
}

// Releases what a range has that is no longer counted. Returns the bytes that are no longer on the GPU.
std::uint64_t Regions::destroy(Range&& range, const Exchange& exchange) {
  std::uint64_t had = 0;
  std::uint64_t gone = 0;
  for (Extent& extent : range.extents) {
    const std::uint64_t bytes = extent.physical ? extent.bytes : 0;
    had += bytes;
    if (mapper_.drop(range.device, extent, exchange)) gone += bytes;
    if (extent.host != nullptr) store_.discard(extent.host, extent.bytes);
  }
  mapper_.free_addresses(range.own.has_value(), range.address, range.bytes);
  mapper_.take_resident(range.device, had);
  return gone;
}

std::uint64_t Regions::drop_kept(int ordinal, std::uint64_t bytes, const Exchange& exchange) {
  std::vector<Range> gone;
  std::uint64_t released = mapper_.release_stuck(ordinal);
  {
    std::uint64_t sum = released;
    const std::lock_guard lock(mutex_);
    Accounting& accounting = accounting_[static_cast<std::size_t>(ordinal)];
    while (sum < bytes && !accounting.cached_alike.empty()) {
      const auto largest = std::prev(accounting.cached_alike.end());
      auto range = ranges_.extract(largest->second);
      uncount(range.mapped());
      sum += range.mapped().bytes;
      gone.push_back(std::move(range.mapped()));
    }
  }
  for (Range& range : gone) released += destroy(std::move(range), exchange);
  return released;
}

// With the lock held.
void Regions::set_pins(Range& range, std::uint8_t pins) {
  const auto device = static_cast<std::size_t>(range.device);
  const auto add = [&](std::uint8_t all, std::uint64_t bytes) {
    if (all == 0) return;
    pinned_[device] += bytes;
    pinned_by_[device][first_of(all)] += bytes;
  };
  add(range.pins, 0 - range.bytes);
  range.pins = pins;
  add(range.pins, range.bytes);
}

std::optional<int> Regions::pin(std::uint64_t address, protocol::Pin why) {
  const std::lock_guard lock(mutex_);
  const Range* const found = range_at(address);
  if (found == nullptr || found->cached || found->failed) return std::nullopt;
  const auto all = static_cast<std::uint8_t>(found->pins | pin_bit(why));
  if (all == found->pins) return std::nullopt;
  set_pins(ranges_.at(found->address), all);
  return found->device;
}

std::optional<Regions::Found> Regions::open_to_others(std::uint64_t address) {
  const std::lock_guard lock(mutex_);
  const Range* const found = range_at(address);
  if (found == nullptr || found->cached || found->failed || found->ending || !found->in_place()) return std::nullopt;
  Range& range = ranges_.at(found->address);
  ++range.open;
  for (Extent& extent : range.extents) extent.was_open = true;
  set_pins(range, static_cast<std::uint8_t>(range.pins | pin_bit(protocol::Pin::kIpc)));
  return Found{range.context, range.id, range.device};
}

std::optional<int> Regions::closed_by_others(std::uint64_t address, std::uint64_t id) {
  const std::lock_guard lock(mutex_);
  const Range* const found = range_at(address);
  if (found == nullptr || found->id != id || found->failed || found->open == 0) return std::nullopt;
  Range& range = ranges_.at(found->address);
  if (--range.open != 0) return std::nullopt;
  set_pins(range, static_cast<std::uint8_t>(range.pins & ~pin_bit(protocol::Pin::kIpc)));
  return range.device;
}

bool Regions::was_open(std::uint64_t address) const {
  const std::lock_guard lock(mutex_);
  const Range* const found = range_at(address);
  return found != nullptr && found->was_open();
}

std::array<std::uint64_t, protocol::kPins> Regions::pinned_by(int device) const {
  std::array<std::uint64_t, protocol::kPins> all{};
  if (pinned_bytes(device) == 0) return all;  // nearly always, and this is asked at each allocation
  for (std::size_t why = 0; why < all.size(); ++why)
    all[why] = pinned_by_[static_cast<std::size_t>(device)][why].load();
  return all;
}

void Regions::free(std::uint64_t address) {
  Range gone;
  {
    Lock lock(mutex_);
    landed_.wait(lock, [&] {
      const auto found = ranges_.find(address);
      return found == ranges_.end() || !found->second.moves();
    });
    const auto found = ranges_.find(address);
    if (found == ranges_.end() || found->second.cached) return;
    Range& range = found->second;
    Accounting& accounting = accounting_[static_cast<std::size_t>(range.device)];
    const std::uint64_t most = devices_.of(range.device).total / kCachedPart;
    // Pools cache their unused memory themselves.
    const bool caches =
        !range.pinned() && !range.was_open() && (range.own ? caches_own_.load() : range.context != nullptr);
    if (caches && range.in_place() && accounting.cached + range.bytes <= most) {
      range.cached = true;
      needed(range.device) -= range.bytes;
      accounting.cached += range.bytes;
      accounting.cached_alike.emplace(like(range), range.address);
      return;
    }
    uncount(range);
    gone = std::move(range);
    ranges_.erase(found);
  }
  destroy(std::move(gone));
}

void Regions::context_ended(api::CUcontext context) {
  std::vector<Range> gone;
  {
    const std::lock_guard lock(mutex_);
    for (auto next = ranges_.begin(); next != ranges_.end();) {
      const auto each = next++;
      Range& range = each->second;
      // Memory that no allocation uses is not cached for a program that may have no context left.
      if (range.context != context && !(range.own && range.cached)) continue;
      // The monitor may wait for the lock under which contexts end, so nothing here waits for the monitor: it destroys
      // what it is moving once the move has ended, and no longer finds what it has not begun to move.
      range.ending = range.moves();
      range.context = nullptr;
      if (range.ending) continue;
      uncount(range);
      gone.push_back(std::move(range));
      ranges_.erase(each);
    }
  }
  for (Range& range : gone) destroy(std::move(range));
}

// With the lock held: takes the extent's memory away, and counts it as moving. The caller releases the memory.
Extent Regions::detach(Extent& extent) {
  Extent had = extent;
  extent.moving = true;
  extent.physical = {};
  extent.host = nullptr;
  extent.saved = false;
  return had;
}

// Releases what detach() has taken away. Returns the bytes that are no longer on the GPU.
std::uint64_t Regions::release(std::vector<std::pair<int, Extent>>&& gone) {
  std::uint64_t sum = 0;
  for (auto& [ordinal, extent] : gone) {
    const std::uint64_t bytes = extent.physical ? extent.bytes : 0;
    if (mapper_.drop(ordinal, extent)) sum += bytes;
    mapper_.take_resident(ordinal, bytes);
    if (extent.host != nullptr) store_.discard(extent.host, extent.bytes);
    landed(extent.address);
  }
  return sum;
}

std::uint64_t Regions::context_failed(api::CUcontext context, int ordinal) {
  std::vector<std::pair<int, Extent>> gone;
  {
    const std::lock_guard lock(mutex_);
    for (auto& [address, range] : ranges_) {
      if (range.context != context || range.device != ordinal) continue;
      if (range.cached || range.failed || range.ending) continue;
      uncount(range);
      range.failed = true;
      for (Extent& extent : range.extents) gone.emplace_back(ordinal, detach(extent));
    }
  }
  return release(std::move(gone));
}

void Regions::release_all() {
  for (int ordinal = 0; ordinal < kMaxDevices; ++ordinal) drop_kept(ordinal);
  std::vector<std::pair<int, Extent>> gone;
  {
    const std::lock_guard lock(mutex_);
    for (auto& [address, range] : ranges_) {
      if (range.cached || range.failed) continue;
      for (Extent& extent : range.extents) {
        if (extent.physical) {
          count_out(range, extent);
          ++out_of_place(range.device);
        }
        gone.emplace_back(range.device, detach(extent));
      }
    }
  }
  release(std::move(gone));
}

}  // namespace rota::memory
