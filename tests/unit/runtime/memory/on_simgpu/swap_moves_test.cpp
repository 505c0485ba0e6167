// Extents that are evicted and restored, while driver calls fail, the program frees and contexts end: contents stay
// right, and the ledger agrees with the driver. The test moves them itself, as the monitor does.
#include <catch2/catch.hpp>

#include <atomic>
#include <map>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/monitor/bring_back.h"
#include "tests/unit/runtime/memory/on_simgpu/moving.h"

using namespace rota;
using namespace rota::test;

namespace {

CUresult take(Swap& from, const memory::Place& place, CUdeviceptr* address, std::uint64_t bytes) {
  return memory::BackendReservation(from, place.device, bytes, 0).allocate(place, address);
}

}  // namespace

TEST_CASE("adjacent small extents get their access by one call, and each by its own where that is refused") {
  // Which calls are refused: the first call is for the three blocks before the gap.
  for (const std::set<int>& refused : {std::set<int>{}, {1}, {2}, {1, 2}, {1, 3}, {1, 4}}) {
    check([refused] {
      Carrier carrier(enter(0));
      std::vector<CUdeviceptr> blocks;
      for (unsigned char number = 0; number < 8; ++number) blocks.push_back(allocate(4 * kMiB, number));
      EXPECT_OK(cu.cuMemFree_v2(blocks[3]));  // cached, and released with the first eviction: a gap
      swap().evict(0, kAll, carrier.mover());
      int calls = 0;
      before = [&](Symbol symbol) {
        if (symbol != Symbol::k_cuMemSetAccess || !refused.contains(++calls)) return;
        fails_at = {{Symbol::k_cuMemSetAccess, 1}};
      };
      const std::size_t free_before = free_on_gpu();
      const Swap::Moved moved = swap().restore(0, carrier.mover());
      EXPECT(moved.failed == (refused.size() == 2));
      if (moved.failed) EXPECT(moved.error == CUDA_ERROR_UNKNOWN);
      if (refused.empty()) EXPECT(calls == 2);
      EXPECT(swap().all_in_place() == !moved.failed);
      EXPECT(swap().resident_bytes(0) + swap().out_bytes(0) == 28 * kMiB);
      EXPECT(free_before - free_on_gpu() == swap().resident_bytes(0));
      before = [](Symbol) {};
      swap().restore(0, carrier.mover());
      EXPECT(swap().use_if_in_place(rota::memory::kAllDevices, [] {}));
      for (unsigned char number = 0; number < 8; ++number) {
        if (number != 3) expect_pattern(blocks[number], 4 * kMiB, number, fmt::format("block {}", number));
      }
    });
  }
}

TEST_CASE("of adjacent small extents the driver has memory for some, or refuses one") {
  for (const Symbol symbol : {Symbol::k_cuMemCreate, Symbol::k_cuMemMap, Symbol::k_cuMemcpyHtoDAsync_v2}) {
    for (int call = 1; call <= 8; ++call) {
      check([&] {
        Carrier carrier(enter(0));
        std::vector<CUdeviceptr> blocks;
        for (unsigned char number = 0; number < 8; ++number) blocks.push_back(allocate(4 * kMiB, number));
        swap().evict(0, kAll, carrier.mover());
        fails_at = {{symbol, call}};
        fails_with = call % 2 == 0 ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_UNKNOWN;
        for (int tries = 0; tries < 3 && !swap().all_in_place(); ++tries) {
          swap().restore(0, carrier.mover());
          EXPECT(swap().resident_bytes(0) + swap().out_bytes(0) == 32 * kMiB);
        }
        EXPECT(swap().use_if_in_place(rota::memory::kAllDevices, [] {}));
        for (unsigned char number = 0; number < 8; ++number) {
          expect_pattern(blocks[number], 4 * kMiB, number, fmt::format("block {}, call {}", number, call));
        }
      });
    }
  }
}

TEST_CASE("memory that is freed while other memory is evicted is not evicted as well") {
  check([] {
    const CUcontext context = enter(0);
    Carrier carrier(context);
    const CUdeviceptr large = allocate(8 * kMiB, 1);
    const CUdeviceptr small = allocate(2 * kMiB, 2);
    bool freed = false;
    carrier.begins = [&] {
      if (!std::exchange(freed, true)) EXPECT_OK(cu.cuMemFree_v2(small));
    };
    const Swap::Moved moved = swap().evict(0, kAll, carrier.mover());
    EXPECT(moved.bytes == 8 * kMiB);
    EXPECT(swap().out_bytes(0) == 8 * kMiB);
    swap().restore(0, carrier.mover());
    EXPECT(swap().all_in_place());
    expect_pattern(large, 8 * kMiB, 1, "after the swap");
    EXPECT_OK(cu.cuMemFree_v2(large));
    EXPECT_EMPTY_BOOKS();
  });
}

