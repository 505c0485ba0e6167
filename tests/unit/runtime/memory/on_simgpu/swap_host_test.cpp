// Extents on a host that has little memory, where evicted memory needs a place.
#include <catch2/catch.hpp>

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "tests/unit/runtime/memory/on_simgpu/moving.h"

using namespace rota;
using namespace rota::test;

namespace {

// The host has this much memory for all of these together.
void limit_host(std::uint64_t bytes, const std::vector<Swap*>& all) {
  for (Swap* one : all) {
    one->host().set_left([bytes, all] {
      std::uint64_t taken = 0;
      for (const Swap* each : all) taken += const_cast<Swap*>(each)->host().bytes();
      return bytes - std::min(bytes, taken);
    });
  }
}

}  // namespace

TEST_CASE("where the host has no more memory, memory that already has its place there is still evicted") {
  check([] {
    const CUcontext context = enter(0);
    Carrier carrier(context);
    const CUdeviceptr known = allocate(4 * kMiB, 1);
    swap().evict(0, kAll, carrier.mover());
    swap().restore(0, carrier.mover());
    EXPECT(swap().use_if_in_place(rota::memory::kAllDevices, [] {}));
    const CUdeviceptr fresh = allocate(8 * kMiB, 2);
    limit_host(0, {&swap()});
    const Swap::Moved moved = swap().evict(0, kAll, carrier.mover());
    EXPECT(moved.lacks_host && !moved.failed);
    EXPECT(moved.bytes == 4 * kMiB);
    EXPECT(swap().out_bytes(0) == 4 * kMiB);
    swap().restore(0, carrier.mover());
    expect_pattern(known, 4 * kMiB, 1, "after the swap");
    expect_pattern(fresh, 8 * kMiB, 2, "after the swap");
  });
}

TEST_CASE("host memory that is kept for extents of another size is given up when there is no more") {
  check([] {
    const CUcontext context = enter(0);
    Carrier carrier(context);
    const CUdeviceptr freed = allocate(6 * kMiB, 1);
    swap().evict(0, kAll, carrier.mover());
    EXPECT_OK(cu.cuMemFree_v2(freed));  // its host memory is cached
    EXPECT(swap().host().cached_bytes() == 6 * kMiB);
    allocate(8 * kMiB, 2);
    limit_host(10 * kMiB, {&swap()});
    const Swap::Moved moved = swap().evict(0, kAll, carrier.mover());
    EXPECT(!moved.failed && !moved.lacks_host);
    EXPECT(moved.bytes == 8 * kMiB);
    EXPECT(swap().host().bytes() == 8 * kMiB);
  });
}

TEST_CASE("host memory that the driver does not pin is still used") {
  check([] {
    const CUcontext context = enter(0);
    Carrier carrier(context);
    const CUdeviceptr block = allocate(8 * kMiB, 1);
    fails_at = {{Symbol::k_cuMemHostRegister_v2, kAlways}};
    const Swap::Moved moved = swap().evict(0, kAll, carrier.mover());
    EXPECT(!moved.failed && !moved.lacks_host);
    EXPECT(moved.bytes == 8 * kMiB);
    swap().restore(0, carrier.mover());
    EXPECT(swap().all_in_place());
    expect_pattern(block, 8 * kMiB, 1, "after the swap");
    EXPECT_OK(cu.cuMemFree_v2(block));
    EXPECT_EMPTY_BOOKS();
  });
}

TEST_CASE("host memory that is prepared is pinned once it is needed, and not before") {
  check([] {
    Carrier carrier(enter(0));
    allocate(8 * kMiB, 1);
    allocate(20 * kMiB, 2);
    int pinned = 0;
    before = [&](Symbol symbol) { pinned += symbol == Symbol::k_cuMemHostRegister_v2 ? 1 : 0; };
    int calls = 0;
    while (swap().prepare_host({{0, kAll}})) ++calls;
    EXPECT(calls == 1 + 3);  // 8 MiB at a time
    EXPECT(pinned == 0);
    EXPECT(swap().host().cached_bytes() == 28 * kMiB && swap().host().bytes() == 28 * kMiB);
    for (int round = 0; round < 2; ++round) {
      EXPECT(swap().evict(0, kAll, carrier.mover()).bytes == 28 * kMiB);
      EXPECT(pinned == 2);
      EXPECT(swap().host().cached_bytes() == 0 && swap().host().bytes() == 28 * kMiB);
      swap().restore(0, carrier.mover());
      EXPECT(swap().use_if_in_place(rota::memory::kAllDevices, [] {}));
    }
    EXPECT(!swap().prepare_host({{0, kAll}}));
    EXPECT(swap().give_host_back() == 28 * kMiB);
    EXPECT(swap().host().bytes() == 0);
  });
}

