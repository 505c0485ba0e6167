// What the runtime-API programs share. Each is compiled twice from one source: by nvcc, as users compile (also for a
// real GPU), and by the C++ compiler alone, with nvcc's generated code written out (host_kernels.h), so that simgpu's
// libcudart is tested without nvcc. A program prints "ok" or one line that begins "failed:".
#pragma once

#include <cuda_profiler_api.h>
#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#ifdef __CUDACC__
#include "tests/programs/kernels.cu"
#define LAUNCH(kernel, grid, block, shared, stream, ...) kernel<<<grid, block, shared, stream>>>(__VA_ARGS__)
#else
#include "tests/programs/runtime/host_kernels.h"
#define LAUNCH(kernel, grid, block, shared, stream, ...) \
  (__cudaPushCallConfiguration(grid, block, shared, stream) != 0 ? (void)0 : kernel(__VA_ARGS__))
#endif

// Ends the program; with RUNTIME_KEEP_GOING in the environment it continues, to show all differences on a GPU.
inline bool failed = false;
inline void fail(const char* file, int line, const char* what, const char* was) {
  std::fprintf(stderr, "failed: %s:%d: %s (%s)\n", file, line, what, was);
  failed = true;
  if (std::getenv("RUNTIME_KEEP_GOING") == nullptr) std::exit(1);  // NOLINT(concurrency-mt-unsafe)
}

// A call that must succeed; one that must return exactly this error; a condition that must hold.
#define CHECK(call)                                                                           \
  do {                                                                                        \
    cudaError_t outcome_ = (call);                                                            \
    if (outcome_ != cudaSuccess) fail(__FILE__, __LINE__, #call, cudaGetErrorName(outcome_)); \
  } while (0)
#define EXPECT(call, error)                                                                                            \
  do {                                                                                                                 \
    cudaError_t outcome_ = (call);                                                                                     \
    if (outcome_ != (error)) fail(__FILE__, __LINE__, #call " should have given " #error, cudaGetErrorName(outcome_)); \
    cudaGetLastError();                                                                                                \
  } while (0)
#define REQUIRE(condition)                                                                           \
  do {                                                                                               \
    if (!(condition)) fail(__FILE__, __LINE__, #condition, cudaGetErrorName(cudaPeekAtLastError())); \
  } while (0)
// Two numbers that must be equal.
#define EQUAL(a, b)                                                                                                   \
  do {                                                                                                                \
    auto a_ = static_cast<unsigned long long>(a);                                                                     \
    if (a_ != static_cast<unsigned long long>(b)) fail(__FILE__, __LINE__, #a " == " #b, std::to_string(a_).c_str()); \
  } while (0)
#define REQUIRE_LAUNCHED() CHECK(cudaGetLastError())

// The address by which the runtime knows a device variable.
template <class T>
const void* symbol(const T& variable) {
  return &variable;
}
// The address by which the runtime knows a kernel.
template <class... Parameters>
const void* stub(void (*kernel)(Parameters...)) {
  return reinterpret_cast<const void*>(kernel);
}

// Preloads what a program uses later while a kernel occupies the GPU: loading may wait for the kernel.
inline void load_early() {
  unsigned* words = nullptr;
  CHECK(cudaMalloc(&words, 4096));
  CHECK(cudaMemset(words, 0, 4096));
  LAUNCH(fill, 1, 1, 0, nullptr, words, 1UL, 1U);
  unsigned ended = 1;
  CHECK(cudaMemcpy(words, &ended, sizeof ended, cudaMemcpyHostToDevice));
  LAUNCH(spin_until, 1, 1, 0, nullptr, words);
  REQUIRE_LAUNCHED();
  CHECK(cudaDeviceSynchronize());
  CHECK(cudaFree(words));
}

inline int succeed() {
  if (failed) return 1;
  std::printf("ok\n");
  return 0;
}