TEST_CASE("a context ends while its memory is about to move") {
  check([] {
    const CUcontext context = enter(0);
    Carrier carrier(context);
    const std::size_t free_before = free_on_gpu();
    CUcontext other = nullptr;
    EXPECT_OK(cu.cuCtxCreate_v2(&other, 0, 0));
    for (unsigned char number = 0; number < 3; ++number) allocate(8 * kMiB, number);
    std::thread monitor;
    std::atomic<bool> begun{false};
    std::atomic<bool> goes_on{false};
    carrier.begins = [&] { goes_on.store(true); };
    before = [&](Symbol symbol) {
      // The first range of the context goes.
      if (symbol != Symbol::k_cuMemAddressFree || begun.exchange(true)) return;
      monitor = std::thread([&] {
        swap().evict(0, kAll, carrier.mover());
        goes_on.store(true);
      });
      while (!goes_on.load()) std::this_thread::yield();
    };
    EXPECT_OK(cu.cuCtxDestroy_v2(other));
    monitor.join();
    EXPECT_OK(cu.cuCtxSetCurrent(context));
    EXPECT(swap().all_in_place());
    EXPECT(swap().resident_bytes(0) == 0);
    EXPECT(swap().out_bytes(0) == 0);
    EXPECT(free_on_gpu() == free_before);
    EXPECT_EMPTY_BOOKS();
  });
}

TEST_CASE("an allocation for which the driver has no memory ends up out of place, behind a gate that closes for it") {
  check([] {
    const CUcontext context = enter(0);
    Carrier carrier(context);
    bool closes = true;
    int asked = 0;
    FakeTurns turns;
    Swap grows(turns);
    turns.closes_gate = [&](FunctionRef<void()> begin) {
      ++asked;
      EXPECT(grows.all_in_place());
      if (!closes) return;
      begin();
      EXPECT(!grows.use_if_in_place(rota::memory::kAllDevices, [] {}));  // the monitor sees it and closes
      turns.our_turn = false;
    };
    EXPECT(grows.serves(0));
    fails_with = CUDA_ERROR_OUT_OF_MEMORY;
    CUdeviceptr address = 0;
    for (const Symbol symbol : {Symbol::k_cuMemCreate, Symbol::k_cuMemMap, Symbol::k_cuMemSetAccess}) {
      fails_at = {{symbol, kAlways}};
      asked = 0;
      turns.told_out_of_place = false;
      EXPECT_OK(take(grows, {context, 0}, &address, 8 * kMiB));
      EXPECT(asked == 1);
      EXPECT(turns.told_out_of_place);
      EXPECT(grows.out_bytes(0) == 8 * kMiB);
      EXPECT(!grows.use_if_in_place(rota::memory::kAllDevices, [] {}));
      fails_at.clear();
      grows.restore(0, carrier.mover());
      EXPECT(grows.use_if_in_place(memory::kAllDevices, [&] { turns.our_turn = true; }));
      EXPECT_OK(real::cuMemsetD8_v2(address, 7, 8 * kMiB));
      EXPECT_OK(real::cuCtxSynchronize());
      grows.free(address);
      grows.evict(0, 8 * kMiB, carrier.mover());  // what is cached
      EXPECT(grows.resident_bytes(0) == 0);
    }
    // Others have nothing there that could be evicted, so the gate stays open.
    closes = false;
    fails_at = {{Symbol::k_cuMemCreate, kAlways}};
    EXPECT_RESULT(CUDA_ERROR_OUT_OF_MEMORY, take(grows, {context, 0}, &address, 8 * kMiB));
    EXPECT(grows.use_if_in_place(rota::memory::kAllDevices, [] {}));
    EXPECT(grows.needed_bytes(0) == 0);
    // Others' memory has just been evicted.
    fails_at = {{Symbol::k_cuMemCreate, 1}};
    EXPECT_OK(take(grows, {context, 0}, &address, 8 * kMiB));
    EXPECT(grows.use_if_in_place(rota::memory::kAllDevices, [] {}));
    grows.free(address);
  });
}

TEST_CASE("a program that has no turn is refused more extents than the GPU can hold at once") {
  check([] {
    const CUcontext context = enter(0);
    Swap never(no_turn);
    EXPECT(never.serves(0));
    std::vector<CUdeviceptr> blocks;
    CUdeviceptr address = 0;
    // Half of each is lost to the granularity.
    while (blocks.size() < 100 && take(never, {context, 0}, &address, 2 * kMiB + 1) == CUDA_SUCCESS) {
      blocks.push_back(address);
    }
    EXPECT(blocks.size() > 40);
    EXPECT(never.out_bytes(0) == blocks.size() * 4 * kMiB);
    EXPECT(never.out_bytes(0) < kGpuBytes);
    for (const CUdeviceptr block : blocks) never.free(block);
    EXPECT(never.all_in_place());
    EXPECT(never.out_bytes(0) == 0);
  });
}

