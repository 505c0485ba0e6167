// Plain memory in extents, evicted and restored repeatedly: its contents are right, queries answer as before, and no
// data is lost when the driver refuses something.
#include <catch2/catch.hpp>

#include <algorithm>
#include <map>
#include <random>

#include "tests/unit/runtime/memory/on_simgpu/machine.h"

using namespace rota;
using namespace rota::test;
using memory::SwapBackend;

namespace {

Machine machine(std::function<void*(Symbol, void*)> replace = {}) {
  return {.mode = Mode::kSwap, .limit = {}, .replace = std::move(replace), .neighbour = {}};
}

SwapBackend& swap_backend() {
  return runtime().memory.swap();
}

// The test's own thread moves; the program does nothing meanwhile, and no rotad closes the gate.
class Moves {
 public:
  Moves() { EXPECT_OK(cu.cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING)); }
  ~Moves() { cu.cuStreamDestroy_v2(stream_); }
  Moves(const Moves&) = delete;
  Moves& operator=(const Moves&) = delete;
  SwapBackend::Moved out(std::uint64_t bytes = UINT64_MAX) const {
    EXPECT_OK(cu.cuCtxSynchronize());  // as a drain does
    return swap_backend().evict(0, bytes, mover());
  }
  SwapBackend::Moved in() const {
    const SwapBackend::Moved moved = swap_backend().restore(0, mover());
    swap_backend().use_if_in_place(rota::memory::kAllDevices, [] {});
    return moved;
  }

 private:
  SwapBackend::Move mover() const {
    const auto step = [](const std::function<void()>& work) {
      work();
      return true;
    };
    return {.within = step,
            .stopping = [] { return false; },
            .idle = [] { return true; },
            .while_alive = step,
            .stream = stream_};
  }
  CUstream stream_ = nullptr;
};

struct Filled {
  std::uint64_t bytes;
  unsigned value;
  bool pooled;
};

// Memory of all sizes, each filled with its own word.
class Program {
 public:
  void take(std::uint64_t bytes, bool pooled) {
    CUdeviceptr address = 0;
    if (pooled) {
      EXPECT_OK(cu.cuMemAllocAsync(&address, bytes, nullptr));
    } else {
      EXPECT_OK(cu.cuMemAlloc_v2(&address, bytes));
    }
    EXPECT_OK(cu.cuMemsetD32_v2(address, ++last_, bytes / 4));
    all_[address] = {bytes, last_, pooled};
  }
  void give(std::mt19937& random) {
    auto which = all_.begin();
    std::advance(which, random() % all_.size());
    EXPECT_OK(which->second.pooled ? cu.cuMemFreeAsync(which->first, nullptr) : cu.cuMemFree_v2(which->first));
    all_.erase(which);
  }
  void give_all() {
    for (const auto& [address, what] : all_) {
      EXPECT_OK(what.pooled ? cu.cuMemFreeAsync(address, nullptr) : cu.cuMemFree_v2(address));
    }
    all_.clear();
    EXPECT_OK(cu.cuCtxSynchronize());
  }
  // The first, a middle and the last word of each.
  void check() const {
    for (const auto& [address, what] : all_) {
      for (const std::uint64_t at : {std::uint64_t{0}, what.bytes / 8 * 4, what.bytes - 4}) {
        unsigned word = 0;
        EXPECT_OK(cu.cuMemcpyDtoH_v2(&word, address + at, sizeof word));
        EXPECT(word == what.value);
      }
    }
  }
  std::size_t count() const { return all_.size(); }
  CUdeviceptr first() const { return all_.begin()->first; }

 private:
  std::map<CUdeviceptr, Filled> all_;
  unsigned last_ = 0;
};

// The free memory by the driver, asked without rota.
std::size_t driver_free() {
  std::size_t free = 0;
  std::size_t total = 0;
  EXPECT_OK(real::cuMemGetInfo_v2(&free, &total));
  return free;
}

struct Answers {
  CUcontext context = nullptr;
  unsigned type = 0;
  CUdeviceptr pointer = 0;
  unsigned long long id = 0;
  CUdeviceptr start = 0;
  std::size_t size = 0;
  CUdeviceptr base = 0;
  std::size_t range = 0;
  bool operator==(const Answers&) const = default;
};

Answers answers(CUdeviceptr address) {
  Answers all;
  EXPECT_OK(cu.cuPointerGetAttribute(&all.context, CU_POINTER_ATTRIBUTE_CONTEXT, address));
  EXPECT_OK(cu.cuPointerGetAttribute(&all.type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address));
  EXPECT_OK(cu.cuPointerGetAttribute(&all.pointer, CU_POINTER_ATTRIBUTE_DEVICE_POINTER, address));
  EXPECT_OK(cu.cuPointerGetAttribute(&all.id, CU_POINTER_ATTRIBUTE_BUFFER_ID, address));
  EXPECT_OK(cu.cuPointerGetAttribute(&all.start, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, address));
  EXPECT_OK(cu.cuPointerGetAttribute(&all.size, CU_POINTER_ATTRIBUTE_RANGE_SIZE, address));
  EXPECT_OK(cu.cuMemGetAddressRange_v2(&all.base, &all.range, address));
  return all;
}

