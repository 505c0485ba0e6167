// The advice (cuMemAdvise) for ranges of managed memory.
#include "tools/simgpu/driver/memory/managed.h"

#include <iterator>

#include "tools/simgpu/driver/entry/mutations.h"

namespace rota::sim {

std::map<uint64_t, ManagedAdvice>::iterator ManagedRanges::split(uint64_t address) {
  auto next = ranges_.lower_bound(address);
  if (next != ranges_.end() && next->first == address) return next;
  ManagedAdvice before = next == ranges_.begin() ? ManagedAdvice{} : std::prev(next)->second;
  return ranges_.emplace_hint(next, address, before);
}

void ManagedRanges::forget(uint64_t address, uint64_t bytes) {
  if (mutated(Mutation::advice_survives_free)) return;
  change(address, bytes, [](ManagedAdvice& advice) { advice = ManagedAdvice{}; });
  // Entries equal to their predecessor are not needed.
  std::lock_guard lock(mutex_);
  ManagedAdvice before;
  for (auto range = ranges_.begin(); range != ranges_.end();) {
    bool needed = !(range->second == before);
    before = range->second;
    range = needed ? std::next(range) : ranges_.erase(range);
  }
}

}  // namespace rota::sim