TEST_CASE("a program that has no turn is refused what would not fit next to all contexts") {
  check([] {
    const CUcontext context = enter(0);
    FakeTurns turns(false);
    turns.all_contexts = 100 * kMiB;
    Swap never(turns);
    CUdeviceptr address = 0;
    EXPECT_RESULT(CUDA_ERROR_OUT_OF_MEMORY, take(never, {context, 0}, &address, kGpuBytes - 99 * kMiB));
    EXPECT_OK(take(never, {context, 0}, &address, kGpuBytes - 100 * kMiB));
    never.free(address);
    EXPECT(never.all_in_place());
    EXPECT(never.needed_bytes(0) == 0);
  });
}

TEST_CASE("extents that do not fit next to others' memory are refused at once, and freed memory is available again") {
  check([] {
    enter(0);
    std::uint64_t most = 20 * kMiB;
    int asked = 0;
    static FakeTurns turns;
    turns.takes_extents = [&](int device, std::uint64_t bytes, FunctionRef<void()> release) {
      ++asked;
      EXPECT(device == 0 && bytes % (2 * kMiB) == 0);
      const bool fits = swap().needed_bytes(0) <= most;
      if (!fits) release();
      return fits;
    };
    runtime().memory.set_turns(&turns);
    const CUdeviceptr large = allocate(11 * kMiB, 1);  // 12 MiB of extents
    EXPECT(swap().needed_bytes(0) == 12 * kMiB);
    CUdeviceptr other = 0;
    EXPECT_RESULT(CUDA_ERROR_OUT_OF_MEMORY, cu.cuMemAlloc_v2(&other, 9 * kMiB));
    EXPECT(turns.room_made == 0);
    EXPECT(swap().needed_bytes(0) == 12 * kMiB && charged(0) == 11 * kMiB);
    EXPECT_OK(cu.cuMemAlloc_v2(&other, 8 * kMiB));
    // Small ones share a span, which counts as a whole.
    most = 22 * kMiB;
    CUdeviceptr small = 0;
    EXPECT_OK(cu.cuMemAlloc_v2(&small, 1000));
    EXPECT(swap().needed_bytes(0) == 22 * kMiB);
    const int before = asked;
    CUdeviceptr second = 0;
    EXPECT_OK(cu.cuMemAlloc_v2(&second, 1000));
    EXPECT(asked == before);
    EXPECT_OK(cu.cuMemFree_v2(large));
    EXPECT(swap().needed_bytes(0) == 10 * kMiB);
    EXPECT_OK(cu.cuMemAlloc_v2(&other, 9 * kMiB));
    EXPECT(swap().needed_bytes(0) == 20 * kMiB);
    EXPECT_OK(cu.cuMemFree_v2(other));
  });
}

