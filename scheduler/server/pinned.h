// What a client says is pinned of its memory on a GPU, by reason: no more in all than its other figures allow.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "scheduler/protocol/pages.h"

namespace rota::server {

struct Pinned {
  std::uint64_t all = 0;
  std::array<std::uint64_t, protocol::kPins> by{};  // by protocol::Pin

  // What is pinned because all memory of the process there is.
  std::uint64_t rest() const {
    std::uint64_t rest = all;
    for (const std::uint64_t bytes : by) rest -= bytes;
    return rest;
  }
};

// `most`: the bytes that cannot be evicted at all.
inline Pinned pinned_of(const protocol::GpuUsage& usage, std::uint64_t most) {
  Pinned pinned{.all = std::min(usage.pinned_bytes.load(), most), .by = {}};
  std::uint64_t left = pinned.all;
  for (std::size_t why = 0; why < protocol::kPins; ++why) {
    pinned.by[why] = std::min(usage.pinned_by[why].load(), left);
    left -= pinned.by[why];
  }
  return pinned;
}

}  // namespace rota::server
