// The host's memory where it is short: what can be given back, and waiting until other processes have given theirs.
#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "runtime/memory/swap/swap.h"

namespace rota::memory {

using namespace std::chrono_literals;

namespace {

// How long the others may give nothing back before a move ends for now. A judgment: unpinning and unmapping an extent
// takes some milliseconds.
constexpr auto kNoneComes = 20ms;
constexpr auto kLookForShare = 100us;

}  // namespace

// Of extents that are on the GPU, so that nothing is lost without them: the least useful first.
std::vector<Copy> SwapBackend::copies() const {
  std::vector<Copy> all;
  const std::lock_guard lock(mutex_);
  for (const auto& [address, range] : ranges_) {
    for (const Extent& extent : range.extents) {
      if (extent.host == nullptr || !extent.in_place()) continue;
      all.push_back({unused(range, extent), extent.steady, extent.bytes, extent.address});
    }
  }
  return discard_order(std::move(all));
}

// Its block, which is nobody's now; null: it has been freed or moved in the meantime.
Store::Slot SwapBackend::take_copy(const Copy& copy) {
  const std::lock_guard lock(mutex_);
  Extent* const extent = extent_at(copy.address);
  if (extent == nullptr || extent->bytes != copy.bytes || !extent->in_place()) return nullptr;
  extent->saved = false;
  extent->came = 0;  // it can no longer leave as if it had not come
  return std::exchange(extent->host, nullptr);
}

void SwapBackend::count_copies() {
  std::uint64_t sum = 0;
  for (const Copy& each : copies()) sum += each.bytes;
  host_.set_copies(sum);
}

std::uint64_t SwapBackend::give_host_back(std::uint64_t bytes, bool unused_too) {
  std::uint64_t sum = host_.trim(bytes);
  for (const Copy& each : copies()) {
    if (sum >= bytes || (each.unused && !unused_too)) break;
    const Store::Slot block = take_copy(each);
    if (block == nullptr) continue;
    host_.add_copies(-static_cast<std::int64_t>(each.bytes));
    store_.release(block, each.bytes);
    sum += each.bytes;
  }
  return sum;
}

// For an extent of this GPU. Copies of what is on this GPU stay: what leaves next goes to their places.
Store::Slot SwapBackend::place_on_host(int ordinal, std::uint64_t bytes) {
  Store::Slot block = store_.reserve(bytes, ordinal);
  if (block != nullptr || !host_.limited()) return block;
  for (const Copy& each : copies()) {
    {
      const std::lock_guard lock(mutex_);
      const Range* const range = range_at(each.address);
      if (range == nullptr || range->device == ordinal) continue;
    }
    const Store::Slot other = take_copy(each);
    if (other == nullptr) continue;
    host_.add_copies(-static_cast<std::int64_t>(each.bytes));
    store_.discard(other, each.bytes);
    block = store_.reserve(bytes, ordinal);
    if (block != nullptr) break;
  }
  return block;
}

SwapBackend::Moved SwapBackend::move_out(int ordinal, std::uint64_t bytes, const Mover& mover) {
  using Clock = std::chrono::steady_clock;
  Moved all = move_out_now(ordinal, bytes, mover);
  const auto missing = [&] { return bytes - std::min(bytes, all.bytes + all.without_copy); };
  // Others have what this process's share lacks, and give it back as they can.
  Clock::time_point last = Clock::now();
  while (all.lacks_host && !all.failed && missing() != 0 && host_.limited()) {
    count_copies();
    host_.lack(std::min(missing(), resident_bytes(ordinal)));
    while (!host_.may_grow() && Clock::now() - last < kNoneComes && !mover.stopping()) {
      std::this_thread::sleep_for(kLookForShare);
    }
    if (!host_.may_grow()) break;
    const Moved more = move_out_now(ordinal, missing(), mover);
    all.bytes += more.bytes;
    all.without_copy += more.without_copy;
    all.spared += more.spared;
    all.lacks_host = more.lacks_host;
    all.failed = more.failed;
    all.error = more.error;
    if (more.bytes + more.without_copy != 0) last = Clock::now();
    if (mover.stopping() || Clock::now() - last >= kNoneComes) break;
  }
  if (!all.lacks_host) host_.lack(0);
  count_copies();
  return all;
}

}  // namespace rota::memory
