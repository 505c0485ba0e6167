// Which GPUs a program gets that asks for some of those that it could use.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

namespace rota::protocol {

// How much of a GPU is free for one more program.
struct GpuRoom {
  std::int64_t bytes = 0;      // below 0: more is expected there than it has
  std::uint32_t programs = 0;  // that use it, or are about to
};

// A program that has been given a GPU and has not come to it yet counts there as this part of its memory: how much it
// will take is not known.
inline constexpr std::uint64_t kReservedPart = 2;

// The places of the `count` GPUs with most free memory, in their order; of equal ones those with fewer programs, then
// the first ones.
inline std::vector<std::size_t> most_room(const std::vector<GpuRoom>& gpus, std::size_t count) {
  std::vector<std::size_t> places(gpus.size());
  std::iota(places.begin(), places.end(), std::size_t{0});
  std::stable_sort(places.begin(), places.end(), [&](std::size_t left, std::size_t right) {
    if (gpus[left].bytes != gpus[right].bytes) return gpus[left].bytes > gpus[right].bytes;
    return gpus[left].programs < gpus[right].programs;
  });
  places.resize(std::min(count, places.size()));
  std::sort(places.begin(), places.end());
  return places;
}

}  // namespace rota::protocol
