// Extents that leave the GPU and come back, while driver calls fail, the program frees and contexts end: contents stay
// right, and the books agree with the driver. The test moves them itself, as the monitor does.
#include <catch2/catch.hpp>

#include <unistd.h>

#include <atomic>
#include <cstring>
#include <map>
#include <thread>
#include <utility>
#include <vector>

#include "generated/driver_real.h"
#include "tests/unit/runtime/memory/on_simgpu/machine.h"

using namespace rota;
using namespace rota::test;

namespace {

// Seconds that a child may take; what hangs is ended by a signal.
constexpr unsigned kPatience = 20;

// --- functions of the driver that fail, or do something else before

constexpr int kAlways = -1;
std::map<Symbol, int> fails_at;  // the how manyth call from now on fails, once; 0: none
std::function<void(Symbol symbol)> before = [](Symbol) {};

bool fails(Symbol symbol) {
  before(symbol);
  const auto at = fails_at.find(symbol);
  if (at == fails_at.end() || at->second == 0) return false;
  return at->second == kAlways || --at->second == 0;
}

template <Symbol kSymbol, typename Function>
struct Failing;
template <Symbol kSymbol, typename... Arguments>
struct Failing<kSymbol, CUresult(Arguments...)> {
  static inline CUresult (*simulated)(Arguments...);
  static CUresult call(Arguments... arguments) { return fails(kSymbol) ? CUDA_ERROR_UNKNOWN : simulated(arguments...); }
};

void* failing(Symbol symbol, void* simulated) {
#define FAILING(name)                                                       \
  if (symbol == Symbol::k_##name) {                                         \
    using One = Failing<Symbol::k_##name, name##_fn>;                       \
    One::simulated = reinterpret_cast<decltype(One::simulated)>(simulated); \
    return reinterpret_cast<void*>(&One::call);                             \
  }
  FAILING(cuMemCreate)
  FAILING(cuMemMap)
  FAILING(cuMemSetAccess)
  FAILING(cuMemUnmap)
  FAILING(cuMemAddressReserve)
  FAILING(cuMemAddressFree)
  FAILING(cuMemcpyDtoHAsync_v2)
  FAILING(cuMemcpyHtoDAsync_v2)
  FAILING(cuMemHostRegister_v2)
  FAILING(cuEventCreate)
  FAILING(cuEventRecord)
  FAILING(cuEventQuery)
#undef FAILING
  return nullptr;
}

void check(const std::function<void()>& program) {
  const std::string report = on_simgpu({.mode = Mode::kSwap, .limit = "", .replace = failing, .neighbour = {}}, [&] {
    alarm(kPatience);
    program();
  });
  CHECK(report == "");
}

// --- moving

using Swap = memory::SwapBackend;

Swap& swap() {
  return runtime().memory.swap();
}

struct Carrier {
  explicit Carrier(CUcontext where) : context(where) {
    EXPECT_OK(real::cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  }
  Swap::Mover mover() {
    return {.within = [this](const std::function<void()>& step) { return within(step); },
            .stopping = [] { return false; },
            .stream = stream};
  }
  // As the monitor does it: tries the lock under which contexts end.
  bool within(const std::function<void()>& step) {
    for (;;) {
      begins();
      const auto how = runtime().contexts.within(context, step);
      if (how != gate::Contexts::Within::kBusy) return how == gate::Contexts::Within::kRan;
      std::this_thread::yield();
    }
  }
  CUcontext context;
  CUstream stream = nullptr;
  std::function<void()> begins = [] {};
};

constexpr std::uint64_t kAll = UINT64_MAX / 2;

CUdeviceptr allocate(std::uint64_t bytes, unsigned char pattern) {
  CUdeviceptr address = 0;
  EXPECT_OK(cu.cuMemAlloc_v2(&address, bytes));
  EXPECT_OK(cu.cuMemsetD8_v2(address, pattern, bytes));
  EXPECT_OK(cu.cuCtxSynchronize());
  return address;
}

void expect_pattern(CUdeviceptr address, std::uint64_t bytes, unsigned char pattern, const std::string& when) {
  const std::vector<unsigned char> expected(bytes, pattern);
  std::vector<unsigned char> seen(bytes, static_cast<unsigned char>(~pattern));
  const CUresult result = cu.cuMemcpyDtoH_v2(seen.data(), address, bytes);
  if (result != CUDA_SUCCESS) return note(fmt::format("{}: reading answers {}", when, static_cast<int>(result)));
  if (std::memcmp(seen.data(), expected.data(), bytes) != 0) note(fmt::format("{}: {} bytes are wrong", when, bytes));
}

std::size_t free_on_gpu() {
  std::size_t free = 0;
  std::size_t total = 0;
  EXPECT_OK(real::cuMemGetInfo_v2(&free, &total));
  return free;
}

}  // namespace

TEST_CASE("a failure of any driver call of a swap loses no contents and leaves the books right") {
  check([] {
    const CUcontext context = enter(0);
    Carrier carrier(context);
    const CUdeviceptr byte = allocate(1, 1);
    EXPECT_OK(cu.cuMemFree_v2(byte));
    const std::vector<std::uint64_t> sizes = {4 * kMiB, 2 * kMiB, 2 * kMiB, 100, 200};
    std::vector<CUdeviceptr> blocks;
    for (std::size_t index = 0; index < sizes.size(); ++index) {
      blocks.push_back(allocate(sizes[index], static_cast<unsigned char>(index + 1)));
    }
    const std::uint64_t resident = swap().resident_bytes(0);
    const std::size_t free_before = free_on_gpu();
    for (const Symbol symbol : {Symbol::k_cuMemHostRegister_v2, Symbol::k_cuEventCreate, Symbol::k_cuMemcpyDtoHAsync_v2,
                                Symbol::k_cuEventRecord, Symbol::k_cuEventQuery, Symbol::k_cuMemCreate,
                                Symbol::k_cuMemMap, Symbol::k_cuMemSetAccess, Symbol::k_cuMemcpyHtoDAsync_v2}) {
      for (int call = 1; call <= 5; ++call) {
        fails_at = {{symbol, call}};
        const std::string when =
            fmt::format("call {} of {} fails", call, kSymbolNames[static_cast<std::size_t>(symbol)]);
        swap().move_out(0, kAll, carrier.mover());
        if (free_on_gpu() != free_before + swap().out_bytes(0)) {
          note(fmt::format("{}: {} bytes are out, and {} more are free", when, swap().out_bytes(0),
                           free_on_gpu() - free_before));
        }
        for (int tries = 0; tries < 5 && !swap().in_place(); ++tries) {
          swap().bring_in(0, carrier.mover());
          if (swap().resident_bytes(0) + swap().out_bytes(0) != resident) {
            note(fmt::format("{}: {} bytes are on the GPU and {} out", when, swap().resident_bytes(0),
                             swap().out_bytes(0)));
          }
        }
        fails_at.clear();
        if (!swap().in_place()) return note(when + ": does not come back");
        for (std::size_t index = 0; index < sizes.size(); ++index) {
          expect_pattern(blocks[index], sizes[index], static_cast<unsigned char>(index + 1), when);
        }
      }
    }
    EXPECT(free_on_gpu() == free_before);
    for (const CUdeviceptr block : blocks) EXPECT_OK(cu.cuMemFree_v2(block));
    EXPECT_EMPTY_BOOKS();
  });
}

TEST_CASE("memory that is freed while other memory leaves does not leave as well") {
  check([] {
    const CUcontext context = enter(0);
    Carrier carrier(context);
    const CUdeviceptr large = allocate(8 * kMiB, 1);
    const CUdeviceptr small = allocate(2 * kMiB, 2);
    bool freed = false;
    carrier.begins = [&] {
      if (!std::exchange(freed, true)) EXPECT_OK(cu.cuMemFree_v2(small));
    };
    const Swap::Moved moved = swap().move_out(0, kAll, carrier.mover());
    EXPECT(moved.bytes == 8 * kMiB);
    EXPECT(swap().out_bytes(0) == 8 * kMiB);
    swap().bring_in(0, carrier.mover());
    EXPECT(swap().in_place());
    expect_pattern(large, 8 * kMiB, 1, "after the swap");
    EXPECT_OK(cu.cuMemFree_v2(large));
    EXPECT_EMPTY_BOOKS();
  });
}

TEST_CASE("a context ends while its memory is about to move") {
  check([] {
    const CUcontext context = enter(0);
    Carrier carrier(context);
    const std::size_t free_before = free_on_gpu();
    CUcontext other = nullptr;
    EXPECT_OK(cu.cuCtxCreate_v2(&other, 0, 0));
    for (unsigned char number = 0; number < 3; ++number) allocate(8 * kMiB, number);
    std::thread monitor;
    std::atomic<bool> begun{false};
    std::atomic<bool> goes_on{false};
    carrier.begins = [&] { goes_on.store(true); };
    before = [&](Symbol symbol) {
      // The first range of the context goes.
      if (symbol != Symbol::k_cuMemAddressFree || begun.exchange(true)) return;
      monitor = std::thread([&] {
        swap().move_out(0, kAll, carrier.mover());
        goes_on.store(true);
      });
      while (!goes_on.load()) std::this_thread::yield();
    };
    EXPECT_OK(cu.cuCtxDestroy_v2(other));
    monitor.join();
    EXPECT_OK(cu.cuCtxSetCurrent(context));
    EXPECT(swap().in_place());
    EXPECT(swap().resident_bytes(0) == 0);
    EXPECT(swap().out_bytes(0) == 0);
    EXPECT(free_on_gpu() == free_before);
    EXPECT_EMPTY_BOOKS();
  });
}

TEST_CASE("a program that has no turn is refused more extents than the GPU can hold at once") {
  check([] {
    const CUcontext context = enter(0);
    Swap never([](const memory::OwnWork&) {});  // the gate is closed
    EXPECT(never.serves(0));
    std::vector<CUdeviceptr> blocks;
    CUdeviceptr address = 0;
    // Half of each is lost to the granularity.
    while (blocks.size() < 100 && never.allocate({context, 0}, &address, 2 * kMiB + 1) == CUDA_SUCCESS) {
      blocks.push_back(address);
    }
    EXPECT(blocks.size() > 40);
    EXPECT(never.out_bytes(0) == blocks.size() * 4 * kMiB);
    EXPECT(never.out_bytes(0) < kGpuBytes);
    for (const CUdeviceptr block : blocks) never.free(block);
    EXPECT(never.in_place());
    EXPECT(never.out_bytes(0) == 0);
  });
}

TEST_CASE("what cuMemGetInfo says is free can be allocated") {
  check([] {
    enter(0);
    std::size_t free = 0;
    std::size_t total = 0;
    EXPECT_OK(cu.cuMemGetInfo_v2(&free, &total));
    EXPECT(free > kGpuBytes / 2);
    CUdeviceptr all = 0;
    EXPECT_OK(cu.cuMemAlloc_v2(&all, free));
    EXPECT_OK(cu.cuMemGetInfo_v2(&free, &total));
    EXPECT(free == 0);
    EXPECT_OK(cu.cuMemFree_v2(all));
    EXPECT_EMPTY_BOOKS();
  });
}

TEST_CASE("where the host has no more memory, what has its place there already leaves the GPU all the same") {
  check([] {
    const CUcontext context = enter(0);
    Carrier carrier(context);
    const CUdeviceptr known = allocate(4 * kMiB, 1);
    swap().move_out(0, kAll, carrier.mover());
    swap().bring_in(0, carrier.mover());
    const CUdeviceptr fresh = allocate(8 * kMiB, 2);
    fails_at = {{Symbol::k_cuMemHostRegister_v2, kAlways}};
    const Swap::Moved moved = swap().move_out(0, kAll, carrier.mover());
    EXPECT(moved.failed);
    EXPECT(moved.bytes == 4 * kMiB);
    EXPECT(swap().out_bytes(0) == 4 * kMiB);
    swap().bring_in(0, carrier.mover());
    expect_pattern(known, 4 * kMiB, 1, "after the swap");
    expect_pattern(fresh, 8 * kMiB, 2, "after the swap");
  });
}

TEST_CASE("host memory that is kept for extents of another size is given up when there is no more") {
  check([] {
    const CUcontext context = enter(0);
    Carrier carrier(context);
    const CUdeviceptr freed = allocate(6 * kMiB, 1);
    swap().move_out(0, kAll, carrier.mover());
    EXPECT_OK(cu.cuMemFree_v2(freed));  // its memory of the host is kept
    allocate(8 * kMiB, 2);
    fails_at = {{Symbol::k_cuMemHostRegister_v2, 1}};
    const Swap::Moved moved = swap().move_out(0, kAll, carrier.mover());
    EXPECT(!moved.failed);
    EXPECT(moved.bytes == 8 * kMiB);
  });
}
