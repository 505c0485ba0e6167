// A small nvcc program: legacy and per-thread streams, pitched and managed memory, events, a graph. Prints what it got.
#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#define CHECK(call)                                               \
  do {                                                            \
    cudaError_t result = (call);                                  \
    if (result != cudaSuccess) {                                  \
      std::printf("%s: %s\n", #call, cudaGetErrorString(result)); \
      std::exit(1);                                               \
    }                                                             \
  } while (0)

__global__ void scale_add(const float* x, float* y, int n, float factor) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = factor * x[i] + y[i];
}

__global__ void row_sums(const float* image, size_t pitch, int width, float* sums) {
  const float* row = reinterpret_cast<const float*>(reinterpret_cast<const char*>(image) + blockIdx.x * pitch);
  float sum = 0;
  for (int i = 0; i < width; ++i) sum += row[i];
  if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

static double run_once(float factor) {
  const int n = 1 << 20;
  std::vector<float> host(n, 1.0f);
  float *x, *y;
  // Nothing on the default stream: it would depend on what another thread captures, and so end that capture.
  cudaStream_t stream;
  CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  CHECK(cudaMalloc(&x, n * sizeof(float)));
  CHECK(cudaMalloc(&y, n * sizeof(float)));
  CHECK(cudaMemcpyAsync(x, host.data(), n * sizeof(float), cudaMemcpyHostToDevice, stream));
  CHECK(cudaMemsetAsync(y, 0, n * sizeof(float), stream));
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  scale_add<<<(n + 255) / 256, 256, 0, stream>>>(x, y, n, factor);
  CHECK(cudaStreamEndCapture(stream, &graph));
  CHECK(cudaGraphInstantiate(&executable, graph, 0));
  for (int i = 0; i < 5; ++i) CHECK(cudaGraphLaunch(executable, stream));
  CHECK(cudaMemcpyAsync(host.data(), y, n * sizeof(float), cudaMemcpyDeviceToHost, stream));
  CHECK(cudaStreamSynchronize(stream));
  double sum = 0;
  for (float value : host) sum += value;

  float *image, *sums;
  size_t pitch;
  CHECK(cudaMallocPitch(&image, &pitch, 100 * sizeof(float), 64));
  CHECK(cudaMemset2DAsync(image, pitch, 0, 100 * sizeof(float), 64, stream));
  std::vector<float> rows(100 * 64, 0.5f);
  CHECK(cudaMemcpy2DAsync(image, pitch, rows.data(), 100 * sizeof(float), 100 * sizeof(float), 64,
                          cudaMemcpyHostToDevice, stream));
  CHECK(cudaMalloc(&sums, 64 * sizeof(float)));
  row_sums<<<64, 32, 0, stream>>>(image, pitch, 100, sums);
  float first[64];
  CHECK(cudaMemcpyAsync(first, sums, sizeof(first), cudaMemcpyDeviceToHost, stream));
  CHECK(cudaStreamSynchronize(stream));
  for (float value : first) sum += value;

  void* pooled;
  CHECK(cudaMallocAsync(&pooled, 1 << 20, stream));
  CHECK(cudaFreeAsync(pooled, stream));
  CHECK(cudaFreeAsync(sums, stream));  // a plain allocation, freed in stream order
  CHECK(cudaStreamSynchronize(stream));
  CHECK(cudaGraphExecDestroy(executable));
  CHECK(cudaGraphDestroy(graph));
  CHECK(cudaStreamDestroy(stream));
  CHECK(cudaFree(image));
  CHECK(cudaFree(x));
  CHECK(cudaFree(y));
  std::printf("pitch %zu\n", pitch);
  return sum;
}

// vector [single | bad]: `single` keeps to one thread, `bad` writes out of bounds at the end.
int main(int count, char** arguments) {
  const auto asked_for = [&](const char* word) { return count > 1 && std::strcmp(arguments[1], word) == 0; };
  // A launch that cannot work must still say so (nvshare overwrote this result).
  scale_add<<<1, 4096>>>(nullptr, nullptr, 0, 1);
  std::printf("bad launch: %s\n", cudaGetErrorName(cudaGetLastError()));
  size_t free_before, total, free_during;
  void* block;
  CHECK(cudaMemGetInfo(&free_before, &total));
  CHECK(cudaMalloc(&block, 256 << 20));
  CHECK(cudaMemGetInfo(&free_during, &total));
  std::printf("memory accounted: %s\n", free_before - free_during >= (256u << 20) ? "yes" : "no");
  CHECK(cudaFree(block));
  const int workers = asked_for("single") ? 1 : 4;
  double sums[4] = {};
  std::vector<std::thread> threads;
  for (int i = 0; i < workers; ++i) threads.emplace_back([i, &sums] { sums[i] = run_once(static_cast<float>(i + 1)); });
  for (auto& thread : threads) thread.join();
  for (double sum : sums) std::printf("sum %.1f\n", sum);
  if (asked_for("bad")) {  // an out-of-bounds write for compute-sanitizer
    float* small;
    CHECK(cudaMalloc(&small, 16));
    scale_add<<<1, 64>>>(small, small, 64, 1);
    cudaDeviceSynchronize();
  }
  return 0;
}
