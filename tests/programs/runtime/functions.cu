// Kernels: attributes, occupancy, names, every way to launch one, entry points of the driver, libraries.
#include <vector>

#include "tests/programs/runtime/runtime_program.h"

namespace {

void attributes() {
  cudaFuncAttributes has;
  CHECK(cudaFuncGetAttributes(&has, stub(fill)));
  REQUIRE(has.maxThreadsPerBlock >= 32 && has.numRegs > 0 && has.binaryVersion > 0);
  CHECK(cudaFuncGetAttributes(&has, stub(small_blocks)));
  REQUIRE(has.maxThreadsPerBlock == 256);
  int optin = 0;
  CHECK(cudaDeviceGetAttribute(&optin, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0));
  CHECK(cudaFuncSetAttribute(stub(block_sums), cudaFuncAttributeMaxDynamicSharedMemorySize, optin));
  CHECK(cudaFuncGetAttributes(&has, stub(block_sums)));
  REQUIRE(has.maxDynamicSharedSizeBytes == optin);
  EXPECT(cudaFuncSetAttribute(stub(block_sums), cudaFuncAttributeMaxDynamicSharedMemorySize, optin + 1),
         cudaErrorInvalidValue);
  CHECK(cudaFuncSetCacheConfig(stub(fill), cudaFuncCachePreferShared));
  int local = 0;
  EXPECT(cudaFuncGetAttributes(&has, &local), cudaErrorInvalidResourceHandle);

  const char* name = nullptr;
  CHECK(cudaFuncGetName(&name, stub(saxpy)));
  REQUIRE(std::strcmp(name, "_Z5saxpyifPKfPf") == 0);
  size_t offset = 0;
  size_t bytes = 0;
  CHECK(cudaFuncGetParamInfo(stub(saxpy), 2, &offset, &bytes));
  REQUIRE(offset == 8 && bytes == 8);
  EXPECT(cudaFuncGetParamInfo(stub(saxpy), 4, &offset, &bytes), cudaErrorInvalidValue);
}

void occupancy() {
  int blocks = 0;
  int per_multiprocessor = 0;
  CHECK(cudaDeviceGetAttribute(&per_multiprocessor, cudaDevAttrMaxThreadsPerMultiProcessor, 0));
  CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, stub(fill), 256, 0));
  REQUIRE(blocks >= 1 && blocks * 256 <= per_multiprocessor);
  int with_shared = 0;
  CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(&with_shared, stub(block_sums), 256, 48 << 10,
                                                               cudaOccupancyDefault));
  REQUIRE(with_shared >= 1 && with_shared <= blocks);
  size_t shared = 0;
  CHECK(cudaOccupancyAvailableDynamicSMemPerBlock(&shared, stub(block_sums), 1, 256));
  REQUIRE(shared > 0);
  EXPECT(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, stub(fill), 0, 0), cudaErrorInvalidValue);
}

template <class T>
T* device_copy(const std::vector<T>& values) {
  T* memory = nullptr;
  CHECK(cudaMalloc(&memory, values.size() * sizeof(T)));
  CHECK(cudaMemcpy(memory, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice));
  return memory;
}
template <class T>
std::vector<T> fetch(const T* memory, size_t count) {
  std::vector<T> values(count);
  CHECK(cudaMemcpy(values.data(), memory, count * sizeof(T), cudaMemcpyDeviceToHost));
  return values;
}

void results() {
  unsigned* words = device_copy(std::vector<unsigned>(4096, 0));
  LAUNCH(thread_ids, dim3(2, 3, 4), dim3(4, 2, 3), 0, nullptr, words);
  REQUIRE_LAUNCHED();
  std::vector<unsigned> ids = fetch(words, 24 * 24);
  for (unsigned i = 0; i < ids.size(); ++i) REQUIRE(ids[i] == i);

  unsigned* sums = device_copy(std::vector<unsigned>(4, 0));
  LAUNCH(block_sums, 4, 64, 64 * sizeof(unsigned), nullptr, words, sums);
  REQUIRE_LAUNCHED();
  REQUIRE(fetch(sums, 4)[1] == 64 * 64 + 63 * 64 / 2);

  LAUNCH(fill_words, 4, 256, 0, nullptr, Words{words, 1000}, 8U);
  REQUIRE_LAUNCHED();
  ids = fetch(words, 1001);
  REQUIRE(ids[999] == 8 && ids[1000] == 0);

  constexpr int kM = 17, kN = 9, kK = 33;
  std::vector<float> a(kM * kK), b(kK * kN);
  for (int i = 0; i < kM * kK; ++i) a[i] = static_cast<float>(i % 7);
  for (int i = 0; i < kK * kN; ++i) b[i] = static_cast<float>(i % 5);
  float* left = device_copy(a);
  float* right = device_copy(b);
  float* product = device_copy(std::vector<float>(kM * kN, 0.0F));
  LAUNCH(gemm, dim3(2, 3), dim3(8, 8), 0, nullptr, left, right, product, kM, kN, kK);
  REQUIRE_LAUNCHED();
  std::vector<float> c = fetch(product, kM * kN);
  for (int row = 0; row < kM; ++row) {
    for (int column = 0; column < kN; ++column) {
      float sum = 0;
      for (int i = 0; i < kK; ++i) sum += a[row * kK + i] * b[i * kN + column];
      REQUIRE(c[row * kN + column] == sum);
    }
  }
  for (float* memory : {left, right, product}) CHECK(cudaFree(memory));
  CHECK(cudaFree(words));
  CHECK(cudaFree(sums));
}

