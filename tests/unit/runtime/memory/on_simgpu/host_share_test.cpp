// Host memory that is shared with other programs: no more is taken than rotad allows, and what others need is given
// back as far as nothing is lost. And where its pages lie.
#include <catch2/catch.hpp>

#include <sys/syscall.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>

#include "runtime/monitor/bring_back.h"
#include "scheduler/protocol/pages.h"
#include "scheduler/protocol/protocol.h"
#include "tests/unit/runtime/memory/on_simgpu/moving.h"

using namespace rota;
using namespace rota::test;

namespace {

// rotad's pages, in the child.
protocol::LeasePage lease;
protocol::UsagePage usage;
int told = 0;

void allow(std::uint64_t most, std::uint64_t spare) {
  lease.host_spare_most_bytes = spare;
  lease.host_most_bytes = most;
  lease.host_limited = 1;
}

void follow() {
  swap().host().follow(&usage, &lease, [] { ++told; });
}

// Restores memory until the gate is open again. What is on the GPU then counts as used.
void come_back(Carrier& carrier) {
  swap().restore(0, carrier.mover());
  EXPECT(swap().use_if_in_place(rota::memory::kAllDevices, [] {}));
}

}  // namespace

TEST_CASE("no more of the host is taken than rotad allows, and rotad is told what is lacking") {
  check([] {
    Carrier carrier(enter(0));
    for (unsigned char number = 1; number <= 3; ++number) allocate(8 * kMiB, number);
    follow();
    allow(12 * kMiB, 12 * kMiB);
    const Swap::Moved moved = swap().evict(0, kAll, carrier.mover());
    EXPECT(moved.lacks_host && !moved.failed);
    EXPECT(moved.bytes == 8 * kMiB);
    EXPECT(usage.host_bytes == 8 * kMiB);
    EXPECT(usage.host_spare_bytes == 0);
    EXPECT(usage.host_lacking_bytes == 16 * kMiB);
    EXPECT(told > 0);
  });
}

TEST_CASE("an eviction waits for host memory that others give back, and goes on with it") {
  check([] {
    Carrier carrier(enter(0));
    std::vector<CUdeviceptr> blocks;
    for (unsigned char number = 1; number <= 3; ++number) blocks.push_back(allocate(8 * kMiB, number));
    follow();
    allow(8 * kMiB, 0);
    auto mover = carrier.mover();
    mover.stopping = [] {
      // As rotad does it, in steps, once it has been told.
      if (usage.host_lacking_bytes != 0) allow(usage.host_bytes + 8 * kMiB, 0);
      return false;
    };
    const Swap::Moved moved = swap().evict(0, kAll, mover);
    EXPECT(!moved.lacks_host && !moved.failed);
    EXPECT(moved.bytes == 24 * kMiB);
    EXPECT(usage.host_lacking_bytes == 0);
    swap().restore(0, carrier.mover());
    for (unsigned char number = 1; number <= 3; ++number) expect_pattern(blocks[number - 1], 8 * kMiB, number, "after");
  });
}

TEST_CASE("a copy that others need the place of is given up as soon as its memory has come in, unless work runs") {
  const bool needed = GENERATE(true, false);
  const bool idle = GENERATE(true, false);
  const bool stays = !needed || !idle;
  check([=] {
    Carrier carrier(enter(0));
    carrier.idle = idle;
    const CUdeviceptr one = allocate(8 * kMiB, 1);
    const CUdeviceptr other = allocate(4 * kMiB, 2);
    follow();
    allow(64 * kMiB, 64 * kMiB);
    EXPECT(swap().evict(0, kAll, carrier.mover()).bytes == 12 * kMiB);
    EXPECT(usage.host_bytes == 12 * kMiB && usage.host_spare_bytes == 0);
    allow(64 * kMiB, needed ? 0 : 64 * kMiB);
    swap().restore(0, carrier.mover());
    EXPECT(usage.host_bytes == (stays ? 12 : 0) * kMiB);
    EXPECT(usage.host_spare_bytes == usage.host_bytes);
    // Without its copy it cannot be evicted without copying.
    EXPECT(swap().evict(0, kAll, carrier.mover()).bytes == (stays ? 0 : 12) * kMiB);
    swap().restore(0, carrier.mover());
    expect_pattern(one, 8 * kMiB, 1, "after the swap");
    expect_pattern(other, 4 * kMiB, 2, "after the swap");
  });
}

