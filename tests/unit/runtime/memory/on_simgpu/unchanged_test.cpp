// Memory that has not changed since it was last copied to the host is evicted without a copy, and memory that is all
// zeros needs no copy at all.
#include <catch2/catch.hpp>

#include <numeric>
#include <thread>
#include <utility>
#include <vector>

#include "tests/unit/runtime/memory/on_simgpu/moving.h"

using namespace rota;
using namespace rota::test;

namespace {

constexpr std::uint64_t kChunk = memory::fingerprint::kChunkBytes;

// Evicts and restores, after the program could have used the memory. Returns what was evicted with a copy, and what
// without.
Swap::Moved there_and_back(Carrier& carrier, std::uint64_t bytes = kAll) {
  EXPECT_OK(cu.cuCtxSynchronize());
  const Swap::Moved moved = swap().evict(0, bytes, carrier.mover());
  for (int tries = 0; tries < 3 && !swap().all_in_place(); ++tries) swap().restore(0, carrier.mover());
  EXPECT(swap().use_if_in_place(rota::memory::kAllDevices, [] {}));
  return moved;
}

// Words that all differ, so that nothing is right by chance.
std::vector<unsigned> words_of(std::uint64_t bytes, unsigned first) {
  std::vector<unsigned> words(bytes / sizeof(unsigned));
  std::iota(words.begin(), words.end(), first);
  return words;
}

CUdeviceptr allocate_words(const std::vector<unsigned>& words) {
  CUdeviceptr address = 0;
  EXPECT_OK(cu.cuMemAlloc_v2(&address, words.size() * sizeof(unsigned)));
  EXPECT_OK(cu.cuMemcpyHtoD_v2(address, words.data(), words.size() * sizeof(unsigned)));
  return address;
}

void expect_words(CUdeviceptr address, const std::vector<unsigned>& words, const char* when) {
  std::vector<unsigned> seen(words.size());
  EXPECT_OK(cu.cuMemcpyDtoH_v2(seen.data(), address, words.size() * sizeof(unsigned)));
  if (seen != words) note(std::string("words are wrong ") + when);
}

}  // namespace

TEST_CASE("unchanged memory is evicted without a copy, and of changed memory only the changed chunks are copied") {
  check([] {
    Carrier carrier(enter(0));
    carrier.looks = true;
    std::vector<unsigned> words = words_of(8 * kMiB, 1);
    const CUdeviceptr block = allocate_words(words);
    const CUdeviceptr other = allocate_words(words_of(4 * kMiB, 7));
    Swap::Moved moved = there_and_back(carrier);
    EXPECT(moved.bytes == 12 * kMiB && moved.without_copy == 0);
    expect_words(block, words, "after the first swap");
    moved = there_and_back(carrier);
    EXPECT(moved.bytes == 0 && moved.without_copy == 12 * kMiB);
    expect_words(block, words, "after a swap without a change");
    // The last word of one chunk, the first of the next, and one in the last.
    for (const std::uint64_t at : {3 * kChunk - 4, 3 * kChunk, 8 * kMiB - 4}) {
      words[at / 4] ^= 1u << 31;
      EXPECT_OK(cu.cuMemcpyHtoD_v2(block + at, &words[at / 4], 4));
    }
    moved = there_and_back(carrier);
    EXPECT(moved.bytes == 3 * kChunk && moved.without_copy == 12 * kMiB - 3 * kChunk);
    expect_words(block, words, "after a swap with a change");
    expect_words(other, words_of(4 * kMiB, 7), "of the other block");
    moved = there_and_back(carrier);
    EXPECT(moved.bytes == 0 && moved.without_copy == 12 * kMiB);
    EXPECT_OK(cu.cuMemFree_v2(block));
    EXPECT_OK(cu.cuMemFree_v2(other));
    EXPECT_EMPTY_BOOKS();
  });
}