// The same kernel by every function that launches.
void ways_to_launch() {
  unsigned* words = device_copy(std::vector<unsigned>(256, 0));
  unsigned long count = 256;
  unsigned value = 0;
  void* arguments[] = {&words, &count, &value};
  auto filled = [&](cudaError_t launched) {
    CHECK(launched);
    std::vector<unsigned> back = fetch(words, 256);
    REQUIRE(back.front() == value && back.back() == value);
    ++value;
  };
  cudaStream_t stream;
  CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamDefault));
  value = 1;
  filled(cudaLaunchKernel(stub(fill), dim3(1), dim3(64), arguments, 0, stream));
  filled(cudaLaunchCooperativeKernel(stub(fill), dim3(2), dim3(64), arguments, 0, stream));
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeCooperative;
  attribute.val.cooperative = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(2);
  config.blockDim = dim3(32);
  config.stream = stream;
  filled(cudaLaunchKernelExC(&config, stub(fill), arguments));
  config.attrs = &attribute;
  config.numAttrs = 1;
  filled(cudaLaunchKernelExC(&config, stub(fill), arguments));
  cudaKernel_t kernel;
  CHECK(cudaGetKernel(&kernel, stub(fill)));
  filled(cudaLaunchKernel(reinterpret_cast<const void*>(kernel), dim3(1), dim3(64), arguments, 0, stream));
  cudaFunction_t function = nullptr;
  CHECK(cudaGetFuncBySymbol(&function, stub(fill)));
  REQUIRE(function != nullptr);
  CHECK(cudaStreamDestroy(stream));
  CHECK(cudaFree(words));
}

void entry_points() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found;
  CHECK(cudaGetDriverEntryPointByVersion("cuDeviceGetCount", &function, 2000, cudaEnableDefault, &found));
  REQUIRE(found == cudaDriverEntryPointSuccess && function != nullptr);
  int count = 0;
  REQUIRE(reinterpret_cast<int (*)(int*)>(function)(&count) == 0 && count >= 1);
  CHECK(cudaGetDriverEntryPointByVersion("cuMemAlloc", &function, 1000, cudaEnableDefault, &found));
  REQUIRE(found == cudaDriverEntryPointVersionNotSufficent);
  CHECK(cudaGetDriverEntryPointByVersion("cuNoSuchFunction", &function, 13000, cudaEnableDefault, &found));
  REQUIRE(found == cudaDriverEntryPointSymbolNotFound && function == nullptr);
}

void libraries() {
  const char* image =
      ".version 7.5\n.target sm_75\n.address_size 64\n.visible .global .align 4 .u32 counter = 5;\n"
      ".visible .entry _Z11takes_100usv()\n{\n  ret;\n}\n";
  cudaLibrary_t library;
  CHECK(cudaLibraryLoadData(&library, image, nullptr, nullptr, 0, nullptr, nullptr, 0));
  unsigned kernels = 0;
  CHECK(cudaLibraryGetKernelCount(&kernels, library));
  REQUIRE(kernels == 1);
  cudaKernel_t kernel;
  cudaKernel_t same;
  CHECK(cudaLibraryGetKernel(&kernel, library, "_Z11takes_100usv"));
  CHECK(cudaLibraryEnumerateKernels(&same, 1, library));
  REQUIRE(kernel == same);
  CHECK(cudaLaunchKernel(reinterpret_cast<const void*>(kernel), dim3(1), dim3(1), nullptr, 0, nullptr));
  CHECK(cudaDeviceSynchronize());
  void* address = nullptr;
  size_t bytes = 0;
  CHECK(cudaLibraryGetGlobal(&address, &bytes, library, "counter"));
  unsigned count = 0;
  CHECK(cudaMemcpy(&count, address, sizeof count, cudaMemcpyDeviceToHost));
  REQUIRE(bytes == sizeof count && count == 5);
  EXPECT(cudaLibraryGetKernel(&kernel, library, "nothing"), cudaErrorSymbolNotFound);
  CHECK(cudaLibraryUnload(library));
}

}  // namespace

int main() {
  attributes();
  occupancy();
  results();
  ways_to_launch();
  entry_points();
  libraries();
  return succeed();
}
