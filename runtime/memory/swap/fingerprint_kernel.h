// The function with which the GPU detects whether memory has changed: two independent sums of each chunk, and whether
// there is anything but zeros in it. CUDA C++ for fingerprint.cu, plain C++ for the test that compares.
//
// A chunk is cut into groups of 128 bytes of one thread. Each group is compressed by NH (UMAC, RFC 4418: products of
// pairs of words, each with a random key added, modulo 2^64), and the results are the coefficients of a polynomial
// modulo 2^61 - 1, evaluated at a random point. For keys that are drawn at random, two chunks of the same size that
// differ have the same sum with a probability of less than 2^-32 + 2^-48, and both sums with less than 2^-63: that of
// missing a change in one of 8 GiB of chunks that all changed is below 2^-49.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define ROTA_ON_GPU __host__ __device__
#else
#define ROTA_ON_GPU
#endif

namespace rota::memory::fingerprint {

inline constexpr int kSums = 2;
inline constexpr unsigned kThreads = 256;
inline constexpr unsigned kGroupVectors = 8;  // of 16 bytes each
inline constexpr unsigned kGroupWords = kGroupVectors * 4;
inline constexpr unsigned kGroups = 16;  // of each thread in a chunk
inline constexpr unsigned kChunkVectors = kThreads * kGroups * kGroupVectors;
inline constexpr std::uint64_t kChunkBytes = std::uint64_t{kChunkVectors} * 16;  // 512 KiB

// The most chunks whose prints are stored at a time.
inline constexpr unsigned kMostChunks = 4096;

inline constexpr std::uint64_t kPrime = (std::uint64_t{1} << 61) - 1;

// Random; points are below kPrime.
struct Keys {
  std::uint32_t words[kSums][kGroupWords];
  std::uint64_t point[kSums];         // the polynomial's
  std::uint64_t thread_point[kSums];  // its power of 2 * kGroups: the coefficients of one thread
};

struct Print {
  std::uint64_t sums[kSums];
  std::uint64_t any;  // not 0: some byte is not 0
};

struct Vector {
  std::uint32_t words[4];
};

ROTA_ON_GPU inline std::uint64_t high_product(std::uint64_t a, std::uint64_t b) {
#ifdef __CUDA_ARCH__
  return __umul64hi(a, b);
#else
  return static_cast<std::uint64_t>((static_cast<unsigned __int128>(a) * b) >> 64);
#endif
}

// Modulo kPrime, for numbers below it.
ROTA_ON_GPU inline std::uint64_t reduced(std::uint64_t value) {
  value = (value & kPrime) + (value >> 61);
  return value >= kPrime ? value - kPrime : value;
}

ROTA_ON_GPU inline std::uint64_t product(std::uint64_t a, std::uint64_t b) {
  const std::uint64_t low = a * b;
  const std::uint64_t high = high_product(a, b);
  return reduced((low & kPrime) + ((high << 3) | (low >> 61)));
}

ROTA_ON_GPU inline std::uint64_t power(std::uint64_t base, unsigned exponent) {
  std::uint64_t result = 1;
  for (; exponent != 0; exponent >>= 1) {
    if ((exponent & 1) != 0) result = product(result, base);
    base = product(base, base);
  }
  return result;
}

// Called once the words and points are drawn.
inline void complete(Keys& keys) {
  for (int sum = 0; sum < kSums; ++sum) keys.thread_point[sum] = power(keys.point[sum], 2 * kGroups);
}

// What one thread computes from its part of a chunk. Beyond `vectors` there are zeros.
struct Part {
  std::uint64_t sums[kSums];
  std::uint32_t any;
};

template <typename Load>
ROTA_ON_GPU inline Part part_of_chunk(const Keys& keys, unsigned thread, std::uint64_t vectors, const Load& load) {
  Part part{{0, 0}, 0};
  for (unsigned group = 0; group < kGroups; ++group) {
    std::uint64_t compressed[kSums] = {0, 0};
#ifdef __CUDACC__
#pragma unroll
#endif
    for (unsigned vector = 0; vector < kGroupVectors; ++vector) {
      const std::uint64_t at = std::uint64_t{group * kGroupVectors + vector} * kThreads + thread;
      Vector loaded{{0, 0, 0, 0}};
      if (at < vectors) loaded = load(at);
      const std::uint32_t* const words = loaded.words;
      part.any |= words[0] | words[1] | words[2] | words[3];
#ifdef __CUDACC__
#pragma unroll
#endif
      for (int sum = 0; sum < kSums; ++sum) {
        const std::uint32_t* const key = &keys.words[sum][vector * 4];
        compressed[sum] += static_cast<std::uint64_t>(words[0] + key[0]) * (words[1] + key[1]);
        compressed[sum] += static_cast<std::uint64_t>(words[2] + key[2]) * (words[3] + key[3]);
      }
    }
#ifdef __CUDACC__
#pragma unroll
#endif
    for (int sum = 0; sum < kSums; ++sum) {
      part.sums[sum] = reduced(product(part.sums[sum], keys.point[sum]) + (compressed[sum] >> 32));
      part.sums[sum] = reduced(product(part.sums[sum], keys.point[sum]) + (compressed[sum] & UINT32_MAX));
    }
  }
  for (int sum = 0; sum < kSums; ++sum) {
    part.sums[sum] = product(part.sums[sum], power(keys.thread_point[sum], thread));
  }
  return part;
}

}  // namespace rota::memory::fingerprint
