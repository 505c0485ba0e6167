// The kernels and device variables of simgpu's library (tools/simgpu/kernels/simkernels.cpp) for a real GPU, with the
// same mangled names. Compiled to kernels.ptx next to the programs if nvcc is available, and part of those in runtime/.

struct Words {
  unsigned* begin;
  unsigned long count;
};

__device__ unsigned counter = 5;
__constant__ float weights[4] = {1, 2, 3, 4};
__managed__ unsigned total = 7;

__global__ void saxpy(int n, float a, const float* x, float* y) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = a * x[i] + y[i];
}

__global__ void vector_add(const float* a, const float* b, float* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = a[i] + b[i];
}

__global__ void fill(unsigned* words, unsigned long count, unsigned value) {
  unsigned long step = static_cast<unsigned long>(gridDim.x) * blockDim.x;
  for (unsigned long i = blockIdx.x * static_cast<unsigned long>(blockDim.x) + threadIdx.x; i < count; i += step) {
    words[i] = value;
  }
}

__global__ void memtouch(unsigned* words, unsigned long count, unsigned long stride, unsigned expected,
                         unsigned* mismatches) {
  unsigned long step = static_cast<unsigned long>(gridDim.x) * blockDim.x * stride;
  unsigned long start = (blockIdx.x * static_cast<unsigned long>(blockDim.x) + threadIdx.x) * stride;
  for (unsigned long i = start; i < count; i += step) {
    if (words[i] != expected) atomicAdd(mismatches, 1u);
    words[i] = expected + 1;
  }
}

// Word number i of the memory that begins with word `first` has to be i * 2654435761 + *round: words that are not are
// counted, and each becomes that of the next round. With one thread over `round` itself (first = 0) the next round
// begins.
__global__ void renew(unsigned* words, unsigned long count, unsigned long first, const unsigned* round,
                      unsigned* mismatches) {
  unsigned long step = static_cast<unsigned long>(gridDim.x) * blockDim.x;
  unsigned now = *round;
  unsigned wrong = 0;
  for (unsigned long i = blockIdx.x * static_cast<unsigned long>(blockDim.x) + threadIdx.x; i < count; i += step) {
    unsigned wanted = static_cast<unsigned>(first + i) * 2654435761u + now;
    if (words[i] != wanted) ++wrong;
    words[i] = wanted + 1;
  }
  if (wrong != 0) atomicAdd(mismatches, wrong);
}

__global__ void reduce(const unsigned* words, unsigned long count, unsigned long* out) {
  unsigned long step = static_cast<unsigned long>(gridDim.x) * blockDim.x;
  unsigned long sum = 0;
  for (unsigned long i = blockIdx.x * static_cast<unsigned long>(blockDim.x) + threadIdx.x; i < count; i += step) {
    sum += words[i];
  }
  if (gridDim.x * blockDim.x == 1) {
    *out = sum;
  } else {
    atomicAdd(reinterpret_cast<unsigned long long*>(out), static_cast<unsigned long long>(sum));
  }
}

// c = a * b, all in row-major order: a has m rows of k, b has k rows of n. One element of c per thread.
__global__ void gemm(const float* a, const float* b, float* c, int m, int n, int k) {
  int column = blockIdx.x * blockDim.x + threadIdx.x;
  int row = blockIdx.y * blockDim.y + threadIdx.y;
  if (row >= m || column >= n) return;
  float sum = 0;
  for (int i = 0; i < k; ++i) sum += a[row * k + i] * b[i * n + column];
  c[row * n + column] = sum;
}

// Each thread writes its index in the launch: blocks first, then threads, x varying fastest in both.
__global__ void thread_ids(unsigned* out) {
  unsigned block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  unsigned thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
  unsigned id = block * blockDim.x * blockDim.y * blockDim.z + thread;
  out[id] = id;
}

// out[block] = sum of the block's part of the words. Needs blockDim.x words of dynamic shared memory.
__global__ void block_sums(const unsigned* words, unsigned* out) {
  extern __shared__ unsigned part[];
  part[threadIdx.x] = words[blockIdx.x * blockDim.x + threadIdx.x];
  __syncthreads();
  if (threadIdx.x != 0) return;
  unsigned sum = 0;
  for (unsigned i = 0; i < blockDim.x; ++i) sum += part[i];
  out[blockIdx.x] = sum;
}

// A parameter that is a struct.
__global__ void fill_words(Words words, unsigned value) {
  unsigned long i = blockIdx.x * static_cast<unsigned long>(blockDim.x) + threadIdx.x;
  if (i < words.count) words.begin[i] = value;
}

// Blocks of at most 256 threads.
__global__ void __launch_bounds__(256) small_blocks(unsigned* out) {
  if (threadIdx.x == 0) out[blockIdx.x] = blockDim.x;
}

// Each thread adds to the device variable and to the managed one.
__global__ void count_up(unsigned by) {
  atomicAdd(&counter, by);
  atomicAdd(&total, by);
}

__global__ void weigh(const float* x, float* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = weights[i % 4] * x[i];
}

// Writes a word to any address, for tests that need an illegal access.
__global__ void poke(unsigned* word, unsigned value) {
  *word = value;
}

__device__ unsigned long nanoseconds_now() {
  unsigned long now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  return now;
}

__global__ void spin(unsigned long nanoseconds) {
  unsigned long start = nanoseconds_now();
  while (nanoseconds_now() - start < nanoseconds) {
  }
}

// Kernels that take the given time and do nothing else.
__global__ void takes_100us() {
  unsigned long start = nanoseconds_now();
  while (nanoseconds_now() - start < 100000) {
  }
}

// Spins until something other than 0 is stored; gives up after a minute, so that no GPU hangs forever.
__global__ void spin_until(unsigned* flag) {
  unsigned long start = nanoseconds_now();
  while (*reinterpret_cast<volatile unsigned*>(flag) == 0 && nanoseconds_now() - start < 60000000000UL) {
  }
}

__global__ void ncclDevKernel_meet(unsigned* rounds, unsigned rank, unsigned ranks, unsigned round) {
  volatile unsigned* all = rounds;
  __threadfence_system();
  all[rank] = round;
  long long begin = clock64();
  for (unsigned other = 0; other < ranks;) {
    if (all[other] >= round) {
      ++other;
    } else if (clock64() - begin > 60ll * 2000000000ll) {
      __trap();
    }
  }
  __threadfence_system();
}
