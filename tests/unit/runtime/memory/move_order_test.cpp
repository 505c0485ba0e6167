// In what order memory is restored and evicted, and how much of it.
#include "runtime/memory/move_order.h"

#include <catch2/catch.hpp>
#include <utility>
#include <vector>

#include "generated/driver_real.h"
#include "runtime/memory/unified.h"
#include "tests/unit/runtime/memory/memory_fixture.h"

using namespace rota;
using namespace rota::memory;
using namespace rota::test;

namespace {

using Pieces = std::vector<std::pair<std::uint64_t, std::uint64_t>>;  // address and bytes

Allocation range(std::uint64_t address, std::uint64_t bytes, std::uint64_t made) {
  Allocation allocation;
  allocation.address = address * kMiB;
  allocation.bytes = bytes;
  allocation.made = made;
  return allocation;
}

// In MiB, except smaller sizes.
Pieces pieces(const std::vector<Allocation>& ranges) {
  Pieces all;
  for (const Allocation& piece : ranges) all.emplace_back(piece.address / kMiB, piece.bytes / kMiB);
  return all;
}

// Prefetches of the fake driver: where to, and what.
Pieces moved;
int moved_to = 0;
void watch(FakeDriver& driver) {
  moved.clear();
  driver.set<api::cuMemPrefetchAsync_fn>(
      Symbol::k_cuMemPrefetchAsync, [](api::CUdeviceptr address, std::size_t bytes, api::CUdevice to, api::CUstream) {
        moved.emplace_back(address, bytes);
        moved_to = to;
        return api::CUDA_SUCCESS;
      });
}

const auto kStream = reinterpret_cast<api::CUstream>(0x5000);

}  // namespace

TEST_CASE("what the last turn allocated comes first, the newest before all, and of older memory the small ranges") {
  const std::vector<Allocation> all{range(1, 8 * kMiB, 1), range(2, 2 * kMiB, 2), range(3, 64 * kMiB, 3),
                                    range(4, 4 * kMiB, 11), range(5, 16 * kMiB, 12)};
  CHECK(pieces(to_bring(all, 10, UINT64_MAX)) == Pieces{{5, 16}, {4, 4}, {2, 2}, {1, 8}, {3, 64}});
  // All of it is from the first turn.
  CHECK(pieces(to_bring(all, 0, UINT64_MAX)) == Pieces{{5, 16}, {4, 4}, {3, 64}, {2, 2}, {1, 8}});
}

TEST_CASE("no more is restored than there is memory for, and the largest old range is cut short") {
  const std::vector<Allocation> all{range(1, 8 * kMiB, 1), range(2, 2 * kMiB, 2), range(3, 64 * kMiB, 3)};
  CHECK(pieces(to_bring(all, 10, 41 * kMiB)) == Pieces{{2, 2}, {1, 8}, {3, 30}});
  CHECK(pieces(to_bring(all, 10, 10 * kMiB)) == Pieces{{2, 2}, {1, 8}});
  CHECK(to_bring(all, 10, 0).empty());
}

TEST_CASE("the largest old range is evicted first, from its end, and what the turn allocated last") {
  const std::vector<Allocation> all{range(1, 8 * kMiB, 1), range(2, 2 * kMiB, 2), range(100, 64 * kMiB, 3),
                                    range(4, 4 * kMiB, 11), range(5, 16 * kMiB, 12)};
  CHECK(pieces(to_move_out(all, 10, UINT64_MAX / 4)) == Pieces{{100, 64}, {1, 8}, {2, 2}, {4, 4}, {5, 16}});
  CHECK(pieces(to_move_out(all, 10, 20 * kMiB)) == Pieces{{144, 20}});
  CHECK(pieces(to_move_out(all, 10, 65 * kMiB)) == Pieces{{100, 64}, {7, 2}});
  CHECK(to_move_out(all, 10, 0).empty());
}

TEST_CASE("ranges that are not worth a call are left to faults") {
  const std::vector<Allocation> all{range(1, 4096, 1), range(2, 64 << 10, 2), range(3, (64 << 10) - 1, 11)};
  CHECK(to_bring(all, 10, UINT64_MAX).size() == 1);
  CHECK(to_move_out(all, 10, kMiB).size() == 1);
}

