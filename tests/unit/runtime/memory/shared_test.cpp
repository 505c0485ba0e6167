// Small plain memory: several allocations share a span of managed memory.
#include <atomic>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "generated/driver_real.h"
#include "runtime/driver/context.h"
#include "tests/unit/runtime/counting_driver.h"
#include "tests/unit/runtime/memory/served_fixture.h"

using namespace rota;
using namespace rota::memory;
using namespace rota::test;

namespace {

using Calls = std::map<std::string, long>;
constexpr std::uint64_t kBytes = 100 << 10;

struct Shared : Served {
  template <typename... Arguments>
  explicit Shared(Arguments&&... arguments) : Served(std::forward<Arguments>(arguments)...) {
    turns.synchronizes = [](api::CUcontext of) {
      return driver::current_context() == of ? std::optional(real::cuCtxSynchronize()) : std::nullopt;
    };
  }
  api::CUdeviceptr plain(std::uint64_t bytes = kBytes) {
    api::CUdeviceptr address = 0;
    REQUIRE(memory.allocate(&address, bytes) == api::CUDA_SUCCESS);
    return address;
  }
  api::CUresult free_plain(api::CUdeviceptr address, bool capturing = false) {
    return memory.free_waiting(address, capturing, no_call);
  }
};

}  // namespace

TEST_CASE("small plain allocations share one piece of managed memory, each with an entry of its own") {
  Shared f;
  const api::CUdeviceptr first = f.plain();
  const api::CUdeviceptr second = f.plain(kBytes + 1);
  const api::CUdeviceptr large = f.plain(kMiB);
  CHECK(f.driver.managed_allocations == 2);
  CHECK(second == first + kBytes);
  CHECK(second % 512 == 0);
  CHECK(f.ledger.live_bytes(0) == 2 * kBytes + 1 + kMiB);
  CHECK(f.ledger.fixed_bytes(0) == 0);
  CHECK(f.ledger.find(second + kBytes)->address == second);
  CHECK(f.ledger.find(first)->kind.converted());
  CHECK(f.memory.bring(0, kStream, f.memory.to_bring(0, UINT64_MAX)) == 2 * kBytes + 1 + kMiB);
  CHECK(f.memory.only_converted_makes_it_wait(first, large));
  f.memory.set_synchronous(first, true);
  CHECK(f.memory.synchronous(first) == true);
  CHECK(f.memory.synchronous(second) == false);
}

TEST_CASE("an allocation from what is there asks the driver nothing that other threads queue for") {
  Shared f;
  f.plain();
  const CountingDriver counted;
  f.plain();
  // The free is of address 0, which finds out whether the driver refuses frees.
  CHECK(counted.calls() == Calls{{"cuCtxGetCurrent", 1}, {"cuCtxGetDevice", 1}, {"cuMemFree_v2", 1}});
}

TEST_CASE("once an error has ended the context no memory comes from what is there") {
  Shared f;
  f.plain();
  f.driver.set<api::cuMemFree_v2_fn>(Symbol::k_cuMemFree_v2, [](api::CUdeviceptr address) {
    CHECK(address == 0);
    return api::CUDA_ERROR_ILLEGAL_ADDRESS;
  });
  api::CUdeviceptr address = 0;
  CHECK(f.memory.allocate(&address, kBytes) == api::CUDA_ERROR_ILLEGAL_ADDRESS);
  CHECK(f.ledger.live_bytes(0) == kBytes);
}

TEST_CASE("its free waits for its context as the driver's does, and then it is everybody's") {
  Shared f;
  const api::CUdeviceptr first = f.plain();
  {
    const CountingDriver counted;
    CHECK(f.free_plain(first) == api::CUDA_SUCCESS);
    Calls calls = counted.calls();
    CHECK(calls["cuCtxSynchronize"] == 1);
    CHECK(calls["cuMemAlloc_v2"] == 0);
    CHECK(calls["cuMemFree_v2"] == 1);  // of address 0
  }
  CHECK(f.ledger.live_bytes(0) == 0);
  CHECK(f.ledger.bytes_by(0, Route::kShared) == 0);
  CHECK(f.ledger.bytes_by(0, Route::kServed) == 0);
  CHECK(f.ledger.entries() == 0);
  CHECK(f.free_plain(first) == api::CUDA_ERROR_INVALID_VALUE);
  CHECK(f.plain() == first);
  CHECK(f.driver.managed_allocations == 1);
}

