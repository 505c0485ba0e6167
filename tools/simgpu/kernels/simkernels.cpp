// The kernels and device variables that come with simgpu. tests/programs/kernels.cu has their counterparts for a real
// GPU, under the same names.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <thread>

#include "tools/simgpu/kernel.h"

using rota::sim::Launch;
using rota::sim::Pointer;

namespace {

// y[i] = a * x[i] + y[i]
void saxpy(Launch& launch, int n, float a, Pointer<const float> x, Pointer<float> y) {
  auto count = static_cast<uint64_t>(n);
  const float* from = x.range(launch, count);
  float* to = y.range(launch, count);
  if (from == nullptr || to == nullptr) return;
  uint64_t threads = launch.threads_x() < count ? launch.threads_x() : count;
  for (uint64_t i = 0; i < threads; ++i) to[i] = a * from[i] + to[i];
  launch.stream(3 * count * sizeof(float));
}

// out[i] = a[i] + b[i]
void vector_add(Launch& launch, Pointer<const float> a, Pointer<const float> b, Pointer<float> out, int n) {
  auto count = static_cast<uint64_t>(n);
  const float* left = a.range(launch, count);
  const float* right = b.range(launch, count);
  float* sum = out.range(launch, count);
  if (left == nullptr || right == nullptr || sum == nullptr) return;
  uint64_t threads = launch.threads_x() < count ? launch.threads_x() : count;
  for (uint64_t i = 0; i < threads; ++i) sum[i] = left[i] + right[i];
  launch.stream(3 * count * sizeof(float));
}

// words[i] = value, for all words, with any number of threads
void fill(Launch& launch, Pointer<unsigned> words, unsigned long count, unsigned value) {
  unsigned* to = words.range(launch, count);
  if (to == nullptr) return;
  for (uint64_t i = 0; i < count; ++i) to[i] = value;
  launch.stream(count * sizeof(unsigned));
}

// Increments one word in every `stride`, which reads and writes every page of the memory, and counts words that did not
// have the expected value before.
void memtouch(Launch& launch, Pointer<unsigned> words, unsigned long count, unsigned long stride, unsigned expected,
              Pointer<unsigned> mismatches) {
  unsigned* memory = words.range(launch, count);
  unsigned* wrong = mismatches.range(launch, 1);
  if (memory == nullptr || wrong == nullptr || stride == 0) return;
  for (uint64_t i = 0; i < count; i += stride) {
    if (memory[i] != expected) ++*wrong;
    memory[i] = expected + 1;
  }
  launch.stream(2 * count * sizeof(unsigned));
}

// Word number i of the memory that begins with word `first` has to be i * 2654435761 + *round. Words with another value
// are counted, and each word gets its value for the next round.
void renew(Launch& launch, Pointer<unsigned> words, unsigned long count, unsigned long first,
           Pointer<const unsigned> round, Pointer<unsigned> mismatches) {
  unsigned* memory = words.range(launch, count);
  const unsigned* current = round.range(launch, 1);
  unsigned* wrong = mismatches.range(launch, 1);
  if (memory == nullptr || current == nullptr || wrong == nullptr) return;
  const unsigned now = *current;
  for (uint64_t i = 0; i < count; ++i) {
    const unsigned wanted = static_cast<unsigned>(first + i) * 2654435761U + now;
    if (memory[i] != wanted) ++*wrong;
    memory[i] = wanted + 1;
  }
  launch.stream(2 * count * sizeof(unsigned));
}

// *out = sum of the words with one thread; with more, the sum is added to *out
void reduce(Launch& launch, Pointer<const unsigned> words, unsigned long count, Pointer<unsigned long> out) {
  const unsigned* from = words.range(launch, count);
  unsigned long* to = out.range(launch, 1);
  if (from == nullptr || to == nullptr) return;
  unsigned long sum = 0;
  for (uint64_t i = 0; i < count; ++i) sum += from[i];
  *to = launch.threads_x() == 1 ? sum : *to + sum;
  launch.stream(count * sizeof(unsigned));
}

// What `rota demo` runs: a number of generator steps on each of `count` words, `stride` words apart. A card does four
// steps in a picosecond.
void rota_demo_mix(Launch& launch, Pointer<unsigned> words, unsigned long count, unsigned long stride, unsigned steps) {
  if (count == 0) return;
  unsigned* memory = words.range(launch, (count - 1) * stride + 1);
  if (memory == nullptr) return;
  // The steps are the same for all words, so they are combined first, by repeated squaring over the bits of their
  // count.
  unsigned factor = 1;
  unsigned addend = 0;
  for (unsigned bit = 32; bit-- > 0;) {
    addend += factor * addend;
    factor *= factor;
    if ((steps >> bit & 1) == 0) continue;
    addend = addend * 1664525 + 1013904223;
    factor *= 1664525;
  }
  for (uint64_t i = 0; i < count; ++i) memory[i * stride] = memory[i * stride] * factor + addend;
  launch.busy(count * steps / 4000);
}

// c = a * b, all in row-major order: a has m rows of k, b has k rows of n. One element of c per thread.
void gemm(Launch& launch, Pointer<const float> a, Pointer<const float> b, Pointer<float> c, int m, int n, int k) {
  auto rows = static_cast<uint64_t>(m);
  auto columns = static_cast<uint64_t>(n);
  auto depth = static_cast<uint64_t>(k);
  const float* left = a.range(launch, rows * depth);
  const float* right = b.range(launch, depth * columns);
  float* product = c.range(launch, rows * columns);
  if (left == nullptr || right == nullptr || product == nullptr) return;
  uint64_t last_row = std::min<uint64_t>(rows, uint64_t{launch.grid[1]} * launch.block[1]);
  uint64_t last_column = std::min<uint64_t>(columns, launch.threads_x());
  for (uint64_t row = 0; row < last_row; ++row) {
    for (uint64_t column = 0; column < last_column; ++column) {
      float sum = 0;
      for (uint64_t i = 0; i < depth; ++i) sum += left[row * depth + i] * right[i * columns + column];
      product[row * columns + column] = sum;
    }
  }
  // Modelled at 40 TFLOP/s, which an H200 reaches in single precision with plain code.
  launch.busy(2 * rows * columns * depth / 40'000);
}

// Each thread writes its index in the launch: blocks first, then threads, x varying fastest in both.
void thread_ids(Launch& launch, Pointer<unsigned> out) {
  uint64_t threads = uint64_t{launch.block[0]} * launch.block[1] * launch.block[2];
  uint64_t blocks = uint64_t{launch.grid[0]} * launch.grid[1] * launch.grid[2];
  unsigned* ids = out.range(launch, blocks * threads);
  if (ids == nullptr) return;
  launch.for_each_thread([&](auto at) {
    uint64_t block = (uint64_t{at.block_z} * launch.grid[1] + at.block_y) * launch.grid[0] + at.block_x;
    uint64_t thread = (uint64_t{at.thread_z} * launch.block[1] + at.thread_y) * launch.block[0] + at.thread_x;
    ids[block * threads + thread] = static_cast<unsigned>(block * threads + thread);
  });
  launch.stream(blocks * threads * sizeof(unsigned));
}

// out[block] = sum of the block's part of the words
void block_sums(Launch& launch, Pointer<const unsigned> words, Pointer<unsigned> out) {
  const unsigned* from = words.range(launch, launch.threads_x());
  unsigned* to = out.range(launch, launch.grid[0]);
  if (from == nullptr || to == nullptr) return;
  for (unsigned block = 0; block < launch.grid[0]; ++block) {
    unsigned sum = 0;
    for (unsigned i = 0; i < launch.block[0]; ++i) sum += from[uint64_t{block} * launch.block[0] + i];
    to[block] = sum;
  }
  launch.stream(launch.threads_x() * sizeof(unsigned));
}

struct Words {
  Pointer<unsigned> begin;
  unsigned long count;
};
void fill_words(Launch& launch, Words words, unsigned value) {
  unsigned* to = words.begin.range(launch, words.count);
  if (to == nullptr) return;
  for (uint64_t i = 0; i < std::min<uint64_t>(words.count, launch.threads_x()); ++i) to[i] = value;
  launch.stream(words.count * sizeof(unsigned));
}

void small_blocks(Launch& launch, Pointer<unsigned> out) {
  unsigned* sizes = out.range(launch, launch.grid[0]);
  if (sizes == nullptr) return;
  for (unsigned block = 0; block < launch.grid[0]; ++block) sizes[block] = launch.block[0];
}

// Each thread adds to the device variable and to the managed one. Atomic: other streams may count too.
void count_up(Launch& launch, unsigned by) {
  auto* counter = launch.variable<unsigned>("counter", 1);
  auto* total = launch.variable<unsigned>("total", 1);
  if (counter == nullptr || total == nullptr) return;
  auto added = static_cast<unsigned>(launch.threads_x() * by);
  __atomic_fetch_add(counter, added, __ATOMIC_RELAXED);
  __atomic_fetch_add(total, added, __ATOMIC_RELAXED);
}

void weigh(Launch& launch, Pointer<const float> x, Pointer<float> out, int n) {
  auto count = static_cast<uint64_t>(n);
  const auto* weights = launch.variable<float>("weights", 4);
  const float* from = x.range(launch, count);
  float* to = out.range(launch, count);
  if (weights == nullptr || from == nullptr || to == nullptr) return;
  for (uint64_t i = 0; i < std::min(count, launch.threads_x()); ++i) to[i] = weights[i % 4] * from[i];
  launch.stream(2 * count * sizeof(float));
}

void poke(Launch& launch, Pointer<unsigned> word, unsigned value) {
  if (unsigned* to = word.range(launch, 1)) *to = value;
}

void spin(Launch& launch, unsigned long nanoseconds) {
  launch.busy(nanoseconds);
}

// A kernel that takes the given time and does nothing else.
template <uint64_t nanoseconds>
void takes(Launch& launch) {
  launch.busy(nanoseconds);
}

// Runs until a copy, another kernel or the host (through mapped memory) stores a value other than 0; gives up after a
// minute.
void spin_until(Launch& launch, Pointer<unsigned> flag) {
  auto* word = flag.range(launch, 1);
  if (word == nullptr) return;
  auto limit = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (__atomic_load_n(word, __ATOMIC_ACQUIRE) == 0 && !launch.cancelled() &&
         std::chrono::steady_clock::now() < limit) {
    launch.busy(20'000);
  }
}

// A collective kernel with one process per rank, over host memory that all have mapped: notes that its rank has reached
// a round, and runs until all others have reached it; gives up after a minute.
void meet(Launch& launch, Pointer<unsigned> rounds, unsigned rank, unsigned ranks, unsigned round) {
  auto* all = rounds.range(launch, ranks);
  if (all == nullptr || rank >= ranks) return;
  __atomic_store_n(all + rank, round, __ATOMIC_RELEASE);
  auto limit = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  for (unsigned other = 0; other < ranks;) {
    if (__atomic_load_n(all + other, __ATOMIC_ACQUIRE) >= round) {
      ++other;
    } else if (launch.cancelled() || std::chrono::steady_clock::now() > limit) {
      return launch.fail("not all ranks have come within a minute");
    } else {
      launch.busy(20'000);
      std::this_thread::sleep_for(std::chrono::microseconds(20));  // also if modelled time passes without waiting
    }
  }
}

// What rota runs on a GPU to find out which memory has changed (runtime/memory/swap/fingerprint.cu): for each chunk,
// two checksums of the contents and whether any byte is nonzero. These are not the sums of a real GPU, but good enough
// for a simulated one.
struct FingerprintKeys {
  uint32_t words[2][32];
  uint64_t points[4];
};

struct FingerprintPrint {
  uint64_t sums[2];
  uint64_t any;
};

void fingerprint(Launch& launch, Pointer<const uint64_t> memory, uint64_t bytes, Pointer<FingerprintPrint> to,
                 FingerprintKeys keys) {
  constexpr uint64_t kChunkWords = (512 << 10) / sizeof(uint64_t);
  const uint64_t words = bytes / sizeof(uint64_t);
  const uint64_t* from = memory.range(launch, words);
  FingerprintPrint* prints = to.range(launch, launch.grid[0]);
  if (from == nullptr || prints == nullptr) return;
  const uint64_t one = keys.points[0] | 1;
  const uint64_t other = keys.points[1] | 1;
  for (uint64_t chunk = 0; chunk < launch.grid[0]; ++chunk) {
    FingerprintPrint print{{keys.points[2], keys.points[3]}, 0};
    const uint64_t end = std::min(words, (chunk + 1) * kChunkWords);
    for (uint64_t i = chunk * kChunkWords; i < end; ++i) {
      print.any |= from[i];
      print.sums[0] = (print.sums[0] ^ from[i]) * one;
      print.sums[1] = (print.sums[1] + from[i]) * other;
    }
    prints[chunk] = print;
  }
  launch.stream(bytes);
}

}  // namespace

ROTA_SIM_KERNELS_BEGIN
ROTA_SIM_KERNEL("_Z5saxpyifPKfPf", saxpy)
ROTA_SIM_KERNEL("_Z10vector_addPKfS0_Pfi", vector_add)
ROTA_SIM_KERNEL("_Z4fillPjmj", fill)
ROTA_SIM_KERNEL("_Z8memtouchPjmmjS_", memtouch)
ROTA_SIM_KERNEL("_Z5renewPjmmPKjS_", renew)
ROTA_SIM_KERNEL("_Z6reducePKjmPm", reduce)
ROTA_SIM_KERNEL("_Z4gemmPKfS0_Pfiii", gemm)
ROTA_SIM_KERNEL("_Z10thread_idsPj", thread_ids)
ROTA_SIM_KERNEL("_Z10block_sumsPKjPj", block_sums)
ROTA_SIM_KERNEL("_Z10fill_words5Wordsj", fill_words)
ROTA_SIM_KERNEL_WITH("_Z12small_blocksPj", small_blocks, {.max_threads = 256})
ROTA_SIM_KERNEL("_Z8count_upj", count_up)
ROTA_SIM_KERNEL_WITH("_Z5weighPKfPfi", weigh, {.constant_bytes = 16})
ROTA_SIM_KERNEL("_Z4pokePjj", poke)
ROTA_SIM_KERNEL("_Z4spinm", spin)
ROTA_SIM_KERNEL("_Z11takes_100usv", takes<100'000>)
ROTA_SIM_KERNEL("_Z10spin_untilPj", spin_until)
ROTA_SIM_KERNEL("_Z18ncclDevKernel_meetPjjjj", meet)
ROTA_SIM_KERNEL("rota_fingerprint", fingerprint)
ROTA_SIM_KERNEL("rota_demo_mix", rota_demo_mix)
ROTA_SIM_KERNELS_END

ROTA_SIM_VARIABLES_BEGIN
ROTA_SIM_VARIABLE("counter", unsigned, 5)
ROTA_SIM_CONSTANT("weights", float[4], {1, 2, 3, 4})
ROTA_SIM_MANAGED("total", unsigned, 7)
ROTA_SIM_VARIABLES_END
