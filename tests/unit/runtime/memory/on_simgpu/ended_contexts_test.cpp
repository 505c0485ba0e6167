// Contexts that are reset or end while memory moves in them. The driver reuses their handles, and those of objects in
// them, for what the program creates next: rota touches none of that, and no contents are lost.
#include <catch2/catch.hpp>

#include <memory>
#include <utility>
#include <vector>

#include "tests/unit/runtime/memory/on_simgpu/moving.h"

using namespace rota;
using namespace rota::test;

namespace {

// Bytes of memory that outlives contexts.
constexpr std::uint64_t kPiece = 16 * kMiB;

CUmemoryPool make_pool() {
  CUmemPoolProps properties{};
  properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0};
  CUmemoryPool pool = nullptr;
  EXPECT_OK(cu.cuMemPoolCreate(&pool, &properties));
  return pool;
}

CUdeviceptr take(CUmemoryPool pool, unsigned char pattern) {
  CUdeviceptr address = 0;
  EXPECT_OK(cu.cuMemAllocFromPoolAsync(&address, kPiece, pool, nullptr));
  EXPECT_OK(cu.cuMemsetD8Async(address, pattern, kPiece, nullptr));
  EXPECT_OK(cu.cuCtxSynchronize());
  return address;
}

// The primary context of GPU 0 is reset and retained again, and has the handle that it had.
void reset(CUcontext before) {
  EXPECT_OK(cu.cuDevicePrimaryCtxReset_v2(0));
  if (enter(0) != before) note("the context does not have the handle of the one before");
}

// Objects that the program creates after a reset: they get handles that have just become free.
struct Objects {
  std::vector<CUstream> streams{16};
  std::vector<CUevent> events{16};

