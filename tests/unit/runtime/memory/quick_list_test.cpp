// Stream-ordered memory that is freed to the quick list and allocated from it.
#include <algorithm>
#include <array>
#include <atomic>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "generated/driver_real.h"
#include "tests/unit/runtime/counting_driver.h"
#include "tests/unit/runtime/memory/quick_fixture.h"

using namespace rota;
using namespace rota::memory;
using namespace rota::test;

namespace {

using Calls = std::map<std::string, long>;

struct Quick : Swapped {
  explicit Quick(std::uint64_t limit = 64 * kMiB, std::size_t unused = 1024 * kMiB) : Swapped(limit, unused) {
    // The first free learns the pool's threshold and goes the usual way.
    free(taken(512));
    finish();
    memory.sweep_deferred();
    REQUIRE(memory.mode(0) == protocol::MemoryMode::kSwap);
  }
  std::uint64_t used() { return attribute(api::CU_MEMPOOL_ATTR_USED_MEM_CURRENT); }
  std::uint64_t used_high() { return attribute(api::CU_MEMPOOL_ATTR_USED_MEM_HIGH); }
  std::uint64_t number(api::CUdeviceptr address) {
    std::optional<Memory::Block> block;
    REQUIRE(memory.find_block(address, &block));
    return block ? block->buffer_id : 0;
  }
};

}  // namespace

TEST_CASE("memory of the size that its stream has just freed needs no bookkeeping, and is a new allocation") {
  Quick f;
  const api::CUdeviceptr first = f.taken(5000);
  const api::CUdeviceptr other = f.taken(3000);
  f.free(first);
  const std::uint64_t entries = f.ledger.clock(0);
  const CountingDriver counted;
  CHECK(f.taken(5000) == first);
  CHECK(counted.calls() == Calls{{"cuStreamGetId", 1}});
  const std::uint64_t number = f.number(first);
  counted.reset();
  f.free(first);
  CHECK(counted.calls() == Calls{{"cuStreamGetId", 1}, {"cuCtxGetCurrent", 1}, {"cuEventRecord", 1}});
  CHECK(f.taken(5000) == first);
  CHECK(f.number(first) > number);
  CHECK(f.ledger.clock(0) == entries);
  CHECK(f.used() == 5120 + 3072);
  f.free(first);
  f.free(other);
  CHECK(f.live_bytes() == 0);
  CHECK(f.ledger.entries() == 0);
}

TEST_CASE("what is in the quick list is freed as far as the program can tell") {
  Quick f;
  const auto refused = [] { return api::CUDA_ERROR_INVALID_VALUE; };
  const api::CUdeviceptr first = f.taken(kMiB);
  const api::CUdeviceptr second = f.taken(kMiB);
  CHECK(f.used() == 2 * kMiB);
  f.work();
  f.free(first);
  CHECK(f.number(first) == 0);
  CHECK(f.number(second) != 0);
  CHECK(f.used() == kMiB);
  CHECK(f.used_high() == 2 * kMiB);
  CHECK(f.memory.free_async(first, kStream, false, refused) == api::CUDA_ERROR_INVALID_VALUE);
  CHECK(f.memory.free_async(first, kStream, false, refused, true) == api::CUDA_ERROR_INVALID_VALUE);
  CHECK(f.memory.free_waiting(first, false, refused) == api::CUDA_ERROR_INVALID_VALUE);
  f.memory.pool_attribute_set(kPool, api::CU_MEMPOOL_ATTR_USED_MEM_HIGH);
  CHECK(f.used_high() == kMiB);
  CHECK(f.taken(kMiB) == first);
  CHECK(f.used() == 2 * kMiB);
  CHECK(f.used_high() == 2 * kMiB);
  CHECK(f.memory.free_waiting(first, false, refused) == api::CUDA_SUCCESS);
}

TEST_CASE("memory in the quick list serves no other stream before its stream has passed the free") {
  Quick f(3 * kSpan);
  const api::CUdeviceptr first = f.taken(kSpan);
  f.work();
  f.free(first);
  const api::CUdeviceptr other = f.taken(kSpan, kOther);
  CHECK(other != first);
  CHECK(f.taken(kSpan) == first);
  f.free(first);
  f.finish();
  CHECK(f.taken(kSpan, kOther) == first);
  // Another pool of the program's, with the same stream and size.
  f.free(first, kOther);
  const auto pool = reinterpret_cast<api::CUmemoryPool>(0xa000);
  f.memory.pools().made(pool, Pools::described(plain_pool()));
  api::CUdeviceptr address = 0;
  REQUIRE(f.memory.allocate_async({.address = &address, .bytes = kSpan, .pool = pool, .stream = kOther}, no_call) ==
          api::CUDA_SUCCESS);
  CHECK(address != first);
  CHECK(f.taken(kSpan, kOther) == first);
}

