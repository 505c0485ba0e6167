// Stream-ordered memory in extents: it outlives its context, is moved through any context of its GPU, and is released
// when it is freed and its pool does not need it.
#include <catch2/catch.hpp>

#include <atomic>
#include <thread>
#include <utility>

#include "runtime/monitor/bring_back.h"
#include "tests/unit/runtime/memory/on_simgpu/moving.h"

using namespace rota;
using namespace rota::test;

namespace {

CUcontext make_context(int device = 0) {
  CUcontext context = nullptr;
  EXPECT_OK(cu.cuCtxCreate_v2(&context, 0, device));
  return context;
}

CUstream make_stream() {
  CUstream stream = nullptr;
  EXPECT_OK(cu.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  return stream;
}

CUmemoryPool make_pool(int device = 0) {
  CUmemPoolProps properties{};
  properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device};
  CUmemoryPool pool = nullptr;
  EXPECT_OK(cu.cuMemPoolCreate(&pool, &properties));
  return pool;
}

CUdeviceptr take(CUmemoryPool pool, std::uint64_t bytes, CUstream stream, unsigned char pattern) {
  CUdeviceptr address = 0;
  EXPECT_OK(cu.cuMemAllocFromPoolAsync(&address, bytes, pool, stream));
  EXPECT_OK(cu.cuMemsetD8Async(address, pattern, bytes, stream));
  EXPECT_OK(cu.cuStreamSynchronize(stream));
  return address;
}

// Includes what rota caches.
void give_everything_back(Carrier& carrier) {
  runtime().memory.collect_deferred();
  swap().evict(0, kAll, carrier.mover());
}

// A kernel that does not end before it is told to.
struct Busy {
  explicit Busy(CUstream stream) {
    EXPECT_OK(cu.cuLaunchHostFunc(
        stream,
        [](void* done) {
          while (!static_cast<std::atomic<bool>*>(done)->load()) std::this_thread::yield();
        },
        &done));
  }
  std::atomic<bool> done{false};
};

CUresult one_number(CUstream, unsigned long long* number) {
  *number = 7;
  return CUDA_SUCCESS;
}

}  // namespace

TEST_CASE("a pool's memory outlives its context, is evicted and restored through another one, and is freed there") {
  check([] {
    const CUcontext other = enter(0);
    Carrier carrier(other);
    const CUmemoryPool pool = make_pool();
    const CUcontext context = make_context();
    const CUdeviceptr large = take(pool, 5 * kMiB, make_stream(), 1);
    const CUdeviceptr small = take(pool, 4096, make_stream(), 2);
    EXPECT_OK(cu.cuCtxDestroy_v2(context));
    EXPECT_OK(cu.cuCtxSetCurrent(other));
    EXPECT(charged(0) == 5 * kMiB + 4096);
    for (int round = 0; round < 2; ++round) {
      expect_pattern(large, 5 * kMiB, 1, "after its context");
      expect_pattern(small, 4096, 2, "after its context");
      const Swap::Moved moved = swap().evict(0, kAll, carrier.mover());
      EXPECT(moved.bytes + moved.without_copy != 0);
      EXPECT(swap().resident_bytes(0) == 0 && swap().out_bytes(0) != 0);
      // Every query about it is answered meanwhile, and waits for nothing.
      unsigned type = 0;
      CUdeviceptr start = 0;
      CUcontext owner = other;
      EXPECT_OK(cu.cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, large + 5));
      EXPECT_OK(cu.cuPointerGetAttribute(&start, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, large + 5));
      EXPECT_OK(cu.cuPointerGetAttribute(&owner, CU_POINTER_ATTRIBUTE_CONTEXT, large + 5));
      EXPECT(type == CU_MEMORYTYPE_DEVICE && start == large && owner == nullptr);
      EXPECT(!swap().restore(0, carrier.mover()).failed);
      EXPECT(swap().all_in_place());
    }
    EXPECT_OK(cu.cuMemFree_v2(large));
    EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, cu.cuMemFree_v2(large));
    EXPECT_OK(cu.cuMemFreeAsync(small, nullptr));
    EXPECT_OK(cu.cuCtxSynchronize());
    EXPECT_EMPTY_BOOKS();
    EXPECT_OK(cu.cuMemPoolTrimTo(pool, 0));
    give_everything_back(carrier);
    EXPECT(swap().resident_bytes(0) == 0);
  });
}