  void make() {
    for (CUstream& stream : streams) EXPECT_OK(cu.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    for (CUevent& event : events) EXPECT_OK(cu.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  }
  // Checks that all are as they were created, and ends them.
  void end() {
    for (std::size_t index = 0; index < streams.size(); ++index) {
      EXPECT_OK(cu.cuEventRecord(events[index], streams[index]));
      EXPECT_OK(cu.cuEventSynchronize(events[index]));
      EXPECT_OK(cu.cuEventDestroy_v2(events[index]));
      EXPECT_OK(cu.cuStreamDestroy_v2(streams[index]));
    }
  }
};

// Resets the GPU's context before this step of a carrier's move; called for each step from the first to the last.
// False: there are fewer steps. All checks whether a copy has ended count as one step. Afterwards all of `pieces` can
// come back in the new context.
template <typename Move>
bool reset_in_front_of(int number, bool looks, const std::vector<CUdeviceptr>& pieces, Move&& move) {
  const CUcontext context = enter(0);
  Carrier carrier(context);
  carrier.looks = looks;
  Objects objects;
  int steps = 0;
  bool looked = false;
  carrier.begins = [&] {
    if (std::exchange(looked, carrier.looks_again) && carrier.looks_again) return;
    if (++steps != number) return;
    reset(context);
    objects.make();
  };
  move(carrier);
  if (steps < number) {
    EXPECT_OK(cu.cuStreamDestroy_v2(carrier.stream));
    return false;
  }
  objects.end();
  Carrier next(enter(0));
  next.looks = looks;
  for (int tries = 0; tries < 3 && !swap().all_in_place(); ++tries) swap().restore(0, next.mover());
  EXPECT(swap().use_if_in_place(rota::memory::kAllDevices, [] {}));
  for (std::size_t index = 0; index < pieces.size(); ++index) {
    expect_pattern(pieces[index], kPiece, static_cast<unsigned char>(index + 1), "after a reset in front of a step");
  }
  EXPECT_OK(cu.cuStreamDestroy_v2(next.stream));
  return true;
}

}  // namespace

TEST_CASE("a context is reset before any step in which memory is evicted: nothing of the next one is touched") {
  for (const bool looks : {false, true}) {
    check([looks] {
      enter(0);
      const CUmemoryPool pool = make_pool();
      const std::vector<CUdeviceptr> pieces = {take(pool, 1), take(pool, 2)};
      int number = 1;
      const auto leave = [](Carrier& carrier) {
        swap().evict(0, kAll, carrier.mover());
        EXPECT(swap().resident_bytes(0) + swap().out_bytes(0) == 2 * kPiece);
      };
      while (reset_in_front_of(number, looks, pieces, leave)) ++number;
      EXPECT(number > 4);
    });
  }
}

TEST_CASE("a context is reset in front of any step in which memory comes: nothing of the next one is touched") {
  check([] {
    enter(0);
    const CUmemoryPool pool = make_pool();
    const std::vector<CUdeviceptr> pieces = {take(pool, 1), take(pool, 2)};
    int number = 1;
    const auto come = [](Carrier& carrier) {
      Carrier out(carrier.context);
      EXPECT(!swap().evict(0, kAll, out.mover()).failed);
      EXPECT_OK(cu.cuStreamDestroy_v2(out.stream));
      EXPECT(!swap().all_in_place());
      swap().restore(0, carrier.mover());
    };
    while (reset_in_front_of(number, false, pieces, come)) ++number;
    EXPECT(number > 4);
  });
}

TEST_CASE("the host's copy goes to the kept blocks where the context ends before it could be released") {
  check([] {
    const CUcontext context = enter(0);
    const CUmemoryPool pool = make_pool();
    const CUdeviceptr piece = take(pool, 1);
    Carrier carrier(context);
    EXPECT(swap().evict(0, kAll, carrier.mover()).bytes == kPiece);
    EXPECT(swap().host().bytes() == kPiece && swap().host().cached_bytes() == 0);
    bool low = false;
    swap().host().set_left([&] {
      low = true;  // asked once the copy has ended
      return std::uint64_t{0};
    });
    carrier.begins = [&] {
      if (std::exchange(low, false)) reset(context);
    };
    swap().restore(0, carrier.mover());
    EXPECT(swap().all_in_place());
    EXPECT(swap().host().cached_bytes() == swap().host().bytes());
    Carrier next(enter(0));
    swap().give_host_back();
    EXPECT(swap().host().bytes() == 0);
    expect_pattern(piece, kPiece, 1, "after the swap");
  });
}

TEST_CASE("what was pinned in a context that has ended is pinned again before it is used, once, and can be released") {
  check([] {
    const CUcontext context = enter(0);
    const CUmemoryPool pool = make_pool();
    const CUdeviceptr piece = take(pool, 1);
    const CUdeviceptr plain = allocate(8 * kMiB, 2);  // ends with its context; its block is cached
    std::map<Symbol, int> calls;
    counted = &calls;
    const auto pinned = [&] { return std::exchange(calls[Symbol::k_cuMemHostRegister_v2], 0); };
    {
      Carrier carrier(context);
      EXPECT(swap().evict(0, kAll, carrier.mover()).bytes == kPiece + 8 * kMiB);
      EXPECT(pinned() == 2);
      EXPECT(!swap().restore(0, carrier.mover()).failed);
      EXPECT(swap().use_if_in_place(rota::memory::kAllDevices, [] {}));
      expect_pattern(plain, 8 * kMiB, 2, "after the swap");
    }
    EXPECT(swap().host().cached_bytes() == 0);
    reset(context);
    EXPECT(swap().host().cached_bytes() == 8 * kMiB);
    allocate(8 * kMiB, 3);
    Carrier carrier(enter(0));
    for (const int expected : {2, 0}) {
      EXPECT(swap().evict(0, kAll, carrier.mover()).bytes == kPiece + 8 * kMiB);
      EXPECT(pinned() == expected);
      EXPECT(!swap().restore(0, carrier.mover()).failed);
      EXPECT(swap().use_if_in_place(rota::memory::kAllDevices, [] {}));
      expect_pattern(piece, kPiece, 1, "after the reset");
    }
    // A copy is pinned again before it comes back, too.
    EXPECT(swap().evict(0, kAll, carrier.mover()).bytes == kPiece + 8 * kMiB);
    reset(carrier.context);
    Carrier last(enter(0));
    EXPECT(!swap().restore(0, last.mover()).failed);
    EXPECT(pinned() == 1);
    expect_pattern(piece, kPiece, 1, "after another reset");
    swap().give_host_back(UINT64_MAX, true);
    EXPECT(swap().host().bytes() == 0);
    counted = nullptr;
  });
}

TEST_CASE("a driver that keeps host memory pinned after its context is not said to refuse to pin it") {
  check([] {
    const CUcontext context = enter(0);
    const CUmemoryPool pool = make_pool();
    const CUdeviceptr piece = take(pool, 1);
    Carrier carrier(context);
    EXPECT(swap().evict(0, kAll, carrier.mover()).bytes == kPiece);
    reset(context);
    fails_at = {{Symbol::k_cuMemHostRegister_v2, kAlways}};
    fails_with = CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    std::map<Symbol, int> calls;
    counted = &calls;
    Carrier next(enter(0));
    EXPECT(!swap().restore(0, next.mover()).failed);
    swap().give_host_back(UINT64_MAX, true);
    counted = nullptr;
    EXPECT(calls[Symbol::k_cuMemHostUnregister] == 1);
    expect_pattern(piece, kPiece, 1, "after the reset");
  });
}
