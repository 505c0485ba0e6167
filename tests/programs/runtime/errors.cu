// The error state: per thread, read and reset, kept by a peek; the state after a failed launch; sticky errors.
#include <thread>

#include "tests/programs/runtime/runtime_program.h"

// Unlike EXPECT it leaves the error state alone.
#define SAYS(call, error)                                                                               \
  do {                                                                                                  \
    cudaError_t outcome_ = (call);                                                                      \
    if (outcome_ != (error)) fail(__FILE__, __LINE__, #call " == " #error, cudaGetErrorName(outcome_)); \
  } while (0)

int main() {
  SAYS(cudaGetLastError(), cudaSuccess);
  SAYS(cudaMalloc(static_cast<void**>(nullptr), 16), cudaErrorInvalidValue);
  std::thread([] { SAYS(cudaPeekAtLastError(), cudaSuccess); }).join();
  CHECK(cudaFree(nullptr));  // a success keeps the error
  SAYS(cudaPeekAtLastError(), cudaErrorInvalidValue);
  SAYS(cudaGetLastError(), cudaErrorInvalidValue);
  SAYS(cudaGetLastError(), cudaSuccess);
  REQUIRE(std::strcmp(cudaGetErrorName(cudaErrorMemoryAllocation), "cudaErrorMemoryAllocation") == 0);
  REQUIRE(std::strcmp(cudaGetErrorName(cudaErrorNotReady), "cudaErrorNotReady") == 0);
  REQUIRE(std::strlen(cudaGetErrorString(cudaErrorIllegalAddress)) > 0);
  REQUIRE(std::strcmp(cudaGetErrorName(static_cast<cudaError_t>(12345)), "unrecognized error code") == 0);

  unsigned* words = nullptr;
  CHECK(cudaMalloc(&words, 4096));
  LAUNCH(fill, 1, 2048, 0, nullptr, words, 1024UL, 1U);
  SAYS(cudaGetLastError(), cudaErrorInvalidValue);
  LAUNCH(fill, 0, 32, 0, nullptr, words, 1024UL, 1U);
  SAYS(cudaGetLastError(), cudaErrorInvalidValue);
  LAUNCH(fill, 1, 32, size_t{1} << 20, nullptr, words, 1024UL, 1U);
  SAYS(cudaGetLastError(), cudaErrorInvalidValue);
  CHECK(cudaDeviceSynchronize());
  unsigned long count = 1024;
  unsigned value = 1;
  void* arguments[] = {&words, &count, &value};
  EXPECT(cudaLaunchKernel(stub(fill), dim3(1), dim3(2048), arguments, 0, nullptr), cudaErrorInvalidValue);
  EXPECT(cudaLaunchKernel(stub(fill), dim3(1, 70000), dim3(1), arguments, 0, nullptr), cudaErrorInvalidValue);
  EXPECT(cudaLaunchKernel(stub(fill), dim3(1), dim3(0), arguments, 0, nullptr), cudaErrorInvalidValue);
  EXPECT(cudaLaunchKernel(stub(small_blocks), dim3(1), dim3(512), arguments, 0, nullptr), cudaErrorInvalidValue);
  EXPECT(cudaLaunchKernel(nullptr, dim3(1), dim3(1), arguments, 0, nullptr), cudaErrorInvalidDeviceFunction);
  int local = 0;
  EXPECT(cudaLaunchKernel(&local, dim3(1), dim3(1), nullptr, 0, nullptr), cudaErrorInvalidResourceHandle);

  // From here on the context is lost: every call reports that, on every thread.
  LAUNCH(poke, 1, 1, 0, nullptr, reinterpret_cast<unsigned*>(0x10), 1U);
  REQUIRE_LAUNCHED();
  SAYS(cudaDeviceSynchronize(), cudaErrorIllegalAddress);
  SAYS(cudaMalloc(&words, 16), cudaErrorIllegalAddress);
  SAYS(cudaStreamSynchronize(nullptr), cudaErrorIllegalAddress);
  std::thread([] { SAYS(cudaDeviceSynchronize(), cudaErrorIllegalAddress); }).join();
  SAYS(cudaGetLastError(), cudaErrorIllegalAddress);
  SAYS(cudaDeviceSynchronize(), cudaErrorIllegalAddress);
  return succeed();
}