TEST_CASE("a stream's own memory in the quick list serves it in other sizes, and serves others if memory is short") {
  Quick f(kSpan);
  std::vector<api::CUdeviceptr> parts;
  for (int part = 0; part < 4; ++part) parts.push_back(f.taken(kSpan / 4));
  f.work();
  for (const api::CUdeviceptr part : parts) f.free(part);
  CHECK(f.used() == 0);
  CHECK(f.taken(kSpan) == parts.front());
  CHECK(awaited.empty());
  f.free(parts.front());
  api::CUdeviceptr other = 0;
  may_wait = 0;
  CHECK(f.take(kSpan, &other, kOther) == api::CUDA_ERROR_OUT_OF_MEMORY);
  may_wait = 1;
  REQUIRE(f.take(kSpan, &other, kOther) == api::CUDA_SUCCESS);
  CHECK(other == parts.front());
  CHECK(awaited.size() == 1);
  CHECK(f.live_bytes() == kSpan);
}

TEST_CASE("memory from the quick list that is freed without a stream waits for the work that used it before") {
  Quick f;
  expect_to_wait_for_earlier_work(f);
}

TEST_CASE("at a limit a stream's own memory suffices although the quick list has it") {
  SECTION("a block as large in the heap, of which a larger one need not be split") {
    Quick f(13 * kMiB);
    const api::CUdeviceptr large = f.taken(8 * kMiB);
    const api::CUdeviceptr fitting = f.taken(4 * kMiB - 100);
    f.taken(512);
    f.work();
    f.free(large);
    f.memory.sweep_deferred();
    f.free(fitting);
    CHECK(f.taken(4 * kMiB) == fitting);
    CHECK(f.taken(8 * kMiB) == large);
  }
  SECTION("a block whose charge is enough") {
    Quick f(512 + 5000 + 2049 + 2101);
    const api::CUdeviceptr pending = f.taken(2049);
    f.taken(512);
    const api::CUdeviceptr quick = f.taken(2101);
    f.work();
    f.free(pending);
    f.memory.sweep_deferred();
    f.taken(5000);
    f.free(quick);
    CHECK(f.taken(2100) == quick);
  }
}

TEST_CASE("what the streams have passed is found out although all frees go to the quick list") {
  Quick f(UINT64_MAX);
  const std::uint64_t largest = 64 * kMiB;
  const api::CUdeviceptr large = f.taken(largest);
  f.taken(512);
  f.free(large);
  const CountingDriver counted;
  for (std::uint64_t round = 0; round < 10'000; ++round) {
    const api::CUdeviceptr address = f.taken(512 + round * 7919 % 1000 * 512);
    f.work();
    f.free(address);
    f.finish();
  }
  Calls calls = counted.calls();
  CHECK(calls["cuEventCreate"] < 1024 + 200);  // one for each block in the list, and those that were queried
  CHECK(calls["cuEventQuery"] < 1000);
  CHECK(f.ledger.live_bytes(0) < 2 * largest);
}

TEST_CASE("if two threads free a block, exactly one of them succeeds") {
  static Quick* program;
  static std::function<void()> meanwhile;
  static api::CUcontext context;
  static api::CUdeviceptr block;
  static api::CUresult other;
  const bool first_waits = GENERATE(true, false);
  const bool other_waits = GENERATE(true, false);
  INFO(first_waits << " " << other_waits);
  Quick f;
  program = &f;
  context = f.context;
  block = f.taken(kMiB);
  const auto free = [](bool waits) {
    const auto refused = [] { return api::CUDA_ERROR_INVALID_VALUE; };
    return waits ? program->memory.free_waiting(block, true, refused)
                 : program->memory.free_async(block, kStream, false, refused);
  };
  meanwhile = [&] { other = free(other_waits); };
  // Between the claim and the end of the free: where a stream's context is asked for, or whether a capture forbids it.
  f.driver.set<api::cuCtxGetCurrent_fn>(Symbol::k_cuCtxGetCurrent, [](api::CUcontext* current) {
    if (const auto call = std::exchange(meanwhile, nullptr)) call();
    *current = context;
    return api::CUDA_SUCCESS;
  });
  f.driver.set<api::cuMemFree_v2_fn>(Symbol::k_cuMemFree_v2, [](auto...) {
    if (const auto call = std::exchange(meanwhile, nullptr)) call();
    return api::CUDA_SUCCESS;
  });
  CHECK(free(first_waits) == api::CUDA_SUCCESS);
  CHECK(other == api::CUDA_ERROR_INVALID_VALUE);
  const api::CUdeviceptr innocent = f.taken(3000);
  CHECK(f.used() == 3072);
  CHECK(f.taken(kMiB) != innocent);
  CHECK(f.number(innocent) != 0);
}