TEST_CASE("memory freed in a stream's order and passed since serves an allocation of another size") {
  check([] {
    enter(0);
    static FakeTurns turns;
    turns.takes_extents = [](int, std::uint64_t, FunctionRef<void()> release) {
      const bool fits = swap().needed_bytes(0) <= 20 * kMiB;
      if (!fits) release();
      return fits;
    };
    runtime().memory.set_turns(&turns);
    CUstream stream = nullptr;
    EXPECT_OK(cu.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    const CUdeviceptr first = allocate(12 * kMiB, 1);
    EXPECT_OK(cu.cuMemFreeAsync(first, stream));
    EXPECT_OK(cu.cuStreamSynchronize(stream));
    EXPECT(swap().needed_bytes(0) == 12 * kMiB);
    CUdeviceptr second = 0;
    EXPECT_OK(cu.cuMemAlloc_v2(&second, 16 * kMiB));
    EXPECT(swap().needed_bytes(0) == 16 * kMiB);
    EXPECT_OK(cu.cuMemFree_v2(second));
    EXPECT_EMPTY_BOOKS();
  });
}

TEST_CASE("memory cached for the next allocation is not charged until that comes") {
  check([] {
    enter(0);
    const CUdeviceptr first = allocate(2 * kMiB, 1);
    EXPECT(swap().needed_bytes(0) == 2 * kMiB);
    EXPECT_OK(cu.cuMemFree_v2(first));
    EXPECT(swap().needed_bytes(0) == 0 && swap().resident_bytes(0) == 2 * kMiB);
    const CUdeviceptr again = allocate(2 * kMiB, 2);
    EXPECT(again == first && swap().needed_bytes(0) == 2 * kMiB && swap().resident_bytes(0) == 2 * kMiB);
    EXPECT_OK(cu.cuMemFree_v2(again));
  });
}

TEST_CASE("what cuMemGetInfo says is free can be allocated") {
  check([] {
    enter(0);
    std::size_t free = 0;
    std::size_t total = 0;
    EXPECT_OK(cu.cuMemGetInfo_v2(&free, &total));
    EXPECT(free > kGpuBytes / 2);
    CUdeviceptr all = 0;
    EXPECT_OK(cu.cuMemAlloc_v2(&all, free));
    EXPECT_OK(cu.cuMemGetInfo_v2(&free, &total));
    EXPECT(free == 0);
    EXPECT_OK(cu.cuMemFree_v2(all));
    EXPECT_EMPTY_BOOKS();
  });
}

TEST_CASE("what a context had that has failed for good is released, and nothing waits for it") {
  check([] {
    const CUcontext context = enter(0);
    Carrier carrier(context);
    const std::size_t free_before = free_on_gpu();
    const CUdeviceptr large = allocate(8 * kMiB, 1);
    const CUdeviceptr other = allocate(4 * kMiB, 2);
    swap().evict(0, 8 * kMiB, carrier.mover());
    EXPECT(swap().out_bytes(0) == 8 * kMiB);
    EXPECT(swap().context_failed(context, 0) == 4 * kMiB);
    EXPECT(swap().all_in_place());
    EXPECT(swap().resident_bytes(0) == 0 && swap().out_bytes(0) == 0);
    EXPECT(free_on_gpu() >= free_before - 2 * kMiB);  // but for a byte that stays
    const Swap::Moved moved = swap().evict(0, kAll, carrier.mover());
    EXPECT(moved.bytes + moved.without_copy == 0 && !moved.failed);
    EXPECT_OK(cu.cuMemFree_v2(large));
    EXPECT_OK(cu.cuMemFree_v2(other));
    EXPECT_EMPTY_BOOKS();
  });
}

TEST_CASE("memory that will never be restored is given to others at once, and can be freed") {
  check([] {
    const CUcontext context = enter(0);
    Carrier carrier(context);
    const CUdeviceptr large = allocate(8 * kMiB, 1);
    const CUdeviceptr other = allocate(4 * kMiB, 2);
    swap().evict(0, 8 * kMiB, carrier.mover());
    swap().release_all();
    EXPECT(swap().resident_bytes(0) == 0 && swap().out_bytes(0) == 12 * kMiB);
    EXPECT(!swap().all_in_place());
    EXPECT_OK(cu.cuMemFree_v2(large));
    EXPECT_OK(cu.cuMemFree_v2(other));
    EXPECT(swap().out_bytes(0) == 0 && swap().all_in_place());
    EXPECT_EMPTY_BOOKS();
  });
}

TEST_CASE("memory is evicted and restored also on a GPU without memory for a stream or an event") {
  for (const bool streams : {true, false}) {
    check([streams] {
      const CUcontext context = enter(0);
      const CUdeviceptr block = allocate(8 * kMiB, 1);
      const CUdeviceptr other = allocate(300, 2);
      fails_with = CUDA_ERROR_OUT_OF_MEMORY;
      fails_at = {{Symbol::k_cuEventCreate, kAlways}};
      if (streams) fails_at[Symbol::k_cuStreamCreate] = kAlways;
      const auto nobody = [](int) { return memory::Exchange{}; };
      const auto goes_on = [] { return false; };
      for (int round = 0; round < 2; ++round) {
        const monitor::Left left = monitor::swap_out(runtime().contexts, runtime().memory, {0, kAll}, nobody, goes_on);
        EXPECT(!left.failed && left.copied >= 8 * kMiB);
        EXPECT(swap().resident_bytes(0) == 0);
        const monitor::Back back = monitor::bring_back(runtime().contexts, runtime().memory, {{0, kAll}}, nobody,
                                                       goes_on, [] { return true; });
        EXPECT(back.resident && back.error == CUDA_SUCCESS && back.bytes >= 8 * kMiB);
        EXPECT(swap().use_if_in_place(rota::memory::kAllDevices, [] {}));
      }
      fails_at.clear();
      fails_with = CUDA_ERROR_UNKNOWN;
      EXPECT_OK(cu.cuCtxSetCurrent(context));
      expect_pattern(block, 8 * kMiB, 1, "large");
      expect_pattern(other, 300, 2, "small");
      EXPECT_OK(cu.cuMemFree_v2(block));
      EXPECT_OK(cu.cuMemFree_v2(other));
      EXPECT_EMPTY_BOOKS();
    });
  }
}
