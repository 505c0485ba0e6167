// Memory that goes from one process to another while it swaps, here from a process to itself: what comes back is right,
// whatever arrives in its place. The test moves extents itself, as the monitor does.
#include <catch2/catch.hpp>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <deque>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <vector>

#include "generated/driver_real.h"
#include "tests/unit/runtime/memory/on_simgpu/machine.h"

using namespace rota;
using namespace rota::test;

namespace {

using driver::Handed;
using driver::MemoryDescriptor;
using memory::SwapBackend;

constexpr std::uint64_t kAll = UINT64_MAX / 2;
constexpr std::uint64_t kPiece = 32 * kMiB;

SwapBackend& extents() {
  return runtime().memory.swap();
}

driver::SharedDescriptor shared(int descriptor) {
  return std::make_shared<const MemoryDescriptor>(Descriptor(descriptor));
}

// What is given away waits here until it is taken.
struct Between {
  std::deque<Handed> pieces;
  api::CUstream stream = nullptr;

  Between() { EXPECT_OK(real::cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING)); }
  SwapBackend::Mover mover() {
    return {.within =
                [](const std::function<void()>& step) {
                  step();
                  return true;
                },
            .stopping = [] { return false; },
            .stream = stream,
            .exchange = {.give =
                             [this](int memory, std::uint64_t bytes) {
                               pieces.push_back({bytes, shared(fcntl(memory, F_DUPFD_CLOEXEC, 0))});
                               return true;
                             },
                         .take = [this]() -> std::optional<Handed> {
                           if (pieces.empty()) return std::nullopt;
                           Handed first = std::move(pieces.front());
                           pieces.pop_front();
                           return first;
                         }}};
  }
  SwapBackend::Moved out() { return extents().move_out(0, kAll, mover()); }
  SwapBackend::Moved in() { return extents().bring_in(0, mover()); }
};

CUdeviceptr allocate(unsigned char pattern) {
  CUdeviceptr address = 0;
  EXPECT_OK(cu.cuMemAlloc_v2(&address, kPiece));
  EXPECT_OK(cu.cuMemsetD8_v2(address, pattern, kPiece));
  EXPECT_OK(cu.cuCtxSynchronize());
  return address;
}

bool holds(CUdeviceptr address, unsigned char pattern) {
  const std::vector<unsigned char> expected(kPiece, pattern);
  std::vector<unsigned char> seen(kPiece, static_cast<unsigned char>(~pattern));
  EXPECT_OK(cu.cuMemcpyDtoH_v2(seen.data(), address, kPiece));
  return std::memcmp(seen.data(), expected.data(), kPiece) == 0;
}

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

void check(const std::function<void()>& program) {
  CHECK(on_simgpu({.mode = Mode::kSwap, .limit = "", .replace = {}, .neighbour = {}}, program) == "");
}

}  // namespace

TEST_CASE("extents come back in memory that was handed over, each with its own contents, again and again") {
  check([] {
    enter(0);
    Between between;
    const CUdeviceptr first = allocate(1);
    const CUdeviceptr second = allocate(2);
    for (int round = 0; round < 5; ++round) {
      EXPECT(between.out().bytes == 2 * kPiece);
      EXPECT(between.pieces.size() == 2);
      std::swap(between.pieces.front(), between.pieces.back());  // each in the other's memory
      const SwapBackend::Moved back = between.in();
      EXPECT(back.bytes == 2 * kPiece && back.taken_over == 2 * kPiece && !back.failed);
      EXPECT(holds(first, 1) && holds(second, 2));
      EXPECT(runtime().memory.swap().use_if_in_place([] {}));  // else it would leave without a copy
    }
    EXPECT_OK(cu.cuMemFree_v2(first));
    EXPECT_OK(cu.cuMemFree_v2(second));
    EXPECT_EMPTY_BOOKS();
  });
}

TEST_CASE("memory that came by a descriptor and leaves without a copy is not kept alive by the descriptor") {
  check([] {
    enter(0);
    Between between;
    const CUdeviceptr first = allocate(1);
    const CUdeviceptr second = allocate(2);
    between.out();
    EXPECT(between.in().taken_over == 2 * kPiece);
    EXPECT(descriptors_of_gpu_memory() >= 2);
    // As it came, since nobody has used it.
    EXPECT(between.out().without_copy == 2 * kPiece);
    EXPECT(between.pieces.empty());
    EXPECT(descriptors_of_gpu_memory() == 0);
    EXPECT(extents().resident_bytes(0) == 0);
    EXPECT(between.in().bytes == 2 * kPiece);
    EXPECT(holds(first, 1) && holds(second, 2));
  });
}

TEST_CASE("what arrives and is not what its sender said is not used") {
  check([] {
    enter(0);
    Between between;
    const CUdeviceptr memory = allocate(1);
    EXPECT(between.out().bytes == kPiece);
    between.pieces.front().bytes = kPiece / 2;  // of no use for this extent
    const Handed real = between.pieces.front();
    between.pieces.push_back({kPiece, shared(memfd_create("nothing", MFD_CLOEXEC))});
    api::CUmemGenericAllocationHandle small = 0;
    const api::CUmemAllocationProp exportable = memory::physical_properties(0, true);
    EXPECT_OK(real::cuMemCreate(&small, 2 * kMiB, &exportable, 0));
    int number = -1;
    EXPECT_OK(real::cuMemExportToShareableHandle(&number, small, api::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    between.pieces.push_back({kPiece, shared(number)});
    EXPECT_OK(real::cuMemRelease(small));
    const SwapBackend::Moved back = between.in();
    EXPECT(back.bytes == kPiece && back.taken_over == 0 && !back.failed);
    EXPECT(holds(memory, 1));
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
