#include "runtime/memory/swap/eviction_order.h"

#include <algorithm>
#include <functional>

#include "runtime/memory/swap/hand_over.h"
#include "scheduler/base/host_memory.h"
#include "scheduler/rules/largest_extent.h"

namespace rota::memory {

namespace {

// How many small extents are copied before larger ones, and how many bytes a move must hand over for that. Judgments.
constexpr std::ptrdiff_t kSmallFirst = 2;
constexpr std::uint64_t kMuchHandedOver = 4 * protocol::kLargestExtent;

}  // namespace

std::deque<Candidate> eviction_order(std::deque<Candidate> all, std::uint64_t handed_over) {
  std::sort(all.begin(), all.end(), std::greater<>());
  if (handed_over < kMuchHandedOver) return all;
  const auto copied = std::find_if(all.begin(), all.end(), [](const Candidate& each) { return !each.without_copy; });
  const auto smaller =
      std::find_if(copied, all.end(), [](const Candidate& each) { return each.bytes < kLeastHandedOver; });
  std::rotate(copied, smaller - std::min(smaller - copied, kSmallFirst), smaller);
  return all;
}

std::optional<Candidate> next_to_evict(std::deque<Candidate>& all, std::uint64_t lacking, std::uint64_t most) {
  auto which = all.begin();
  for (auto next = which + 1;
       next != all.end() && next->without_copy == which->without_copy && next->bytes >= lacking;) {
    which = next++;
  }
  if (which->bytes > most) return std::nullopt;
  const Candidate chosen = *which;
  all.erase(which);
  return chosen;
}

std::vector<Copy> discard_order(std::vector<Copy> all) {
  std::sort(all.begin(), all.end());
  return all;
}

std::size_t next_to_restore(std::size_t count, FunctionRef<bool(std::size_t index)> has_handed_over,
                            FunctionRef<std::uint64_t(std::size_t index)> bytes) {
  for (std::size_t index = 0; index < count; ++index) {
    if (has_handed_over(index)) return index;
  }
  for (std::size_t index = 0; index < count; ++index) {
    if (bytes(index) > kSmallExtent) return index;
  }
  return 0;
}

}  // namespace rota::memory