TEST_CASE("copies that others need the places of stay while work of the process runs, and go once none does") {
  const bool idle = GENERATE(false, true);
  enum class Needed { kByOthers, kByTheHost, kByOthersWhileThereIsNoRoom };
  const Needed needed = GENERATE(Needed::kByOthers, Needed::kByTheHost, Needed::kByOthersWhileThereIsNoRoom);
  check([=] {
    Carrier carrier(enter(0));
    carrier.idle = idle;
    const CUdeviceptr stays = allocate(8 * kMiB, 1);
    const CUdeviceptr leaves = allocate(4 * kMiB, 2);
    follow();
    allow(64 * kMiB, 64 * kMiB);
    swap().host().set_left([] { return std::uint64_t{1} << 40; });
    swap().evict(0, kAll, carrier.mover());
    come_back(carrier);
    EXPECT(swap().evict(0, 4 * kMiB, carrier.mover()).bytes == 4 * kMiB);
    EXPECT(usage.host_bytes == 12 * kMiB);
    if (needed == Needed::kByTheHost) {
      swap().host().set_left([] { return std::uint64_t{1} << 20; });
      while (!swap().host().low()) std::this_thread::yield();  // it checks again after a few milliseconds
    } else {
      allow(64 * kMiB, 0);
    }
    if (needed == Needed::kByOthersWhileThereIsNoRoom) {
      fails_at = {{Symbol::k_cuMemCreate, kAlways}};
      fails_with = CUDA_ERROR_OUT_OF_MEMORY;
      EXPECT(swap().restore(0, carrier.mover()).lacking == 4 * kMiB);
      fails_at.clear();
      EXPECT(usage.host_bytes == (idle ? 4 : 12) * kMiB);
    } else {
      const auto nobody = [](int) { return memory::Exchange{}; };
      const auto goes_on = [] { return false; };
      monitor::bring_back(runtime().contexts, runtime().memory, {{0, kAll}}, nobody, goes_on, [=] { return idle; });
      EXPECT(usage.host_bytes == (idle ? 0 : 12) * kMiB);
    }
    swap().restore(0, carrier.mover());
    expect_pattern(stays, 8 * kMiB, 1, "after the swaps");
    expect_pattern(leaves, 4 * kMiB, 2, "after the swaps");
  });
}

TEST_CASE("the only copy of anything is never given back, and the most useful copies last") {
  check([] {
    Carrier carrier(enter(0));
    carrier.looks = true;
    const CUdeviceptr steady = allocate(8 * kMiB, 1);
    const CUdeviceptr changing = allocate(8 * kMiB, 2);
    follow();
    for (int round = 0; round < 2; ++round) {
      swap().evict(0, kAll, carrier.mover());
      EXPECT(swap().give_host_back(kAll, true) == 0);
      come_back(carrier);
      EXPECT_OK(cu.cuMemsetD8_v2(changing, static_cast<unsigned char>(10 + round), 8 * kMiB));
      EXPECT_OK(cu.cuCtxSynchronize());
    }
    swap().evict(0, kAll, carrier.mover());
    come_back(carrier);
    EXPECT(swap().give_host_back(1) == 8 * kMiB);
    EXPECT_OK(cu.cuMemsetD8_v2(changing, 12, 8 * kMiB));
    EXPECT_OK(cu.cuCtxSynchronize());
    const Swap::Moved moved = swap().evict(0, kAll, carrier.mover());
    EXPECT(moved.spared == 8 * kMiB && moved.bytes == 8 * kMiB);
    come_back(carrier);
    expect_pattern(steady, 8 * kMiB, 1, "after the swaps");
    expect_pattern(changing, 8 * kMiB, 12, "after the swaps");
  });
}

