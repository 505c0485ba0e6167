// The numbers of a client's requests for memory (Reserve::number). The highest bit says that a refusal of this one does
// not count: the client tries another way, or has been refused the same allocation already. So one allocation of the
// program's is one refusal in rotad's log and metrics, also if it is granted after a wait; one that waits in vain counts
// once more when that ends.
#pragma once

#include <cstdint>

namespace rota::protocol {

inline constexpr std::uint32_t kRefusalDoesNotCount = std::uint32_t{1} << 31;

// Never 0, and without that bit.
constexpr std::uint32_t next_reserve_number(std::uint32_t number) {
  const std::uint32_t next = (number + 1) & ~kRefusalDoesNotCount;
  return next == 0 ? 1 : next;
}

}  // namespace rota::protocol
