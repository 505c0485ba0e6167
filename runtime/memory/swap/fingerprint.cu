// The kernel whose PTX rota carries (fingerprint.ptx, by compile_fingerprint): one block for each chunk.
#include "runtime/memory/swap/fingerprint_kernel.h"

using namespace rota::memory::fingerprint;

// `prints` lies in the host's memory: what the GPU copies there would wait for the copies of extents under way.
extern "C" __global__ void __launch_bounds__(kThreads)
    rota_fingerprint(const uint4* memory, std::uint64_t bytes, Print* prints, Keys keys) {
  const std::uint64_t begin = std::uint64_t{blockIdx.x} * kChunkVectors;
  const std::uint64_t vectors = bytes / 16 - begin;
  const Part part = part_of_chunk(keys, threadIdx.x, vectors, [&](std::uint64_t at) {
    const uint4 loaded = __ldcs(memory + begin + at);
    return Vector{{loaded.x, loaded.y, loaded.z, loaded.w}};
  });
  __shared__ Part parts[kThreads];
  parts[threadIdx.x] = part;
  for (unsigned half = kThreads / 2; half != 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x >= half) continue;
    Part& mine = parts[threadIdx.x];
    const Part& other = parts[threadIdx.x + half];
    for (int sum = 0; sum < kSums; ++sum) mine.sums[sum] = reduced(mine.sums[sum] + other.sums[sum]);
    mine.any |= other.any;
  }
  if (threadIdx.x != 0) return;
  prints[blockIdx.x] = {{parts[0].sums[0], parts[0].sums[1]}, parts[0].any};
}
