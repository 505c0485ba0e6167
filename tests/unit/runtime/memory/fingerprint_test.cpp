// The checksums by which the GPU detects changed memory, computed here as it computes them.
#include <catch2/catch.hpp>

#include <cstring>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "tests/unit/runtime/memory/fingerprint_on_host.h"

using namespace rota::memory::fingerprint;

namespace {

using Chunk = std::vector<Vector>;

Print print(const Keys& keys, const Chunk& chunk) {
  return print_of(keys, chunk.data(), chunk.size());
}

Chunk random_chunk(std::size_t vectors, unsigned seed) {
  std::mt19937 random(seed);
  Chunk chunk(vectors);
  for (Vector& vector : chunk) {
    for (std::uint32_t& word : vector.words) word = static_cast<std::uint32_t>(random());
  }
  return chunk;
}

bool differ_in_both(const Print& one, const Print& other) {
  return one.sums[0] != other.sums[0] && one.sums[1] != other.sums[1];
}

std::uint64_t slow_product(std::uint64_t a, std::uint64_t b) {
  return static_cast<std::uint64_t>(static_cast<unsigned __int128>(a) * b % kPrime);
}

}  // namespace

TEST_CASE("products and powers modulo 2^61 - 1 are right") {
  std::mt19937_64 random(1);
  std::vector<std::uint64_t> values = {0, 1, 2, kPrime - 1, kPrime - 2, kPrime / 2, (kPrime >> 1) + 1};
  for (int count = 0; count < 200; ++count) values.push_back(random() % kPrime);
  for (const std::uint64_t a : values) {
    for (const std::uint64_t b : values) REQUIRE(product(a, b) == slow_product(a, b));
    std::uint64_t expected = 1;
    for (unsigned exponent = 0; exponent < 40; ++exponent) {
      REQUIRE(power(a, exponent) == expected);
      expected = slow_product(expected, a);
    }
  }
}

TEST_CASE("one bit anywhere in a chunk changes both sums, and equal contents have equal sums") {
  const Keys keys = drawn(2);
  Chunk chunk = random_chunk(kChunkVectors, 3);
  const Print before = print(keys, chunk);
  std::mt19937 random(4);
  for (int round = 0; round < 20; ++round) {
    std::uint32_t& word = chunk[random() % chunk.size()].words[random() % 4];
    const std::uint32_t bit = 1u << (random() % 32);
    word ^= bit;
    CHECK(differ_in_both(print(keys, chunk), before));
    word ^= bit;
  }
  const Print after = print(keys, chunk);
  CHECK(std::memcmp(&after, &before, sizeof after) == 0);
  CHECK_FALSE(differ_in_both(print(drawn(5), chunk), print(drawn(5), chunk)));
  CHECK(differ_in_both(print(drawn(5), chunk), before));
}

TEST_CASE("exchanging two vectors or words changes both sums") {
  const Keys keys = drawn(6);
  Chunk chunk = random_chunk(kChunkVectors, 7);
  const Print before = print(keys, chunk);
  const auto exchanged = [&](std::size_t one, std::size_t other) {
    std::swap(chunk[one], chunk[other]);
    const bool seen = differ_in_both(print(keys, chunk), before);
    std::swap(chunk[one], chunk[other]);
    return seen;
  };
  CHECK(exchanged(0, 1));                                      // of neighbouring threads
  CHECK(exchanged(0, kThreads));                               // of one thread, in one group
  CHECK(exchanged(0, std::size_t{kThreads} * kGroupVectors));  // of one thread, in two groups
  CHECK(exchanged(5, chunk.size() - 1));
  std::swap(chunk[9].words[0], chunk[9].words[1]);
  const Print within = print(keys, chunk);
  std::swap(chunk[9].words[0], chunk[9].words[1]);
  // The two words of a pair have different keys.
  CHECK(differ_in_both(within, before));
}

TEST_CASE("zeros of any length count as zeros, and one bit that is set at either end is noticed") {
  const Keys keys = drawn(8);
  for (const std::size_t vectors : {std::size_t{1}, std::size_t{100}, std::size_t{4096}, std::size_t{kChunkVectors}}) {
    Chunk chunk(vectors);
    CHECK(print(keys, chunk).any == 0);
    chunk.back().words[3] = 1;
    CHECK(print(keys, chunk).any != 0);
    chunk.back().words[3] = 0;
    chunk.front().words[0] = 1u << 31;
    CHECK(print(keys, chunk).any != 0);
  }
}

TEST_CASE("sums of chunks that differ are spread over the whole field") {
  const Keys keys = drawn(9);
  std::set<std::uint64_t> seen[kSums];
  bool high[kSums] = {};
  for (unsigned value = 0; value < 300; ++value) {
    Chunk chunk(64);
    chunk[17].words[2] = value;
    const Print print_of = print(keys, chunk);
    for (int sum = 0; sum < kSums; ++sum) {
      REQUIRE(print_of.sums[sum] < kPrime);
      seen[sum].insert(print_of.sums[sum]);
      high[sum] = high[sum] || print_of.sums[sum] > kPrime / 2;
    }
  }
  for (int sum = 0; sum < kSums; ++sum) {
    CHECK(seen[sum].size() == 300);
    CHECK(high[sum]);
  }
}