TEST_CASE("zeros move in neither direction and take no memory of the host") {
  check([] {
    Carrier carrier(enter(0));
    carrier.looks = true;
    const CUdeviceptr block = allocate(8 * kMiB, 0);
    Swap::Moved moved = swap().evict(0, kAll, carrier.mover());
    EXPECT(moved.bytes == 0 && moved.without_copy == 8 * kMiB);
    EXPECT(swap().host().bytes() == 0);
    moved = swap().restore(0, carrier.mover());
    EXPECT(moved.bytes == 0 && moved.without_copy == 8 * kMiB);
    expect_pattern(block, 8 * kMiB, 0, "after the swap");
    // Memory that had contents and is zero again.
    EXPECT(swap().use_if_in_place(rota::memory::kAllDevices, [] {}));
    EXPECT_OK(cu.cuMemsetD8_v2(block, 5, 8 * kMiB));
    EXPECT(there_and_back(carrier).bytes == 8 * kMiB);
    expect_pattern(block, 8 * kMiB, 5, "after it was written");
    EXPECT_OK(cu.cuMemsetD8_v2(block, 0, 8 * kMiB));
    moved = there_and_back(carrier);
    EXPECT(moved.bytes == 0 && moved.without_copy == 8 * kMiB);
    EXPECT(swap().host().cached_bytes() == swap().host().bytes());
    expect_pattern(block, 8 * kMiB, 0, "after it was cleared");
    // One byte at its end is enough to make it worth a copy.
    EXPECT_OK(cu.cuMemsetD8_v2(block + 8 * kMiB - 1, 1, 1));
    EXPECT(there_and_back(carrier).bytes == 8 * kMiB);
    unsigned char last = 0;
    EXPECT_OK(cu.cuMemcpyDtoH_v2(&last, block + 8 * kMiB - 1, 1));
    EXPECT(last == 1);
  });
}

TEST_CASE("where the GPU cannot tell what has changed, all of it is copied") {
  for (const Symbol symbol : {Symbol::k_cuModuleLoadData, Symbol::k_cuModuleGetFunction, Symbol::k_cuMemHostAlloc,
                              Symbol::k_cuMemHostGetDevicePointer_v2, Symbol::k_cuLaunchKernel}) {
    check([symbol] {
      Carrier carrier(enter(0));
      carrier.looks = true;
      const std::vector<unsigned> words = words_of(8 * kMiB, 3);
      const CUdeviceptr block = allocate_words(words);
      fails_at = {{symbol, kAlways}};
      for (int round = 0; round < 2; ++round) EXPECT(there_and_back(carrier).bytes == 8 * kMiB);
      // A context that cannot is not asked again.
      fails_at.clear();
      int asked = 0;
      before = [&](Symbol called) { asked += called == symbol ? 1 : 0; };
      EXPECT(there_and_back(carrier).bytes == 8 * kMiB);
      EXPECT(asked == 0);
      expect_words(block, words, "after three swaps");
    });
  }
}

TEST_CASE(
    "after a context has ended during an examination, memory of the next one, which may have its handle, is examined") {
  check([] {
    Carrier carrier(enter(0));
    carrier.looks = true;
    const std::vector<unsigned> words = words_of(8 * kMiB, 3);
    const CUdeviceptr block = allocate_words(words);
    fails_at = {{Symbol::k_cuLaunchKernel, 1}};
    fails_with = CUDA_ERROR_INVALID_HANDLE;
    EXPECT(there_and_back(carrier).bytes == 8 * kMiB);
    EXPECT(there_and_back(carrier).bytes == 8 * kMiB);  // examined; what the copy holds was not known
    EXPECT(there_and_back(carrier).bytes == 0);
    expect_words(block, words, "after three swaps");
  });
}

TEST_CASE("memory that did not change the last time is evicted first") {
  check([] {
    Carrier carrier(enter(0));
    carrier.looks = true;
    const CUdeviceptr weights = allocate(8 * kMiB, 1);
    const CUdeviceptr activations = allocate(16 * kMiB, 2);
    there_and_back(carrier);
    EXPECT_OK(cu.cuMemsetD8_v2(activations, 3, 16 * kMiB));
    there_and_back(carrier);
    EXPECT_OK(cu.cuMemsetD8_v2(activations, 4, 16 * kMiB));
    EXPECT_OK(cu.cuCtxSynchronize());
    const Swap::Moved moved = swap().evict(0, 6 * kMiB, carrier.mover());
    EXPECT(moved.bytes == 0 && moved.without_copy == 8 * kMiB);
    swap().restore(0, carrier.mover());
    expect_pattern(weights, 8 * kMiB, 1, "after the swap");
    expect_pattern(activations, 16 * kMiB, 4, "which stayed");
  });
}

TEST_CASE("memory that is being examined stays mapped until that is over, although the program frees it") {
  check([] {
    Carrier carrier(enter(0));
    carrier.looks = true;
    const CUdeviceptr block = allocate(8 * kMiB, 1);
    const CUdeviceptr other = allocate(8 * kMiB, 2);
    std::thread freeing;
    before = [&](Symbol symbol) {
      if (symbol != Symbol::k_cuLaunchKernel || freeing.joinable()) return;
      freeing = std::thread([&] {
        EXPECT_OK(cu.cuCtxSetCurrent(carrier.context));
        EXPECT_OK(cu.cuMemFree_v2(block));
      });
    };
    EXPECT(!swap().evict(0, kAll, carrier.mover()).failed);
    freeing.join();
    before = [](Symbol) {};
    swap().restore(0, carrier.mover());
    EXPECT(swap().all_in_place());
    expect_pattern(other, 8 * kMiB, 2, "next to what was freed");
    EXPECT_OK(cu.cuMemFree_v2(other));
    EXPECT_EMPTY_BOOKS();
  });
}

