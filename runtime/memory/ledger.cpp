#include "runtime/memory/ledger.h"

#include <algorithm>

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

}  // namespace

Ledger::Ledger() : shards_(std::make_unique<Shards>()) {}

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
  if (!add_within(sum.bytes, bytes, sum.limit.load(std::memory_order_relaxed))) return false;
  if (bound_to_gpu(kind) && !add_within(sum.bound, bytes, sum.capacity.load(std::memory_order_relaxed))) {
    sum.bytes.fetch_sub(bytes);
    return false;
  }
  if (movable(kind)) sum.movable.fetch_add(bytes);
  return true;
}

void Ledger::release(int device, std::uint64_t bytes, Kind kind) {
  if (!known(device)) return;
  Sum& sum = sums_[static_cast<std::size_t>(device)];
  if (movable(kind)) sum.movable.fetch_sub(bytes);
  if (bound_to_gpu(kind)) sum.bound.fetch_sub(bytes, std::memory_order_relaxed);
  sum.bytes.fetch_sub(bytes);
}

std::uint64_t Ledger::live_bytes(int device) const {
  return known(device) ? sums_[static_cast<std::size_t>(device)].bytes.load() : 0;
}

std::uint64_t Ledger::fixed_bytes(int device) const {
  if (!known(device)) return 0;
  const Sum& sum = sums_[static_cast<std::size_t>(device)];
  const std::uint64_t movable_bytes = sum.movable.load();
  const std::uint64_t all = sum.bytes.load();
  return all > movable_bytes ? all - movable_bytes : 0;  // two words: for a moment they need not belong together
}

Ledger::Shard& Ledger::shard(std::uint64_t address) const {
  // Addresses come at least 256 bytes apart, large ones megabytes apart: mix before choosing.
  const std::uint64_t mixed = (address >> 8) * 0x9e3779b97f4a7c15u;
  return (*shards_)[mixed >> 58];
}

void Ledger::add(const Allocation& allocation) {
  Shard& place = shard(allocation.address);
  std::optional<Allocation> stale;
  {
    const std::lock_guard lock(place.mutex);
    auto [entry, fresh] = place.entries.try_emplace(allocation.address, allocation);
    if (!fresh) {
      // The driver gives the same address again: the old one went by a way that we do not see.
      stale = entry->second;
      entry->second = allocation;
    }
  }
  if (stale) release(stale->device, stale->bytes, stale->kind);
}

std::optional<Allocation> Ledger::take(std::uint64_t address) {
  Shard& place = shard(address);
  const std::lock_guard lock(place.mutex);
  const auto entry = place.entries.find(address);
  if (entry == place.entries.end()) return std::nullopt;
  const Allocation taken = entry->second;
  place.entries.erase(entry);
  return taken;
}

std::optional<Allocation> Ledger::find(std::uint64_t address) const {
  {
    Shard& place = shard(address);
    const std::lock_guard lock(place.mutex);
    if (const auto entry = place.entries.find(address); entry != place.entries.end()) return entry->second;
  }
  // An interior pointer may belong to any shard: one look-up in each.
  for (const Shard& place : *shards_) {
    const std::lock_guard lock(place.mutex);
    auto entry = place.entries.upper_bound(address);
    if (entry == place.entries.begin()) continue;
    --entry;
    if (address - entry->second.address < entry->second.bytes) return entry->second;
  }
  return std::nullopt;
}

std::size_t Ledger::drop_context(api::CUcontext context) {
  std::size_t dropped = 0;
  for (Shard& place : *shards_) {
    const std::lock_guard lock(place.mutex);
    dropped += std::erase_if(place.entries, [&](const auto& entry) {
      if (entry.second.context != context) return false;
      release(entry.second.device, entry.second.bytes, entry.second.kind);
      return true;
    });
  }
  return dropped;
}

std::vector<Allocation> Ledger::list(int device, Kind kind) const {
  std::vector<Allocation> found;
  for (const Shard& place : *shards_) {
    const std::lock_guard lock(place.mutex);
    for (const auto& [address, allocation] : place.entries) {
      if (allocation.device == device && allocation.kind == kind) found.push_back(allocation);
    }
  }
  std::sort(found.begin(), found.end(), [](const Allocation& a, const Allocation& b) { return a.address < b.address; });
  return found;
}

std::size_t Ledger::entries() const {
  std::size_t count = 0;
  for (const Shard& place : *shards_) {
    const std::lock_guard lock(place.mutex);
    count += place.entries.size();
  }
  return count;
}

void Ledger::after_fork_in_child() {
  shards_.release();  // NOLINT(bugprone-unused-return-value): its locks may be held by threads that are no more
  shards_ = std::make_unique<Shards>();
  for (Sum& sum : sums_) {
    sum.bytes.store(0, std::memory_order_relaxed);
    sum.movable.store(0, std::memory_order_relaxed);
    sum.bound.store(0, std::memory_order_relaxed);
  }
}

}  // namespace rota::memory
