// Sizes in whole units.
#pragma once

#include <cstdint>

namespace rota::memory {

constexpr std::uint64_t round_up(std::uint64_t bytes, std::uint64_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

}  // namespace rota::memory
