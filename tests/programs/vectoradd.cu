// A typical runtime-API program: <<<>>>, cudaMalloc, copies, a stream, events, error checks. Built with the shared
// cudart (vectoradd_shared: runs on simgpu too) and with the static one (vectoradd_static: for a GPU only). Prints
// "ok".
#include <cstdio>
#include <cstdlib>
#include <vector>

__global__ void vector_add(const float* a, const float* b, float* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = a[i] + b[i];
}

#define CHECK(call)                                                               \
  do {                                                                            \
    cudaError_t error = (call);                                                   \
    if (error != cudaSuccess) {                                                   \
      std::fprintf(stderr, "failed: %s: %s\n", #call, cudaGetErrorString(error)); \
      return 1;                                                                   \
    }                                                                             \
  } while (0)

int main(int argc, char** argv) {
  int rounds = argc > 1 ? std::atoi(argv[1]) : 10;
  constexpr int kCount = 1 << 16;
  constexpr size_t kBytes = kCount * sizeof(float);
  int devices = 0;
  CHECK(cudaGetDeviceCount(&devices));
  cudaDeviceProp properties;
  CHECK(cudaGetDeviceProperties(&properties, 0));
  if (devices < 1 || properties.totalGlobalMem == 0 || properties.warpSize != 32) {
    std::fprintf(stderr, "failed: %d devices, %zu bytes, warps of %d\n", devices, properties.totalGlobalMem,
                 properties.warpSize);
    return 1;
  }
  std::vector<float> a(kCount), b(kCount), out(kCount);
  for (int i = 0; i < kCount; ++i) {
    a[i] = static_cast<float>(i);
    b[i] = static_cast<float>(2 * i);
  }
  float *device_a, *device_b, *device_out;
  CHECK(cudaMalloc(&device_a, kBytes));
  CHECK(cudaMalloc(&device_b, kBytes));
  CHECK(cudaMalloc(&device_out, kBytes));
  cudaStream_t stream;
  cudaEvent_t begin, end;
  CHECK(cudaStreamCreate(&stream));
  CHECK(cudaEventCreate(&begin));
  CHECK(cudaEventCreate(&end));
  for (int round = 0; round < rounds; ++round) {
    CHECK(cudaMemcpyAsync(device_a, a.data(), kBytes, cudaMemcpyHostToDevice, stream));
    CHECK(cudaMemcpyAsync(device_b, b.data(), kBytes, cudaMemcpyHostToDevice, stream));
    CHECK(cudaMemsetAsync(device_out, 0, kBytes, stream));
    CHECK(cudaEventRecord(begin, stream));
    vector_add<<<(kCount + 255) / 256, 256, 0, stream>>>(device_a, device_b, device_out, kCount);
    CHECK(cudaGetLastError());
    CHECK(cudaEventRecord(end, stream));
    CHECK(cudaMemcpyAsync(out.data(), device_out, kBytes, cudaMemcpyDeviceToHost, stream));
    CHECK(cudaStreamSynchronize(stream));
    for (int i = 0; i < kCount; ++i) {
      if (out[i] != a[i] + b[i]) {
        std::fprintf(stderr, "failed: round %d, element %d is %g\n", round, i, out[i]);
        return 1;
      }
    }
  }
  float milliseconds = -1;
  CHECK(cudaEventElapsedTime(&milliseconds, begin, end));
  if (milliseconds < 0) return 1;
  // A launch that cannot work says so, once.
  vector_add<<<1, 4096, 0, stream>>>(device_a, device_b, device_out, kCount);
  cudaError_t refused = cudaGetLastError();
  if (refused == cudaSuccess || cudaGetLastError() != cudaSuccess) {
    std::fprintf(stderr, "failed: a launch of 4096 threads a block said %s\n", cudaGetErrorString(refused));
    return 1;
  }
  CHECK(cudaFree(device_a));
  CHECK(cudaFree(device_b));
  CHECK(cudaFree(device_out));
  CHECK(cudaStreamDestroy(stream));
  CHECK(cudaEventDestroy(begin));
  CHECK(cudaEventDestroy(end));
  std::printf("ok\n");
  return 0;
}
