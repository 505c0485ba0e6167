// The figures of a pool in whose place rota serves, which some programs query at every allocation: they are right, and
// cost no call of the driver in addition to the program's own.
#include <atomic>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "generated/driver_real.h"
#include "tests/unit/runtime/counting_driver.h"
#include "tests/unit/runtime/memory/served_fixture.h"

using namespace rota;
using namespace rota::memory;
using namespace rota::test;

namespace {

using Calls = std::map<std::string, long>;

constexpr api::CUmemPool_attribute kFigures[] = {
    api::CU_MEMPOOL_ATTR_USED_MEM_CURRENT, api::CU_MEMPOOL_ATTR_USED_MEM_HIGH,
    api::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, api::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH};

std::uint64_t used(Served& f) {
  return f.attribute(api::CU_MEMPOOL_ATTR_USED_MEM_CURRENT);
}

}  // namespace

TEST_CASE("asking for a pool's figures at each allocation costs no further call of the driver") {
  for (const std::uint64_t kept : {UINT64_MAX, std::uint64_t{0}}) {
    Served f;
    threshold = kept;
    f.taken(4096);
    f.reserved();  // the threshold
    const CountingDriver counted;
    for (int round = 0; round < 100; ++round) {
      const api::CUdeviceptr address = f.taken(4096);
      f.work();
      counted.reset();
      for (const api::CUmemPool_attribute which : kFigures) f.attribute(which);
      CHECK(counted.calls() == Calls{});
      f.free(address);
      counted.reset();
      for (const api::CUmemPool_attribute which : kFigures) f.attribute(which);
      CHECK(counted.calls() == Calls{});
    }
  }
}

TEST_CASE("a query asks how far the streams are only while that can give memory back") {
  Served f;
  threshold = 0;
  const api::CUdeviceptr first = f.taken(kSpan);
  const api::CUdeviceptr second = f.taken(kSpan);
  f.work();
  f.free(first);
  const CountingDriver counted;
  CHECK(f.reserved() == 2 * kSpan);
  Calls calls = counted.calls();
  CHECK(calls["cuMemPoolGetAttribute"] == 1);
  CHECK(calls["cuEventQuery"] == 1);
  counted.reset();
  CHECK(f.reserved() == 2 * kSpan);
  calls = counted.calls();
  CHECK(calls["cuMemPoolGetAttribute"] == 0);
  CHECK(calls["cuEventQuery"] == 1);
  f.finish();
  CHECK(f.reserved() == kSpan);
  counted.reset();
  f.work();
  CHECK(f.reserved() == kSpan);
  CHECK(counted.calls() == Calls{});
  f.free(second);
  CHECK(f.reserved() == kSpan);
  f.finish();
  CHECK(used(f) == 0);  // this query gives it back as well
  counted.reset();
  CHECK(f.reserved() == 0);
  CHECK(counted.calls() == Calls{});
}