TEST_CASE("a plain byte is freed in its place where a synchronization would do something else") {
  enum class Where : std::uint8_t { kCapturing, kBesideAnother, kWithPoolOfDriver };
  for (const Where where : {Where::kCapturing, Where::kBesideAnother, Where::kWithPoolOfDriver}) {
    const bool capturing = where == Where::kCapturing;
    Shared f;
    const api::CUdeviceptr first = f.plain();
    const api::CUdeviceptr second = f.plain();
    if (where == Where::kBesideAnother) f.driver.enter_context(0);
    if (where == Where::kWithPoolOfDriver) {
      const auto pool = reinterpret_cast<api::CUmemoryPool>(0x77);
      f.memory.pools().made(pool, {.device = 0});
      api::CUdeviceptr address = 0;
      REQUIRE(f.memory.allocate_async({.address = &address, .bytes = 4096, .pool = pool, .stream = kStream}, [&] {
        address = 0x123000;
        return api::CUDA_SUCCESS;
      }) == api::CUDA_SUCCESS);
    }
    // The first free of a context leaves a byte there, for which the driver keeps its block of small memory.
    CHECK(f.free_plain(second, capturing) == api::CUDA_SUCCESS);
    const CountingDriver counted;
    CHECK(f.free_plain(first, capturing) == api::CUDA_SUCCESS);
    Calls calls = counted.calls();
    CHECK(calls["cuCtxSynchronize"] == 0);
    CHECK(calls["cuMemAlloc_v2"] == 1);
    CHECK(calls["cuMemFree_v2"] == 2);  // one of address 0
  }
}

TEST_CASE("a free at the same time as the end of the memory's context waits for no other context's work") {
  Shared f;
  const api::CUdeviceptr first = f.plain();
  f.driver.enter_context(0);
  f.driver.set<api::cuCtxPushCurrent_v2_fn>(Symbol::k_cuCtxPushCurrent_v2,
                                            [](auto...) { return api::CUDA_ERROR_INVALID_CONTEXT; });
  const CountingDriver counted;
  CHECK(f.free_plain(first) == api::CUDA_ERROR_INVALID_VALUE);
  Calls calls = counted.calls();
  CHECK(calls["cuMemAlloc_v2"] == 0);
  CHECK(calls["cuMemFree_v2"] == 1);  // of address 0
  CHECK(f.ledger.live_bytes(0) == kBytes);
}

TEST_CASE("a thread without a current context frees as well: behind a plain byte of the memory's context") {
  Shared f;
  const api::CUdeviceptr first = f.plain();
  f.driver.leave_context();
  static api::CUcontext waited_in;
  waited_in = nullptr;
  f.driver.set<api::cuMemFree_v2_fn>(Symbol::k_cuMemFree_v2, [](auto...) {
    real::cuCtxGetCurrent(&waited_in);
    return api::CUDA_SUCCESS;
  });
  CHECK(f.free_plain(first) == api::CUDA_SUCCESS);
  CHECK(waited_in == f.context);
  CHECK(f.ledger.live_bytes(0) == 0);
}

