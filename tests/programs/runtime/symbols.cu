// Device variables: __device__, __constant__ and __managed__, read, written, copied, and used by kernels.
#include "tests/programs/runtime/runtime_program.h"

int main() {
  size_t bytes = 0;
  CHECK(cudaGetSymbolSize(&bytes, symbol(counter)));
  REQUIRE(bytes == sizeof(unsigned));
  CHECK(cudaGetSymbolSize(&bytes, symbol(weights)));
  REQUIRE(bytes == 4 * sizeof(float));

  unsigned count = 0;
  CHECK(cudaMemcpyFromSymbol(&count, symbol(counter), sizeof count, 0, cudaMemcpyDeviceToHost));
  REQUIRE(count == 5);
  REQUIRE(total == 7);
  LAUNCH(count_up, 4, 32, 0, nullptr, 2U);
  REQUIRE_LAUNCHED();
  CHECK(cudaDeviceSynchronize());
  CHECK(cudaMemcpyFromSymbol(&count, symbol(counter), sizeof count, 0, cudaMemcpyDeviceToHost));
  REQUIRE(count == 5 + 256);
  REQUIRE(total == 7 + 256);
  total = 1;
  count = 10;
  CHECK(cudaMemcpyToSymbol(symbol(counter), &count, sizeof count, 0, cudaMemcpyHostToDevice));
  LAUNCH(count_up, 1, 1, 0, nullptr, 1U);
  CHECK(cudaDeviceSynchronize());
  REQUIRE(total == 2);
  void* address = nullptr;
  CHECK(cudaGetSymbolAddress(&address, symbol(counter)));
  CHECK(cudaMemcpy(&count, address, sizeof count, cudaMemcpyDeviceToHost));
  REQUIRE(count == 11);
  cudaPointerAttributes attributes;
  CHECK(cudaPointerGetAttributes(&attributes, address));
  REQUIRE(attributes.type == cudaMemoryTypeDevice);

  // One weight of the four is changed, in stream order.
  cudaStream_t stream;
  CHECK(cudaStreamCreate(&stream));
  float weight = 20;
  float values[4] = {1, 1, 1, 1};
  float* x = nullptr;
  float* out = nullptr;
  CHECK(cudaMalloc(&x, sizeof values));
  CHECK(cudaMalloc(&out, sizeof values));
  CHECK(cudaMemcpy(x, values, sizeof values, cudaMemcpyHostToDevice));
  CHECK(
      cudaMemcpyToSymbolAsync(symbol(weights), &weight, sizeof weight, sizeof weight, cudaMemcpyHostToDevice, stream));
  LAUNCH(weigh, 1, 4, 0, stream, x, out, 4);
  REQUIRE_LAUNCHED();
  CHECK(cudaMemcpyAsync(values, out, sizeof values, cudaMemcpyDeviceToHost, stream));
  CHECK(cudaMemcpyFromSymbolAsync(&weight, symbol(weights), sizeof weight, 2 * sizeof weight, cudaMemcpyDeviceToHost,
                                  stream));
  CHECK(cudaStreamSynchronize(stream));
  REQUIRE(values[0] == 1 && values[1] == 20 && values[2] == 3 && values[3] == 4 && weight == 3);

  int local = 0;
  EXPECT(cudaGetSymbolAddress(&address, &local), cudaErrorInvalidSymbol);
  EXPECT(cudaMemcpyToSymbol(&local, &count, sizeof count, 0, cudaMemcpyHostToDevice), cudaErrorInvalidSymbol);
  EXPECT(cudaMemcpyToSymbol(symbol(counter), values, sizeof values, 0, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
  EXPECT(cudaMemcpyToSymbol(symbol(counter), &count, sizeof count, 0, cudaMemcpyDeviceToHost),
         cudaErrorInvalidMemcpyDirection);
  CHECK(cudaFree(x));
  CHECK(cudaFree(out));
  CHECK(cudaStreamDestroy(stream));
  return succeed();
}