TEST_CASE("no more host memory is prepared than may be needed for evictions, nor what the host cannot spare") {
  check([] {
    enter(0);
    for (int number = 0; number < 4; ++number) allocate(16 * kMiB, 1);
    while (swap().prepare_host({{0, 30 * kMiB}})) {
    }
    EXPECT(swap().host().bytes() == 32 * kMiB);
    EXPECT(swap().prepare_host({{0, kAll}}));
    EXPECT(swap().host().bytes() == 48 * kMiB);
    limit_host(1 << 30, {&swap()});
    EXPECT(!swap().prepare_host({{0, kAll}}));  // and what was begun has been undone
    EXPECT(swap().host().bytes() == 32 * kMiB);
    EXPECT(swap().host().trim() == 32 * kMiB);
    EXPECT(swap().host().bytes() == 0);
  });
}

TEST_CASE("memory that was restored and not used is evicted without a copy, and used memory is copied") {
  check([] {
    const CUcontext context = enter(0);
    Carrier carrier(context);
    const CUdeviceptr block = allocate(8 * kMiB, 1);
    EXPECT(swap().evict(0, kAll, carrier.mover()).bytes == 8 * kMiB);
    EXPECT(swap().restore(0, carrier.mover()).bytes == 8 * kMiB);
    fails_at = {{Symbol::k_cuMemcpyDtoHAsync_v2, kAlways}};
    const Swap::Moved back = swap().evict(0, kAll, carrier.mover());
    fails_at.clear();
    EXPECT(!back.failed && back.bytes == 0 && back.without_copy == 8 * kMiB);
    EXPECT(swap().resident_bytes(0) == 0 && swap().out_bytes(0) == 8 * kMiB);
    swap().restore(0, carrier.mover());
    expect_pattern(block, 8 * kMiB, 1, "after it came in twice");
    EXPECT(swap().use_if_in_place(rota::memory::kAllDevices, [] {}));
    EXPECT_OK(cu.cuMemsetD8_v2(block, 2, 8 * kMiB));
    EXPECT_OK(cu.cuCtxSynchronize());
    EXPECT(swap().evict(0, kAll, carrier.mover()).bytes == 8 * kMiB);
    swap().restore(0, carrier.mover());
    expect_pattern(block, 8 * kMiB, 2, "after it was used");
  });
}

namespace {

// The memory of programs without turns: the test restores and uses it.
struct Swapped {
  Swapped(CUcontext context, int count, std::uint64_t size) : bytes(size) {
    EXPECT(swap.serves(0));
    for (int number = 0; number < count; ++number) {
      CUdeviceptr address = 0;
      EXPECT_OK(swap.allocate({context, 0}, &address, size));
      blocks.push_back(address);
    }
  }
  void write(unsigned char pattern) {
    EXPECT(swap.use_if_in_place(rota::memory::kAllDevices, [] {}));
    for (const CUdeviceptr block : blocks) EXPECT_OK(real::cuMemsetD8_v2(block, pattern++, bytes));
    EXPECT_OK(cu.cuCtxSynchronize());
  }
  void check(unsigned char pattern) const {
    for (const CUdeviceptr block : blocks) {
      unsigned char seen[2] = {};
      EXPECT_OK(real::cuMemcpyDtoH_v2(&seen[0], block, 1));
      EXPECT_OK(real::cuMemcpyDtoH_v2(&seen[1], block + bytes - 1, 1));
      EXPECT(seen[0] == pattern && seen[1] == pattern);
      ++pattern;
    }
  }
  Swap swap{no_turn};
  std::uint64_t bytes;
  std::vector<CUdeviceptr> blocks;
};

// One has its turn: it restores what there is room for, and the other evicts what is asked for, as the host allows.
bool change_places(Swapped& coming, Swapped& leaving, Carrier& carrier) {
  for (int round = 0; round < 50; ++round) {
    const Swap::Moved came = coming.swap.restore(0, carrier.mover());
    if (coming.swap.all_in_place()) return true;
    leaving.swap.evict(0, came.lacking, carrier.mover());
  }
  return false;
}

}  // namespace

