#include "runtime/memory/move_order.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "runtime/memory/round_up.h"
#include "runtime/memory/unified.h"

namespace rota::memory {

namespace {

// The unit in which Unified Memory moves.
constexpr std::uint64_t kMoveUnit = std::uint64_t{2} << 20;

void sort_for_bringing(std::vector<Allocation>& ranges, std::uint64_t since) {
  std::erase_if(ranges, [](const Allocation& range) { return range.bytes < unified::kWorthMoving; });
  const auto place = [&](const Allocation& range) {
    const bool recent = range.made > since;
    return std::tuple(!recent, recent ? UINT64_MAX - range.made : range.bytes, range.address);
  };
  std::sort(ranges.begin(), ranges.end(),
            [&](const Allocation& one, const Allocation& other) { return place(one) < place(other); });
}

}  // namespace

std::vector<Allocation> to_bring(std::vector<Allocation> ranges, std::uint64_t since, std::uint64_t capacity) {
  sort_for_bringing(ranges, since);
  std::vector<Allocation> brought;
  for (Allocation& range : ranges) {
    if (range.bytes > capacity) {
      range.bytes = capacity / kMoveUnit * kMoveUnit;
      if (range.bytes != 0) brought.push_back(range);
      break;
    }
    capacity -= range.bytes;
    brought.push_back(range);
  }
  return brought;
}

std::vector<Allocation> to_move_out(std::vector<Allocation> ranges, std::uint64_t since, std::uint64_t bytes) {
  sort_for_bringing(ranges, since);
  std::reverse(ranges.begin(), ranges.end());
  std::vector<Allocation> moved;
  for (Allocation& range : ranges) {
    if (bytes == 0) break;
    // The end of a range, since it is brought from its beginning.
    const std::uint64_t wanted = std::min(range.bytes, round_up(bytes, kMoveUnit));
    range.address += range.bytes - wanted;
    range.bytes = wanted;
    bytes -= std::min(bytes, wanted);
    moved.push_back(range);
  }
  return moved;
}

}  // namespace rota::memory
