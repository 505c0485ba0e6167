// Attacks on memory that leaves the GPU without a copy, and on the room that is prepared for it on the host.
#include <catch2/catch.hpp>

#include <unistd.h>

#include <cstdio>
#include <thread>
#include <utility>
#include <vector>

#include "tests/unit/runtime/memory/on_simgpu/moving.h"

using namespace rota;
using namespace rota::test;

namespace {

// What of this process lies in memory.
std::uint64_t in_memory() {
  unsigned long total = 0;
  unsigned long resident = 0;
  std::FILE* const file = std::fopen("/proc/self/statm", "re");
  if (file == nullptr || std::fscanf(file, "%lu %lu", &total, &resident) != 2) note("no /proc/self/statm");
  if (file != nullptr) std::fclose(file);
  return std::uint64_t{resident} * 4096;
}

}  // namespace

TEST_CASE("a look whose end cannot be learned leaves what it reads mapped until its kernels have ended") {
  check([] {
    Carrier carrier(enter(0));
    std::vector<CUdeviceptr> blocks;
    for (int number = 0; number < 30; ++number) blocks.push_back(allocate(6 * kMiB, 1));
    // Their places on the host are there from now on: copies are fast.
    EXPECT(!swap().move_out(0, kAll, carrier.mover()).failed);
    swap().bring_in(0, carrier.mover());
    EXPECT(swap().use_if_in_place([] {}));
    carrier.looks = true;
    bool launched = false;
    before = [&](Symbol symbol) {
      if (symbol != Symbol::k_cuLaunchKernel || launched) return;
      launched = true;
      fails_at = {{Symbol::k_cuEventQuery, 1}};  // once
    };
    // Leaves by copies, which overtake the kernels.
    EXPECT(!swap().move_out(0, kAll, carrier.mover()).failed);
    before = [](Symbol) {};
    EXPECT_OK(cu.cuCtxSynchronize());
    for (int tries = 0; tries < 3 && !swap().in_place(); ++tries) swap().bring_in(0, carrier.mover());
    EXPECT(swap().use_if_in_place([] {}));
    for (const CUdeviceptr block : blocks) expect_pattern(block, 6 * kMiB, 1, "after the swap");
  });
}

TEST_CASE("a block that the host could not spare is not begun again at once") {
  check([] {
    enter(0);
    for (int number = 0; number < 3; ++number) allocate(64 * kMiB, 1);
    // As the machine counts: what is touched is gone. There is room for one block and most of another.
    const std::uint64_t before_it = in_memory();
    const std::uint64_t room = 2 * memory::HostPool::kLow + 64 * kMiB;
    swap().host().set_left([=] {
      const std::uint64_t taken = in_memory() - std::min(in_memory(), before_it);
      const std::uint64_t all = room / 9 * 10 + (64 + 40) * kMiB;
      return all - std::min(all, taken);
    });
    int steps = 0;
    int given_up = 0;
    for (int look = 0; look < 400; ++look) {
      if (swap().prepare_host(0, kAll)) {
        ++steps;
      } else {
        ++given_up;
      }
    }
    // 64 MiB are 8 steps, and the rest of the room is 5.
    note(fmt::format("{} steps of 8 MiB, given up {} times, {} MiB held", steps, given_up,
                     swap().host().bytes() / kMiB));
    EXPECT(steps <= 20);
  });
}

TEST_CASE("what is prepared goes back when the host becomes low") {
  check([] {
    enter(0);
    for (int number = 0; number < 2; ++number) allocate(64 * kMiB, 1);
    while (swap().prepare_host(0, kAll)) {
    }
    EXPECT(swap().host().bytes() == 128 * kMiB);
    swap().host().set_left([] { return 100 * kMiB; });
    usleep(20'000);
    EXPECT(swap().host().low());
    EXPECT(!swap().prepare_host(0, kAll));
    EXPECT(swap().host().bytes() == 0);
  });
}

TEST_CASE("what can leave without any memory of the host does, though something smaller cannot leave") {
  check([] {
    Carrier carrier(enter(0));
    carrier.looks = true;
    const CUdeviceptr large = allocate(16 * kMiB, 1);
    EXPECT_OK(cu.cuCtxSynchronize());
    swap().move_out(0, kAll, carrier.mover());
    swap().bring_in(0, carrier.mover());
    EXPECT(swap().use_if_in_place([] {}));
    const CUdeviceptr small = allocate(4 * kMiB, 2);
    swap().host().set_left([] { return 0; });
    Swap::Moved moved;
    std::uint64_t went = 0;
    for (int attempt = 0; attempt < 10 && went == 0; ++attempt) {
      moved = swap().move_out(0, 2 * kMiB, carrier.mover());
      went = moved.bytes + moved.without_copy;
    }
    EXPECT(went == 16 * kMiB);
    swap().bring_in(0, carrier.mover());
    expect_pattern(large, 16 * kMiB, 1, "large");
    expect_pattern(small, 4 * kMiB, 2, "small");
  });
}

TEST_CASE("a block that is being prepared goes back to a host that is low") {
  check([] {
    enter(0);
    allocate(64 * kMiB, 1);
    EXPECT(swap().prepare_host(0, kAll));
    EXPECT(swap().prepare_host(0, kAll));
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
    EXPECT(swap().prepare_host(0, kAll));
    EXPECT_OK(cu.cuMemFree_v2(block));
    for (int look = 0; look < 10; ++look) swap().prepare_host(0, kAll);
    swap().host().trim();
    EXPECT(swap().host().bytes() == 0);
  });
}

TEST_CASE("zeros have no room prepared for them") {
  check([] {
    Carrier carrier(enter(0));
    carrier.looks = true;
    allocate(64 * kMiB, 0);
    for (int round = 0; round < 2; ++round) {
      EXPECT_OK(cu.cuCtxSynchronize());
      EXPECT(swap().move_out(0, kAll, carrier.mover()).without_copy == 64 * kMiB);
      swap().bring_in(0, carrier.mover());
      EXPECT(swap().use_if_in_place([] {}));
    }
    while (swap().prepare_host(0, kAll)) {
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
    for (int round = 0; round < 2; ++round) {
      for (const int device : {0, 1}) {
        while (swap().prepare_host(device, 64 * kMiB)) {
        }
      }
    }
    EXPECT(swap().host().bytes() == 128 * kMiB);
  });
}
