// The numbers of a client's requests for memory (Reserve::number). The two highest bits say what of a refusal counts,
// so that one allocation of the program's is one refusal at most in rotad's log and metrics.
#pragma once

#include <cstdint>

namespace rota::protocol {

// None does: the client tries another way, or has been refused the same allocation already.
inline constexpr std::uint32_t kRefusalDoesNotCount = std::uint32_t{1} << 31;
// One because of memory of others does not: the client waits then (AwaitRoom), and a refusal that ends the wait counts.
inline constexpr std::uint32_t kWaitsIfFull = std::uint32_t{1} << 30;

// Never 0, and without those bits.
constexpr std::uint32_t next_reserve_number(std::uint32_t number) {
  const std::uint32_t next = (number + 1) & ~(kRefusalDoesNotCount | kWaitsIfFull);
  return next == 0 ? 1 : next;
}

// Whether the refusal of this request counts. `full`: it was refused because of memory of others.
constexpr bool refusal_counts(std::uint32_t number, bool full) {
  return (number & kRefusalDoesNotCount) == 0 && !(full && (number & kWaitsIfFull) != 0);
}

}  // namespace rota::protocol