// The n-th call of one function of the driver fails.
Symbol failing{};
int calls_until_failure = 0;
template <Symbol symbol, typename... Arguments>
CUresult failing_call(Arguments... arguments);
void* simulated_calls[kSymbolCount] = {};

template <Symbol symbol, typename... Arguments>
CUresult failing_call(Arguments... arguments) {
  if (failing == symbol && calls_until_failure > 0 && --calls_until_failure == 0) return CUDA_ERROR_UNKNOWN;
  return reinterpret_cast<CUresult (*)(Arguments...)>(simulated_calls[static_cast<std::size_t>(symbol)])(arguments...);
}

template <Symbol symbol, typename... Arguments>
void* failing_in_place_of(void* simulated, CUresult (*)(Arguments...)) {
  simulated_calls[static_cast<std::size_t>(symbol)] = simulated;
  return reinterpret_cast<void*>(&failing_call<symbol, Arguments...>);
}

#define ROTA_MOVING_CALLS(each)                                                                        \
  each(cuMemCreate) each(cuMemMap) each(cuMemSetAccess) each(cuMemHostRegister_v2) each(cuEventCreate) \
      each(cuMemcpyDtoHAsync_v2) each(cuMemcpyHtoDAsync_v2) each(cuEventRecord)

void* may_fail(Symbol symbol, void* simulated) {
  switch (symbol) {
#define ROTA_CASE(name)  \
  case Symbol::k_##name: \
    return failing_in_place_of<Symbol::k_##name>(simulated, static_cast<name##_fn*>(nullptr));
    ROTA_MOVING_CALLS(ROTA_CASE)
#undef ROTA_CASE
    default:
      return nullptr;
  }
}

constexpr Symbol kMovingCalls[] = {
#define ROTA_NAME(name) Symbol::k_##name,
    ROTA_MOVING_CALLS(ROTA_NAME)
#undef ROTA_NAME
};

}  // namespace

TEST_CASE("after each of many forced swaps all of it is as it was written, neighbours come and go meanwhile") {
  CHECK(on_simgpu(machine(), [] {
          enter(0);
          const Moves moves;
          Program program;
          std::mt19937 random(1);
          for (int round = 0; round < 200 / ROTA_TEST_EVERY; ++round) {
            const std::uint64_t bytes =
                (random() % 4 == 0 ? random() % (8 * kMiB) : random() % (300 << 10)) / 4 * 4 + 8;
            if (program.count() < 20) program.take(bytes, random() % 3 == 0);
            const std::uint64_t resident = swap_backend().resident_bytes(0);
            const std::size_t free = driver_free();
            const auto left = moves.out(round % 3 == 0 ? UINT64_MAX : random() % (24 * kMiB) + 1);
            EXPECT(!left.failed && left.bytes + left.without_copy != 0);
            // Seen from outside, that much more is free.
            EXPECT(driver_free() == free + left.bytes + left.without_copy);
            EXPECT(swap_backend().resident_bytes(0) == resident - left.bytes - left.without_copy);
            if (random() % 2 == 0 && program.count() > 10) program.give(random);
            EXPECT(!moves.in().failed && swap_backend().all_in_place() && swap_backend().out_bytes(0) == 0);
            program.check();
          }
          program.give_all();
          EXPECT_EMPTY_BOOKS();
        }) == "");
}

TEST_CASE("evicted memory is not charged on the GPU, and every query of it is answered as before") {
  CHECK(on_simgpu(machine(), [] {
          enter(0);
          const Moves moves;
          Program program;
          program.take(5 * kMiB, false);
          const CUdeviceptr large = program.first();
          Program small;
          small.take(100 << 10, false);
          const Answers of_large = answers(large + kMiB);
          const Answers of_small = answers(small.first() + 5);
          EXPECT(of_large.start == large && of_large.size == 5 * kMiB && of_large.range == 5 * kMiB);
          moves.out();
          EXPECT(swap_backend().resident_bytes(0) == 0);
          EXPECT(answers(large + kMiB) == of_large);
          EXPECT(answers(small.first() + 5) == of_small);
          unsigned word = 0;
          // Past the gate: the driver has nothing there.
          EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, real::cuMemcpyDtoH_v2(&word, large, sizeof word));
          moves.in();
          EXPECT(answers(large + kMiB) == of_large);
          program.check();
          small.check();
        }) == "");
}

