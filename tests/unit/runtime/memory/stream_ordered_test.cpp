// Stream-ordered memory that rota serves in place of a pool, from managed memory.
#include <array>
#include <atomic>
#include <thread>

#include "generated/driver_real.h"
#include "tests/unit/runtime/memory/served_fixture.h"

using namespace rota;
using namespace rota::memory;
using namespace rota::test;

TEST_CASE("stream-ordered memory is managed, can be evicted, and is many allocations of one span") {
  Served f;
  const api::CUdeviceptr first = f.taken(1000);
  const api::CUdeviceptr second = f.taken(1000);
  CHECK(f.driver.managed_allocations == 1);
  CHECK(second == first + 1024);
  CHECK(f.live_bytes() == 2000);
  CHECK(f.ledger.fixed_bytes(0) == 0);
  CHECK(f.ledger.find(second + 999)->address == second);
  CHECK_FALSE(f.ledger.find(first + 1023));
  CHECK(f.memory.bring(0, kStream, f.memory.to_bring(0, UINT64_MAX)) == 0);  // too small to be worth it
  const api::CUdeviceptr large = f.taken(3 * kMiB);
  CHECK(f.memory.bring(0, kStream, f.memory.to_bring(0, UINT64_MAX)) == 3 * kMiB);
  for (const api::CUdeviceptr address : {first, second, large}) f.free(address);
  CHECK(f.live_bytes() == 0);
  CHECK(f.ledger.entries() == 0);
}

TEST_CASE("memory that work in its stream still uses is that stream's again at once, and no other's") {
  Served f;
  const api::CUdeviceptr first = f.taken(kSpan);
  f.work();
  f.free(first);
  CHECK(f.live_bytes() == kSpan);
  const api::CUdeviceptr other = f.taken(kSpan, kOther);
  CHECK(other != first);
  CHECK(f.taken(kSpan) == first);
  CHECK(f.live_bytes() == 2 * kSpan);
  f.free(first);
  f.finish();
  CHECK(f.taken(kSpan, kOther) == first);
  CHECK(f.driver.managed_allocations == 2);
  CHECK(f.live_bytes() == 2 * kSpan);
}

TEST_CASE("streams whose numbers the driver does not tell have memory again when it is passed") {
  Served f;
  f.driver.set<api::cuStreamGetId_fn>(Symbol::k_cuStreamGetId, [](auto...) { return api::CUDA_ERROR_NOT_SUPPORTED; });
  const api::CUdeviceptr first = f.taken(kSpan);
  f.work();
  f.free(first);
  const api::CUdeviceptr second = f.taken(kSpan);
  CHECK(second != first);
  f.finish();
  CHECK(f.taken(kSpan) == first);
}