TEST_CASE("a context that ends while its memory is freed in another's stream takes its event with it") {
  static Quick* program;
  static std::function<void()> meanwhile;
  Quick f;
  program = &f;
  const api::CUdeviceptr block = f.taken(kMiB);
  f.free(block);
  REQUIRE(f.taken(kMiB) == block);  // with an event of this context
  f.driver.enter_context(0);
  meanwhile = [] {
    Memory::ContextEnd ending(program->memory, program->context);
    program->driver.reset(program->context);
    ending.gone();
  };
  f.driver.set<api::cuStreamGetId_fn>(Symbol::k_cuStreamGetId, [](api::CUstream stream, unsigned long long* number) {
    *number = reinterpret_cast<std::uintptr_t>(stream);
    if (const auto call = std::exchange(meanwhile, nullptr)) call();
    return api::CUDA_SUCCESS;
  });
  f.free(block, kOther);
  f.driver.leave_context();
  f.free(f.taken(2 * kMiB));
  CHECK(f.driver.dead_uses == 0);
}

TEST_CASE("an event that cannot be recorded leaves memory that the quick list would take allocated") {
  Quick f;
  const api::CUdeviceptr first = f.taken(kMiB);
  f.work();
  f.free(first);
  REQUIRE(f.taken(kMiB) == first);
  const std::uint64_t number = f.number(first);
  static bool fails;
  fails = true;
  f.driver.set<api::cuEventRecord_fn>(
      Symbol::k_cuEventRecord, [](auto...) { return fails ? api::CUDA_ERROR_INVALID_HANDLE : api::CUDA_SUCCESS; });
  CHECK(f.memory.free_async(first, kStream, false, no_call) == api::CUDA_ERROR_INVALID_HANDLE);
  CHECK(f.number(first) == number);
  CHECK(f.live_bytes() == kMiB);
  fails = false;
  // The work behind which the stream got it is still known.
  REQUIRE(f.memory.free_waiting(first, false, no_call) == api::CUDA_SUCCESS);
  CHECK(f.live_bytes() == kMiB);
  f.finish();
  CHECK(f.live_bytes() == 0);
}

TEST_CASE("the quick list is empty once a pool is destroyed, trimmed, or beyond its threshold") {
  Quick f;
  SECTION("destroyed") {
    const api::CUdeviceptr first = f.taken(kMiB);
    const api::CUdeviceptr second = f.taken(kMiB);
    f.free(first);
    f.memory.pool_destroyed(f.memory.serving(kPool));
    f.free(second);
    // A new pool with its handle starts anew.
    const api::CUdeviceptr third = f.taken(kMiB);
    CHECK(third != first);
    CHECK(third != second);
    CHECK(f.live_bytes() == kMiB);
  }
  SECTION("trimmed") {
    f.free(f.taken(kSpan));
    f.memory.trim_pool(kPool, 0);
    CHECK(f.reserved() == 0);
  }
  SECTION("beyond its threshold") {
    const api::CUdeviceptr first = f.taken(kSpan);
    f.free(first);
    f.set_threshold(0);
    CHECK(f.reserved() == 0);
    const api::CUdeviceptr second = f.taken(kSpan);
    f.free(second);
    CHECK(f.reserved() == 0);
  }
  CHECK(f.memory.has_deferred());
}

