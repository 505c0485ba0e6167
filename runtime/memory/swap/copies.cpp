#include "runtime/memory/swap/copies.h"

#include <functional>
#include <map>
#include <utility>

namespace rota::memory {

bool Copies::prepare(const std::vector<Overcommitment>& all) {
  // Blocks by size, the largest first, as in an eviction, and by the best NUMA node.
  std::map<std::pair<std::uint64_t, int>, std::size_t, std::greater<>> wanted;
  {
    const Regions::Lock lock = regions_.lock();
    for (const auto& [ordinal, most] : all) {
      std::map<std::uint64_t, std::size_t, std::greater<>> lacking;
      std::uint64_t has = 0;
      for (const auto& [address, range] : regions_.ranges()) {
        if (range.device != ordinal || range.cached || range.ending || range.failed) continue;
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
    if (host_.cached(bytes, node) < count) return host_.prepare(bytes, node);
  }
  if (wanted.empty()) host_.drop_prepared();
  return false;
}

// Of extents that are on the GPU, so that nothing is lost without them: the least useful first.
std::vector<Copy> Copies::all() const {
  std::vector<Copy> all;
  const Regions::Lock lock = regions_.lock();
  for (const auto& [address, range] : regions_.ranges()) {
    for (const Extent& extent : range.extents) {
      if (extent.host == nullptr || !extent.in_place()) continue;
      all.push_back({regions_.unused(range, extent), extent.unchanged, extent.bytes, extent.address});
    }
  }
  return discard_order(std::move(all));
}

// Takes the copy's block from its extent; null: the extent has been freed or moved in the meantime.
Store::Slot Copies::take(const Copy& copy) {
  const Regions::Lock lock = regions_.lock();
  Extent* const extent = regions_.extent_at(copy.address);
  if (extent == nullptr || extent->bytes != copy.bytes || !extent->in_place()) return nullptr;
  extent->saved = false;
  extent->came = 0;  // it can no longer be evicted as if it had not been restored
  return std::exchange(extent->host, nullptr);
}

void Copies::count() {
  std::uint64_t sum = 0;
  for (const Copy& each : all()) sum += each.bytes;
  host_.set_copies(sum);
}

std::uint64_t Copies::give_back(std::uint64_t bytes, bool unused_too) {
  std::uint64_t sum = host_.trim(bytes);
  for (const Copy& each : all()) {
    if (sum >= bytes || (each.unused && !unused_too)) break;
    const Store::Slot block = take(each);
    if (block == nullptr) continue;
    host_.add_copies(-static_cast<std::int64_t>(each.bytes));
    store_.release(block, each.bytes);
    sum += each.bytes;
  }
  return sum;
}

Store::Slot Copies::reserve(int ordinal, std::uint64_t bytes) {
  Store::Slot block = store_.reserve(bytes, ordinal);
  if (block != nullptr || !host_.limited()) return block;
  for (const Copy& each : all()) {
    {
      const Regions::Lock lock = regions_.lock();
      const Range* const range = regions_.range_at(each.address);
      if (range == nullptr || range->device == ordinal) continue;
    }
    const Store::Slot other = take(each);
    if (other == nullptr) continue;
    host_.add_copies(-static_cast<std::int64_t>(each.bytes));
    store_.discard(other, each.bytes);
    block = store_.reserve(bytes, ordinal);
    if (block != nullptr) break;
  }
  return block;
}

}  // namespace rota::memory
