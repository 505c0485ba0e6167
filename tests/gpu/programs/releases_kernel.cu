// A kernel and its launch with <<<>>>, for programs of any release: clang compiles this without CUDA's headers (what
// they would declare stands below), and what it calls, cudaLaunchKernel and the registration, every libcudart since 9.2
// has.
#include <stddef.h>

#define __global__ __attribute__((global))
#define __host__ __attribute__((host))
#define __device__ __attribute__((device))

struct dim3 {
  unsigned x, y, z;
  __host__ __device__ dim3(unsigned x, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};
typedef struct CUstream_st* cudaStream_t;
extern "C" int cudaLaunchKernel(const void* function, dim3 grid, dim3 block, void** arguments, size_t shared,
                                cudaStream_t stream);
extern "C" unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, cudaStream_t stream);

__global__ void twice(float* values, int count) {
  const int index = __nvvm_read_ptx_sreg_ctaid_x() * __nvvm_read_ptx_sreg_ntid_x() + __nvvm_read_ptx_sreg_tid_x();
  if (index < count) values[index] *= 2;
}

extern "C" void releases_twice(float* values, int count, cudaStream_t stream) {
  twice<<<(count + 127) / 128, 128, 0, stream>>>(values, count);
}
