// What the GPU's kernel computes, computed here: for the unit test, and for the program that compares the two
// (tests/gpu/programs/fingerprint.cpp).
#pragma once

#include <cstdint>
#include <random>

#include "runtime/memory/swap/fingerprint_kernel.h"

namespace rota::memory::fingerprint {

inline Keys drawn(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  Keys keys;
  for (auto& row : keys.words) {
    for (std::uint32_t& word : row) word = static_cast<std::uint32_t>(random());
  }
  for (std::uint64_t& point : keys.point) point = random() % kPrime;
  complete(keys);
  return keys;
}

// As the block of one chunk, of at most kChunkVectors.
inline Print print_of(const Keys& keys, const Vector* chunk, std::uint64_t vectors) {
  Print print{};
  for (unsigned thread = 0; thread < kThreads; ++thread) {
    const Part part = part_of_chunk(keys, thread, vectors, [&](std::uint64_t at) { return chunk[at]; });
    for (int sum = 0; sum < kSums; ++sum) print.sums[sum] = reduced(print.sums[sum] + part.sums[sum]);
    print.any |= part.any;
  }
  return print;
}

}  // namespace rota::memory::fingerprint