TEST_CASE(
    "memory that rota moves can be decompressed into where the GPU can do that, and says so in place and out of it") {
  Machine with = machine();
  with.profile = "base = \"h200\"\n[device.attributes]\nmem_decompress_algorithm_mask = 1\n";
  const auto says = [](CUdeviceptr address) {
    unsigned capable = 7;
    EXPECT_OK(cu.cuPointerGetAttribute(&capable, CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE, address));
    return capable;
  };
  // The driver checks the operands; simgpu does not decompress.
  const auto decompressed = [](CUdeviceptr address) {
    CUmemDecompressParams what{};
    what.src = reinterpret_cast<const void*>(address);
    what.srcNumBytes = 4096;
    what.dst = reinterpret_cast<void*>(address + kMiB);
    what.dstNumBytes = 4096;
    what.algo = CU_MEM_DECOMPRESS_ALGORITHM_DEFLATE;
    size_t index = 0;
    return real::cuMemBatchDecompressAsync(&what, 1, 0, &index, nullptr);
  };
  CHECK(on_simgpu(with, [&] {
          enter(0);
          const Moves moves;
          Program program;
          program.take(5 * kMiB, false);
          const CUdeviceptr memory = program.first();
          for (int round = 0; round < 2; ++round) {
            EXPECT(says(memory) == 1);
            EXPECT_RESULT(CUDA_ERROR_NOT_SUPPORTED, decompressed(memory));
            moves.out();
            EXPECT(says(memory) == 1);
            moves.in();
          }
        }) == "");
  CHECK(on_simgpu(machine(), [&] {
          enter(0);
          Program program;
          program.take(5 * kMiB, false);
          EXPECT(says(program.first()) == 0);
        }) == "");
  // A driver that cannot create such memory after all: then the attribute does not report it either.
  with.replace = [](Symbol symbol, void* simulated) -> void* {
    if (symbol != Symbol::k_cuMemCreate) return nullptr;
    static api::cuMemCreate_fn* create;
    create = reinterpret_cast<api::cuMemCreate_fn*>(simulated);
    return reinterpret_cast<void*>(+[](CUmemGenericAllocationHandle* handle, size_t bytes,
                                       const CUmemAllocationProp* wanted, unsigned long long flags) {
      return wanted->allocFlags.usage != 0 ? CUDA_ERROR_NOT_SUPPORTED : create(handle, bytes, wanted, flags);
    });
  };
  CHECK(on_simgpu(with, [&] {
          enter(0);
          Program program;
          program.take(5 * kMiB, false);
          EXPECT(says(program.first()) == 0);
        }) == "");
}

TEST_CASE("free memory is evicted first, and the last evicted extent is no larger than it has to be") {
  CHECK(on_simgpu(machine(), [] {
          enter(0);
          const Moves moves;
          Program program;
          for (const std::uint64_t size : {2, 4, 8, 16}) program.take(size * kMiB, false);
          EXPECT(moves.out(kMiB).bytes == 2 * kMiB);
          EXPECT(moves.in().bytes == 2 * kMiB);
          EXPECT(moves.out(5 * kMiB).bytes == 8 * kMiB);
          EXPECT(moves.in().bytes == 8 * kMiB);
          EXPECT(moves.out(18 * kMiB).bytes == 18 * kMiB);
          EXPECT(moves.in().bytes == 18 * kMiB);
          CUdeviceptr spare = 0;
          EXPECT_OK(cu.cuMemAlloc_v2(&spare, 3 * kMiB));
          EXPECT_OK(cu.cuMemFree_v2(spare));
          const auto kept = moves.out(kMiB);
          EXPECT(kept.without_copy == 4 * kMiB && kept.bytes == 0);
          program.check();
        }) == "");
}

TEST_CASE("whichever of its calls the driver refuses nothing is lost and the next attempt moves the rest") {
  for (const Symbol symbol : kMovingCalls) {
    INFO(name_of(symbol));
    CHECK(on_simgpu(machine(may_fail), [&] {
            enter(0);
            const Moves moves;
            Program program;
            for (int i = 0; i < 6; ++i) program.take(3 * kMiB, i % 2 == 0);
            for (int call = 1; call < 8; ++call) {
              const std::uint64_t all = swap_backend().resident_bytes(0) + swap_backend().out_bytes(0);
              failing = symbol;
              calls_until_failure = call;
              moves.out();
              calls_until_failure = call;
              moves.in();
              calls_until_failure = 0;
              EXPECT(swap_backend().resident_bytes(0) + swap_backend().out_bytes(0) == all);
              moves.in();
              EXPECT(swap_backend().all_in_place());
              program.check();
            }
            program.give_all();
            EXPECT_EMPTY_BOOKS();
          }) == "");
  }
}

TEST_CASE("nobody maps or changes memory inside a plain allocation, as without rota") {
  CHECK(on_simgpu(machine(), [] {
          enter(0);
          Program program;
          program.take(5 * kMiB, false);
          const CUdeviceptr address = program.first();
          CUmemGenericAllocationHandle handle = 0;
          CUmemAccessDesc access{};
          access.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0};
          EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE,
                        cu.cuMemRetainAllocationHandle(&handle, reinterpret_cast<void*>(address)));
          EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, cu.cuMemUnmap(address, 6 * kMiB));
          EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, cu.cuMemSetAccess(address, 6 * kMiB, &access, 1));
          EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, cu.cuMemAddressFree(address, 6 * kMiB));
          EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, cu.cuMemMap(address, 2 * kMiB, 0, 1, 0));
          program.check();
        }) == "");
}