TEST_CASE("an allocation that is refused counts for nothing, neither while it is nor in the high mark") {
  static Served* program;
  static std::uint64_t used_meanwhile;
  Served f;
  program = &f;
  f.free(f.taken(40 * kMiB));
  f.memory.sweep_deferred();
  f.memory.pool_attribute_set(kPool, api::CU_MEMPOOL_ATTR_USED_MEM_HIGH);
  used_meanwhile = UINT64_MAX;
  f.turns.takes = [](int, std::uint64_t, Kind) {
    used_meanwhile = used(*program);
    return false;
  };
  api::CUdeviceptr address = 0;
  CHECK(f.take(30 * kMiB, &address) == api::CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(used_meanwhile == 0);
  CHECK(f.attribute(api::CU_MEMPOOL_ATTR_USED_MEM_HIGH) == 0);
  f.turns.takes = {};
  f.taken(30 * kMiB);
  CHECK(used(f) == 30 * kMiB);
  CHECK(f.attribute(api::CU_MEMPOOL_ATTR_USED_MEM_HIGH) == 30 * kMiB);
}

TEST_CASE("a pool that is made under the handle of one being destroyed by another thread is another") {
  for (const bool at_once : {true, false}) {
    Served f;
    const api::CUdeviceptr first = f.taken(4096);
    const auto old = f.memory.serving(kPool);
    REQUIRE(old != nullptr);
    CHECK(used(f) == 4096);  // until the driver has destroyed it
    if (at_once) f.memory.pool_destroyed(old);
    f.memory.pool_made(kPool);
    CHECK(used(f) == 0);
    const api::CUdeviceptr of_new = f.taken(4096);
    if (!at_once) f.memory.pool_destroyed(old);
    CHECK(used(f) == 4096);
    f.free(first);  // of the old one
    f.memory.sweep_deferred();
    CHECK(used(f) == 4096);
    CHECK(f.reserved() == kSpan);
    f.free(of_new);
    CHECK(f.taken(4096) == of_new);
  }
}

TEST_CASE("a pool is held to the threshold that the program has set last") {
  Served f;
  f.set_threshold(3 * kSpan);
  std::vector<api::CUdeviceptr> held;
  for (int count = 0; count < 4; ++count) held.push_back(f.taken(kSpan));
  for (const api::CUdeviceptr address : held) f.free(address);
  CHECK(f.reserved() == 3 * kSpan);
  f.set_threshold(kSpan);
  CHECK(f.reserved() == kSpan);
  f.set_threshold(2 * kSpan);
  for (api::CUdeviceptr& address : held) address = f.taken(kSpan);
  for (const api::CUdeviceptr address : held) f.free(address);
  CHECK(f.reserved() == 2 * kSpan);
  f.set_threshold(0);
  CHECK(f.reserved() == 0);
}

TEST_CASE("a threshold that the program sets while the driver is asked for it is not lost") {
  static Served* program;
  static bool changes;
  Served f;
  program = &f;
  changes = true;
  f.free(f.taken(kSpan));
  f.driver.set<api::cuMemPoolGetAttribute_fn>(Symbol::k_cuMemPoolGetAttribute,
                                              [](api::CUmemoryPool, api::CUmemPool_attribute, void* value) {
                                                std::memcpy(value, &threshold, sizeof threshold);
                                                if (std::exchange(changes, false)) program->set_threshold(0);
                                                return api::CUDA_SUCCESS;
                                              });
  f.reserved();
  CHECK(f.reserved() == 0);
}

TEST_CASE("while the driver does not tell a pool's threshold, the pool keeps its memory") {
  Served f;
  f.driver.set<api::cuMemPoolGetAttribute_fn>(Symbol::k_cuMemPoolGetAttribute,
                                              [](auto...) { return api::CUDA_ERROR_UNKNOWN; });
  f.free(f.taken(kSpan));
  CHECK(f.reserved() == kSpan);
}

TEST_CASE("a pool's threshold is asked for again once a context has ended") {
  Served f;
  f.free(f.taken(kSpan));
  CHECK(f.reserved() == kSpan);
  threshold = 0;  // and nobody has reported it
  CHECK(f.reserved() == kSpan);
  const api::CUcontext other = f.driver.enter_context(0);
  f.driver.leave_context();
  {
    Memory::ContextEnd ending(f.memory, other);
    f.driver.destroy(other);
    ending.gone();
  }
  CHECK(f.reserved() == 0);
}

TEST_CASE("memory is used until it is freed, whether or not its stream has come that far") {
  Served f;
  const api::CUdeviceptr first = f.taken(1000);
  f.work();
  CHECK(used(f) == 1024);
  f.free(first);
  CHECK(used(f) == 0);
  CHECK(f.attribute(api::CU_MEMPOOL_ATTR_USED_MEM_HIGH) == 1024);
  CHECK(f.taken(3000) != 0);
  CHECK(used(f) == 3072);
  CHECK(f.attribute(api::CU_MEMPOOL_ATTR_USED_MEM_HIGH) == 3072);
}

TEST_CASE("each of many pools has its own figures, and one that gets the handle of a destroyed one starts anew") {
  Served f(128 * kMiB);
  const auto pool_at = [](std::uint64_t index) { return reinterpret_cast<api::CUmemoryPool>(0xa000 + index * 0x100); };
  const auto told = [&](std::uint64_t index, api::CUmemPool_attribute which) {
    std::uint64_t value = 7;  // the driver's
    f.memory.add_pool_attribute(pool_at(index), which, &value);
    return value - 7;
  };
  const auto take = [&](std::uint64_t index, std::uint64_t bytes, api::CUdeviceptr* into) {
    return f.memory.allocate_async({.address = into, .bytes = bytes, .pool = pool_at(index), .stream = kStream},
                                   no_call);
  };
  std::map<std::uint64_t, api::CUdeviceptr> held;
  std::map<std::uint64_t, api::CUdeviceptr> left;  // by pools that are destroyed
  for (int round = 0; round < 3; ++round) {
    for (std::uint64_t index = 1; index <= 20; ++index) {
      f.memory.pools().made(pool_at(index), Pools::described(plain_pool()));
      REQUIRE(take(index, UINT64_MAX / 2, &held[index]) == api::CUDA_ERROR_OUT_OF_MEMORY);
      for (const api::CUmemPool_attribute which : kFigures) CHECK(told(index, which) == 0);
      REQUIRE(take(index, index * 512, &held[index]) == api::CUDA_SUCCESS);
      if (const auto block = left.extract(index)) f.free(block.mapped());
    }
    for (std::uint64_t index = 1; index <= 20; ++index) {
      CHECK(told(index, api::CU_MEMPOOL_ATTR_USED_MEM_CURRENT) == index * 512);
      CHECK(told(index, api::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) == kSpan);
      if (index % 2 == 0) {
        left[index] = held[index];
      } else {
        f.free(held[index]);
        CHECK(told(index, api::CU_MEMPOOL_ATTR_USED_MEM_CURRENT) == 0);
      }
      f.memory.pool_destroyed(f.memory.serving(pool_at(index)));
      CHECK(told(index, api::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) == 0);
    }
  }
}

// Against what the program itself knows.
TEST_CASE("a pool's figures agree with its allocations after each call that changes them") {
  std::mt19937 random(1);
  const auto pick = [&](std::uint64_t below) { return random() % below; };
  Served f;
  std::map<api::CUdeviceptr, std::uint64_t> live;
  std::uint64_t high = 0;
  for (int step = 0; step < 4000; ++step) {
    const api::CUstream stream = pick(2) == 0 ? kStream : kOther;
    const std::uint64_t kind = pick(10);
    if (kind < 4 && live.size() < 12) {
      const std::uint64_t bytes = (1 + pick(2048)) * 512;
      live[f.taken(bytes, stream)] = bytes;
    } else if (kind < 8 && !live.empty()) {
      const auto block = std::next(live.begin(), static_cast<long>(pick(live.size())));
      if (kind == 7) {
        REQUIRE(f.memory.free_waiting(block->first, false, no_call) == api::CUDA_SUCCESS);
      } else {
        f.free(block->first, stream);
      }
      live.erase(block);
    } else if (kind == 8) {
      f.work();
      if (pick(2) == 0) f.finish();
      f.set_threshold(pick(4) * kSpan);
    } else if (pick(2) == 0) {
      f.memory.trim_pool(kPool, pick(4) * kSpan);
    } else if (pick(8) == 0) {
      f.memory.pool_attribute_set(kPool, api::CU_MEMPOOL_ATTR_USED_MEM_HIGH);
      high = 0;
    }
    std::uint64_t sum = 0;
    for (const auto& [address, bytes] : live) sum += bytes;
    high = std::max(high, sum);
    const std::uint64_t reserved = f.reserved();
    if (used(f) == sum && f.attribute(api::CU_MEMPOOL_ATTR_USED_MEM_HIGH) == high && reserved >= sum &&
        f.attribute(api::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH) >= reserved) {
      continue;
    }
    FAIL("wrong after step " << step << " of kind " << kind << ": " << used(f) << " bytes are used, not " << sum);
  }
  for (const auto& [address, bytes] : live) f.free(address);
  f.finish();
  f.set_threshold(0);
  CHECK(f.reserved() == 0);
}

TEST_CASE("threads that ask for a pool's figures while others allocate and free are told such as there were") {
  Served f;
  std::atomic<bool> done{false};
  std::atomic<int> wrong{0};
  const auto work = [&](api::CUstream stream) {
    real::cuCtxPushCurrent_v2(f.context);
    for (int round = 0; round < 500; ++round) {
      api::CUdeviceptr address = 0;
      if (f.take(kMiB, &address, stream) != api::CUDA_SUCCESS) wrong.fetch_add(1);
      if (f.memory.free_async(address, stream, false, no_call) != api::CUDA_SUCCESS) wrong.fetch_add(1);
      if (round % 16 == 0) f.memory.pool_attribute_set(kPool, api::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD);
    }
    f.driver.leave_context();
  };
  threshold = kSpan;
  std::thread one([&] { work(kStream); });
  std::thread other([&] { work(kOther); });
  std::thread asks([&] {
    while (!done) {
      const std::uint64_t now = used(f);
      if (now % kMiB != 0 || now > 2 * kMiB || f.reserved() % kSpan != 0) wrong.fetch_add(1);
    }
  });
  one.join();
  other.join();
  done = true;
  asks.join();
  CHECK(wrong == 0);
  CHECK(used(f) == 0);
  CHECK(f.reserved() <= kSpan);
}
