// The host's memory as a store: contents are read back as they were written, and space is reserved before it is
// promised.
#include "runtime/memory/swap/store/host_store.h"

#include <catch2/catch.hpp>

#include <array>
#include <cstring>

#include "tests/unit/runtime/memory/on_simgpu/moving.h"

using namespace rota;
using namespace rota::test;

namespace {

using memory::Store;

// A store of this much host memory.
struct Hosted {
  explicit Hosted(std::uint64_t bytes) {
    // A tenth of what is left is reserved for everything else.
    pool.set_left([this, bytes] { return ((bytes - std::min(bytes, pool.bytes())) / 9 + 1) * 10; });
  }
  memory::HostPool pool;
  memory::HostStore host{pool};
  Store& store = host;
};

}  // namespace

TEST_CASE("what a store has been given comes back as it was, also to another address") {
  check([] {
    enter(0);
    Hosted hosted(64 * kMiB);
    const CUdeviceptr from = allocate(4 * kMiB, 7);
    const CUdeviceptr to = allocate(4 * kMiB, 1);
    CUstream stream = nullptr;
    EXPECT_OK(cu.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    const Store::Slot slot = hosted.store.reserve(4 * kMiB, 0);
    EXPECT(slot != nullptr);
    const std::array<Store::Part, 1> all{{{0, 4 * kMiB}}};
    EXPECT_OK(hosted.store.put(slot, 4 * kMiB, from, all, stream));
    EXPECT_OK(cu.cuStreamSynchronize(stream));
    EXPECT_OK(hosted.store.get(slot, 4 * kMiB, to, stream));
    EXPECT_OK(cu.cuStreamSynchronize(stream));
    expect_pattern(to, 4 * kMiB, 7, "from the store");
    hosted.store.release(slot, 4 * kMiB);
    EXPECT(hosted.pool.bytes() == 0);
  });
}

TEST_CASE("parts that are put change these parts of what the store has, and no others") {
  check([] {
    enter(0);
    Hosted hosted(64 * kMiB);
    const CUdeviceptr memory = allocate(4 * kMiB, 7);
    CUstream stream = nullptr;
    EXPECT_OK(cu.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    const Store::Slot slot = hosted.store.reserve(4 * kMiB, 0);
    const std::array<Store::Part, 1> all{{{0, 4 * kMiB}}};
    EXPECT_OK(hosted.store.put(slot, 4 * kMiB, memory, all, stream));
    EXPECT_OK(cu.cuStreamSynchronize(stream));
    EXPECT_OK(cu.cuMemsetD8_v2(memory, 0x55, 4 * kMiB));
    EXPECT_OK(cu.cuCtxSynchronize());
    const std::array<Store::Part, 2> some{{{0, kMiB}, {2 * kMiB, 3 * kMiB}}};
    EXPECT_OK(hosted.store.put(slot, 4 * kMiB, memory, some, stream));
    EXPECT_OK(cu.cuStreamSynchronize(stream));
    EXPECT_OK(cu.cuMemsetD8_v2(memory, 0, 4 * kMiB));
    EXPECT_OK(cu.cuCtxSynchronize());
    EXPECT_OK(hosted.store.get(slot, 4 * kMiB, memory, stream));
    EXPECT_OK(cu.cuStreamSynchronize(stream));
    std::vector<unsigned char> now(4 * kMiB);
    EXPECT_OK(cu.cuMemcpyDtoH_v2(now.data(), memory, now.size()));
    const auto changed = [&](std::uint64_t at) { return now[at] == 0x55 && now[at + kMiB - 1] == 0x55; };
    EXPECT(changed(0) && !changed(kMiB) && changed(2 * kMiB) && !changed(3 * kMiB));
    hosted.store.release(slot, 4 * kMiB);
  });
}

TEST_CASE("a store promises no more than it has, and space that is discarded serves the next extent") {
  check([] {
    enter(0);
    Hosted hosted(8 * kMiB);
    const Store::Slot first = hosted.store.reserve(4 * kMiB, 0);
    const Store::Slot second = hosted.store.reserve(4 * kMiB, 0);
    EXPECT(first != nullptr && second != nullptr && first != second);
    EXPECT(hosted.store.reserve(4 * kMiB, 0) == nullptr);
    hosted.store.discard(first, 4 * kMiB);
    EXPECT(hosted.store.reserve(4 * kMiB, 0) == first);
    hosted.store.release(second, 4 * kMiB);
    EXPECT(hosted.store.reserve(2 * kMiB, 0) != nullptr);
  });
}

TEST_CASE("what the driver refuses of a copy, the store says") {
  check([] {
    enter(0);
    Hosted hosted(64 * kMiB);
    const CUdeviceptr memory = allocate(4 * kMiB, 7);
    const Store::Slot slot = hosted.store.reserve(4 * kMiB, 0);
    const std::array<Store::Part, 2> halves{{{0, 2 * kMiB}, {2 * kMiB, 4 * kMiB}}};
    fails_with = CUDA_ERROR_LAUNCH_FAILED;
    fails_at = {{Symbol::k_cuMemcpyDtoHAsync_v2, 2}};
    EXPECT_RESULT(CUDA_ERROR_LAUNCH_FAILED, hosted.store.put(slot, 4 * kMiB, memory, halves, nullptr));
    fails_at = {{Symbol::k_cuMemcpyHtoDAsync_v2, 1}};
    EXPECT_RESULT(CUDA_ERROR_LAUNCH_FAILED, hosted.store.get(slot, 4 * kMiB, memory, nullptr));
    fails_at.clear();
  });
}
