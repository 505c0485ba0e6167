// The program maps, unmaps and releases memory that it has created, while that moves: each call waits for what is being
// moved, and nothing is lost or left behind.
#include <catch2/catch.hpp>

#include <atomic>
#include <random>
#include <thread>
#include <vector>

#include "tests/unit/runtime/memory/on_simgpu/own_memory.h"

using namespace rota;
using namespace rota::test;

namespace {

constexpr std::size_t kSmallPiece = 2 * kMiB;
constexpr int kMoves = 40;

// A piece that stays the program's, and another one that comes and goes, at addresses of this thread's own.
void work(unsigned seed, Handle steady, const std::atomic<bool>& goes_on) {
  std::mt19937 random(seed);
  const CUdeviceptr place = reserve(2 * kSmallPiece);
  while (goes_on.load()) {
    EXPECT_OK(cu.cuMemMap(place, kSmallPiece, 0, steady, 0));
    const Handle passing = create(kSmallPiece);
    EXPECT_OK(cu.cuMemMap(place + kSmallPiece, kSmallPiece, 0, passing, 0));
    if (random() % 2 == 0) EXPECT_OK(cu.cuMemRelease(passing));
    EXPECT_OK(allow(place, 2 * kSmallPiece));
    EXPECT(access_of(place) == CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    Handle again = 0;
    EXPECT_OK(cu.cuMemRetainAllocationHandle(&again, reinterpret_cast<void*>(place + kSmallPiece)));
    EXPECT(again == passing);
    EXPECT_OK(cu.cuMemUnmap(place, 2 * kSmallPiece));
    EXPECT_OK(cu.cuMemRelease(again));
    if (cu.cuMemRelease(passing) == CUDA_SUCCESS) EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, cu.cuMemRelease(passing));
  }
  EXPECT_OK(cu.cuMemAddressFree(place, 2 * kSmallPiece));
}

}  // namespace

TEST_CASE("threads map, unmap and release memory while it is evicted and restored") {
  check([] {
    const CUcontext context = enter(0);
    Carrier carrier(context);
    carrier.looks = true;
    std::vector<Handle> handles;
    std::vector<CUdeviceptr> places;
    for (unsigned char number = 0; number < 3; ++number) {
      handles.push_back(create(kSmallPiece));
      places.push_back(map(handles.back(), kSmallPiece));
      fill(places.back(), static_cast<unsigned char>(number + 1), kSmallPiece);
    }
    std::atomic<bool> goes_on{true};
    std::vector<std::thread> threads;
    for (unsigned number = 0; number < handles.size(); ++number) {
      threads.emplace_back([&, number] {
        EXPECT_OK(cu.cuCtxSetCurrent(context));
        work(number, handles[number], goes_on);
      });
    }
    for (int move = 0; move < kMoves; ++move) {
      EXPECT(!swap().evict(0, kAll, carrier.mover()).failed);
      EXPECT(!swap().restore(0, carrier.mover()).failed);
    }
    goes_on.store(false);
    for (std::thread& thread : threads) thread.join();
    EXPECT(!swap().restore(0, carrier.mover()).failed);
    EXPECT(swap().all_in_place());
    for (std::size_t number = 0; number < places.size(); ++number) {
      expect_pattern(places[number], kSmallPiece, static_cast<unsigned char>(number + 1), "after all moves");
      unmap(places[number], kSmallPiece);
      EXPECT_OK(cu.cuMemRelease(handles[number]));
    }
    swap().drop_kept(0);
    EXPECT(swap().resident_bytes(0) == 0 && swap().needed_bytes(0) == 0);
    EXPECT_EMPTY_BOOKS();
  });
}
