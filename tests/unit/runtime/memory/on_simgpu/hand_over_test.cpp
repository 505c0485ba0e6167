// Physical memory that one process hands over to another while both swap; here a process hands it over to itself.
// Restored contents are right, whichever memory arrives. The test moves extents itself, as the monitor does.
#include <catch2/catch.hpp>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <deque>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "tests/unit/runtime/memory/on_simgpu/own_memory.h"

using namespace rota;
using namespace rota::test;

namespace {

using driver::Handed;
using driver::MemoryDescriptor;

constexpr std::uint64_t kLarge = 32 * kMiB;

driver::SharedDescriptor shared(int descriptor) {
  return std::make_shared<const MemoryDescriptor>(Descriptor(descriptor));
}

// Memory that is handed over waits here until it is taken.
struct Between {
  std::deque<Handed> pieces;
  Carrier carrier{enter(0)};

  Swap::Move mover() {
    Swap::Move mover = carrier.mover();
    mover.exchange = {
        .give = [this](int memory,
                       std::uint64_t bytes) { pieces.push_back({bytes, shared(fcntl(memory, F_DUPFD_CLOEXEC, 0))}); },
        .take = [this]() -> std::optional<Handed> {
          if (pieces.empty()) return std::nullopt;
          Handed first = std::move(pieces.front());
          pieces.pop_front();
          return first;
        }};
    return mover;
  }
  Swap::Moved out() { return swap().evict(0, kAll, mover()); }
  Swap::Moved in() { return swap().restore(0, mover()); }
};

// How many this process has open.
int descriptors_of_gpu_memory() {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    const std::string file = std::filesystem::read_symlink(entry.path(), gone).string();
    count += file.find("simgpu-physical") != std::string::npos ? 1 : 0;
  }
  return count;
}

}  // namespace

TEST_CASE("extents are restored in memory that was handed over, each with its own contents, again and again") {
  check([] {
    Between between;
    const CUdeviceptr first = allocate(kLarge, 1);
    const CUdeviceptr second = allocate(kLarge, 2);
    for (int round = 0; round < 5; ++round) {
      EXPECT(between.out().bytes == 2 * kLarge);
      EXPECT(between.pieces.size() == 2);
      std::swap(between.pieces.front(), between.pieces.back());  // each in the other's memory
      const Swap::Moved back = between.in();
      EXPECT(back.bytes == 2 * kLarge && back.taken_over == 2 * kLarge && !back.failed);
      expect_pattern(first, kLarge, 1, "the first");
      expect_pattern(second, kLarge, 2, "the second");
      EXPECT(swap().use_if_in_place(rota::memory::kAllDevices, [] {}));  // else it would leave without a copy
    }
    EXPECT_OK(cu.cuMemFree_v2(first));
    EXPECT_OK(cu.cuMemFree_v2(second));
    EXPECT_EMPTY_BOOKS();
  });
}

TEST_CASE("memory that arrives while the last copy is under way is put to use during that") {
  check([] {
    Between between;
    const CUdeviceptr first = allocate(kLarge, 1);
    const CUdeviceptr second = allocate(kLarge, 2);
    between.out();
    std::deque<Handed> later = std::exchange(between.pieces, {});
    later.pop_back();
    // Nothing ends in the mover's stream before both have been mapped.
    static std::atomic<int> mapped;
    mapped = 0;
    EXPECT_OK(cu.cuLaunchHostFunc(
        between.carrier.stream,
        [](void*) {
          while (mapped < 2) std::this_thread::yield();
        },
        nullptr));
    fails_with = CUDA_ERROR_OUT_OF_MEMORY;
    fails_at[Symbol::k_cuMemCreate] = 2;
    before = [&](Symbol symbol) {
      if (symbol == Symbol::k_cuMemSetAccess) ++mapped;
      if (symbol == Symbol::k_cuMemCreate && mapped == 1) std::swap(between.pieces, later);
    };
    const Swap::Moved back = between.in();
    before = [](Symbol) {};
    EXPECT(!back.failed && back.bytes == 2 * kLarge && back.taken_over == kLarge);
    expect_pattern(first, kLarge, 1, "the first");
    expect_pattern(second, kLarge, 2, "the second");
  });
}

