// Extents that leave the GPU and come back, while driver calls fail, the program frees and contexts end: contents stay
// right, and the books agree with the driver. The test moves them itself, as the monitor does.
#include <catch2/catch.hpp>

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
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
    runtime().memory.swap().host().set_left([] { return std::uint64_t{1} << 40; });
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
        EXPECT(swap().use_if_in_place([] {}));
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

TEST_CASE("a program that has no turn is refused what would not fit beside everybody's contexts") {
  check([] {
    const CUcontext context = enter(0);
    Swap never([](const memory::OwnWork&) {});  // the gate is closed
    never.set_observer({.out_of_place = {}, .resident = {}, .contexts = [](int) { return 100 * kMiB; }});
    CUdeviceptr address = 0;
    EXPECT_RESULT(CUDA_ERROR_OUT_OF_MEMORY, never.allocate({context, 0}, &address, kGpuBytes - 99 * kMiB));
    EXPECT_OK(never.allocate({context, 0}, &address, kGpuBytes - 100 * kMiB));
    never.free(address);
    EXPECT(never.in_place());
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

// The host has so much for all of these together.
void limit_host(std::uint64_t bytes, const std::vector<Swap*>& all) {
  for (Swap* one : all) {
    one->host().set_left([bytes, all] {
      std::uint64_t taken = 0;
      for (const Swap* each : all) taken += const_cast<Swap*>(each)->host().bytes();
      return bytes - std::min(bytes, taken);
    });
  }
}

TEST_CASE("where the host has no more memory, what has its place there already leaves the GPU all the same") {
  check([] {
    const CUcontext context = enter(0);
    Carrier carrier(context);
    const CUdeviceptr known = allocate(4 * kMiB, 1);
    swap().move_out(0, kAll, carrier.mover());
    swap().bring_in(0, carrier.mover());
    EXPECT(swap().use_if_in_place([] {}));
    const CUdeviceptr fresh = allocate(8 * kMiB, 2);
    limit_host(0, {&swap()});
    const Swap::Moved moved = swap().move_out(0, kAll, carrier.mover());
    EXPECT(moved.lacks_host && !moved.failed);
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
    EXPECT(swap().host().kept_bytes() == 6 * kMiB);
    allocate(8 * kMiB, 2);
    limit_host(10 * kMiB, {&swap()});
    const Swap::Moved moved = swap().move_out(0, kAll, carrier.mover());
    EXPECT(!moved.failed && !moved.lacks_host);
    EXPECT(moved.bytes == 8 * kMiB);
    EXPECT(swap().host().bytes() == 8 * kMiB);
  });
}

TEST_CASE("host memory that the driver does not pin is used all the same") {
  check([] {
    const CUcontext context = enter(0);
    Carrier carrier(context);
    const CUdeviceptr block = allocate(8 * kMiB, 1);
    fails_at = {{Symbol::k_cuMemHostRegister_v2, kAlways}};
    const Swap::Moved moved = swap().move_out(0, kAll, carrier.mover());
    EXPECT(!moved.failed && !moved.lacks_host);
    EXPECT(moved.bytes == 8 * kMiB);
    swap().bring_in(0, carrier.mover());
    EXPECT(swap().in_place());
    expect_pattern(block, 8 * kMiB, 1, "after the swap");
    EXPECT_OK(cu.cuMemFree_v2(block));
    EXPECT_EMPTY_BOOKS();
  });
}

TEST_CASE("what came in and was not used leaves without a copy, and what was used is copied") {
  check([] {
    const CUcontext context = enter(0);
    Carrier carrier(context);
    const CUdeviceptr block = allocate(8 * kMiB, 1);
    EXPECT(swap().move_out(0, kAll, carrier.mover()).bytes == 8 * kMiB);
    EXPECT(swap().bring_in(0, carrier.mover()).bytes == 8 * kMiB);
    fails_at = {{Symbol::k_cuMemcpyDtoHAsync_v2, kAlways}};
    const Swap::Moved back = swap().move_out(0, kAll, carrier.mover());
    fails_at.clear();
    EXPECT(!back.failed && back.bytes == 0 && back.without_copy == 8 * kMiB);
    EXPECT(swap().resident_bytes(0) == 0 && swap().out_bytes(0) == 8 * kMiB);
    swap().bring_in(0, carrier.mover());
    expect_pattern(block, 8 * kMiB, 1, "after it came in twice");
    EXPECT(swap().use_if_in_place([] {}));
    EXPECT_OK(cu.cuMemsetD8_v2(block, 2, 8 * kMiB));
    EXPECT_OK(cu.cuCtxSynchronize());
    EXPECT(swap().move_out(0, kAll, carrier.mover()).bytes == 8 * kMiB);
    swap().bring_in(0, carrier.mover());
    expect_pattern(block, 8 * kMiB, 2, "after it was used");
  });
}

// Programs without a turn, as far as their memory goes: it is brought in and used by the test.
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
    EXPECT(swap.use_if_in_place([] {}));
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
  Swap swap{[](const memory::OwnWork&) {}};  // the gate is closed
  std::uint64_t bytes;
  std::vector<CUdeviceptr> blocks;
};

// One has its turn: it brings in what there is room for, and the other clears what is asked for, as the host allows.
bool change_places(Swapped& coming, Swapped& leaving, Carrier& carrier) {
  for (int round = 0; round < 50; ++round) {
    const Swap::Moved came = coming.swap.bring_in(0, carrier.mover());
    if (coming.swap.in_place()) return true;
    leaving.swap.move_out(0, came.lacking, carrier.mover());
  }
  return false;
}

TEST_CASE("two programs change places on a full GPU with one extent's room to spare on the host") {
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
      EXPECT(one.swap.use_if_in_place([] {}));
      one.check(1);
      EXPECT(change_places(other, one, carrier));
      EXPECT(other.swap.use_if_in_place([] {}));
      other.check(101);
    }
  });
}

