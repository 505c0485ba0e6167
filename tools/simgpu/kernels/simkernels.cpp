// The kernels that simgpu comes with. tests/programs/kernels.cu has their twins for a real GPU, of the same names.
#include <atomic>
#include <cstdint>

#include "tools/simgpu/kernel.h"

using rota::sim::Launch;
using rota::sim::Pointer;

namespace {

// Modelled time of a kernel that goes through so many bytes once, at an H200's bandwidth.
void stream_through(Launch& launch, uint64_t bytes) {
  launch.busy(static_cast<uint64_t>(static_cast<double>(bytes) / 3936.0));
}

// y[i] = a * x[i] + y[i]
void saxpy(Launch& launch, int n, float a, Pointer<const float> x, Pointer<float> y) {
  auto count = static_cast<uint64_t>(n);
  const float* from = x.range(launch, count);
  float* to = y.range(launch, count);
  if (from == nullptr || to == nullptr) return;
  uint64_t threads = launch.threads_x() < count ? launch.threads_x() : count;
  for (uint64_t i = 0; i < threads; ++i) to[i] = a * from[i] + to[i];
  stream_through(launch, 3 * count * sizeof(float));
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
  stream_through(launch, 3 * count * sizeof(float));
}

// words[i] = value, for all words, by however many threads
void fill(Launch& launch, Pointer<unsigned> words, unsigned long count, unsigned value) {
  unsigned* to = words.range(launch, count);
  if (to == nullptr) return;
  for (uint64_t i = 0; i < count; ++i) to[i] = value;
  stream_through(launch, count * sizeof(unsigned));
}

// One word of each `stride` is incremented, which reads and writes every page of the memory; mismatches with the value
// expected before are counted.
void memtouch(Launch& launch, Pointer<unsigned> words, unsigned long count, unsigned long stride, unsigned expected,
              Pointer<unsigned> mismatches) {
  unsigned* memory = words.range(launch, count);
  unsigned* wrong = mismatches.range(launch, 1);
  if (memory == nullptr || wrong == nullptr || stride == 0) return;
  for (uint64_t i = 0; i < count; i += stride) {
    if (memory[i] != expected) ++*wrong;
    memory[i] = expected + 1;
  }
  stream_through(launch, 2 * count * sizeof(unsigned));
}

// *out = sum of the words
void reduce(Launch& launch, Pointer<const unsigned> words, unsigned long count, Pointer<unsigned long> out) {
  const unsigned* from = words.range(launch, count);
  unsigned long* to = out.range(launch, 1);
  if (from == nullptr || to == nullptr) return;
  unsigned long sum = 0;
  for (uint64_t i = 0; i < count; ++i) sum += from[i];
  *to = sum;
  stream_through(launch, count * sizeof(unsigned));
}

void spin(Launch& launch, unsigned long nanoseconds) {
  launch.busy(nanoseconds);
}

// Runs until somebody (a copy, another kernel, the host through mapped memory) stores something else than 0.
void spin_until(Launch& launch, Pointer<unsigned> flag) {
  auto* word = flag.range(launch, 1);
  if (word == nullptr) return;
  while (__atomic_load_n(word, __ATOMIC_ACQUIRE) == 0 && !launch.cancelled()) launch.busy(20'000);
}

}  // namespace

ROTA_SIM_KERNELS_BEGIN
ROTA_SIM_KERNEL("_Z5saxpyifPKfPf", saxpy)
ROTA_SIM_KERNEL("_Z10vector_addPKfS0_Pfi", vector_add)
ROTA_SIM_KERNEL("_Z4fillPjmj", fill)
ROTA_SIM_KERNEL("_Z8memtouchPjmmjS_", memtouch)
ROTA_SIM_KERNEL("_Z6reducePKjmPm", reduce)
ROTA_SIM_KERNEL("_Z4spinm", spin)
ROTA_SIM_KERNEL("_Z10spin_untilPj", spin_until)
ROTA_SIM_KERNELS_END
