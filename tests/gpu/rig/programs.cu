// Programs of the rig's suite that nvcc builds: nvcc -O2 -arch=sm_70 -cudart static -o programs programs.cu; programs
// NAME. Each compares its results, and prints how many bytes of device memory it had at most.
#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#define CHECK(call)                                               \
  do {                                                            \
    cudaError_t result = (call);                                  \
    if (result != cudaSuccess) {                                  \
      std::printf("%s: %s\n", #call, cudaGetErrorString(result)); \
      std::exit(1);                                               \
    }                                                             \
  } while (0)

#define EXPECT(condition)                          \
  do {                                             \
    if (!(condition)) {                            \
      std::printf("%s is not true\n", #condition); \
      std::exit(1);                                \
    }                                              \
  } while (0)

__global__ void fill(float* out, size_t n, float value) {
  for (size_t i = blockIdx.x * size_t{blockDim.x} + threadIdx.x; i < n; i += size_t{gridDim.x} * blockDim.x)
    out[i] = value;
}

__global__ void average(const float* in, float* out, size_t side) {
  const size_t x = blockIdx.x * size_t{blockDim.x} + threadIdx.x;
  const size_t y = blockIdx.y;
  if (x >= side) return;
  const size_t left = x == 0 ? side - 1 : x - 1, right = x + 1 == side ? 0 : x + 1;
  const size_t up = y == 0 ? side - 1 : y - 1, down = y + 1 == side ? 0 : y + 1;
  out[y * side + x] = (in[y * side + left] + in[y * side + right] + in[up * side + x] + in[down * side + x]) / 4;
}

__global__ void sum(const float* in, size_t n, double* out) {
  double mine = 0;
  for (size_t i = blockIdx.x * size_t{blockDim.x} + threadIdx.x; i < n; i += size_t{gridDim.x} * blockDim.x)
    mine += in[i];
  atomicAdd(out, mine);
}

static size_t stencil() {
  const size_t side = 20480, bytes = side * side * sizeof(float);
  float *in, *out;
  CHECK(cudaMalloc(&in, bytes));
  CHECK(cudaMalloc(&out, bytes));
  fill<<<1024, 256>>>(in, side * side, 3);
  for (int round = 0; round < 200; ++round) {
    average<<<dim3((side + 255) / 256, side), 256>>>(in, out, side);
    float* next = in;
    in = out;
    out = next;
    if (round % 20 == 0) CHECK(cudaDeviceSynchronize());
  }
  std::vector<float> row(side);
  CHECK(cudaMemcpy(row.data(), in + (side - 1) * side, side * sizeof(float), cudaMemcpyDeviceToHost));
  for (float value : row) EXPECT(value == 3);
  return 2 * bytes;
}

static size_t pool() {
  cudaStream_t stream;
  CHECK(cudaStreamCreate(&stream));
  cudaMemPool_t pool;
  CHECK(cudaDeviceGetDefaultMemPool(&pool, 0));
  const size_t words = size_t{256} << 20;
  double* total;
  CHECK(cudaMallocAsync(&total, sizeof(double), stream));
  for (int round = 1; round <= 20; ++round) {
    float *first, *second;
    CHECK(cudaMallocAsync(&first, words * 4, stream));
    CHECK(cudaMallocAsync(&second, words * 4, stream));
    fill<<<1024, 256, 0, stream>>>(first, words, round);
    CHECK(cudaMemcpyAsync(second, first, words * 4, cudaMemcpyDeviceToDevice, stream));
    CHECK(cudaMemsetAsync(total, 0, sizeof(double), stream));
    sum<<<1024, 256, 0, stream>>>(second, words, total);
    double got;
    CHECK(cudaMemcpyAsync(&got, total, sizeof got, cudaMemcpyDeviceToHost, stream));
    CHECK(cudaFreeAsync(first, stream));
    CHECK(cudaFreeAsync(second, stream));
    CHECK(cudaStreamSynchronize(stream));
    EXPECT(got == double(round) * words);
  }
  unsigned long long most = 0;
  CHECK(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReservedMemHigh, &most));
  return most;
}

static size_t reduce() {
  const size_t words = size_t{1} << 30;
  float* values;
  double* total;
  CHECK(cudaMalloc(&values, words * 4));
  CHECK(cudaMalloc(&total, sizeof(double)));
  for (int round = 1; round <= 100; ++round) {
    fill<<<1024, 256>>>(values, words, round % 4);
    CHECK(cudaMemset(total, 0, sizeof(double)));
    sum<<<1024, 256>>>(values, words, total);
    double got;
    CHECK(cudaMemcpy(&got, total, sizeof got, cudaMemcpyDeviceToHost));
    EXPECT(got == double(round % 4) * words);
  }
  return words * 4 + sizeof(double);
}

static size_t copies() {
  const size_t bytes = size_t{1} << 30;
  unsigned char *device, *there, *back;
  CHECK(cudaMalloc(&device, bytes));
  CHECK(cudaMallocHost(&there, bytes / 8));
  CHECK(cudaMallocHost(&back, bytes / 8));
  cudaStream_t stream;
  CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  for (int round = 0; round < 40; ++round) {
    std::memset(there, round + 1, bytes / 8);
    unsigned char* place = device + (round % 8) * (bytes / 8);
    CHECK(cudaMemcpyAsync(place, there, bytes / 8, cudaMemcpyHostToDevice, stream));
    CHECK(cudaMemcpyAsync(back, place, bytes / 8, cudaMemcpyDeviceToHost, stream));
    CHECK(cudaStreamSynchronize(stream));
    EXPECT(std::memcmp(there, back, bytes / 8) == 0);
  }
  return bytes;
}

int main(int count, char** arguments) {
  const struct {
    const char* name;
    size_t (*run)();
  } all[] = {{"stencil", stencil}, {"pool", pool}, {"reduce", reduce}, {"copies", copies}};
  for (const auto& each : all) {
    if (count == 2 && std::strcmp(arguments[1], each.name) == 0) {
      std::printf("%zu\n", each.run());
      return 0;
    }
  }
  std::printf("usage: programs stencil|pool|reduce|copies\n");
  return 2;
}
