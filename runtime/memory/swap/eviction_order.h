// The order in which extents are evicted and restored. Pure: no driver, no lock and no clock; what is known of each
// extent is passed in.
//
// What can be evicted without a copy goes first: it costs no time on the bus. An extent that had not changed at its
// last eviction has probably not changed now, and one in which no allocation lies has no contents to preserve. Of the
// rest the largest is evicted first, since the driver's calls for one extent cost the same whatever its size. The last
// one to be evicted is no larger than necessary.
//
// If memory is handed over, the next holder can begin its copies once it has the first extent: so two small ones are
// evicted before the largest. At the other end, small ones are restored last: they wait for those that are evicted
// first elsewhere.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "runtime/core/function_ref.h"

namespace rota::memory {

// An extent that could be evicted. Compared, the greatest is evicted first; of two that are alike, the one at the
// higher address.
struct Candidate {
  bool without_copy = false;  // its last eviction found it unchanged, or no allocation lies in it
  std::uint64_t bytes = 0;
  std::uint64_t address = 0;
  auto operator<=>(const Candidate&) const = default;
};

// `handed_over`: how many bytes are to be handed to other processes; 0: they go back to the driver.
std::deque<Candidate> eviction_order(std::deque<Candidate> all, std::uint64_t handed_over = 0);

// Removes the extent that is evicted next from `all`, which is in the order of eviction and not empty, when `lacking`
// bytes have yet to be evicted. Larger ones that were skipped stay in `all`: the eviction of the chosen one may fail.
// Nothing: it has more than `most` bytes, and stays.
std::optional<Candidate> next_to_evict(std::deque<Candidate>& all, std::uint64_t lacking,
                                       std::uint64_t most = UINT64_MAX);

// The copy on the host of an extent that is on the GPU. Compared, the least is given up first.
struct Copy {
  bool unused = false;  // the extent was restored and not used yet: with its copy it needs no new one
  bool unchanged = false;
  std::uint64_t bytes = 0;
  std::uint64_t address = 0;
  auto operator<=>(const Copy&) const = default;
};

// The order in which copies are given up: those of extents that would be evicted last come first, since the others'
// places are needed again soon.
std::vector<Copy> discard_order(std::vector<Copy> all);

// Which of the extents of these sizes, in order of address, is restored next: one for which other processes have handed
// memory over, otherwise the first large one, otherwise the first. `all` is not empty.
std::size_t next_to_restore(std::size_t count, FunctionRef<bool(std::size_t index)> has_handed_over,
                            FunctionRef<std::uint64_t(std::size_t index)> bytes);

}  // namespace rota::memory