TEST_CASE("a turn is judged by what was allocated since the one before began") {
  Fixture f({.backend = Choice::kManaged, .small_bytes = 0});
  f.driver.enter_context(0);
  const auto take = [&](std::uint64_t bytes) {
    api::CUdeviceptr address = 0;
    REQUIRE(f.memory.allocate(&address, bytes) == api::CUDA_SUCCESS);
    return address;
  };
  const auto weights = take(64 * kMiB);
  const auto table = take(8 * kMiB);
  watch(f.driver);
  f.memory.bring(0, kStream, f.memory.to_bring(0, UINT64_MAX));
  CHECK(moved == Pieces{{table, 8 * kMiB}, {weights, 64 * kMiB}});
  CHECK(moved_to == 0);
  f.turns.our_turn = false;
  const auto activations = take(128 * kMiB);
  watch(f.driver);
  f.memory.bring(0, kStream, f.memory.to_bring(0, UINT64_MAX));
  CHECK(moved == Pieces{{activations, 128 * kMiB}, {table, 8 * kMiB}, {weights, 64 * kMiB}});
  watch(f.driver);
  f.memory.bring(0, kStream, f.memory.to_bring(0, UINT64_MAX));
  CHECK(moved == Pieces{{table, 8 * kMiB}, {weights, 64 * kMiB}, {activations, 128 * kMiB}});
}

TEST_CASE("a process with more than it may have or the GPU has restores what fits next to what cannot move") {
  Fixture f({.backend = Choice::kManaged, .oversubscribe = true, .small_bytes = 0});
  f.driver.device_bytes = 160 * kMiB;
  f.driver.enter_context(0);
  api::CUdeviceptr address = 0;
  const Charge fixed = f.memory.reserve(0, 10 * kMiB, Kind::kAsync);
  REQUIRE(fixed);
  for (int i = 0; i < 4; ++i) REQUIRE(f.memory.allocate(&address, 50 * kMiB) == api::CUDA_SUCCESS);
  // 160 less a sixteenth, less 10.
  CHECK(f.memory.bring(0, kStream, f.memory.to_bring(0, UINT64_MAX)) == 140 * kMiB);
  CHECK(f.memory.bring(0, kStream, f.memory.to_bring(0, 64 * kMiB)) == 50 * kMiB);
}

TEST_CASE("what the program has placed elsewhere is left there, and its own managed memory comes if it put it here") {
  Fixture f({.backend = Choice::kManaged, .small_bytes = 0});
  f.driver.enter_context(0);
  api::CUdeviceptr converted = 0;
  REQUIRE(f.memory.allocate(&converted, 8 * kMiB) == api::CUDA_SUCCESS);
  api::CUdeviceptr own = 0;
  REQUIRE(f.memory.allocate_native(
              16 * kMiB, Kind::kManaged, [&] { return real::cuMemAllocManaged(&own, 16 * kMiB, 1); },
              [&] { return own; }) == api::CUDA_SUCCESS);
  const auto comes = [&] {
    watch(f.driver);
    f.memory.bring(0, kStream, f.memory.to_bring(0, UINT64_MAX));
    return moved;
  };
  const Pieces ours{{converted, 8 * kMiB}};
  CHECK(comes() == ours);
  f.memory.placed(converted, kMiB, unified::kHost);  // a part suffices: rota moves whole ranges
  CHECK(comes().empty());
  f.memory.placed(converted, 4 * kMiB, 0);  // not enough to restore it
  CHECK(comes().empty());
  f.memory.placed(converted, 8 * kMiB, 0);
  CHECK(comes() == ours);
  f.memory.placed(converted, 8 * kMiB, 1);  // another GPU
  CHECK(comes().empty());
  f.memory.placed(converted, 8 * kMiB, std::nullopt);
  CHECK(comes() == ours);
  // Its own managed memory.
  f.memory.placed(own, 4 * kMiB, 0);
  CHECK(comes() == ours);
  f.memory.placed(own, 16 * kMiB, 0);
  CHECK(comes() == Pieces{{converted, 8 * kMiB}, {own, 16 * kMiB}});
  f.memory.placed(own + kMiB, kMiB, unified::kHost);
  CHECK(comes() == ours);
  // A call may span neighbours, and end anywhere.
  f.memory.placed(converted, 8 * kMiB + 16 * kMiB, unified::kHost);
  CHECK(comes().empty());
  f.memory.placed(0x10, kMiB, 0);  // nobody's
  CHECK(comes().empty());
}