namespace {

// In each round the allocations of a program have other sizes; returns the most that the pool had.
std::uint64_t reserved_by_rounds(Quick& f, int rounds) {
  for (int round = 0; round < rounds; ++round) {
    const std::uint64_t bytes = round % 2 == 0 ? kMiB : kMiB / 4 * 3;
    std::vector<api::CUdeviceptr> all;
    for (int number = 0; number < 4; ++number) all.push_back(f.taken(bytes));
    f.work();
    for (const api::CUdeviceptr address : all) f.free(address);
    f.finish();
  }
  return f.attribute(api::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH);
}

constexpr std::uint64_t kOfOneRound = 6 * kMiB;  // at most
}  // namespace

TEST_CASE("while memory is free the quick list keeps all sizes of a program whose allocations change, otherwise none") {
  SECTION("there is room") {
    Quick f(UINT64_MAX, 128 * kMiB);
    const std::uint64_t reserved = reserved_by_rounds(f, 2);
    CHECK(reserved > kOfOneRound);
    const std::uint64_t entries = f.ledger.clock(0);
    CHECK(reserved_by_rounds(f, 10) == reserved);
    CHECK(f.ledger.clock(0) == entries);  // the ledger is unchanged
    CHECK(f.live_bytes() == 0);
  }
  SECTION("little of the GPU is free, whoever has the rest") {
    Quick f(UINT64_MAX, 128 * kMiB - 1);
    CHECK(reserved_by_rounds(f, 10) <= kOfOneRound);
  }
  SECTION("programs have more together than the GPU has") {
    Quick f(UINT64_MAX);
    f.turns.is_overcommitted = true;
    CHECK(reserved_by_rounds(f, 10) <= kOfOneRound);
  }
  SECTION("a limit applies") {
    Quick f;
    CHECK(reserved_by_rounds(f, 10) <= kOfOneRound);
  }
  SECTION("the pool is to keep no more") {
    Quick f(UINT64_MAX);
    f.set_threshold(5 * kMiB);
    CHECK(reserved_by_rounds(f, 10) <= kOfOneRound);
  }
  SECTION("the process has nearly all that the GPU has for it") {
    Quick f(UINT64_MAX);
    constexpr std::uint64_t capacity = 900 * kMiB;
    f.turns.contexts = 1024 * kMiB - capacity;
    f.taken(capacity - 100 * kMiB);
    const std::uint64_t before = f.reserved();
    CHECK(reserved_by_rounds(f, 10) <= before + kOfOneRound);
  }
}

TEST_CASE("what a pool has grown by for the quick list is given back once programs have more than the GPU has") {
  Quick f(UINT64_MAX);
  const api::CUdeviceptr held = f.taken(512);
  const std::uint64_t grown = reserved_by_rounds(f, 10);
  f.memory.sweep_deferred();
  CHECK(f.reserved() == grown);
  f.turns.is_overcommitted = true;
  f.memory.sweep_deferred();
  CHECK(f.reserved() < grown);
  CHECK(f.reserved() != 0);
  CHECK(f.ledger.find(held));
  CHECK(f.memory.has_deferred());  // which the monitor frees
  // What the program needed at once, and wants cached, stays.
  f.turns.is_overcommitted = false;
  const api::CUdeviceptr large = f.taken(8 * kMiB);
  f.free(large);
  f.memory.sweep_deferred();
  f.turns.is_overcommitted = true;
  f.memory.sweep_deferred();
  CHECK(f.reserved() >= 8 * kMiB);
}

TEST_CASE("if the driver has no more memory, memory in the quick list serves an allocation of another size") {
  Quick f(UINT64_MAX);
  std::vector<api::CUdeviceptr> parts;
  for (int number = 0; number < 4; ++number) parts.push_back(f.taken(kSpan / 4));
  f.work();
  for (const api::CUdeviceptr address : parts) f.free(address);
  f.driver.set<api::cuMemCreate_fn>(Symbol::k_cuMemCreate, [](auto...) { return api::CUDA_ERROR_OUT_OF_MEMORY; });
  CHECK(f.taken(kSpan) == parts.front());
  CHECK(awaited.empty());
  CHECK(f.live_bytes() == kSpan);
}