TEST_CASE("a large move begins and ends with small extents, so that the next holder waits for less") {
  check(
      [] {
        Between between;
        const std::uint64_t bytes = 256 * kMiB;
        const CUdeviceptr first = allocate(bytes, 1);
        const CUdeviceptr second = allocate(bytes, 2);
        const CUdeviceptr third = allocate(20 * kMiB, 3);
        const auto left_in_order = [&](std::uint64_t most) {
          swap().evict(0, most, between.mover());
          std::vector<std::uint64_t> mib;
          for (const Handed& each : between.pieces) mib.push_back(each.bytes / kMiB);
          EXPECT(!between.in().failed && swap().use_if_in_place(rota::memory::kAllDevices, [] {}));
          return mib;
        };
        EXPECT((left_in_order(kAll) == std::vector<std::uint64_t>{32, 20, 128, 128, 128, 32, 32, 32}));
        EXPECT((left_in_order(100 * kMiB) == std::vector<std::uint64_t>{128}));
        expect_pattern(first, bytes, 1, "the first");
        expect_pattern(second, bytes, 2, "the second");
        expect_pattern(third, 20 * kMiB, 3, "the third");
        // The next large one begins small again once this one has ended.
        EXPECT_OK(cu.cuMemFree_v2(first));
        allocate(129 * kMiB, 4);
        EXPECT((left_in_order(kAll) == std::vector<std::uint64_t>{32, 20, 128, 128, 32, 32, 32}));
      },
      std::uint64_t{4} << 30);
}

TEST_CASE("memory that came by a descriptor and is evicted without a copy is not kept alive by the descriptor") {
  check([] {
    Between between;
    const CUdeviceptr first = allocate(kLarge, 1);
    const CUdeviceptr second = allocate(kLarge, 2);
    between.out();
    EXPECT(between.in().taken_over == 2 * kLarge);
    EXPECT(descriptors_of_gpu_memory() >= 2);
    // Without a copy, since nobody has used it.
    EXPECT(between.out().without_copy == 2 * kLarge);
    between.pieces.clear();
    EXPECT(descriptors_of_gpu_memory() == 0);
    EXPECT(swap().resident_bytes(0) == 0);
    EXPECT(between.in().bytes == 2 * kLarge);
    expect_pattern(first, kLarge, 1, "the first");
    expect_pattern(second, kLarge, 2, "the second");
  });
}

TEST_CASE("memory evicted without a copy is handed over as well: what was not used, and what was cached") {
  // On a GPU of this size as much is cached as can be handed over.
  check(
      [] {
        Between between;
        const CUdeviceptr first = allocate(kLarge, 1);
        const CUdeviceptr second = allocate(kLarge, 2);
        EXPECT_OK(cu.cuMemFree_v2(second));
        EXPECT(swap().resident_bytes(0) == 2 * kLarge && swap().needed_bytes(0) == kLarge);
        const Swap::Moved kept = swap().evict(0, kLarge, between.mover());
        EXPECT(kept.without_copy == kLarge && kept.bytes == 0);
        EXPECT(between.pieces.size() == 1);
        EXPECT(swap().resident_bytes(0) == kLarge);
        EXPECT(between.out().bytes == kLarge);
        EXPECT(between.pieces.size() == 2);
        for (int round = 0; round < 3; ++round) {
          const Swap::Moved back = between.in();
          EXPECT(back.bytes == kLarge && back.taken_over == kLarge);
          EXPECT(between.pieces.empty());  // one was too many, and went to the driver
          // Without a copy, since nobody has used it.
          EXPECT(between.out().without_copy == kLarge);
          EXPECT(between.pieces.size() == 1);
          EXPECT(swap().resident_bytes(0) == 0);
        }
        between.in();
        expect_pattern(first, kLarge, 1, "after all");
        EXPECT_OK(cu.cuMemFree_v2(first));
        EXPECT_EMPTY_BOOKS();
      },
      64 * kLarge);
}

TEST_CASE("memory that came with somebody's contents and serves an allocation that is new is zero") {
  check([] {
    Between between;
    const CUdeviceptr first = allocate(kLarge, 7);
    EXPECT(between.out().bytes == kLarge);
    CUdeviceptr fresh = 0;
    {
      Swap other(no_turn);
      EXPECT(memory::BackendReservation(other, 0, kLarge, 0).allocate({between.carrier.context, 0}, &fresh) ==
             CUDA_SUCCESS);
      EXPECT(other.restore(0, between.mover()).taken_over == kLarge);
      expect_pattern(fresh, kLarge, 0, "fresh");
      other.free(fresh);
    }
    between.in();
    expect_pattern(first, kLarge, 7, "the giver's");
  });
}