TEST_CASE("a copy that is given up while other memory is evicted does not count as there") {
  check([] {
    Carrier carrier(enter(0));
    carrier.looks = true;
    const CUdeviceptr leaves_first = allocate(8 * kMiB, 1);
    const CUdeviceptr unchanged = allocate(4 * kMiB, 2);
    swap().evict(0, kAll, carrier.mover());
    come_back(carrier);
    EXPECT_OK(cu.cuMemsetD8_v2(leaves_first, 3, 8 * kMiB));
    EXPECT_OK(cu.cuCtxSynchronize());
    // After both have been examined, before the second one is evicted.
    before = [](Symbol symbol) {
      if (symbol == Symbol::k_cuMemcpyDtoHAsync_v2) swap().give_host_back(kAll, true);
    };
    swap().evict(0, kAll, carrier.mover());
    before = [](Symbol) {};
    come_back(carrier);
    expect_pattern(leaves_first, 8 * kMiB, 3, "after the swap");
    expect_pattern(unchanged, 4 * kMiB, 2, "after the swap");
  });
}

TEST_CASE("a process without host memory gives up copies of memory on its other GPUs, not of what it evicts") {
  check([] {
    Carrier other(enter(1));
    const CUdeviceptr elsewhere = allocate(8 * kMiB, 1);
    swap().evict(1, kAll, other.mover());
    swap().restore(1, other.mover());
    Carrier carrier(enter(0));
    const CUdeviceptr here = allocate(8 * kMiB, 2);
    EXPECT(swap().use_if_in_place(rota::memory::kAllDevices, [] {}));
    follow();
    allow(8 * kMiB, 8 * kMiB);
    const Swap::Moved moved = swap().evict(0, kAll, carrier.mover());
    EXPECT(moved.bytes == 8 * kMiB && !moved.lacks_host);
    EXPECT(usage.host_bytes == 8 * kMiB);
    come_back(carrier);
    expect_pattern(here, 8 * kMiB, 2, "after the swap");
    enter(1);
    expect_pattern(elsewhere, 8 * kMiB, 1, "after the swap");
  });
}

TEST_CASE("host memory is prepared within the share, and prepared memory counts as reclaimable") {
  check([] {
    enter(0);
    for (int number = 0; number < 4; ++number) allocate(16 * kMiB, 1);
    follow();
    allow(100 * kMiB, 40 * kMiB);
    while (swap().prepare_host({{0, kAll}})) {
    }
    EXPECT(usage.host_bytes == 32 * kMiB && usage.host_spare_bytes == 32 * kMiB);
    EXPECT(swap().host().excess() == 0);
    allow(20 * kMiB, 40 * kMiB);
    EXPECT(swap().host().excess() == 12 * kMiB);
    EXPECT(swap().host().trim(12 * kMiB) == 16 * kMiB);
    EXPECT(usage.host_bytes == 16 * kMiB && swap().host().excess() == 0);
  });
}

TEST_CASE("without a rotad, or with one that says nothing of the host, there is no limit") {
  check([] {
    Carrier carrier(enter(0));
    allocate(8 * kMiB, 1);
    lease.host_most_bytes = 1;
    follow();
    EXPECT(!swap().host().limited());
    EXPECT(swap().evict(0, kAll, carrier.mover()).bytes == 8 * kMiB);
    allow(0, 0);
    EXPECT(swap().host().limited());
    swap().host().follow(nullptr, nullptr, {});
    EXPECT(!swap().host().limited() && swap().host().excess() == 0);
  });
}

TEST_CASE("under a limit a piece of the program's making that is larger than an extent stays on the GPU") {
  check(
      [] {
        enter(0);
        follow();
        CUmemAllocationProp what{};
        what.type = CU_MEM_ALLOCATION_TYPE_PINNED;
        what.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0};
        const auto moves = [&](std::uint64_t bytes) {
          CUmemGenericAllocationHandle handle = 0;
          EXPECT_OK(cu.cuMemCreate(&handle, bytes, &what, 0));
          const bool moving = swap().resident_bytes(0) != 0;
          EXPECT_OK(cu.cuMemRelease(handle));
          return moving;
        };
        EXPECT(moves(130 * kMiB));
        allow(kAll, kAll);
        EXPECT(!moves(130 * kMiB));
        EXPECT(moves(128 * kMiB));
      },
      512 * kMiB);
}

