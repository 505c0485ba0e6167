// Host memory that is prepared before memory has to be evicted: no more than is needed and than the host can spare.
#include <catch2/catch.hpp>

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <vector>

#include "tests/unit/runtime/memory/on_simgpu/moving.h"

using namespace rota;
using namespace rota::test;

namespace {

// How much of this process is in memory.
std::uint64_t in_memory() {
  unsigned long total = 0;
  unsigned long resident = 0;
  std::FILE* const file = std::fopen("/proc/self/statm", "re");
  if (file == nullptr || std::fscanf(file, "%lu %lu", &total, &resident) != 2) note("no /proc/self/statm");
  if (file != nullptr) std::fclose(file);
  return std::uint64_t{resident} * 4096;
}

}  // namespace

TEST_CASE("a block that the host could not spare is not begun again at once") {
  check([] {
    enter(0);
    for (int number = 0; number < 3; ++number) allocate(64 * kMiB, 1);
    // As the machine counts: touched memory is no longer free. There is room for one block and most of another.
    const std::uint64_t before_it = in_memory();
    const std::uint64_t room = 2 * memory::HostPool::kLow + 64 * kMiB;
    swap().host().set_left([=] {
      const std::uint64_t taken = in_memory() - std::min(in_memory(), before_it);
      const std::uint64_t all = room / 9 * 10 + (64 + 40) * kMiB;
      return all - std::min(all, taken);
    });
    int steps = 0;
    for (int look = 0; look < 400; ++look) {
      if (swap().prepare_host({{0, kAll}})) ++steps;
    }
    // 64 MiB are 8 steps, and the rest of the room is 5.
    EXPECT(steps <= 20);
  });
}

TEST_CASE("a block that nothing has prepared is in memory when it is taken, whatever its size is") {
  check([] {
    enter(0);
    for (const std::uint64_t bytes : {2 * kMiB, 62 * kMiB, 98 * kMiB, 130 * kMiB, 98 * kMiB + 4096}) {
      void* const block = swap().host().take(bytes);
      EXPECT(block != nullptr);
      std::vector<unsigned char> pages(bytes / 4096);
      EXPECT(mincore(block, bytes, pages.data()) == 0);
      EXPECT(std::ranges::all_of(pages, [](unsigned char page) { return (page & 1) != 0; }));
      swap().host().end(block, bytes);
    }
  });
}

TEST_CASE("a block that is being prepared goes back to a host that is low") {
  check([] {
    enter(0);
    allocate(64 * kMiB, 1);
    EXPECT(swap().prepare_host({{0, kAll}}));
    EXPECT(swap().prepare_host({{0, kAll}}));
    EXPECT(swap().host().bytes() == 64 * kMiB);
    swap().host().set_left([] { return 100 * kMiB; });
    usleep(20'000);
    EXPECT(swap().host().low());
    swap().give_host_back();
    EXPECT(swap().host().bytes() == 0);
  });
}

TEST_CASE("a block that is being prepared and that nothing needs any more goes back") {
  check([] {
    enter(0);
    const CUdeviceptr block = allocate(64 * kMiB, 1);
    EXPECT(swap().prepare_host({{0, kAll}}));
    EXPECT_OK(cu.cuMemFree_v2(block));
    for (int look = 0; look < 10; ++look) swap().prepare_host({{0, kAll}});
    swap().host().trim();
    EXPECT(swap().host().bytes() == 0);
  });
}

TEST_CASE("no host memory is prepared for zeros") {
  check([] {
    Carrier carrier(enter(0));
    carrier.looks = true;
    allocate(64 * kMiB, 0);
    for (int round = 0; round < 2; ++round) {
      EXPECT_OK(cu.cuCtxSynchronize());
      EXPECT(swap().evict(0, kAll, carrier.mover()).without_copy == 64 * kMiB);
      swap().restore(0, carrier.mover());
      EXPECT(swap().use_if_in_place(rota::memory::kAllDevices, [] {}));
    }
    while (swap().prepare_host({{0, kAll}})) {
    }
    EXPECT(swap().host().bytes() == 0);
  });
}

TEST_CASE("what is ready for one GPU does not count for another") {
  check([] {
    for (const int device : {0, 1}) {
      enter(device);
      allocate(64 * kMiB, 1);
    }
    while (swap().prepare_host({{0, 64 * kMiB}, {1, 64 * kMiB}})) {
    }
    EXPECT(swap().host().bytes() == 128 * kMiB);
  });
}
