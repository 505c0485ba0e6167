// Linear memory, of the GPU and of the host, arrays, and the pools.
#include <cstdlib>
#include <cstring>

#include "tests/unit/runtime/memory/on_simgpu/matrix.h"

namespace rota::test {
namespace {

constexpr std::size_t kBytes = 1000000;
constexpr CUDA_ARRAY_DESCRIPTOR kFlat{1024, 512, CU_AD_FORMAT_FLOAT, 1};
constexpr CUDA_ARRAY3D_DESCRIPTOR kDeep{128, 64, 32, CU_AD_FORMAT_FLOAT, 2, 0};
constexpr CUDA_ARRAY3D_DESCRIPTOR kLevels{1024, 1024, 0, CU_AD_FORMAT_FLOAT, 1, 0};
constexpr std::uint64_t kFlatBytes = 1024 * 512 * 4;
constexpr std::uint64_t kDeepBytes = 128 * 64 * 32 * 8;
constexpr std::uint64_t kLevelsBytes = 4 * (1024 * 1024 + 512 * 512 + 256 * 256);

template <typename Call>
Taken plain(const Call& call) {
  CUdeviceptr address = 0;
  EXPECT_OK(call(&address));
  return {address, [address] { EXPECT_OK(cu.cuMemFree_v2(address)); }};
}

template <typename Call>
Taken host(const Call& call) {
  void* address = nullptr;
  EXPECT_OK(call(&address));
  return {0, [address] { EXPECT_OK(cu.cuMemFreeHost(address)); }};
}

template <typename Call>
Taken in_stream(const Call& call) {
  CUdeviceptr address = 0;
  EXPECT_OK(call(&address));
  return {address, [address] {
            EXPECT_OK(cu.cuMemFreeAsync(address, nullptr));
            EXPECT_OK(cu.cuStreamSynchronize(nullptr));
          }};
}

template <typename Handle>
std::uint64_t key(Handle handle) {
  return reinterpret_cast<std::uintptr_t>(handle) | memory::kHandleBit;
}

template <typename Call>
Taken array(const Call& call) {
  CUarray handle = nullptr;
  EXPECT_OK(call(&handle));
  return {key(handle), [handle] { EXPECT_OK(cu.cuArrayDestroy(handle)); }};
}

CUmemoryPool pool_of(int device, bool shared = false) {
  CUmemPoolProps what{};
  what.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  what.handleTypes = shared ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR : CU_MEM_HANDLE_TYPE_NONE;
  what.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device};
  CUmemoryPool pool = nullptr;
  EXPECT_OK(cu.cuMemPoolCreate(&pool, &what));
  return pool;
}

// From a pool of this GPU; and from one of GPU 0, where it is counted.
template <typename Function>
Taken from_pool(Function* function) {
  const CUmemoryPool elsewhere = pool_of(0);
  const Taken there = in_stream([&](CUdeviceptr* address) { return function(address, kBytes, elsewhere, nullptr); });
  EXPECT(charged_exactly(kBytes, 0));
  there.give_back();
  EXPECT_OK(cu.cuMemPoolDestroy(elsewhere));
  const CUmemoryPool pool = pool_of(1);
  const Taken taken = in_stream([&](CUdeviceptr* address) { return function(address, kBytes, pool, nullptr); });
  return {taken.address, [=] {
            taken.give_back();
            EXPECT_OK(cu.cuMemPoolDestroy(pool));
          }};
}

Taken plain_memory() {
  return plain([](CUdeviceptr* address) { return cu.cuMemAlloc_v2(address, kBytes); });
}

Taken memory_in_stream() {
  return in_stream([](CUdeviceptr* address) { return cu.cuMemAllocAsync(address, kBytes, nullptr); });
}

Taken pinned() {
  return host([](void** address) { return cu.cuMemHostAlloc(address, kBytes, 0); });
}

template <typename Function>
Taken registered(Function* function) {
  void* const memory = std::aligned_alloc(4096, 65536);
  EXPECT_OK(function(memory, 65536, 0));
  return {0, [memory] {
            EXPECT_OK(cu.cuMemHostUnregister(memory));
            std::free(memory);
          }};
}

Taken pitched_memory() {
  std::size_t pitch = 0;
  const Taken taken =
      plain([&](CUdeviceptr* address) { return cu.cuMemAllocPitch_v2(address, &pitch, 1000, 1000, 4); });
  EXPECT(pitch == 1024);
  return taken;
}

Taken managed_memory() {
  return plain([](CUdeviceptr* address) { return cu.cuMemAllocManaged(address, kBytes, CU_MEM_ATTACH_GLOBAL); });
}

Taken memory_in_own_stream() {
  return in_stream([](CUdeviceptr* address) { return cu.cuMemAllocAsync_ptsz(address, kBytes, kPerThread); });
}

Taken flat_array() {
  return array([](CUarray* handle) { return cu.cuArrayCreate_v2(handle, &kFlat); });
}

Taken mipmapped_array() {
  CUmipmappedArray handle = nullptr;
  EXPECT_OK(cu.cuMipmappedArrayCreate(&handle, &kLevels, 3));
  return {key(handle), [handle] { EXPECT_OK(cu.cuMipmappedArrayDestroy(handle)); }};
}

void give_back(const Taken& taken) {
  taken.give_back();
}

// A pool of GPU 0, whose memory is counted there.
Taken new_pool() {
  const CUmemoryPool pool = pool_of(0);
  EXPECT(charged_exactly(0, 0));
  CUdeviceptr address = 0;
  EXPECT_OK(cu.cuMemAllocFromPoolAsync(&address, kBytes, pool, nullptr));
  EXPECT(charged_exactly(kBytes, 0));
  EXPECT_OK(cu.cuMemFreeAsync(address, nullptr));
  EXPECT_OK(cu.cuStreamSynchronize(nullptr));
  return {0, [pool] { EXPECT_OK(cu.cuMemPoolDestroy(pool)); }};
}

// A pool with memory in use.
CUmemoryPool used_pool = nullptr;
Taken memory_of_pool() {
  used_pool = pool_of(1);
  return in_stream(
      [](CUdeviceptr* address) { return cu.cuMemAllocFromPoolAsync(address, kBytes, used_pool, nullptr); });
}

}  // namespace