// --- its pages

namespace {

// What the kernel says about the mapping that holds an address, in this file of /proc/self.
std::string said_of(const char* name, const void* address) {
  std::ifstream file(std::string("/proc/self/") + name);
  std::string said;
  bool here = false;
  for (std::string line; std::getline(file, line);) {
    unsigned long begin = 0;
    unsigned long end = 0;
    const auto at = reinterpret_cast<std::uintptr_t>(address);
    const int found = std::sscanf(line.c_str(), "%lx-%lx ", &begin, &end);
    if (found == 2) here = at >= begin && at < end;
    if (std::string(name) == "numa_maps") here = std::sscanf(line.c_str(), "%lx ", &begin) == 1 && at == begin;
    if (here) said += line + "\n";
  }
  return said;
}

int node = -1;
CUresult (*ask_simgpu)(int* value, CUdevice_attribute attribute, CUdevice device);

// The NUMA node close to a GPU, on a driver that says so.
CUresult attribute_of(int* value, CUdevice_attribute attribute, CUdevice device) {
  if (attribute != CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID) return ask_simgpu(value, attribute, device);
  if (node == -2) return CUDA_ERROR_INVALID_VALUE;
  *value = node;
  return CUDA_SUCCESS;
}

std::string policy_of_a_block(int said) {
  node = said;
  const Machine machine{.mode = Mode::kSwap,
                        .limit = "",
                        .replace = [](Symbol symbol, void* simulated) -> void* {
                          if (symbol != Symbol::k_cuDeviceGetAttribute) return nullptr;
                          ask_simgpu = reinterpret_cast<decltype(ask_simgpu)>(simulated);
                          return reinterpret_cast<void*>(&attribute_of);
                        },
                        .neighbour = {}};
  return on_simgpu(machine, [] {
    enter(0);
    memory::HostPool& host = swap().host();
    host.set_left([] { return std::uint64_t{1} << 40; });
    void* const block = host.take(4 * kMiB, host.node_of(0));
    EXPECT(block != nullptr);
    std::istringstream words(said_of("numa_maps", block));
    std::string address;
    std::string policy;
    words >> address >> policy;
    note(policy);
    host.give(block, 4 * kMiB);
    EXPECT(host.cached(4 * kMiB, host.node_of(0)) == 1);
    EXPECT(host.cached(4 * kMiB, 7) == 0);
    EXPECT(host.take(4 * kMiB, host.node_of(0)) == block);
  });
}

// Whether this kernel reports the policy, and lets this process choose one.
bool has_policies() {
  unsigned long nodes = 1;
  constexpr int kPreferred = 1;
  void* const page = std::aligned_alloc(4096, 4096);
  const bool may = syscall(SYS_mbind, page, 4096, kPreferred, &nodes, 64, 0) == 0;
  std::free(page);
  return may && access("/proc/self/numa_maps", R_OK) == 0;
}

}  // namespace

TEST_CASE("memory of the host is in no core dump and in no forked child, and in huge pages where there are any") {
  check([] {
    enter(0);
    void* const block = swap().host().take(4 * kMiB);
    const std::string said = said_of("smaps", block);
    const std::string flags = said.substr(std::min(said.size(), said.find("VmFlags:")));
    EXPECT(flags.find(" dd") != std::string::npos);
    EXPECT(flags.find(" dc") != std::string::npos);
    const bool has_huge_pages = access("/sys/kernel/mm/transparent_hugepage", F_OK) == 0;
    EXPECT(!has_huge_pages || flags.find(" hg") != std::string::npos);
    swap().host().give(block, 4 * kMiB);
  });
}

TEST_CASE("memory of the host lies on the NUMA node that the driver names for the GPU, where it names one") {
  if (!has_policies()) {
    WARN("this kernel has no NUMA policies, or does not let this process choose one");
    return;
  }
  CHECK(policy_of_a_block(0) == "prefer:0\n");
  CHECK(policy_of_a_block(-1) == "default\n");
  CHECK(policy_of_a_block(-2) == "default\n");  // a driver that does not know the attribute
}