TEST_CASE("a pool's unused memory is evicted first and restored, both without a copy") {
  check([] {
    Carrier carrier(enter(0));
    carrier.looks = GENERATE(true, false);
    const CUmemoryPool pool = make_pool();
    std::uint64_t all = UINT64_MAX;
    EXPECT_OK(cu.cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &all));
    const CUstream stream = make_stream();
    const CUdeviceptr held = take(pool, 6 * kMiB, stream, 1);
    const CUdeviceptr plain = allocate(4 * kMiB, 4);
    const std::uint64_t used = swap().resident_bytes(0);
    const CUdeviceptr freed = take(pool, 8 * kMiB, stream, 2);
    EXPECT_OK(cu.cuMemFreeAsync(freed, stream));
    EXPECT_OK(cu.cuStreamSynchronize(stream));
    const std::uint64_t resident = swap().resident_bytes(0);
    EXPECT(resident >= used + 8 * kMiB);
    Swap::Moved moved = swap().evict(0, 8 * kMiB, carrier.mover());
    EXPECT(moved.bytes == 0 && moved.without_copy >= 8 * kMiB && moved.spared == moved.without_copy);
    EXPECT(swap().resident_bytes(0) >= used);
    moved = swap().evict(0, kAll, carrier.mover());
    EXPECT(moved.bytes == used && swap().resident_bytes(0) == 0);
    const Swap::Moved back = swap().restore(0, carrier.mover());
    EXPECT(!back.failed && swap().all_in_place() && back.bytes == used);
    EXPECT(swap().resident_bytes(0) == resident && swap().use_if_in_place(rota::memory::kAllDevices, [] {}));
    expect_pattern(held, 6 * kMiB, 1, "beside unused memory");
    expect_pattern(plain, 4 * kMiB, 4, "beside a pool's");
    EXPECT(take(pool, 8 * kMiB, stream, 3) == freed);
    // What has not changed is not copied again.
    EXPECT(swap().evict(0, kAll, carrier.mover()).bytes == (carrier.looks ? resident - used : resident));
    EXPECT(!swap().restore(0, carrier.mover()).failed);
    expect_pattern(freed, 8 * kMiB, 3, "in use again");
  });
}

TEST_CASE("memory of a destroyed pool ends when it is freed, also without any context") {
  check([] {
    const CUcontext other = enter(0);
    Carrier carrier(other);
    const std::size_t free_before = free_on_gpu();
    const CUmemoryPool pool = make_pool();
    const CUcontext context = make_context();
    const CUdeviceptr kept = take(pool, 40 * kMiB, make_stream(), 1);
    const CUdeviceptr first = take(pool, kMiB, make_stream(), 2);
    EXPECT_OK(cu.cuCtxDestroy_v2(context));
    EXPECT_OK(cu.cuCtxSetCurrent(other));
    EXPECT_OK(cu.cuMemFree_v2(first));
    EXPECT_OK(cu.cuMemPoolDestroy(pool));
    expect_pattern(kept, 40 * kMiB, 1, "after its pool");
    EXPECT_OK(cu.cuMemFree_v2(kept));
    // As the monitor does it where no context is left.
    runtime().memory.collect_deferred(memory::Owner::of(CUcontext{}));
    EXPECT(!runtime().memory.has_deferred());
    give_everything_back(carrier);
    EXPECT(swap().resident_bytes(0) == 0);
    EXPECT(free_on_gpu() >= free_before - 2 * kMiB);  // but for a byte that stays
    EXPECT_EMPTY_BOOKS();
  });
}

TEST_CASE("what streams of an ended context had yet to pass is everybody's, and charged no more") {
  check([] {
    const CUcontext other = enter(0);
    const CUmemoryPool pool = make_pool();
    const CUcontext context = make_context();
    CUstream stream = make_stream();
    const CUdeviceptr first = take(pool, 2 * kMiB, stream, 1);
    EXPECT_OK(cu.cuMemFreeAsync(first, stream));
    EXPECT_OK(cu.cuCtxDestroy_v2(context));
    EXPECT(charged_exactly(0, 0));
    EXPECT_OK(cu.cuCtxSetCurrent(other));
    CUdeviceptr second = 0;
    EXPECT_OK(cu.cuMemAllocFromPoolAsync(&second, 2 * kMiB, pool, nullptr));
    EXPECT(second == first);
    EXPECT(charged_exactly(2 * kMiB, 0));
    EXPECT_OK(cu.cuMemFreeAsync(second, nullptr));
    EXPECT_OK(cu.cuCtxSynchronize());
    EXPECT_EMPTY_BOOKS();
  });
}

