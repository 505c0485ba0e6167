// The error state: per thread, read and reset, kept by a peek; what a failed launch leaves; an error that sticks.
#include <thread>

#include "tests/programs/runtime/runtime_program.h"

int main() {
  REQUIRE(cudaGetLastError() == cudaSuccess);
  REQUIRE(cudaMalloc(static_cast<void**>(nullptr), 16) == cudaErrorInvalidValue);
  std::thread([] { REQUIRE(cudaPeekAtLastError() == cudaSuccess); }).join();
  CHECK(cudaFree(nullptr));  // a success leaves the error where it is
  REQUIRE(cudaPeekAtLastError() == cudaErrorInvalidValue);
  REQUIRE(cudaGetLastError() == cudaErrorInvalidValue);
  REQUIRE(cudaGetLastError() == cudaSuccess);
  REQUIRE(std::strcmp(cudaGetErrorName(cudaErrorMemoryAllocation), "cudaErrorMemoryAllocation") == 0);
  REQUIRE(std::strcmp(cudaGetErrorName(cudaErrorNotReady), "cudaErrorNotReady") == 0);
  REQUIRE(std::strlen(cudaGetErrorString(cudaErrorIllegalAddress)) > 0);
  REQUIRE(std::strcmp(cudaGetErrorName(static_cast<cudaError_t>(12345)), "unrecognized error code") == 0);

  unsigned* words = nullptr;
  CHECK(cudaMalloc(&words, 4096));
  LAUNCH(fill, 1, 2048, 0, nullptr, words, 1024UL, 1U);
  REQUIRE(cudaGetLastError() == cudaErrorInvalidConfiguration);
  LAUNCH(fill, 0, 32, 0, nullptr, words, 1024UL, 1U);
  REQUIRE(cudaGetLastError() == cudaErrorInvalidConfiguration);
  LAUNCH(fill, 1, 32, size_t{1} << 20, nullptr, words, 1024UL, 1U);
  REQUIRE(cudaGetLastError() == cudaErrorInvalidValue);
  CHECK(cudaDeviceSynchronize());
  int local = 0;
  EXPECT(cudaLaunchKernel(&local, dim3(1), dim3(1), nullptr, 0, nullptr), cudaErrorInvalidDeviceFunction);

  // From here on the context is lost: every call says so, on every thread.
  LAUNCH(poke, 1, 1, 0, nullptr, reinterpret_cast<unsigned*>(0x10), 1U);
  REQUIRE_LAUNCHED();
  REQUIRE(cudaDeviceSynchronize() == cudaErrorIllegalAddress);
  REQUIRE(cudaMalloc(&words, 16) == cudaErrorIllegalAddress);
  REQUIRE(cudaStreamSynchronize(nullptr) == cudaErrorIllegalAddress);
  std::thread([] { REQUIRE(cudaDeviceSynchronize() == cudaErrorIllegalAddress); }).join();
  REQUIRE(cudaGetLastError() == cudaErrorIllegalAddress);
  REQUIRE(cudaDeviceSynchronize() == cudaErrorIllegalAddress);
  return succeed();
}
