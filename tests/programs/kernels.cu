// The kernels of simgpu's library (tools/simgpu/kernels/simkernels.cpp) for a real GPU, of the same mangled names.
// Compiled to kernels.ptx beside the programs where there is an nvcc.

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

__global__ void spin(unsigned long nanoseconds) {
  unsigned long long start;
  unsigned long long now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
  do {
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  } while (now - start < nanoseconds);
}

__global__ void spin_until(unsigned* flag) {
  while (*reinterpret_cast<volatile unsigned*>(flag) == 0) {
  }
}