TEST_CASE("streams of two contexts that number alike are two streams to the pool that both take from") {
  const auto replace = [](Symbol symbol, void* simulated) -> void* {
    if (symbol == Symbol::k_cuStreamGetId) return reinterpret_cast<void*>(&one_number);
    return failing(symbol, simulated);
  };
  const std::string report = on_simgpu({.mode = Mode::kSwap, .limit = "", .replace = replace, .neighbour = {}}, [] {
    alarm(kPatience);
    const CUcontext first_context = make_context();
    const CUstream first_stream = make_stream();
    const CUcontext second_context = make_context();
    const CUstream second_stream = make_stream();
    const CUmemoryPool pool = make_pool();
    int never = 0;
    EXPECT_OK(cu.cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES, &never));
    EXPECT_OK(cu.cuCtxSetCurrent(first_context));
    const CUdeviceptr freed = take(pool, 2 * kMiB, first_stream, 1);
    Busy busy(first_stream);
    EXPECT_OK(cu.cuMemFreeAsync(freed, first_stream));
    CUdeviceptr again = 0;
    EXPECT_OK(cu.cuCtxSetCurrent(second_context));
    EXPECT_OK(cu.cuMemAllocFromPoolAsync(&again, 2 * kMiB, pool, second_stream));
    EXPECT(again != freed);
    EXPECT_OK(cu.cuCtxSetCurrent(first_context));
    EXPECT_OK(cu.cuMemAllocFromPoolAsync(&again, 2 * kMiB, pool, first_stream));
    EXPECT(again == freed);
    busy.done = true;
    EXPECT_OK(cu.cuStreamSynchronize(first_stream));
  });
  CHECK(report == "");
}

TEST_CASE("a pool's memory is restored where no context is left on its GPU, so that work on another one can go on") {
  check([] {
    const CUcontext context = make_context();
    const CUmemoryPool pool = make_pool();
    const CUdeviceptr block = take(pool, 4 * kMiB, nullptr, 3);
    {
      Carrier carrier(context);
      EXPECT(swap().evict(0, kAll, carrier.mover()).bytes >= 4 * kMiB);
    }
    EXPECT_OK(cu.cuCtxDestroy_v2(context));
    EXPECT(!swap().all_in_place());
    EXPECT(runtime().contexts.none(0));
    const monitor::Back back = monitor::bring_back(
        runtime().contexts, runtime().memory, {{0, kAll}}, [](int) { return memory::Exchange{}; }, [] { return false; },
        [] { return true; });
    EXPECT(back.resident && back.bytes >= 4 * kMiB);
    make_context();
    expect_pattern(block, 4 * kMiB, 3, "back again");
    EXPECT_OK(cu.cuMemFree_v2(block));
    EXPECT_EMPTY_BOOKS();
  });
}

TEST_CASE("what belongs to no context is released when every context of its GPU has failed") {
  check([] {
    const CUcontext context = enter(0);
    Carrier carrier(context);
    const CUmemoryPool pool = make_pool();
    const CUdeviceptr block = take(pool, 4 * kMiB, nullptr, 1);
    const CUdeviceptr plain = allocate(4 * kMiB, 2);
    swap().evict(0, kAll, carrier.mover());
    swap().context_failed(context, 0);
    EXPECT(!swap().all_in_place());
    swap().context_failed(nullptr, 0);
    EXPECT(swap().all_in_place());
    EXPECT(swap().resident_bytes(0) == 0 && swap().out_bytes(0) == 0);
    EXPECT_OK(cu.cuMemFree_v2(block));
    EXPECT_OK(cu.cuMemFree_v2(plain));
    EXPECT_EMPTY_BOOKS();
  });
}

TEST_CASE(
    "what a pool of one GPU gives back serves no pool of another GPU, and a deficit there takes nothing from it") {
  check([] {
    const CUcontext other = enter(1);
    const CUcontext here = enter(0);
    const auto allocate_on = [](CUcontext context, std::size_t bytes) {
      EXPECT_OK(cu.cuCtxSetCurrent(context));
      CUstream stream = nullptr;
      EXPECT_OK(cu.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
      CUdeviceptr address = 0;
      EXPECT_OK(cu.cuMemAllocAsync(&address, bytes, stream));
      return std::pair(address, stream);
    };
    const auto free_on = [](std::pair<CUdeviceptr, CUstream> block) {
      EXPECT_OK(cu.cuMemFreeAsync(block.first, block.second));
      EXPECT_OK(cu.cuStreamSynchronize(block.second));
    };
    CUmemoryPool pool = nullptr;
    EXPECT_OK(cu.cuDeviceGetDefaultMemPool(&pool, 1));
    const auto reserved = [&pool] {
      std::uint64_t bytes = 0;
      EXPECT_OK(cu.cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &bytes));
      return bytes;
    };
    const std::uint64_t all = UINT64_MAX;
    EXPECT_OK(cu.cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, const_cast<std::uint64_t*>(&all)));
    free_on(allocate_on(other, kMiB));
    const std::uint64_t kept = reserved();
    EXPECT(kept != 0);
    EXPECT_OK(cu.cuCtxSetCurrent(here));
    CUdeviceptr never = 0;
    EXPECT_RESULT(CUDA_ERROR_OUT_OF_MEMORY, cu.cuMemAlloc_v2(&never, 2 * kGpuBytes));
    EXPECT(reserved() == kept);
    EXPECT_OK(cu.cuMemPoolTrimTo(pool, 0));
    const auto block = allocate_on(here, kMiB);
    int ordinal = -1;
    EXPECT_OK(real::cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, block.first));
    EXPECT(ordinal == 0 && swap().resident_bytes(0) != 0);
    free_on(block);
  });
}