TEST_CASE("what the driver refuses to free under a capture stays allocated, and so it does where its free fails") {
  Shared f;
  const api::CUdeviceptr first = f.plain();
  f.driver.set<api::cuCtxSynchronize_fn>(Symbol::k_cuCtxSynchronize,
                                         [](auto...) { return api::CUDA_ERROR_LAUNCH_FAILED; });
  CHECK(f.free_plain(first) == api::CUDA_ERROR_LAUNCH_FAILED);
  f.driver.set<api::cuMemFree_v2_fn>(Symbol::k_cuMemFree_v2, [](api::CUdeviceptr address) {
    return address == 0 ? api::CUDA_SUCCESS : api::CUDA_ERROR_LAUNCH_FAILED;
  });
  CHECK(f.free_plain(first, true) == api::CUDA_ERROR_LAUNCH_FAILED);
  CHECK(f.memory.has_deferred());  // the byte
  f.driver.set<api::cuMemAlloc_v2_fn>(Symbol::k_cuMemAlloc_v2,
                                      [](auto...) { return api::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED; });
  CHECK(f.free_plain(first, true) == api::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  CHECK(f.ledger.live_bytes(0) == kBytes);
  CHECK(f.plain() != first);
}

TEST_CASE("on a GPU without a byte left it is freed behind all work of its context") {
  Shared f;
  const api::CUdeviceptr first = f.plain();
  f.driver.set<api::cuMemAlloc_v2_fn>(Symbol::k_cuMemAlloc_v2, [](auto...) { return api::CUDA_ERROR_OUT_OF_MEMORY; });
  CHECK(f.free_plain(first, true) == api::CUDA_SUCCESS);
  CHECK(f.driver.synchronizations == 1);
  CHECK(f.ledger.live_bytes(0) == 0);
}

TEST_CASE("freed in the order of a stream it is others' when the stream has passed it, and nothing waits") {
  Shared f;
  const api::CUdeviceptr first = f.plain();
  f.work();
  f.free(first);
  CHECK(f.ledger.live_bytes(0) == kBytes);
  const api::CUdeviceptr second = f.plain();
  CHECK(second != first);
  CHECK(f.memory.free_async(first, kStream, false, no_call) == api::CUDA_ERROR_INVALID_VALUE);
  f.finish();
  CHECK(f.live_bytes() == kBytes);
  CHECK(f.plain() == first);
  CHECK(f.driver.synchronizations == 0);
  CHECK_FALSE(f.memory.has_deferred());
}

TEST_CASE("while anything captures the driver is asked for each allocation, since it may refuse") {
  Shared f;
  f.plain();
  api::CUdeviceptr address = 0;
  REQUIRE(f.memory.allocate(&address, kBytes, false) == api::CUDA_SUCCESS);
  CHECK(f.driver.managed_allocations == 2);
  REQUIRE(f.memory.free(address, [&] { return f.driver.take_memory(address); }) == api::CUDA_SUCCESS);
}

TEST_CASE("where there is no memory for a span there may be for the allocation by itself") {
  Shared f;
  f.driver.set<api::cuMemAllocManaged_fn>(
      Symbol::k_cuMemAllocManaged, [](api::CUdeviceptr* address, std::size_t bytes, unsigned) {
        return bytes > kMiB ? api::CUDA_ERROR_OUT_OF_MEMORY : FakeDriver::the().give_memory(address, bytes);
      });
  const api::CUdeviceptr first = f.plain();
  CHECK(f.ledger.live_bytes(0) == kBytes);
  CHECK(f.memory.free(first, [&] { return f.driver.take_memory(first); }) == api::CUDA_SUCCESS);
  CHECK(f.ledger.live_bytes(0) == 0);
}

TEST_CASE("the limit is the bytes that were asked for, and a refusal takes none") {
  Shared f(3 * kBytes);
  const api::CUdeviceptr first = f.plain();
  f.plain(2 * kBytes);
  api::CUdeviceptr address = 0;
  CHECK(f.memory.allocate(&address, kBytes) == api::CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(f.ledger.live_bytes(0) == 3 * kBytes);
  REQUIRE(f.free_plain(first) == api::CUDA_SUCCESS);
  CHECK(f.plain() == first);
}

TEST_CASE("an address in a span is told as the allocation's that it lies in, or as nobody's") {
  Shared f;
  const api::CUdeviceptr first = f.plain(kBytes + 1);
  const api::CUdeviceptr second = f.plain();
  std::optional<Memory::Block> block;
  REQUIRE(f.memory.find_block(first + kBytes, &block));
  REQUIRE(block);
  CHECK(block->address == first);
  CHECK(block->bytes == kBytes + 1);
  CHECK(block->pool == nullptr);
  REQUIRE(f.memory.find_block(first + kBytes + 1, &block));
  CHECK_FALSE(block);
  REQUIRE(f.memory.find_block(second + kBytes, &block));
  CHECK_FALSE(block);
}

TEST_CASE("of spans that nothing uses 32 MiB are kept, and the others go to the driver behind the next wait") {
  Shared f(1024 * kMiB);
  std::vector<api::CUdeviceptr> held;
  for (int count = 0; count < 100; ++count) held.push_back(f.plain(900 << 10));
  CHECK(f.driver.memory.size() > 40);
  for (const api::CUdeviceptr address : held) REQUIRE(f.free_plain(address) == api::CUDA_SUCCESS);
  CHECK(f.ledger.live_bytes(0) == 0);
  CHECK(f.driver.memory.size() <= 18);  // the last one is still to be freed; and the byte that stays
  f.memory.collect_deferred();
  std::uint64_t kept = 0;
  for (const auto& [address, bytes] : f.driver.memory) kept += bytes;
  CHECK(kept <= 32 * kMiB + 1);
  CHECK(kept > 0);
}

TEST_CASE("small plain memory ends with its context, and each GPU has its own") {
  Shared f;
  f.plain();
  const api::CUcontext other = f.driver.enter_context(1);
  const api::CUdeviceptr there = f.plain();
  CHECK(f.ledger.find(there)->device == 1);
  CHECK(f.driver.managed_allocations == 2);
  f.driver.leave_context();
  {
    Memory::ContextEnd ending(f.memory, f.context);
    f.driver.destroy(f.context);
    ending.gone();
  }
  CHECK(f.ledger.live_bytes(0) == 0);
  CHECK(f.ledger.live_bytes(1) == kBytes);
  CHECK(f.ledger.entries() == 1);
  // By a thread in any context.
  f.driver.enter_context(0);
  CHECK(f.free_plain(there) == api::CUDA_SUCCESS);
  CHECK(f.driver.dead_uses == 0);
  real::cuCtxPushCurrent_v2(other);
  CHECK(f.plain() == there);
}

TEST_CASE(
    "threads that allocate and free small plain memory by all ways never get the same memory, and leave nothing") {
  Shared f(512 * kMiB);
  std::atomic<int> wrong{0};
  std::mutex mutex;
  std::map<std::uint64_t, std::uint64_t> live;  // address -> end
  std::vector<std::thread> workers;
  for (std::uint64_t number = 1; number <= 8; ++number) {
    workers.emplace_back([&, number] {
      real::cuCtxPushCurrent_v2(f.context);
      const auto stream = reinterpret_cast<api::CUstream>(0x1000 * (1 + number % 3));
      std::vector<api::CUdeviceptr> held;
      for (int round = 0; round < 400 || !held.empty(); ++round) {
        if (round < 400) {
          api::CUdeviceptr address = 0;
          const std::uint64_t bytes = (65 + number * 37 % 200) << 10;
          if (f.memory.allocate(&address, bytes) != api::CUDA_SUCCESS) {
            ++wrong;
            continue;
          }
          held.push_back(address);
          const std::lock_guard lock(mutex);
          const auto next = live.lower_bound(address);
          if (next != live.end() && next->first < address + bytes) ++wrong;
          if (next != live.begin() && std::prev(next)->second > address) ++wrong;
          live[address] = address + bytes;
        }
        if (held.size() > 5 || round >= 400) {
          const api::CUdeviceptr address = held.front();
          held.erase(held.begin());
          {
            const std::lock_guard lock(mutex);
            live.erase(address);
          }
          const auto unexpected = [] { return api::CUDA_ERROR_UNKNOWN; };
          const api::CUresult freed = round % 2 == 0 ? f.memory.free_async(address, stream, false, unexpected)
                                                     : f.memory.free_waiting(address, false, unexpected);
          if (freed != api::CUDA_SUCCESS) ++wrong;
        }
      }
      f.driver.leave_context();
    });
  }
  for (std::thread& worker : workers) worker.join();
  CHECK(wrong == 0);
  CHECK(f.live_bytes() == 0);
  CHECK(f.ledger.entries() == 0);
  CHECK(f.driver.dead_uses == 0);
}
