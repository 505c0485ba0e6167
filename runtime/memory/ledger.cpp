#include "runtime/memory/ledger.h"

#include <algorithm>
#include <utility>

#include "runtime/account/account.h"

namespace rota::memory {

namespace {

bool known(int device) {
  return device >= 0 && device < kMaxDevices;
}

bool add_within(std::atomic<std::uint64_t>& sum, std::uint64_t bytes, std::uint64_t most) {
  std::uint64_t live = sum.load(std::memory_order_relaxed);
  do {
    if (bytes > most || live > most - bytes) return false;
  } while (!sum.compare_exchange_weak(live, live + bytes));
  return true;
}

// How many addresses an entry covers. A handle covers only itself.
std::uint64_t covered(const Allocation& allocation) {
  return (allocation.address & kHandleBit) != 0 ? 1 : allocation.bytes;
}

// For the account of what modules have.
void note(Allocation& allocation) {
  if (!allocation.charged || !known(allocation.device) || !account::wanted()) return;
  if (allocation.module == 0) allocation.module = account::allocating_module;
  account::allocated(allocation.module, allocation.bytes);
}
void forget(const Allocation& gone) {
  if (gone.charged && known(gone.device) && account::wanted()) account::freed(gone.module, gone.bytes);
}

}  // namespace

Ledger::Ledger() : levels_(std::make_unique<Levels>()) {}

void Ledger::set_limit(int device, std::uint64_t bytes) {
  if (known(device)) sums_[static_cast<std::size_t>(device)].limit.store(bytes, std::memory_order_relaxed);
}

std::uint64_t Ledger::limit(int device) const {
  return known(device) ? sums_[static_cast<std::size_t>(device)].limit.load(std::memory_order_relaxed) : UINT64_MAX;
}

void Ledger::set_capacity(int device, std::uint64_t bytes) {
  if (known(device)) sums_[static_cast<std::size_t>(device)].capacity.store(bytes, std::memory_order_relaxed);
}

std::uint64_t Ledger::capacity(int device) const {
  return known(device) ? sums_[static_cast<std::size_t>(device)].capacity.load(std::memory_order_relaxed) : UINT64_MAX;
}

bool Ledger::reserve(int device, std::uint64_t bytes, Kind kind) {
  if (!known(device)) return true;
  Sum& sum = sums_[static_cast<std::size_t>(device)];
  if (!kind.movable()) sum.pending.fetch_add(bytes);  // first, as settled() needs it
  if (!add_within(sum.bytes, bytes, sum.limit.load(std::memory_order_relaxed))) {
    settle(device, bytes, kind);
    return false;
  }
  if (kind.bound_to_gpu() && !add_within(sum.bound, bytes, sum.capacity.load(std::memory_order_relaxed))) {
    sum.bytes.fetch_sub(bytes);
    settle(device, bytes, kind);
    return false;
  }
  if (!kind.movable()) sum.fixed.fetch_add(bytes);
  if (kind == Kind::kSmall) sum.small.fetch_add(bytes);
  sum.by_route[static_cast<std::size_t>(kind.route)].fetch_add(bytes, std::memory_order_relaxed);
  return true;
}

void Ledger::charge(int device, std::uint64_t bytes, Kind kind) {
  if (!known(device)) return;
  Sum& sum = sums_[static_cast<std::size_t>(device)];
  sum.bytes.fetch_add(bytes);
  if (kind.bound_to_gpu()) sum.bound.fetch_add(bytes, std::memory_order_relaxed);
  if (!kind.movable()) sum.fixed.fetch_add(bytes);
  if (kind == Kind::kSmall) sum.small.fetch_add(bytes);
  sum.by_route[static_cast<std::size_t>(kind.route)].fetch_add(bytes, std::memory_order_relaxed);
}

void Ledger::release(int device, std::uint64_t bytes, Kind kind) {
  if (!known(device)) return;
  Sum& sum = sums_[static_cast<std::size_t>(device)];
  sum.by_route[static_cast<std::size_t>(kind.route)].fetch_sub(bytes, std::memory_order_relaxed);
  if (kind == Kind::kSmall) sum.small.fetch_sub(bytes);
  if (!kind.movable()) sum.fixed.fetch_sub(bytes);
  if (kind.bound_to_gpu()) sum.bound.fetch_sub(bytes, std::memory_order_relaxed);
  sum.bytes.fetch_sub(bytes);
}

void Ledger::settle(int device, std::uint64_t bytes, Kind kind) {
  if (known(device) && !kind.movable()) sums_[static_cast<std::size_t>(device)].pending.fetch_sub(bytes);
}

void Ledger::cancel(int device, std::uint64_t bytes, Kind kind) {
  release(device, bytes, kind);
  settle(device, bytes, kind);
}

// A reservation becomes pending before it is in the sums. So if the pending bytes have not changed meanwhile, the sums
// hold no other pending bytes than those read here.
Ledger::Settled Ledger::settled(int device) const {
  if (!known(device)) return {};
  const Sum& sum = sums_[static_cast<std::size_t>(device)];
  for (;;) {
    const std::uint64_t pending = sum.pending.load();
    const std::uint64_t bytes = sum.bytes.load();
    const std::uint64_t fixed = sum.fixed.load();
    if (sum.pending.load() != pending) continue;
    return {bytes - std::min(bytes, pending), fixed - std::min(fixed, pending)};
  }
}

std::uint64_t Ledger::bytes_by(int device, Route route) const {
  return known(device) ? sums_[static_cast<std::size_t>(device)].by_route[static_cast<std::size_t>(route)].load() : 0;
}

// Releases the bytes of an entry that has been removed.
void Ledger::let_go(const Allocation& gone) {
  if (!gone.charged) return;
  release(gone.device, gone.bytes, gone.kind);
  forget(gone);
}

std::size_t Ledger::level_of(const Allocation& allocation) {
  std::size_t level = 0;
  while (covered(allocation) > std::uint64_t{1} << kSizeBits[level]) ++level;
  return level;
}

std::pair<std::uint64_t, std::uint64_t> Ledger::regions(std::size_t level, const Allocation& allocation) {
  const std::uint64_t last = allocation.address + std::max<std::uint64_t>(covered(allocation), 1) - 1;
  return {allocation.address >> kRegionBits[level], last >> kRegionBits[level]};
}

Ledger::Shard& Ledger::shard(std::size_t level, std::uint64_t region) const {
  const std::uint64_t mixed = region * 0x9e3779b97f4a7c15u;  // neighbours in different shards
  return (*levels_)[level].shards[mixed >> 58];
}

void Ledger::Shard::add(const Allocation& allocation) {
  spare_entries.add(entries, allocation.address, allocation);
  auto& alike = like(allocation.address);
  alike.store(alike.load(std::memory_order_relaxed) + 1, std::memory_order_release);
}

Ledger::Shard::Entries::iterator Ledger::Shard::erase(Entries::iterator entry) {
  auto& alike = like(entry->first);
  alike.store(alike.load(std::memory_order_relaxed) - 1, std::memory_order_release);
  const auto next = std::next(entry);
  spare_entries.erase(entries, entry);
  return next;
}

void Ledger::Shard::add_note(std::uint64_t region, const Note& note) {
  if (const auto known = notes.find(region); known != notes.end()) {
    known->second = note;
  } else {
    spare_notes.add(notes, region, note);
  }
}

// Removes the note of an entry from the region that it reached into.
void Ledger::removed(std::size_t level, const Allocation& gone) {
  changes_.fetch_add(1, std::memory_order_acq_rel);
  const auto [first, last] = regions(level, gone);
  if (last != first) {
    Shard& next = shard(level, last);
    const std::lock_guard lock(next.mutex);
    const auto note = next.notes.find(last);
    if (note != next.notes.end() && note->second.address == gone.address && note->second.serial == gone.serial) {
      next.erase_note(note);
    }
  }
}

template <typename Meant>
std::optional<Allocation> Ledger::take(std::size_t level, std::uint64_t address, const Meant& meant) {
  Allocation gone;
  {
    Shard& place = shard(level, address >> kRegionBits[level]);
    if (!place.may_begin(address)) return std::nullopt;
    const std::lock_guard lock(place.mutex);
    const auto entry = place.entries.find(address);
    if (entry == place.entries.end() || !meant(entry->second)) return std::nullopt;
    gone = entry->second;
    place.erase(entry);
  }
  removed(level, gone);
  return gone;
}

std::optional<Allocation> Ledger::take_numbered(std::size_t level, std::uint64_t address, std::uint64_t serial) {
  return take(level, address, [serial](const Allocation& entry) { return serial == 0 || entry.serial == serial; });
}

void Ledger::remove(std::size_t level, std::uint64_t address, std::uint64_t serial) {
  const std::optional<Allocation> gone = take_numbered(level, address, serial);
  if (gone) let_go(*gone);
}

void Ledger::add(Allocation allocation) {
  const std::size_t level = level_of(allocation);
  if (known(allocation.device)) {
    allocation.made =
        sums_[static_cast<std::size_t>(allocation.device)].made.fetch_add(1, std::memory_order_relaxed) + 1;
  }
  for (std::size_t other = 0; other < kRegionBits.size(); ++other) {
    if (other != level && used(other)) remove(other, allocation.address, 0);
  }
  note(allocation);
  const auto [first, last] = regions(level, allocation);
  std::optional<Allocation> stale;
  {
    Shard& place = shard(level, first);
    const std::lock_guard lock(place.mutex);
    allocation.serial = ++place.serials;
    const auto before =
        place.may_begin(allocation.address) ? place.entries.find(allocation.address) : place.entries.end();
    if (before != place.entries.end()) {
      stale = std::exchange(before->second, allocation);
    } else {
      place.add(allocation);
    }
  }
  if (!used(level)) (*levels_)[level].used.store(true);
  if (stale) {
    removed(level, *stale);
    let_go(*stale);
  }
  if (last != first) {
    Shard& next = shard(level, last);
    const std::lock_guard lock(next.mutex);
    next.add_note(last, {allocation.address, allocation.serial});
  }
  changes_.fetch_add(1, std::memory_order_acq_rel);
}

std::optional<Allocation> Ledger::begin_free(std::uint64_t address) {
  for (std::size_t level = 0; level < kRegionBits.size(); ++level) {
    if (!used(level)) continue;
    Shard& place = shard(level, address >> kRegionBits[level]);
    if (!place.may_begin(address)) continue;
    const std::lock_guard lock(place.mutex);
    const auto entry = place.entries.find(address);
    if (entry == place.entries.end()) continue;
    if (entry->second.freeing) return std::nullopt;
    entry->second.freeing = true;
    return entry->second;
  }
  return std::nullopt;
}

void Ledger::finish_free(const Allocation& allocation) {
  remove(level_of(allocation), allocation.address, allocation.serial);
}

std::uint64_t Ledger::hand_over(const Allocation& allocation) {
  const std::optional<Allocation> gone = take_numbered(level_of(allocation), allocation.address, allocation.serial);
  if (!gone || !gone->charged) return 0;
  forget(*gone);
  return gone->bytes;
}

// For that very entry only: its address may have been reused, and its owner may have ended.
template <typename How>
void Ledger::change(const Allocation& allocation, const How& how) {
  const std::size_t level = level_of(allocation);
  Shard& place = shard(level, allocation.address >> kRegionBits[level]);
  const std::lock_guard lock(place.mutex);
  const auto entry = place.entries.find(allocation.address);
  if (entry != place.entries.end() && entry->second.serial == allocation.serial) how(entry->second);
}

void Ledger::cancel_free(const Allocation& allocation) {
  change(allocation, [](Allocation& entry) { entry.freeing = false; });
}

void Ledger::uncharge(const Allocation& allocation) {
  change(allocation, [&](Allocation& entry) {
    let_go(entry);
    entry.charged = false;
  });
}

void Ledger::set_synchronous(std::uint64_t address, bool synchronous) {
  if (const auto found = find(address)) change(*found, [&](Allocation& entry) { entry.synchronous = synchronous; });
}

void Ledger::set_placed(std::uint64_t address, std::uint64_t bytes, std::optional<int> device) {
  const std::uint64_t end = address + bytes;
  for (std::uint64_t at = address; at < end;) {
    const std::optional<Allocation> found = find(at);
    if (!found) return;
    const std::uint64_t found_end = found->address + found->bytes;
    change(*found, [&](Allocation& entry) {
      if (!device) {
        entry.placed = Allocation::Placed::kUnsaid;
      } else if (*device != entry.device) {
        entry.placed = Allocation::Placed::kElsewhere;
      } else if (address <= entry.address && found_end <= end) {
        entry.placed = Allocation::Placed::kHere;
      }
    });
    if (found_end <= at) return;
    at = found_end;
  }
}

std::uint64_t Ledger::clock(int device) const {
  return known(device) ? sums_[static_cast<std::size_t>(device)].made.load(std::memory_order_relaxed) : 0;
}

std::optional<Allocation> Ledger::find_in(std::size_t level, std::uint64_t address) const {
  const std::uint64_t region = address >> kRegionBits[level];
  std::optional<Note> note;
  {
    Shard& place = shard(level, region);
    const std::lock_guard lock(place.mutex);
    auto entry = place.entries.upper_bound(address);
    if (entry != place.entries.begin()) {
      --entry;
      if (address - entry->first < covered(entry->second)) return entry->second;
    }
    if (const auto found = place.notes.find(region); found != place.notes.end()) note = found->second;
  }
  if (!note) return std::nullopt;
  Shard& before = shard(level, region - 1);
  const std::lock_guard lock(before.mutex);
  const auto entry = before.entries.find(note->address);
  if (entry == before.entries.end() || address - entry->first >= covered(entry->second)) return std::nullopt;
  return entry->second;
}

std::optional<Allocation> Ledger::find(std::uint64_t address) const {
  std::optional<Allocation> answer;
  for (std::size_t level = 0; level < kRegionBits.size(); ++level) {
    if (!used(level)) continue;
    const std::optional<Allocation> found = find_in(level, address);
    if (!found) continue;
    if (!found->freeing) return found;
    answer = found;
  }
  return answer;
}

std::vector<Allocation> Ledger::take_range(std::uint64_t address, std::uint64_t size, Kind kind) {
  std::vector<Allocation> taken;
  for (std::size_t level = 0; level < kRegionBits.size(); ++level) {
    if (!used(level)) continue;
    const std::size_t before = taken.size();
    const auto take_from = [&](Shard& place) {
      const std::lock_guard lock(place.mutex);
      for (auto entry = place.entries.lower_bound(address);
           entry != place.entries.end() && entry->first - address < size;) {
        if (entry->second.kind == kind) {
          taken.push_back(entry->second);
          entry = place.erase(entry);
        } else {
          ++entry;
        }
      }
    };
    const std::uint64_t first = address >> kRegionBits[level];
    const std::uint64_t last = (address + std::max<std::uint64_t>(size, 1) - 1) >> kRegionBits[level];
    if (last - first < kShards) {
      for (std::uint64_t region = first; region <= last; ++region) take_from(shard(level, region));
    } else {
      for (Shard& place : (*levels_)[level].shards) take_from(place);
    }
    for (std::size_t index = before; index < taken.size(); ++index) {
      removed(level, taken[index]);
      forget(taken[index]);
    }
  }
  return taken;
}

void Ledger::take_at(std::uint64_t address, Kind kind) {
  for (std::size_t level = 0; level < kRegionBits.size(); ++level) {
    if (!used(level)) continue;
    const auto gone = take(level, address, [kind](const Allocation& entry) { return entry.kind == kind; });
    if (gone) return forget(*gone);
  }
}

// Locks every shard in turn: contexts rarely end.
std::size_t Ledger::drop(const Owner& owner) {
  std::size_t dropped = 0;
  for (std::size_t level = 0; level < kRegionBits.size(); ++level) {
    if (!used(level)) continue;
    std::vector<Allocation> gone;
    for (Shard& place : (*levels_)[level].shards) {
      const std::lock_guard lock(place.mutex);
      for (auto entry = place.entries.begin(); entry != place.entries.end();) {
        if (!(entry->second.owner == owner)) {
          ++entry;
          continue;
        }
        gone.push_back(entry->second);
        entry = place.erase(entry);
      }
    }
    for (const Allocation& entry : gone) {
      removed(level, entry);
      let_go(entry);
    }
    dropped += gone.size();
  }
  return dropped;
}

std::vector<Allocation> Ledger::list(int device, Kind kind, Listed which) const {
  std::vector<Allocation> found;
  for (const Level& level : *levels_) {
    for (const Shard& place : level.shards) {
      const std::lock_guard lock(place.mutex);
      for (const auto& [address, allocation] : place.entries) {
        const bool listed = which == Listed::kAll || !allocation.freeing;
        if (allocation.device == device && allocation.kind == kind && listed) found.push_back(allocation);
      }
    }
  }
  std::sort(found.begin(), found.end(), [](const Allocation& a, const Allocation& b) { return a.address < b.address; });
  return found;
}

std::size_t Ledger::entries() const {
  std::size_t count = 0;
  for (const Level& level : *levels_) {
    for (const Shard& place : level.shards) {
      const std::lock_guard lock(place.mutex);
      count += place.entries.size();
    }
  }
  return count;
}

}  // namespace rota::memory
