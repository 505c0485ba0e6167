// Kernels and device variables of ../kernels.cu in the form of nvcc's generated host code: a launch stub per kernel,
// shadows of the variables, and their registration before main. The image is a PTX text that names them: simgpu finds
// their bodies in ROTA_SIM_KERNELS.
#pragma once

#include <cuda_runtime.h>

extern "C" {
void** __cudaRegisterFatBinary(void* wrapper);
void __cudaRegisterFatBinaryEnd(void** handle);
void __cudaUnregisterFatBinary(void** handle);
char __cudaInitModule(void** handle);
void __cudaRegisterFunction(void** handle, const char* host, char* device, const char* name, int limit, uint3*, uint3*,
                            dim3*, dim3*, int*);
void __cudaRegisterVar(void** handle, char* host, char* device, const char* name, int external, size_t bytes,
                       int constant, int global);
void __cudaRegisterManagedVar(void** handle, void** host, char* device, const char* name, int external, size_t bytes,
                              int constant, int global);
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared = 0, cudaStream_t stream = nullptr);
cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared, void* stream);
}

namespace host_kernels {

struct Registration;
inline void** handle = nullptr;

template <class... Parameters>
void launch(void (*stub)(Parameters...), Parameters... parameters) {
  void* arguments[] = {&parameters..., nullptr};
  dim3 grid;
  dim3 block;
  size_t shared = 0;
  cudaStream_t stream = nullptr;
  if (__cudaPopCallConfiguration(&grid, &block, &shared, &stream) != cudaSuccess) return;
  cudaLaunchKernel(reinterpret_cast<const void*>(stub), grid, block, arguments, shared, stream);
}

}  // namespace host_kernels

struct Words {
  unsigned* begin;
  unsigned long count;
};
inline unsigned counter;
inline float weights[4];
namespace host_kernels {
inline unsigned* total_pointer = nullptr;
inline unsigned& managed_total() {
  static char ready = __cudaInitModule(handle);
  (void)ready;
  return *total_pointer;
}
}  // namespace host_kernels
#define total (host_kernels::managed_total())

// KERNEL(name, mangled name, (parameters), arguments...)
#define HOST_KERNELS(KERNEL)                                                                                         \
  KERNEL(saxpy, "_Z5saxpyifPKfPf", (int n, float a, const float* x, float* y), n, a, x, y)                           \
  KERNEL(vector_add, "_Z10vector_addPKfS0_Pfi", (const float* a, const float* b, float* out, int n), a, b, out, n)   \
  KERNEL(fill, "_Z4fillPjmj", (unsigned* words, unsigned long count, unsigned value), words, count, value)           \
  KERNEL(memtouch, "_Z8memtouchPjmmjS_",                                                                             \
         (unsigned* words, unsigned long count, unsigned long stride, unsigned expected, unsigned* wrong), words,    \
         count, stride, expected, wrong)                                                                             \
  KERNEL(reduce, "_Z6reducePKjmPm", (const unsigned* words, unsigned long count, unsigned long* out), words, count,  \
         out)                                                                                                        \
  KERNEL(gemm, "_Z4gemmPKfS0_Pfiii", (const float* a, const float* b, float* c, int m, int n, int k), a, b, c, m, n, \
         k)                                                                                                          \
  KERNEL(thread_ids, "_Z10thread_idsPj", (unsigned* out), out)                                                       \
  KERNEL(block_sums, "_Z10block_sumsPKjPj", (const unsigned* words, unsigned* out), words, out)                      \
  KERNEL(fill_words, "_Z10fill_words5Wordsj", (Words words, unsigned value), words, value)                           \
  KERNEL(small_blocks, "_Z12small_blocksPj", (unsigned* out), out)                                                   \
  KERNEL(count_up, "_Z8count_upj", (unsigned by), by)                                                                \
  KERNEL(weigh, "_Z5weighPKfPfi", (const float* x, float* out, int n), x, out, n)                                    \
  KERNEL(poke, "_Z4pokePjj", (unsigned* word, unsigned value), word, value)                                          \
  KERNEL(spin, "_Z4spinm", (unsigned long nanoseconds), nanoseconds)                                                 \
  KERNEL(spin_until, "_Z10spin_untilPj", (unsigned* flag), flag)

#define HOST_KERNEL_STUB(name, mangled, parameters, ...) \
  inline void name parameters {                          \
    host_kernels::launch(&name, __VA_ARGS__);            \
  }
HOST_KERNELS(HOST_KERNEL_STUB)
#undef HOST_KERNEL_STUB
inline void takes_100us() {
  host_kernels::launch(&takes_100us);
}

namespace host_kernels {

struct Registration {
  Registration() {
    static struct {
      int magic = 0x466243b1;
      int version = 1;
#define HOST_KERNEL_ENTRY(name, mangled, parameters, ...) ".visible .entry " mangled "()\n{\n  ret;\n}\n"
      const void* data =
          ".version 7.0\n.target sm_52\n.address_size 64\n"
          ".global .align 4 .u32 counter = 5;\n"
          ".const .align 4 .f32 weights[4] = {0f3F800000, 0f40000000, 0f40400000, 0f40800000};\n"
          ".global .attribute(.managed) .align 4 .u32 total = 7;\n" HOST_KERNELS(
              HOST_KERNEL_ENTRY) ".visible .entry _Z11takes_100usv()\n{\n  ret;\n}\n";
#undef HOST_KERNEL_ENTRY
      void* prelinked = nullptr;
    } wrapper;
    handle = __cudaRegisterFatBinary(&wrapper);
    auto function = [](const void* stub, const char* name) {
      __cudaRegisterFunction(handle, static_cast<const char*>(stub), const_cast<char*>(name), name, -1, nullptr,
                             nullptr, nullptr, nullptr, nullptr);
    };
#define HOST_KERNEL_REGISTRATION(name, mangled, parameters, ...) \
  function(reinterpret_cast<const void*>(&name), mangled);
    HOST_KERNELS(HOST_KERNEL_REGISTRATION)
#undef HOST_KERNEL_REGISTRATION
    function(reinterpret_cast<const void*>(&takes_100us), "_Z11takes_100usv");
    auto* counter_name = const_cast<char*>("counter");
    auto* weights_name = const_cast<char*>("weights");
    auto* total_name = const_cast<char*>("total");
    __cudaRegisterVar(handle, reinterpret_cast<char*>(&counter), counter_name, counter_name, 0, sizeof counter, 0, 0);
    __cudaRegisterVar(handle, reinterpret_cast<char*>(&weights), weights_name, weights_name, 0, sizeof weights, 1, 0);
    __cudaRegisterManagedVar(handle, reinterpret_cast<void**>(&total_pointer), total_name, total_name, 0,
                             sizeof *total_pointer, 0, 0);
    __cudaRegisterFatBinaryEnd(handle);
  }
  ~Registration() { __cudaUnregisterFatBinary(handle); }
};
inline Registration registration;

}  // namespace host_kernels