std::map<Symbol, Takes> linear_takes() {
  std::map<Symbol, Takes> rows;
  rows[Symbol::k_cuMemAlloc_v2] = {plain_memory, 1, kBytes};
  rows[Symbol::k_cuMemAllocPitch_v2] = {pitched_memory, 1, 1024 * 1000};
  rows[Symbol::k_cuMemAllocManaged] = {managed_memory, 1, kBytes};
  rows[Symbol::k_cuMemAllocHost_v2] = {
      [] { return host([](void** address) { return cu.cuMemAllocHost_v2(address, kBytes); }); }};
  rows[Symbol::k_cuMemHostAlloc] = {pinned};
  rows[Symbol::k_cuMemHostRegister_v2] = {[] { return registered(cu.cuMemHostRegister_v2); }};
  rows[Symbol::k_cuMemAllocAsync] = {memory_in_stream, 1, kBytes};
  rows[Symbol::k_cuMemAllocAsync_ptsz] = {memory_in_own_stream, 1, kBytes};
  rows[Symbol::k_cuMemAllocFromPoolAsync] = {[] { return from_pool(cu.cuMemAllocFromPoolAsync); }, 1, kBytes};
  rows[Symbol::k_cuMemAllocFromPoolAsync_ptsz] = {[] { return from_pool(cu.cuMemAllocFromPoolAsync_ptsz); }, 1, kBytes};
  rows[Symbol::k_cuMemPoolCreate] = {new_pool};
  rows[Symbol::k_cuArrayCreate_v2] = {flat_array, 1, kFlatBytes};
  rows[Symbol::k_cuArray3DCreate_v2] = {
      [] { return array([](CUarray* handle) { return cu.cuArray3DCreate_v2(handle, &kDeep); }); }, 1, kDeepBytes};
  rows[Symbol::k_cuMipmappedArrayCreate] = {mipmapped_array, 1, kLevelsBytes};
  return rows;
}

std::map<Symbol, GivesBack> linear_gives() {
  std::map<Symbol, GivesBack> rows;
  rows[Symbol::k_cuMemFree_v2] = {plain_memory, give_back, 1, kBytes};
  rows[Symbol::k_cuMemFreeAsync] = {memory_in_stream, give_back, 1, kBytes};
  rows[Symbol::k_cuMemFreeAsync_ptsz] = {plain_memory,
                                         [](const Taken& taken) {
                                           EXPECT_OK(cu.cuMemFreeAsync_ptsz(taken.address, kPerThread));
                                           EXPECT_OK(cu.cuStreamSynchronize(kPerThread));
                                         },
                                         1, kBytes};
  rows[Symbol::k_cuMemFreeHost] = {pinned, give_back};
  rows[Symbol::k_cuMemHostUnregister] = {[] { return registered(cu.cuMemHostRegister_v2); }, give_back};
  rows[Symbol::k_cuMemPoolDestroy] = {
      memory_of_pool, [](const Taken&) { EXPECT_OK(cu.cuMemPoolDestroy(used_pool)); }, 1, kBytes, kBytes, true};
  rows[Symbol::k_cuMemPoolTrimTo] = {[] {
                                       const Taken taken = memory_of_pool();
                                       return Taken{taken.address, [taken] {
                                                      taken.give_back();
                                                      EXPECT_OK(cu.cuMemPoolDestroy(used_pool));
                                                    }};
                                     },
                                     [](const Taken&) { EXPECT_OK(cu.cuMemPoolTrimTo(used_pool, 0)); },
                                     1,
                                     kBytes,
                                     kBytes,
                                     true};
  rows[Symbol::k_cuArrayDestroy] = {flat_array, give_back, 1, kFlatBytes};
  rows[Symbol::k_cuMipmappedArrayDestroy] = {mipmapped_array, give_back, 1, kLevelsBytes};
  return rows;
}

}  // namespace rota::test
