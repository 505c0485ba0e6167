// Memory that goes from one process to another while it swaps, here from a process to itself: what comes back is right,
// whatever arrives in its place. The test moves extents itself, as the monitor does.
#include <catch2/catch.hpp>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <deque>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <system_error>

#include "tests/unit/runtime/memory/on_simgpu/moving.h"

using namespace rota;
using namespace rota::test;

namespace {

using driver::Handed;
using driver::MemoryDescriptor;

constexpr std::uint64_t kPiece = 32 * kMiB;

driver::SharedDescriptor shared(int descriptor) {
  return std::make_shared<const MemoryDescriptor>(Descriptor(descriptor));
}

// What is given away waits here until it is taken.
struct Between {
  std::deque<Handed> pieces;
  Carrier carrier{enter(0)};

  Swap::Mover mover() {
    Swap::Mover mover = carrier.mover();
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
  Swap::Moved out() { return swap().move_out(0, kAll, mover()); }
  Swap::Moved in() { return swap().bring_in(0, mover()); }
};

// That this process has open.
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

TEST_CASE("extents come back in memory that was handed over, each with its own contents, again and again") {
  check([] {
    Between between;
    const CUdeviceptr first = allocate(kPiece, 1);
    const CUdeviceptr second = allocate(kPiece, 2);
    for (int round = 0; round < 5; ++round) {
      EXPECT(between.out().bytes == 2 * kPiece);
      EXPECT(between.pieces.size() == 2);
      std::swap(between.pieces.front(), between.pieces.back());  // each in the other's memory
      const Swap::Moved back = between.in();
      EXPECT(back.bytes == 2 * kPiece && back.taken_over == 2 * kPiece && !back.failed);
      expect_pattern(first, kPiece, 1, "the first");
      expect_pattern(second, kPiece, 2, "the second");
      EXPECT(swap().use_if_in_place([] {}));  // else it would leave without a copy
    }
    EXPECT_OK(cu.cuMemFree_v2(first));
    EXPECT_OK(cu.cuMemFree_v2(second));
    EXPECT_EMPTY_BOOKS();
  });
}

TEST_CASE("memory that came by a descriptor and leaves without a copy is not kept alive by the descriptor") {
  check([] {
    Between between;
    const CUdeviceptr first = allocate(kPiece, 1);
    const CUdeviceptr second = allocate(kPiece, 2);
    between.out();
    EXPECT(between.in().taken_over == 2 * kPiece);
    EXPECT(descriptors_of_gpu_memory() >= 2);
    // As it came, since nobody has used it.
    EXPECT(between.out().without_copy == 2 * kPiece);
    between.pieces.clear();
    EXPECT(descriptors_of_gpu_memory() == 0);
    EXPECT(swap().resident_bytes(0) == 0);
    EXPECT(between.in().bytes == 2 * kPiece);
    expect_pattern(first, kPiece, 1, "the first");
    expect_pattern(second, kPiece, 2, "the second");
  });
}

TEST_CASE("what leaves without a copy is handed over as well: what was not used, and what was kept") {
  // Of a GPU of this size as much is kept as can be handed over.
  check(
      [] {
        Between between;
        const CUdeviceptr first = allocate(kPiece, 1);
        const CUdeviceptr second = allocate(kPiece, 2);
        EXPECT_OK(cu.cuMemFree_v2(second));
        EXPECT(swap().resident_bytes(0) == 2 * kPiece && swap().needed_bytes(0) == kPiece);
        const Swap::Moved kept = swap().move_out(0, kPiece, between.mover());
        EXPECT(kept.without_copy == kPiece && kept.bytes == 0);
        EXPECT(between.pieces.size() == 1);
        EXPECT(swap().resident_bytes(0) == kPiece);
        EXPECT(between.out().bytes == kPiece);
        EXPECT(between.pieces.size() == 2);
        for (int round = 0; round < 3; ++round) {
          const Swap::Moved back = between.in();
          EXPECT(back.bytes == kPiece && back.taken_over == kPiece);
          EXPECT(between.pieces.empty());  // one was too many, and went to the driver
          // As it came, since nobody has used it.
          EXPECT(between.out().without_copy == kPiece);
          EXPECT(between.pieces.size() == 1);
          EXPECT(swap().resident_bytes(0) == 0);
        }
        between.in();
        expect_pattern(first, kPiece, 1, "after all");
        EXPECT_OK(cu.cuMemFree_v2(first));
        EXPECT_EMPTY_BOOKS();
      },
      64 * kPiece);
}

TEST_CASE("memory that came with somebody's contents and serves an allocation that is new is zero") {
  check([] {
    Between between;
    const CUdeviceptr first = allocate(kPiece, 7);
    EXPECT(between.out().bytes == kPiece);
    CUdeviceptr fresh = 0;
    {
      Swap other([](const memory::OwnWork&) {});  // whose gate is closed
      EXPECT(memory::BackendRoom(other, 0, kPiece).allocate({between.carrier.context, 0}, &fresh) == CUDA_SUCCESS);
      EXPECT(other.bring_in(0, between.mover()).taken_over == kPiece);
      expect_pattern(fresh, kPiece, 0, "fresh");
      other.free(fresh);
    }
    between.in();
    expect_pattern(first, kPiece, 7, "the giver's");
  });
}

TEST_CASE("what arrives and is not what its sender said is not used") {
  check([] {
    Between between;
    const CUdeviceptr memory = allocate(kPiece, 1);
    EXPECT(between.out().bytes == kPiece);
    between.pieces.front().bytes = kPiece / 2;  // of no use for this extent
    const Handed real = between.pieces.front();
    between.pieces.push_back({kPiece, shared(memfd_create("nothing", MFD_CLOEXEC))});
    api::CUmemGenericAllocationHandle small = 0;
    const api::CUmemAllocationProp exportable = memory::physical_properties(0, {.exportable = true});
    EXPECT_OK(real::cuMemCreate(&small, 2 * kMiB, &exportable, 0));
    int number = -1;
    EXPECT_OK(real::cuMemExportToShareableHandle(&number, small, api::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    between.pieces.push_back({kPiece, shared(number)});
    EXPECT_OK(real::cuMemRelease(small));
    const Swap::Moved back = between.in();
    EXPECT(back.bytes == kPiece && back.taken_over == 0 && !back.failed);
    expect_pattern(memory, kPiece, 1, "what was moved");
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
