// Streams, events, callbacks and attributes; several streams and threads at once.
#include <atomic>
#include <thread>
#include <vector>

#include "tests/programs/runtime/runtime_program.h"

namespace {

constexpr unsigned long kCount = 1 << 14;

void properties_of_streams() {
  cudaStream_t stream;
  int least = 0;
  int greatest = 0;
  int priority = 1;
  int device = -1;
  unsigned flags = 0;
  unsigned long long id = 0;
  unsigned long long other_id = 0;
  CHECK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  CHECK(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, greatest));
  CHECK(cudaStreamGetPriority(stream, &priority));
  CHECK(cudaStreamGetFlags(stream, &flags));
  CHECK(cudaStreamGetId(stream, &id));
  CHECK(cudaStreamGetDevice(stream, &device));
  REQUIRE(priority == greatest && flags == cudaStreamNonBlocking && device == 0);
  cudaStream_t other;
  CHECK(cudaStreamCreate(&other));
  CHECK(cudaStreamGetId(other, &other_id));
  CHECK(cudaStreamGetFlags(other, &flags));
  REQUIRE(id != other_id && flags == cudaStreamDefault);
  cudaStreamAttrValue policy{};
  policy.syncPolicy = cudaSyncPolicyBlockingSync;
  CHECK(cudaStreamSetAttribute(stream, cudaStreamAttributeSynchronizationPolicy, &policy));
  CHECK(cudaStreamCopyAttributes(other, stream));
  policy.syncPolicy = cudaSyncPolicyAuto;
  CHECK(cudaStreamGetAttribute(other, cudaStreamAttributeSynchronizationPolicy, &policy));
  REQUIRE(policy.syncPolicy == cudaSyncPolicyBlockingSync);
  CHECK(cudaStreamDestroy(other));
  CHECK(cudaStreamDestroy(stream));
  EXPECT(cudaStreamCreateWithFlags(&stream, 0x40), cudaErrorInvalidValue);
}

// A stream blocked by a kernel: what waits and what does not.
void order() {
  unsigned* flag = nullptr;
  unsigned* words = nullptr;
  CHECK(cudaMallocHost(&flag, sizeof *flag));
  CHECK(cudaMalloc(&words, kCount * sizeof *words));
  __atomic_store_n(flag, 0U, __ATOMIC_SEQ_CST);
  cudaStream_t first, second;
  CHECK(cudaStreamCreateWithFlags(&first, cudaStreamNonBlocking));
  CHECK(cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking));
  cudaEvent_t begun, ended, untimed;
  CHECK(cudaEventCreate(&begun));
  CHECK(cudaEventCreateWithFlags(&ended, cudaEventBlockingSync));
  CHECK(cudaEventCreateWithFlags(&untimed, cudaEventDisableTiming));
  CHECK(cudaEventRecord(begun, first));
  LAUNCH(spin_until, 1, 1, 0, first, flag);
  REQUIRE_LAUNCHED();
  LAUNCH(fill, 4, 64, 0, first, words, kCount, 3U);
  CHECK(cudaEventRecord(ended, first));
  REQUIRE(cudaStreamQuery(first) == cudaErrorNotReady);
  REQUIRE(cudaEventQuery(ended) == cudaErrorNotReady);
  cudaGetLastError();
  CHECK(cudaStreamWaitEvent(second, ended, 0));
  CHECK(cudaEventRecord(untimed, second));
  REQUIRE(cudaEventQuery(untimed) == cudaErrorNotReady);
  cudaGetLastError();
  __atomic_store_n(flag, 1U, __ATOMIC_SEQ_CST);
  CHECK(cudaEventSynchronize(untimed));
  CHECK(cudaEventQuery(ended));
  CHECK(cudaStreamQuery(first));
  float milliseconds = -1;
  CHECK(cudaEventElapsedTime(&milliseconds, begun, ended));
  REQUIRE(milliseconds >= 0);
  EXPECT(cudaEventElapsedTime(&milliseconds, begun, untimed), cudaErrorInvalidResourceHandle);
  unsigned last = 0;
  CHECK(cudaMemcpy(&last, words + kCount - 1, sizeof last, cudaMemcpyDeviceToHost));
  REQUIRE(last == 3);
  for (cudaEvent_t event : {begun, ended, untimed}) CHECK(cudaEventDestroy(event));
  CHECK(cudaStreamDestroy(first));
  CHECK(cudaStreamDestroy(second));
  CHECK(cudaFree(words));
  CHECK(cudaFreeHost(flag));
}

struct Heard {
  std::atomic<int> calls{0};
  std::atomic<int> error{-1};
};

void callbacks() {
  cudaStream_t stream;
  Heard heard;
  CHECK(cudaStreamCreate(&stream));
  CHECK(cudaStreamAddCallback(
      stream,
      [](cudaStream_t, cudaError_t error, void* data) {
        auto* heard = static_cast<Heard*>(data);
        heard->error = error;
        ++heard->calls;
      },
      &heard, 0));
  CHECK(cudaLaunchHostFunc(stream, [](void* data) { ++static_cast<Heard*>(data)->calls; }, &heard));
  CHECK(cudaStreamSynchronize(stream));
  REQUIRE(heard.calls == 2 && heard.error == cudaSuccess);
  CHECK(cudaStreamDestroy(stream));
}

void many_threads() {
  std::vector<std::thread> threads;
  for (unsigned index = 0; index < 8; ++index) {
    threads.emplace_back([index] {
      CHECK(cudaSetDevice(0));
      cudaStream_t stream;
      CHECK(cudaStreamCreateWithFlags(&stream, index % 2 != 0 ? cudaStreamNonBlocking : cudaStreamDefault));
      unsigned* words = nullptr;
      std::vector<unsigned> back(kCount);
      CHECK(cudaMalloc(&words, kCount * sizeof *words));
      for (unsigned round = 0; round < 20; ++round) {
        unsigned value = index * 100 + round;
        LAUNCH(fill, 8, 128, 0, stream, words, kCount, value);
        REQUIRE_LAUNCHED();
        CHECK(cudaMemcpyAsync(back.data(), words, kCount * sizeof *words, cudaMemcpyDeviceToHost, stream));
        CHECK(cudaStreamSynchronize(stream));
        REQUIRE(back.front() == value && back.back() == value);
      }
      CHECK(cudaFree(words));
      CHECK(cudaStreamDestroy(stream));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace

int main() {
  load_early();
  properties_of_streams();
  order();
  callbacks();
  many_threads();
  CHECK(cudaDeviceSynchronize());
  return succeed();
}
