// How much GPU memory a context is assumed to take if it has not been measured.
#pragma once

#include <cstdint>

namespace rota::protocol {

// Some 500 MiB on real GPUs, in proportion on small ones.
constexpr std::uint64_t assumed_context(std::uint64_t total_bytes) {
  constexpr std::uint64_t kMeasured = std::uint64_t{500} << 20;
  return kMeasured < total_bytes / 16 ? kMeasured : total_bytes / 16;
}

}  // namespace rota::protocol
