// A program of one release whose kernel is launched with <<<>>> (releases_kernel.cu).
#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <vector>

extern "C" void releases_twice(float* values, int count, cudaStream_t stream);

#define CHECK(call)                                                                                      \
  do {                                                                                                   \
    const cudaError_t result = (call);                                                                   \
    if (result != cudaSuccess) {                                                                         \
      std::printf("failed: %s: %s (%s)\n", #call, cudaGetErrorName(result), cudaGetErrorString(result)); \
      std::exit(1);                                                                                      \
    }                                                                                                    \
  } while (0)

int main() {
  constexpr int kCount = 1000;
  constexpr std::size_t kBytes = kCount * sizeof(float);
  std::vector<float> host(kCount, 1.5F);
  float* values = nullptr;
  cudaStream_t stream = nullptr;
  CHECK(cudaMalloc(reinterpret_cast<void**>(&values), kBytes));
  CHECK(cudaStreamCreate(&stream));
  CHECK(cudaMemcpyAsync(values, host.data(), kBytes, cudaMemcpyHostToDevice, stream));
  releases_twice(values, kCount, stream);
  CHECK(cudaGetLastError());
  CHECK(cudaStreamSynchronize(stream));
  releases_twice(values, kCount, cudaStreamPerThread);
  CHECK(cudaDeviceSynchronize());
  CHECK(cudaMemcpy(host.data(), values, kBytes, cudaMemcpyDeviceToHost));
  std::printf("runtime API %d: %.1f\nok\n", CUDART_VERSION, std::accumulate(host.begin(), host.end(), 0.0));
  CHECK(cudaStreamDestroy(stream));
  CHECK(cudaFree(values));
  return 0;
}