TEST_CASE("on a full GPU beside a host without any memory, who ran last can always run again") {
  check([] {
    Carrier carrier(enter(0));
    Swapped one(carrier.context, 10, 16 * kMiB);
    Swapped other(carrier.context, 10, 16 * kMiB);
    limit_host(0, {&one.swap, &other.swap});
    EXPECT(change_places(one, other, carrier));
    one.write(1);
    EXPECT(!change_places(other, one, carrier));
    EXPECT(change_places(one, other, carrier));
    EXPECT(one.swap.use_if_in_place([] {}));
    one.check(1);
  });
}

TEST_CASE("what a context had that has failed for good is released, and nothing waits for it") {
  check([] {
    const CUcontext context = enter(0);
    Carrier carrier(context);
    const std::size_t free_before = free_on_gpu();
    const CUdeviceptr large = allocate(8 * kMiB, 1);
    const CUdeviceptr other = allocate(4 * kMiB, 2);
    swap().move_out(0, 8 * kMiB, carrier.mover());
    EXPECT(swap().out_bytes(0) == 8 * kMiB);
    EXPECT(swap().context_failed(context, 0) == 4 * kMiB);
    EXPECT(swap().in_place());
    EXPECT(swap().resident_bytes(0) == 0 && swap().out_bytes(0) == 0);
    EXPECT(free_on_gpu() >= free_before - 2 * kMiB);  // but for a byte that stays
    const Swap::Moved moved = swap().move_out(0, kAll, carrier.mover());
    EXPECT(moved.bytes + moved.without_copy == 0 && !moved.failed);
    EXPECT_OK(cu.cuMemFree_v2(large));
    EXPECT_OK(cu.cuMemFree_v2(other));
    EXPECT_EMPTY_BOOKS();
  });
}

TEST_CASE("memory that will never come back makes room for others at once, and can be freed") {
  check([] {
    const CUcontext context = enter(0);
    Carrier carrier(context);
    const CUdeviceptr large = allocate(8 * kMiB, 1);
    const CUdeviceptr other = allocate(4 * kMiB, 2);
    swap().move_out(0, 8 * kMiB, carrier.mover());
    swap().release_all();
    EXPECT(swap().resident_bytes(0) == 0 && swap().out_bytes(0) == 12 * kMiB);
    EXPECT(!swap().in_place());
    EXPECT_OK(cu.cuMemFree_v2(large));
    EXPECT_OK(cu.cuMemFree_v2(other));
    EXPECT(swap().out_bytes(0) == 0 && swap().in_place());
    EXPECT_EMPTY_BOOKS();
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
    swap().move_out(0, kAll, carrier.mover());
    swap().bring_in(0, carrier.mover());
    EXPECT(swap().use_if_in_place([] {}));
    const CUdeviceptr out = allocate(4 * kMiB, 2);
    EXPECT(swap().move_out(0, kAll, carrier.mover()).bytes == 12 * kMiB);
    EXPECT(swap().host().bytes() == 12 * kMiB);
    EXPECT(swap().give_host_back() == 0);
    swap().bring_in(0, carrier.mover());
    EXPECT(swap().give_host_back() == 0);  // as long as nothing has been used
    EXPECT(swap().use_if_in_place([] {}));
    EXPECT(swap().give_host_back() == 12 * kMiB);
    EXPECT(swap().host().bytes() == 0);
    expect_pattern(used, 8 * kMiB, 1, "after the swap");
    expect_pattern(out, 4 * kMiB, 2, "after the swap");
  });
}