TEST_CASE("a context that is created after another has ended loads the kernel for itself") {
  check([] {
    enter(0);
    for (int round = 0; round < 3; ++round) {
      CUcontext context = nullptr;
      EXPECT_OK(cu.cuCtxCreate_v2(&context, 0, 0));
      Carrier carrier(context);
      carrier.looks = true;
      int loaded = 0;
      before = [&](Symbol symbol) { loaded += symbol == Symbol::k_cuModuleLoadData ? 1 : 0; };
      const CUdeviceptr block = allocate(4 * kMiB, 9);
      there_and_back(carrier);
      EXPECT(there_and_back(carrier).without_copy == 4 * kMiB);
      EXPECT(loaded == 1);
      before = [](Symbol) {};
      expect_pattern(block, 4 * kMiB, 9, "after two swaps");
      EXPECT_OK(cu.cuCtxDestroy_v2(context));
    }
  });
}

TEST_CASE("a copy that the host has taken back is made anew") {
  check([] {
    Carrier carrier(enter(0));
    carrier.looks = true;
    const std::vector<unsigned> words = words_of(8 * kMiB, 11);
    const CUdeviceptr block = allocate_words(words);
    there_and_back(carrier);
    EXPECT(swap().give_host_back() == 8 * kMiB);
    EXPECT(there_and_back(carrier).bytes == 8 * kMiB);
    expect_words(block, words, "after its copy was gone");
    EXPECT(there_and_back(carrier).without_copy == 8 * kMiB);
  });
}

TEST_CASE("memory whose examination cannot be seen to end stays mapped until the kernels that read it have ended") {
  check([] {
    Carrier carrier(enter(0));
    std::vector<CUdeviceptr> blocks;
    for (int number = 0; number < 30; ++number) blocks.push_back(allocate(6 * kMiB, 1));
    // From now on their memory on the host exists, so copies are fast.
    EXPECT(!swap().evict(0, kAll, carrier.mover()).failed);
    swap().restore(0, carrier.mover());
    EXPECT(swap().use_if_in_place(rota::memory::kAllDevices, [] {}));
    carrier.looks = true;
    bool launched = false;
    before = [&](Symbol symbol) {
      if (symbol != Symbol::k_cuLaunchKernel || launched) return;
      launched = true;
      fails_at = {{Symbol::k_cuEventQuery, 1}};  // once
    };
    // Evicts with copies, which overtake the kernels.
    EXPECT(!swap().evict(0, kAll, carrier.mover()).failed);
    before = [](Symbol) {};
    EXPECT_OK(cu.cuCtxSynchronize());
    for (int tries = 0; tries < 3 && !swap().all_in_place(); ++tries) swap().restore(0, carrier.mover());
    EXPECT(swap().use_if_in_place(rota::memory::kAllDevices, [] {}));
    for (const CUdeviceptr block : blocks) expect_pattern(block, 6 * kMiB, 1, "after the swap");
  });
}

TEST_CASE("memory that can be evicted without host memory is, although something smaller cannot be") {
  check([] {
    Carrier carrier(enter(0));
    carrier.looks = true;
    const CUdeviceptr large = allocate(16 * kMiB, 1);
    EXPECT_OK(cu.cuCtxSynchronize());
    swap().evict(0, kAll, carrier.mover());
    swap().restore(0, carrier.mover());
    EXPECT(swap().use_if_in_place(rota::memory::kAllDevices, [] {}));
    const CUdeviceptr small = allocate(4 * kMiB, 2);
    swap().host().set_left([] { return 0; });
    Swap::Moved moved;
    std::uint64_t went = 0;
    for (int attempt = 0; attempt < 10 && went == 0; ++attempt) {
      moved = swap().evict(0, 2 * kMiB, carrier.mover());
      went = moved.bytes + moved.without_copy;
    }
    EXPECT(went == 16 * kMiB);
    swap().restore(0, carrier.mover());
    expect_pattern(large, 16 * kMiB, 1, "large");
    expect_pattern(small, 4 * kMiB, 2, "small");
  });
}
