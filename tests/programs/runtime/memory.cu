// Memory: device, pitched, host, managed, stream-ordered, pools, pointer attributes, sets.
#include <vector>

#include "tests/programs/runtime/runtime_program.h"

namespace {

template <class T>
std::vector<T> fetch(const T* memory, size_t count) {
  std::vector<T> words(count);
  CHECK(cudaMemcpy(words.data(), memory, count * sizeof(T), cudaMemcpyDefault));
  return words;
}

cudaMemoryType type_of(const void* pointer) {
  cudaPointerAttributes attributes;
  CHECK(cudaPointerGetAttributes(&attributes, pointer));
  return attributes.type;
}

void device_memory() {
  size_t before = 0;
  size_t during = 0;
  size_t all = 0;
  void* memory = nullptr;
  CHECK(cudaMemGetInfo(&before, &all));
  CHECK(cudaMalloc(&memory, 32 << 20));
  CHECK(cudaMemGetInfo(&during, &all));
  REQUIRE(before - during >= size_t{32} << 20 && before <= all);
  cudaPointerAttributes attributes;
  CHECK(cudaPointerGetAttributes(&attributes, static_cast<char*>(memory) + 100));
  REQUIRE(attributes.device == 0 && attributes.devicePointer == static_cast<char*>(memory) + 100);
  if (attributes.type != cudaMemoryTypeManaged) {  // under rota plain memory is managed and reported as such
    REQUIRE(attributes.type == cudaMemoryTypeDevice && attributes.hostPointer == nullptr);
  }
  CHECK(cudaFree(memory));
  CHECK(cudaFree(nullptr));
  void* nothing = &nothing;
  CHECK(cudaMalloc(&nothing, 0));
  REQUIRE(nothing == nullptr);
  EXPECT(cudaMalloc(&memory, size_t{1} << 50), cudaErrorMemoryAllocation);
  EXPECT(cudaMalloc(static_cast<void**>(nullptr), 1), cudaErrorInvalidValue);
  int local = 0;
  EXPECT(cudaFree(&local), cudaErrorInvalidValue);
  REQUIRE(type_of(&local) == cudaMemoryTypeUnregistered);
}

void pitched_memory_and_sets() {
  char* memory = nullptr;
  size_t pitch = 0;
  CHECK(cudaMallocPitch(&memory, &pitch, 100, 5));
  REQUIRE(pitch >= 100);
  CHECK(cudaMemset(memory, 1, pitch * 5));
  CHECK(cudaMemset2D(memory, pitch, 7, 100, 5));
  std::vector<char> bytes = fetch(memory, pitch * 5);
  for (size_t row = 0; row < 5; ++row) {
    REQUIRE(bytes[row * pitch] == 7 && bytes[row * pitch + 99] == 7);
    REQUIRE(pitch == 100 || bytes[row * pitch + 100] == 1);
  }
  CHECK(cudaMemsetAsync(memory, 3, pitch, nullptr));
  CHECK(cudaMemset2DAsync(memory + pitch, pitch, 4, 10, 2, nullptr));
  CHECK(cudaDeviceSynchronize());
  bytes = fetch(memory, pitch * 5);
  REQUIRE(bytes[pitch - 1] == 3 && bytes[pitch] == 4 && bytes[pitch + 9] == 4 && bytes[pitch + 10] == 7);
  CHECK(cudaFree(memory));

  cudaPitchedPtr box;
  cudaExtent extent = make_cudaExtent(48, 3, 4);
  CHECK(cudaMalloc3D(&box, extent));
  REQUIRE(box.xsize == 48 && box.ysize == 3 && box.pitch >= 48);
  CHECK(cudaMemset3D(box, 9, extent));
  CHECK(cudaMemset3D(box, 2, make_cudaExtent(8, 2, 2)));  // a corner: rows and slices are skipped
  bytes = fetch(static_cast<char*>(box.ptr), box.pitch * 12);
  for (size_t z = 0; z < 4; ++z) {
    for (size_t y = 0; y < 3; ++y) {
      REQUIRE(bytes[(z * 3 + y) * box.pitch] == (y < 2 && z < 2 ? 2 : 9));
      REQUIRE(bytes[(z * 3 + y) * box.pitch + 8] == 9);
    }
  }
  CHECK(cudaFree(box.ptr));
}

void host_memory() {
  unsigned* words = nullptr;
  CHECK(cudaHostAlloc(reinterpret_cast<void**>(&words), 4096, cudaHostAllocMapped | cudaHostAllocPortable));
  REQUIRE(type_of(words) == cudaMemoryTypeHost);
  unsigned flags = 0;
  CHECK(cudaHostGetFlags(&flags, words));
  REQUIRE((flags & cudaHostAllocPortable) != 0);
  unsigned* on_device = nullptr;
  CHECK(cudaHostGetDevicePointer(reinterpret_cast<void**>(&on_device), words, 0));
  LAUNCH(fill, 1, 32, 0, nullptr, on_device, 1024UL, 11U);
  REQUIRE_LAUNCHED();
  CHECK(cudaDeviceSynchronize());
  REQUIRE(words[0] == 11 && words[1023] == 11);
  CHECK(cudaFreeHost(words));

  std::vector<unsigned> own(4096, 0);
  CHECK(cudaHostRegister(own.data(), own.size() * sizeof(unsigned), cudaHostRegisterMapped));
  EXPECT(cudaHostRegister(own.data(), 4096, cudaHostRegisterMapped), cudaErrorHostMemoryAlreadyRegistered);
  CHECK(cudaHostGetDevicePointer(reinterpret_cast<void**>(&on_device), own.data(), 0));
  LAUNCH(fill, 4, 256, 0, nullptr, on_device, 4096UL, 12U);
  CHECK(cudaDeviceSynchronize());
  REQUIRE(own.front() == 12 && own.back() == 12);
  CHECK(cudaHostUnregister(own.data()));
  EXPECT(cudaHostUnregister(own.data()), cudaErrorHostMemoryNotRegistered);
}

void managed_memory() {
  constexpr size_t kCount = 1 << 18;
  unsigned* words = nullptr;
  CHECK(cudaMallocManaged(&words, kCount * sizeof(unsigned), cudaMemAttachGlobal));
  REQUIRE(type_of(words) == cudaMemoryTypeManaged);
  for (size_t i = 0; i < kCount; ++i) words[i] = 1;
  cudaMemLocation device{};
  device.type = cudaMemLocationTypeDevice;
  device.id = 0;
  cudaMemLocation host{};
  host.type = cudaMemLocationTypeHost;
  CHECK(cudaMemAdvise(words, kCount * sizeof(unsigned), cudaMemAdviseSetPreferredLocation, device));
  int preferred = -1;
  CHECK(cudaMemRangeGetAttribute(&preferred, sizeof preferred, cudaMemRangeAttributePreferredLocation, words,
                                 kCount * sizeof(unsigned)));
  REQUIRE(preferred == 0);
  CHECK(cudaMemPrefetchAsync(words, kCount * sizeof(unsigned), device, 0, nullptr));
  unsigned long* sum = nullptr;
  CHECK(cudaMallocManaged(&sum, sizeof *sum, cudaMemAttachGlobal));
  *sum = 0;
  LAUNCH(reduce, 8, 64, 0, nullptr, words, kCount, sum);
  REQUIRE_LAUNCHED();
  CHECK(cudaMemPrefetchAsync(words, kCount * sizeof(unsigned), host, 0, nullptr));
  CHECK(cudaDeviceSynchronize());
  REQUIRE(*sum == kCount);
  CHECK(cudaFree(sum));
  CHECK(cudaFree(words));
  EXPECT(cudaMallocManaged(&words, 64, 77), cudaErrorInvalidValue);
}

void stream_ordered_memory() {
  cudaStream_t stream;
  CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  unsigned* words = nullptr;
  unsigned last = 0;
  CHECK(cudaMallocAsync(&words, 1 << 20, stream));
  LAUNCH(fill, 16, 256, 0, stream, words, 1UL << 18, 5U);
  CHECK(cudaMemcpyAsync(&last, words + (1 << 18) - 1, sizeof last, cudaMemcpyDeviceToHost, stream));
  CHECK(cudaFreeAsync(words, stream));
  CHECK(cudaStreamSynchronize(stream));
  REQUIRE(last == 5);

  cudaMemPool_t standard;
  cudaMemPool_t current;
  CHECK(cudaDeviceGetDefaultMemPool(&standard, 0));
  CHECK(cudaDeviceGetMemPool(&current, 0));
  REQUIRE(standard == current);
  cudaMemPoolProps wanted{};
  wanted.allocType = cudaMemAllocationTypePinned;
  wanted.location.type = cudaMemLocationTypeDevice;
  wanted.location.id = 0;
  cudaMemPool_t pool;
  CHECK(cudaMemPoolCreate(&pool, &wanted));
  unsigned long long threshold = 16 << 20;
  CHECK(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &threshold));
  threshold = 0;
  CHECK(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &threshold));
  REQUIRE(threshold == 16 << 20);
  CHECK(cudaMallocFromPoolAsync(reinterpret_cast<void**>(&words), 4 << 20, pool, stream));
  LAUNCH(fill, 16, 256, 0, stream, words, 1UL << 20, 6U);
  CHECK(cudaStreamSynchronize(stream));
  unsigned long long used = 0;
  unsigned long long reserved = 0;
  CHECK(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrUsedMemCurrent, &used));
  CHECK(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReservedMemCurrent, &reserved));
  REQUIRE(used >= 4 << 20 && reserved >= used);
  cudaMemAccessFlags access = cudaMemAccessFlagsProtNone;
  cudaMemLocation here{};
  here.type = cudaMemLocationTypeDevice;
  here.id = 0;
  CHECK(cudaMemPoolGetAccess(&access, pool, &here));
  REQUIRE(access == cudaMemAccessFlagsProtReadWrite);
  CHECK(cudaFreeAsync(words, stream));
  CHECK(cudaStreamSynchronize(stream));
  CHECK(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrUsedMemCurrent, &used));
  REQUIRE(used == 0);
  CHECK(cudaMemPoolTrimTo(pool, 0));
  CHECK(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReservedMemCurrent, &reserved));
  REQUIRE(reserved == 0);
  CHECK(cudaDeviceSetMemPool(0, pool));
  CHECK(cudaDeviceGetMemPool(&current, 0));
  REQUIRE(current == pool);
  CHECK(cudaDeviceSetMemPool(0, standard));
  CHECK(cudaMemPoolDestroy(pool));
  CHECK(cudaStreamDestroy(stream));
}

}  // namespace

int main() {
  device_memory();
  pitched_memory_and_sets();
  host_memory();
  managed_memory();
  stream_ordered_memory();
  return succeed();
}