TEST_CASE("what arrives and is not what its sender said is not used") {
  check([] {
    Between between;
    const CUdeviceptr memory = allocate(kLarge, 1);
    EXPECT(between.out().bytes == kLarge);
    between.pieces.front().bytes = kLarge / 2;  // of no use for this extent
    const Handed real = between.pieces.front();
    between.pieces.push_back({kLarge, shared(memfd_create("nothing", MFD_CLOEXEC))});
    api::CUmemGenericAllocationHandle small = 0;
    const api::CUmemAllocationProp exportable = memory::physical_properties(0, {.exportable = true});
    EXPECT_OK(real::cuMemCreate(&small, 2 * kMiB, &exportable, 0));
    int number = -1;
    EXPECT_OK(real::cuMemExportToShareableHandle(&number, small, api::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    between.pieces.push_back({kLarge, shared(number)});
    EXPECT_OK(real::cuMemRelease(small));
    const Swap::Moved back = between.in();
    EXPECT(back.bytes == kLarge && back.taken_over == 0 && !back.failed);
    expect_pattern(memory, kLarge, 1, "what was moved");
  });
}

TEST_CASE("the child of a fork keeps no descriptor of GPU memory") {
  check([] {
    const driver::SharedDescriptor kept = shared(memfd_create("memory", MFD_CLOEXEC));
    const int number = kept->get();
    const pid_t child = fork();
    if (child == 0) {
      MemoryDescriptor::close_inherited();
      _exit(fcntl(number, F_GETFD) == -1 ? 0 : 1);
    }
    int status = -1;
    EXPECT(waitpid(child, &status, 0) == child && status == 0);
    EXPECT(fcntl(number, F_GETFD) >= 0);
  });
}

TEST_CASE("memory that the driver does not unmap has not left: it is not handed over, and stays as it was") {
  check([] {
    Between between;
    const CUdeviceptr plain = allocate(kLarge, 1);
    const CUdeviceptr place = map(create(kLarge), kLarge);
    fill(place, 2, kLarge);
    const std::size_t free_before = free_on_gpu();
    // A mapping of the second one has been removed already, and is restored.
    for (const int refused : {1, 2, kAlways}) {
      fails_at = {{Symbol::k_cuMemUnmap, refused}};
      const Swap::Moved moved = between.out();
      EXPECT(moved.failed && moved.error == CUDA_ERROR_UNKNOWN);
      EXPECT(swap().resident_bytes(0) + swap().out_bytes(0) == 2 * kLarge);
      EXPECT(between.pieces.size() == swap().out_bytes(0) / kLarge);
      EXPECT(free_on_gpu() == free_before + swap().out_bytes(0));
      if (refused == kAlways) EXPECT(swap().all_in_place() && swap().out_bytes(0) == 0);
      fails_at.clear();
      between.in();
      EXPECT(swap().use_if_in_place(rota::memory::kAllDevices, [] {}));
      expect_pattern(plain, kLarge, 1, "plain");
      expect_pattern(place, kLarge, 2, "of the program's own");
    }
    EXPECT(between.out().failed == false && between.pieces.size() == 2);
    EXPECT(between.in().taken_over == 2 * kLarge);
    expect_pattern(plain, kLarge, 1, "after all");
  });
}

TEST_CASE(
    "memory that cannot be mapped again where it was unmapped is of no use, and counts until the driver takes it") {
  check([] {
    Between between;
    const Handle handle = create(kLarge);
    const CUdeviceptr one = map(handle, kLarge);
    const CUdeviceptr other = map(handle, kLarge);
    fill(one, 3, kLarge);
    const std::size_t free_before = free_on_gpu();
    fails_at = {{Symbol::k_cuMemUnmap, 2}, {Symbol::k_cuMemMap, 2}};  // the first is the one for rota's copies
    EXPECT(between.out().failed);
    EXPECT(between.pieces.empty() && free_on_gpu() == free_before);
    EXPECT(swap().resident_bytes(0) == kLarge && swap().out_bytes(0) == kLarge);
    // It occupies the address of what is to be restored.
    fails_at = {{Symbol::k_cuMemUnmap, kAlways}};
    EXPECT(between.in().failed && !swap().all_in_place());
    EXPECT(free_before + kLarge == free_on_gpu() + swap().resident_bytes(0));
    fails_at.clear();
    const Swap::Moved back = between.in();
    EXPECT(!back.failed && back.bytes == kLarge && swap().all_in_place());
    EXPECT(swap().resident_bytes(0) == kLarge && swap().out_bytes(0) == 0 && free_on_gpu() == free_before);
    expect_pattern(one, kLarge, 3, "at the one address");
    expect_pattern(other, kLarge, 3, "at the other");
  });
}

TEST_CASE("memory that arrived, is of no use, and that the driver does not take back counts until it does") {
  check([] {
    Between between;
    const CUdeviceptr first = allocate(kLarge, 1);
    const CUdeviceptr second = allocate(kLarge, 2);
    const std::size_t free_before = free_on_gpu();
    between.out();
    EXPECT_OK(cu.cuMemFree_v2(second));
    fails_at = {{Symbol::k_cuMemRelease, 1}};
    EXPECT(between.in().taken_over == kLarge);
    EXPECT(swap().resident_bytes(0) == 2 * kLarge && free_on_gpu() == free_before);
    between.out();
    between.pieces.clear();
    EXPECT(swap().resident_bytes(0) == 0 && free_on_gpu() == free_before + 2 * kLarge);
    between.in();
    expect_pattern(first, kLarge, 1, "the other");
  });
}