TEST_CASE("two programs change places on a full GPU with one spare extent on the host") {
  check([] {
    Carrier carrier(enter(0));
    Swapped one(carrier.context, 10, 16 * kMiB);
    Swapped other(carrier.context, 10, 16 * kMiB);
    // 320 MiB on 256: five of these extents have to be on the host at any time, and there is room for six.
    limit_host(6 * 16 * kMiB + 2 * kMiB, {&one.swap, &other.swap});
    EXPECT(change_places(one, other, carrier));
    one.write(1);
    EXPECT(change_places(other, one, carrier));
    other.write(101);
    for (int turn = 0; turn < 3; ++turn) {
      EXPECT(change_places(one, other, carrier));
      EXPECT(one.swap.use_if_in_place(rota::memory::kAllDevices, [] {}));
      one.check(1);
      EXPECT(change_places(other, one, carrier));
      EXPECT(other.swap.use_if_in_place(rota::memory::kAllDevices, [] {}));
      other.check(101);
    }
  });
}

TEST_CASE("on a full GPU and a host without memory, the program that ran last can always run again") {
  check([] {
    Carrier carrier(enter(0));
    Swapped one(carrier.context, 10, 16 * kMiB);
    Swapped other(carrier.context, 10, 16 * kMiB);
    limit_host(0, {&one.swap, &other.swap});
    EXPECT(change_places(one, other, carrier));
    one.write(1);
    EXPECT(!change_places(other, one, carrier));
    EXPECT(change_places(one, other, carrier));
    EXPECT(one.swap.use_if_in_place(rota::memory::kAllDevices, [] {}));
    one.check(1);
  });
}

TEST_CASE("memory of the host is no part of a forked child, and begins where huge pages do") {
  check([] {
    enter(0);
    void* const block = swap().host().take(2 * kMiB);
    EXPECT(block != nullptr && reinterpret_cast<std::uintptr_t>(block) % (2 * kMiB) == 0);
    int ends[2] = {};
    EXPECT(pipe(ends) == 0);
    const pid_t child = fork();
    // The kernel reads a byte of it: 1 if there is none.
    if (child == 0) _exit(write(ends[1], block, 1) == -1 && errno == EFAULT ? 1 : 2);
    int status = 0;
    EXPECT(waitpid(child, &status, 0) == child);
    EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 1);
    swap().host().give(block, 2 * kMiB);
  });
}

TEST_CASE("copies that nobody would read go back to a host that is low on memory, and those that count stay") {
  check([] {
    const CUcontext context = enter(0);
    Carrier carrier(context);
    const CUdeviceptr used = allocate(8 * kMiB, 1);
    swap().evict(0, kAll, carrier.mover());
    swap().restore(0, carrier.mover());
    EXPECT(swap().use_if_in_place(rota::memory::kAllDevices, [] {}));
    const CUdeviceptr out = allocate(4 * kMiB, 2);
    EXPECT(swap().evict(0, kAll, carrier.mover()).bytes == 12 * kMiB);
    EXPECT(swap().host().bytes() == 12 * kMiB);
    EXPECT(swap().give_host_back() == 0);
    swap().restore(0, carrier.mover());
    EXPECT(swap().give_host_back() == 0);  // as long as nothing has been used
    EXPECT(swap().use_if_in_place(rota::memory::kAllDevices, [] {}));
    EXPECT(swap().give_host_back() == 12 * kMiB);
    EXPECT(swap().host().bytes() == 0);
    expect_pattern(used, 8 * kMiB, 1, "after the swap");
    expect_pattern(out, 4 * kMiB, 2, "after the swap");
  });
}