TEST_CASE("at the limit an allocation waits in its stream for what another has freed, where the pool allows that") {
  Served f(kSpan);
  const api::CUdeviceptr first = f.taken(kSpan);
  f.work();
  f.free(first);
  api::CUdeviceptr second = 0;
  may_wait = 0;
  CHECK(f.take(kSpan, &second, kOther) == api::CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(awaited.empty());
  may_wait = 1;
  REQUIRE(f.take(kSpan, &second, kOther) == api::CUDA_SUCCESS);
  CHECK(second == first);
  CHECK(awaited.size() == 1);
  CHECK(f.live_bytes() == kSpan);
  f.finish();
  f.free(second, kOther);
  CHECK(f.live_bytes() == 0);
}

TEST_CASE("two streams that are made to wait for the same free each find its event") {
  static Served* program;
  static api::CUdeviceptr third;
  static bool events_were_there;
  Served f(kSpan);
  program = &f;
  third = 0;
  events_were_there = true;
  const api::CUdeviceptr first = f.taken(kSpan);
  f.work();
  f.free(first);
  // While one stream is being made to wait, so is another one, and the work ends and is queried.
  f.driver.set<api::cuStreamWaitEvent_fn>(
      Symbol::k_cuStreamWaitEvent, [](api::CUstream stream, api::CUevent event, unsigned) {
        if (stream == kOther) {
          const auto another = reinterpret_cast<api::CUstream>(0x7000);
          if (program->take(kSpan / 2, &third, another) != api::CUDA_SUCCESS) third = 0;
          program->finish();
          program->memory.trim_pool(kPool, UINT64_MAX);
        }
        const std::lock_guard lock(program->driver.mutex);
        events_were_there = events_were_there && program->driver.events.count(event) == 1;
        return api::CUDA_SUCCESS;
      });
  api::CUdeviceptr second = 0;
  REQUIRE(f.take(kSpan / 2, &second, kOther) == api::CUDA_SUCCESS);
  CHECK(second == first);
  CHECK(third == first + kSpan / 2);
  CHECK(events_were_there);
  CHECK(f.live_bytes() == kSpan);
}

TEST_CASE("memory that a stream got behind its own work and that is freed at once waits for that work") {
  Served f;
  expect_to_wait_for_earlier_work(f);
}

TEST_CASE("a wait that the driver refuses leaves the memory where it was") {
  Served f(kSpan);
  const api::CUdeviceptr first = f.taken(kSpan);
  f.work();
  f.free(first);
  f.driver.set<api::cuStreamWaitEvent_fn>(Symbol::k_cuStreamWaitEvent,
                                          [](auto...) { return api::CUDA_ERROR_STREAM_CAPTURE_ISOLATION; });
  api::CUdeviceptr second = 0;
  CHECK(f.take(kSpan, &second, kOther) == api::CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(f.taken(kSpan) == first);
  CHECK(f.live_bytes() == kSpan);
  f.finish();
  f.free(first);
  CHECK(f.live_bytes() == 0);
}

TEST_CASE("a span that is more than the driver has is refused, and no bytes are lost") {
  Served f;
  f.driver.set<api::cuMemAllocManaged_fn>(Symbol::k_cuMemAllocManaged,
                                          [](auto...) { return api::CUDA_ERROR_OUT_OF_MEMORY; });
  api::CUdeviceptr address = 0;
  CHECK(f.take(kMiB, &address) == api::CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(f.live_bytes() == 0);
  CHECK(f.reserved() == 0);
}

TEST_CASE("what a pool keeps unused above its threshold goes, by the monitor or to the next that needs as much") {
  Served f;
  const api::CUdeviceptr first = f.taken(kSpan);
  f.free(first);
  CHECK(f.reserved() == kSpan);
  CHECK(f.driver.memory.size() == 1);
  f.memory.trim_pool(kPool, kSpan);
  CHECK(f.reserved() == kSpan);
  f.memory.trim_pool(kPool, kSpan - 1);  // would leave less than that
  CHECK(f.reserved() == kSpan);
  f.set_threshold(0);
  CHECK(f.reserved() == 0);
  CHECK(f.memory.has_deferred());
  CHECK(f.taken(kSpan) == first);
  CHECK(f.driver.managed_allocations == 1);
  f.free(first);
  CHECK(f.reserved() == 0);
  f.memory.collect_deferred();
  CHECK(f.driver.memory.empty());
}

TEST_CASE("marks of a pool's use rise and stay until they are reset") {
  Served f;
  const api::CUdeviceptr first = f.taken(1000);
  const api::CUdeviceptr second = f.taken(1000);
  CHECK(f.attribute(api::CU_MEMPOOL_ATTR_USED_MEM_CURRENT) == 2048);
  f.free(second);
  CHECK(f.attribute(api::CU_MEMPOOL_ATTR_USED_MEM_CURRENT) == 1024);
  CHECK(f.attribute(api::CU_MEMPOOL_ATTR_USED_MEM_HIGH) == 2048);
  f.memory.pool_attribute_set(kPool, api::CU_MEMPOOL_ATTR_USED_MEM_HIGH);
  CHECK(f.attribute(api::CU_MEMPOOL_ATTR_USED_MEM_HIGH) == 1024);
  f.free(first);
  CHECK(f.attribute(api::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH) == kSpan);
  f.set_threshold(0);
  CHECK(f.reserved() == 0);
  f.memory.pool_attribute_set(kPool, api::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH);
  CHECK(f.attribute(api::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH) == 0);
}

TEST_CASE("a pool gives no more than its maximum") {
  Served f;
  const auto pool = reinterpret_cast<api::CUmemoryPool>(0xa000);
  api::CUmemPoolProps properties = plain_pool();
  properties.maxSize = 3 * kMiB;
  f.memory.pools().made(pool, Pools::described(properties));
  api::CUdeviceptr address = 0;
  const auto take = [&](std::uint64_t bytes) {
    return f.memory.allocate_async({.address = &address, .bytes = bytes, .pool = pool, .stream = kStream}, no_call);
  };
  CHECK(take(5 * kMiB) == api::CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(take(4 * kMiB) == api::CUDA_SUCCESS);  // the maximum is rounded up as the driver does
  CHECK(take(1) == api::CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(f.live_bytes() == 4 * kMiB);
}

TEST_CASE("pools that other processes can open, or of other memory, are left to the driver") {
  Served f;
  const auto pool = reinterpret_cast<api::CUmemoryPool>(0xa000);
  api::CUmemPoolProps properties = plain_pool();
  properties.handleTypes = api::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  api::CUdeviceptr address = 0;
  const auto left_alone = [&] {
    bool asked = false;
    const api::CUresult result =
        f.memory.allocate_async({.address = &address, .bytes = kMiB, .pool = pool, .stream = kStream}, [&] {
          asked = true;
          return f.driver.give_memory(&address, kMiB);
        });
    return result == api::CUDA_SUCCESS && asked;
  };
  f.memory.pools().made(pool, Pools::described(properties));
  CHECK(left_alone());
  properties.handleTypes = api::CU_MEM_HANDLE_TYPE_NONE;
  properties.gpuDirectRDMACapable = 1;
  f.memory.pools().made(pool, Pools::described(properties));
  CHECK(left_alone());
  properties.gpuDirectRDMACapable = 0;
  properties.location = {.type = api::CU_MEM_LOCATION_TYPE_HOST, .id = 0};
  f.memory.pools().made(pool, Pools::described(properties));
  CHECK(left_alone());
  properties.location = {.type = api::CU_MEM_LOCATION_TYPE_DEVICE, .id = 0};
  properties.allocType = api::CU_MEM_ALLOCATION_TYPE_MANAGED;
  f.memory.pools().made(pool, Pools::described(properties));
  CHECK(left_alone());
  f.memory.pools().forget(pool);  // imported, as far as anybody knows
  CHECK(left_alone());
}

TEST_CASE("memory of a destroyed pool stays until it is freed, and a new pool with its handle starts anew") {
  Served f;
  const api::CUdeviceptr first = f.taken(kMiB);
  f.memory.pool_destroyed(f.memory.serving(kPool));
  CHECK(f.reserved() == 0);
  const api::CUdeviceptr second = f.taken(kMiB);
  CHECK(f.reserved() == kSpan);
  CHECK(second != first + kMiB);
  f.work();
  f.free(first);
  CHECK(f.live_bytes() == 2 * kMiB);
  CHECK_FALSE(f.memory.has_deferred());
  f.finish();
  CHECK(f.live_bytes() == kMiB);
  CHECK(f.reserved() == kSpan);
  CHECK(f.memory.has_deferred());
}

TEST_CASE("stream-ordered memory is freed once, by either free, and only at its beginning") {
  Served f;
  const api::CUdeviceptr first = f.taken(kMiB);
  const api::CUdeviceptr second = f.taken(kMiB);
  // The driver refuses the middle of a span, but would free the span for its beginning.
  const auto refused = [] { return api::CUDA_ERROR_INVALID_VALUE; };
  CHECK(f.memory.free_waiting(first + 512, false, refused) == api::CUDA_ERROR_INVALID_VALUE);
  CHECK(f.memory.free_waiting(first, false, no_call) == api::CUDA_SUCCESS);
  CHECK(f.memory.free_waiting(first, false, no_call) == api::CUDA_ERROR_INVALID_VALUE);
  CHECK(f.memory.free_async(first, kStream, false, no_call) == api::CUDA_ERROR_INVALID_VALUE);
  f.work();
  f.free(second);
  CHECK(f.memory.free_async(second, kStream, false, refused) == api::CUDA_ERROR_INVALID_VALUE);
  CHECK(f.memory.free_waiting(second, false, refused) == api::CUDA_ERROR_INVALID_VALUE);
  f.finish();
  CHECK(f.reserved() == kSpan);
  CHECK(f.live_bytes() == 0);
  CHECK(f.driver.synchronizations == 0);
}

TEST_CASE("what a capture forbids is refused as the driver refuses it, and leaves the memory allocated") {
  Served f;
  const api::CUdeviceptr first = f.taken(kMiB);
  static api::CUdeviceptr tried;
  tried = 1;
  f.driver.set<api::cuMemFree_v2_fn>(Symbol::k_cuMemFree_v2, [](api::CUdeviceptr address) {
    tried = address;
    return api::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  });
  CHECK(f.memory.free_waiting(first, true, no_call) == api::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  CHECK(tried == 0);
  CHECK(f.ledger.find(first));
  f.driver.set<api::cuEventRecord_fn>(Symbol::k_cuEventRecord,
                                      [](auto...) { return api::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT; });
  api::CUdeviceptr second = 0;
  CHECK(f.take(kMiB, &second, kStream, true) == api::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
  CHECK(f.memory.free_async(first, kStream, false, no_call) == api::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
  CHECK(f.live_bytes() == kMiB);
  f.driver.set<api::cuMemFree_v2_fn>(Symbol::k_cuMemFree_v2, [](auto...) { return api::CUDA_SUCCESS; });
  CHECK(f.memory.free_waiting(first, false, no_call) == api::CUDA_SUCCESS);
}

TEST_CASE("with its context go a pool's spans, what is pending there, and the events, which nobody asks any more") {
  Served f;
  const api::CUdeviceptr first = f.taken(kMiB);
  f.taken(kMiB);
  f.work();
  f.free(first);
  CHECK(f.live_bytes() == 2 * kMiB);
  {
    Memory::ContextEnd ending(f.memory, f.context);
    f.driver.destroy(f.context);
    f.memory.trim_pool(kPool, 0);  // sweeps: must leave the ending context's events alone
    ending.gone();
  }
  CHECK(f.live_bytes() == 0);
  CHECK(f.ledger.entries() == 0);
  CHECK(f.reserved() == 0);
  CHECK(f.driver.dead_uses == 0);
  f.driver.leave_context();
  f.driver.enter_context(0);
  f.taken(kMiB);
  CHECK(f.driver.managed_allocations == 2);
}

TEST_CASE(
    "addresses that the driver gives again before the end of their context is known are the new context's alone") {
  static api::CUdeviceptr again;
  Served f;
  const api::CUdeviceptr first = f.taken(kMiB);
  f.work();
  f.free(first);
  CHECK(f.live_bytes() == kMiB);
  api::CUcontext other = nullptr;
  {
    Memory::ContextEnd ending(f.memory, f.context);
    f.driver.destroy(f.context);
    f.driver.leave_context();
    other = f.driver.enter_context(0);
    again = first;
    f.driver.set<api::cuMemAllocManaged_fn>(Symbol::k_cuMemAllocManaged,
                                            [](api::CUdeviceptr* address, std::size_t, unsigned) {
                                              *address = again;
                                              return api::CUDA_SUCCESS;
                                            });
    CHECK(f.taken(kMiB, kOther) == first);
    f.memory.trim_pool(kPool, 0);
    ending.gone();
  }
  REQUIRE(other != nullptr);
  CHECK(f.live_bytes() == kMiB);
  CHECK(f.reserved() == kSpan);
  CHECK(f.memory.free_waiting(first, false, no_call) == api::CUDA_SUCCESS);
  CHECK(f.live_bytes() == 0);
}

TEST_CASE("what a destroyed pool leaves unused is not the program's to free once more") {
  Served f;
  const api::CUdeviceptr address = f.taken(kMiB);
  f.memory.pool_destroyed(f.memory.serving(kPool));
  CHECK(f.memory.free_waiting(address, false, no_call) == api::CUDA_SUCCESS);
  CHECK(f.memory.has_deferred());
  CHECK(f.memory.free_waiting(address, false, no_call) == api::CUDA_ERROR_INVALID_VALUE);
  CHECK(f.memory.free_async(address, kStream, false, no_call) == api::CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("cuMemFree of stream-ordered memory needs no context, as the driver's does not") {
  Served f;
  const api::CUdeviceptr address = f.taken(kMiB);
  f.driver.leave_context();
  CHECK(f.memory.free_waiting(address, false, no_call) == api::CUDA_SUCCESS);
  CHECK(f.live_bytes() == 0);
}

TEST_CASE("a context that was not destroyed after all keeps its memory, and its frees are passed") {
  Served f;
  const api::CUdeviceptr first = f.taken(kMiB);
  f.free(first);
  {
    const Memory::ContextEnd kept(f.memory, f.context);
  }
  CHECK(f.reserved() == kSpan);
  CHECK(f.live_bytes() == 0);
  CHECK(f.taken(kSpan, kOther) == first);
}

TEST_CASE("the block around an address is told, and that a span's other addresses are nobody's") {
  Served f;
  const api::CUdeviceptr first = f.taken(1000);
  const api::CUdeviceptr second = f.taken(3000);
  std::optional<Memory::Block> block;
  std::optional<Memory::Block> next;
  REQUIRE(f.memory.find_block(first + 999, &block));
  REQUIRE(f.memory.find_block(second + 2999, &next));
  REQUIRE(block);
  REQUIRE(next);
  CHECK(block->address == first);
  CHECK(block->bytes == 1000);
  CHECK(block->pool == kPool);
  CHECK(next->address == second);
  CHECK(block->buffer_id != next->buffer_id);
  CHECK(block->span_address == first);
  CHECK(block->span_bytes == kSpan);
  REQUIRE(f.memory.find_block(first + 1000, &block));
  CHECK_FALSE(block);
  CHECK_FALSE(f.memory.find_block(first - 1, &block));
  CHECK_FALSE(f.memory.find_block(first + kSpan, &block));
  f.free(first);
  REQUIRE(f.memory.find_block(first, &block));
  CHECK_FALSE(block);
}

TEST_CASE("threads that allocate, free, query and trim at once never get the same memory, and leave nothing") {
  Served f(48 * kMiB);
  std::atomic<int> overlaps{0};
  std::vector<std::thread> workers;
  std::array<std::atomic<std::uint64_t>, 64 * kMiB / 4096> owner{};
  const std::uint64_t base = f.driver.next_address;
  for (std::uint64_t number = 1; number <= 8; ++number) {
    workers.emplace_back([&, number] {
      f.driver.enter_context(0);
      real::cuCtxPushCurrent_v2(f.context);
      const auto stream = reinterpret_cast<api::CUstream>(0x1000 * (1 + number % 3));
      const auto mark = [&](api::CUdeviceptr address, std::uint64_t from, std::uint64_t to) {
        const std::uint64_t page = (address - base) / 4096;
        if (page < owner.size() && !owner[page].compare_exchange_strong(from, to)) overlaps.fetch_add(1);
      };
      std::vector<api::CUdeviceptr> held;
      for (int round = 0; round < 400; ++round) {
        api::CUdeviceptr address = 0;
        // No work is ever outstanding here, so each block has only one user.
        if (f.memory.allocate_async({.address = &address, .bytes = 4096 * (1 + number), .stream = stream},
                                    [] { return api::CUDA_ERROR_UNKNOWN; }) == api::CUDA_SUCCESS) {
          mark(address, 0, number);
          held.push_back(address);
        }
        if (held.size() > 5) {
          mark(held.front(), number, 0);
          const auto unexpected = [] { return api::CUDA_ERROR_UNKNOWN; };
          const api::CUresult freed = round % 2 == 0 ? f.memory.free_async(held.front(), stream, false, unexpected)
                                                     : f.memory.free_waiting(held.front(), false, unexpected);
          if (freed != api::CUDA_SUCCESS) overlaps.fetch_add(1);
          held.erase(held.begin());
        }
        std::optional<Memory::Block> block;
        if (round % 16 == 0) f.memory.trim_pool(kPool, 0);
        if (!held.empty() && (!f.memory.find_block(held.back(), &block) || !block)) overlaps.fetch_add(1);
      }
      for (const api::CUdeviceptr address : held) {
        mark(address, number, 0);
        f.memory.free_async(address, stream, false, [] { return api::CUDA_ERROR_UNKNOWN; });
      }
      f.driver.leave_context();
      f.driver.leave_context();
    });
  }
  for (std::thread& worker : workers) worker.join();
  CHECK(overlaps == 0);
  f.set_threshold(0);
  CHECK(f.reserved() == 0);
  CHECK(f.live_bytes() == 0);
  CHECK(f.ledger.entries() == 0);
  CHECK(f.driver.dead_uses == 0);
}

TEST_CASE("where the driver refuses managed memory after all, a pool's memory is the driver's") {
  Served f;
  f.driver.set<api::cuMemAllocManaged_fn>(Symbol::k_cuMemAllocManaged, [](api::CUdeviceptr*, std::size_t, unsigned) {
    return api::CUDA_ERROR_NOT_SUPPORTED;
  });
  api::CUdeviceptr address = 0;
  REQUIRE(f.memory.allocate_async({.address = &address, .bytes = kMiB, .stream = kStream},
                                  [&] { return f.driver.give_memory(&address, kMiB); }) == api::CUDA_SUCCESS);
  CHECK(f.ledger.find(address)->kind == Kind::kAsync);
  CHECK(f.ledger.live_bytes(0) == kMiB);
  CHECK(f.memory.mode(0) == protocol::MemoryMode::kNativeNoManaged);
}