TEST_CASE("no memory is lost if more is freed than the quick list holds") {
  Quick f(UINT64_MAX);
  const std::uint64_t bytes = GENERATE(std::uint64_t{512}, 8 * kMiB);
  std::vector<api::CUdeviceptr> held;
  for (int number = 0; number < 100; ++number) held.push_back(f.taken(bytes));
  for (int round = 0; round < 30; ++round) {
    for (const api::CUdeviceptr address : held) f.free(address);
    std::vector<api::CUdeviceptr> again;
    for (std::size_t number = 0; number < held.size(); ++number) again.push_back(f.taken(bytes));
    std::sort(again.begin(), again.end());
    std::sort(held.begin(), held.end());
    REQUIRE(again == held);
  }
  for (const api::CUdeviceptr address : held) f.free(address);
  CHECK(f.used() == 0);
  CHECK(f.live_bytes() == 0);
  CHECK(f.ledger.entries() == 0);
  f.memory.trim_pool(kPool, 0);
  CHECK(f.reserved() == 0);
}

TEST_CASE("a context ends with its events of the quick list and of memory from it, but the memory stays") {
  Quick f;
  const api::CUdeviceptr first = f.taken(kMiB);
  const api::CUdeviceptr second = f.taken(kMiB);
  for (const api::CUdeviceptr address : {first, second}) f.free(address);
  const api::CUdeviceptr used = f.taken(kMiB);  // with an event of this context
  f.work();
  {
    Memory::ContextEnd ending(f.memory, f.context);
    f.driver.destroy(f.context);
    ending.gone();
  }
  f.driver.leave_context();
  f.driver.enter_context(0);
  CHECK(f.live_bytes() == kMiB);
  f.free(used);
  f.finish();
  CHECK(f.live_bytes() == 0);
  f.taken(kMiB);
  CHECK(f.driver.dead_uses == 0);
}

TEST_CASE("threads that free to the quick list and allocate from it never get the same block, and lose none") {
  Quick f(48 * kMiB);
  std::atomic<int> wrong{0};
  std::array<std::atomic<std::uint64_t>, 64 * kMiB / 512> owner{};
  const std::uint64_t base = f.taken(512);
  f.free(base);
  std::vector<std::thread> workers;
  for (std::uint64_t number = 1; number <= 8; ++number) {
    workers.emplace_back([&, number] {
      f.driver.enter_context(0);
      real::cuCtxPushCurrent_v2(f.context);
      const auto stream = reinterpret_cast<api::CUstream>(0x1000 * (1 + number % 3));
      const auto unexpected = [] { return api::CUDA_ERROR_UNKNOWN; };
      const auto mark = [&](api::CUdeviceptr address, std::uint64_t from, std::uint64_t to) {
        const std::uint64_t granule = (address - base) / 512;
        if (granule < owner.size() && !owner[granule].compare_exchange_strong(from, to)) wrong.fetch_add(1);
      };
      std::vector<api::CUdeviceptr> held;
      for (std::uint64_t round = 0; round < 600; ++round) {
        api::CUdeviceptr address = 0;
        // No work is ever outstanding here, so each block has only one user.
        if (f.memory.allocate_async(
                {.address = &address, .bytes = 512 * (1 + (round * 7 + number) % 4), .stream = stream}, unexpected) !=
            api::CUDA_SUCCESS) {
          wrong.fetch_add(1);
          continue;
        }
        mark(address, 0, number);
        held.push_back(address);
        if (held.size() > 5) {
          mark(held.front(), number, 0);
          const api::CUresult freed = round % 7 == 0 ? f.memory.free_waiting(held.front(), false, unexpected)
                                                     : f.memory.free_async(held.front(), stream, false, unexpected);
          if (freed != api::CUDA_SUCCESS) wrong.fetch_add(1);
          held.erase(held.begin());
        }
        std::optional<Memory::Block> block;
        if (round % 32 == 0) f.memory.sweep_deferred();
        if (round % 64 == 0) f.memory.trim_pool(kPool, 0);
        if (!f.memory.find_block(held.back(), &block) || !block) wrong.fetch_add(1);
      }
      for (const api::CUdeviceptr address : held) {
        mark(address, number, 0);
        f.memory.free_async(address, stream, false, unexpected);
      }
      f.driver.leave_context();
      f.driver.leave_context();
    });
  }
  for (std::thread& worker : workers) worker.join();
  CHECK(wrong == 0);
  CHECK(f.used() == 0);
  CHECK(f.live_bytes() == 0);
  CHECK(f.ledger.entries() == 0);
  f.memory.trim_pool(kPool, 0);
  CHECK(f.reserved() == 0);
  CHECK(f.driver.dead_uses == 0);
}
