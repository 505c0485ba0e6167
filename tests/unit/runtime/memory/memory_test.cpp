// How allocating and freeing calls change the ledger, and what they ask of the driver.
#include "runtime/memory/memory.h"

#include <atomic>
#include <catch2/catch.hpp>
#include <thread>

#include "generated/driver_real.h"
#include "runtime/memory/array_bytes.h"
#include "scheduler/base/host_memory.h"
#include "tests/unit/runtime/memory/memory_fixture.h"

using namespace rota;
using namespace rota::memory;
using namespace rota::test;

TEST_CASE("without rotad plain memory stays plain, and with one it is managed, settled and prefetched") {
  Fixture f;
  f.driver.enter_context(0);
  api::CUdeviceptr first = 0;
  REQUIRE(f.memory.allocate(&first, kMiB) == api::CUDA_SUCCESS);
  CHECK(f.driver.managed_allocations.load() == 0);
  CHECK(f.ledger.fixed_bytes(0) == kMiB);
  f.memory.set_served(true);
  api::CUdeviceptr second = 0;
  REQUIRE(f.memory.allocate(&second, kMiB) == api::CUDA_SUCCESS);
  CHECK(f.driver.managed_allocations.load() == 1);
  CHECK(f.driver.prefetches.load() == 1);
  CHECK(f.ledger.live_bytes(0) == 2 * kMiB);
  CHECK(f.ledger.fixed_bytes(0) == kMiB);
  // While others have the GPU nothing is moved there.
  f.turns.our_turn = false;
  REQUIRE(f.memory.allocate(&second, kMiB) == api::CUDA_SUCCESS);
  CHECK(f.driver.prefetches.load() == 1);
}

namespace {

// What GPU 0's attributes say about managed memory; GPU 1 always can.
bool has_managed = true;
bool has_concurrent = true;

api::CUresult attribute(int* value, api::CUdevice_attribute which, api::CUdevice device) {
  *value = 1;
  if (device == 0 && which == api::CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY) *value = has_managed ? 1 : 0;
  if (device == 0 && which == api::CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS) *value = has_concurrent ? 1 : 0;
  return api::CUDA_SUCCESS;
}

}  // namespace

TEST_CASE("a GPU that cannot page managed memory by itself has native memory, others of the process do not") {
  // WSL has managed memory and no concurrent access; so have some vGPUs and MIG instances, others have none at all.
  for (const bool managed : {true, false}) {
    for (const Choice choice : {Choice::kAuto, Choice::kManaged}) {
      Fixture f({.backend = choice});
      f.driver.set<api::cuDeviceGetAttribute_fn>(Symbol::k_cuDeviceGetAttribute, attribute);
      has_managed = managed;
      has_concurrent = false;
      f.memory.set_served(true);
      const auto without = managed ? protocol::MemoryMode::kNativeNoPaging : protocol::MemoryMode::kNativeNoManaged;
      CHECK(f.memory.mode(0) == without);
      CHECK(f.memory.mode(1) == protocol::MemoryMode::kUnified);
      f.driver.enter_context(0);
      api::CUdeviceptr address = 0;
      REQUIRE(f.memory.allocate(&address, kMiB) == api::CUDA_SUCCESS);
      CHECK(f.driver.managed_allocations.load() == 0);
      CHECK(f.ledger.fixed_bytes(0) == kMiB);
      f.driver.enter_context(1);
      REQUIRE(f.memory.allocate(&address, kMiB) == api::CUDA_SUCCESS);
      CHECK(f.driver.managed_allocations.load() == 1);
    }
  }
}

TEST_CASE("a GPU whose driver refuses managed memory after all has native memory from then on, by every route") {
  Fixture f({.backend = Choice::kManaged, .small_bytes = 0});
  f.driver.set<api::cuMemAllocManaged_fn>(Symbol::k_cuMemAllocManaged, [](api::CUdeviceptr*, std::size_t, unsigned) {
    return api::CUDA_ERROR_NOT_SUPPORTED;
  });
  f.driver.enter_context(0);
  CHECK(f.memory.mode(0) == protocol::MemoryMode::kUnified);
  api::CUdeviceptr address = 0;
  SECTION("plain") {
    REQUIRE(f.memory.allocate(&address, kMiB) == api::CUDA_SUCCESS);
  }
  SECTION("pitched") {
    std::size_t pitch = 0;
    REQUIRE(f.memory.allocate_pitch(&address, &pitch, 512, 2048, 4) == api::CUDA_SUCCESS);
    CHECK(pitch == 512);
  }
  CHECK(f.ledger.find(address)->kind == Kind::kPlain);
  CHECK(f.ledger.live_bytes(0) == kMiB);
  CHECK(f.ledger.fixed_bytes(0) == kMiB);
  CHECK(f.memory.mode(0) == protocol::MemoryMode::kNativeNoManaged);
}

TEST_CASE("why memory is served as it is: what the user chose, and what the program does with it") {
  {
    Fixture f({.backend = Choice::kNative});
    CHECK(f.memory.mode(0) == protocol::MemoryMode::kNativeChosen);
  }
  Fixture f;
  CHECK(f.memory.mode(0) == protocol::MemoryMode::kUnknown);  // without a rotad nobody asks
  f.memory.set_served(true);
  CHECK(f.memory.mode(0) == protocol::MemoryMode::kUnified);
  f.driver.enter_context(0);
  api::CUdeviceptr address = 0;
  REQUIRE(f.memory.allocate(&address, kMiB) == api::CUDA_SUCCESS);
  f.memory.explained(api::CUDA_ERROR_INVALID_VALUE, address, "cuIpcGetMemHandle");
  CHECK(f.memory.mode(0) == protocol::MemoryMode::kNativeRefused);
}

TEST_CASE("the limit refuses before the driver is asked, whatever the route and the backend") {
  for (const Choice backend : {Choice::kNative, Choice::kManaged}) {
    Fixture f(limited(10 * kMiB, backend));
    f.driver.enter_context(0);
    api::CUdeviceptr address = 0;
    REQUIRE(f.memory.allocate(&address, 6 * kMiB) == api::CUDA_SUCCESS);
    std::size_t pitch = 0;
    api::CUdeviceptr other = 0;
    REQUIRE(f.memory.allocate_pitch(&other, &pitch, 512, 1, 4) == api::CUDA_SUCCESS);
    const int asked = f.driver.allocation_calls.load();
    CHECK(f.memory.allocate(&other, 6 * kMiB) == api::CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(f.memory.allocate_pitch(&other, &pitch, kMiB, 6, 4) == api::CUDA_ERROR_OUT_OF_MEMORY);
    for (const Kind kind : {Kind::kManaged, Kind::kAsync, Kind::kArray}) {
      CHECK(f.memory.allocate_native(6 * kMiB, kind, no_call, [] { return 0; }) == api::CUDA_ERROR_OUT_OF_MEMORY);
    }
    CHECK_FALSE(f.memory.reserve(0, 6 * kMiB, Kind::kPhysical));
    CHECK(f.driver.allocation_calls.load() == asked);
    // Freed memory is available again.
    REQUIRE(f.memory.free(address, [&] { return real::cuMemFree_v2(address); }) == api::CUDA_SUCCESS);
    CHECK(f.memory.allocate(&other, 6 * kMiB) == api::CUDA_SUCCESS);
  }
}

TEST_CASE("managed memory is no more than the GPU has, or programs that allocate until it fails would never end") {
  Fixture f({.backend = Choice::kManaged, .limit_bytes = kNoLimit});
  f.driver.device_bytes = 64 * kMiB;
  f.driver.enter_context(0);
  int got = 0;
  api::CUdeviceptr address = 0;
  while (got < 100 && f.memory.allocate(&address, 16 * kMiB) == api::CUDA_SUCCESS) ++got;
  CHECK(got == 4);
}

TEST_CASE("a program that may have more than the GPU gets most of what the host has left on top, and no more") {
  Fixture f({.backend = Choice::kManaged, .oversubscribe = true});
  f.driver.enter_context(0);
  const std::uint64_t host = available_to("self");
  REQUIRE(host < UINT64_MAX);
  f.driver.device_bytes = 10 * kMiB;
  api::CUdeviceptr address = 0;
  CHECK(f.memory.allocate(&address, 11 * kMiB) == api::CUDA_SUCCESS);
  CHECK(f.memory.allocate(&address, 2 * host) == api::CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(f.ledger.live_bytes(0) == 11 * kMiB);
}

TEST_CASE("the program's own managed memory may be larger than the GPU, as without rota") {
  Fixture f({.backend = Choice::kManaged, .limit_bytes = kNoLimit});
  f.driver.device_bytes = 64 * kMiB;
  f.driver.enter_context(0);
  api::CUdeviceptr own = 0;
  const auto managed = [&](std::uint64_t bytes) {
    return f.memory.allocate_native(
        bytes, Kind::kManaged, [&] { return f.driver.give_memory(&own, bytes); }, [&] { return own; });
  };
  CHECK(managed(128 * kMiB) == api::CUDA_SUCCESS);
  // It does not reduce the room for plain memory either, of which there is no more than the GPU has.
  api::CUdeviceptr address = 0;
  CHECK(f.memory.allocate(&address, 48 * kMiB) == api::CUDA_SUCCESS);
  CHECK(f.memory.allocate(&address, 48 * kMiB) == api::CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(managed(kMiB) == api::CUDA_SUCCESS);
  CHECK(f.ledger.live_bytes(0) == 177 * kMiB);
}

TEST_CASE("memory of a graph that is being captured is the graph's, and is not charged for ever") {
  Fixture f(limited(10 * kMiB));
  f.driver.enter_context(0);
  const auto stream = reinterpret_cast<api::CUstream>(0x5000);
  api::CUdeviceptr address = 0;
  const auto take = [&](std::uint64_t bytes) {
    return f.memory.allocate_async(
        {.address = &address, .bytes = bytes, .stream = stream, .capturing = f.driver.capturing.load()},
        [&] { return f.driver.give_memory(&address, bytes); });
  };
  f.driver.capturing.store(true);
  for (int graph = 0; graph < 3; ++graph) CHECK(take(8 * kMiB) == api::CUDA_SUCCESS);
  CHECK(f.ledger.live_bytes(0) == 0);
  CHECK(f.memory.free_async(address, stream, false, [] { return api::CUDA_SUCCESS; }, true) == api::CUDA_SUCCESS);
  CHECK(f.ledger.live_bytes(0) == 0);
  f.driver.capturing.store(false);
  CHECK(take(8 * kMiB) == api::CUDA_SUCCESS);
  CHECK(take(8 * kMiB) == api::CUDA_ERROR_OUT_OF_MEMORY);
}

TEST_CASE("a stream that is captured is not asked for its number, which would end the capture") {
  static bool asked;
  asked = false;
  Fixture f({.backend = Choice::kManaged});
  f.driver.enter_context(0);
  f.driver.set<api::cuStreamGetId_fn>(Symbol::k_cuStreamGetId, [](api::CUstream, unsigned long long* number) {
    asked = true;
    *number = 1;
    return api::CUDA_SUCCESS;
  });
  f.driver.capturing.store(true);
  api::CUdeviceptr address = 0;
  const auto stream = reinterpret_cast<api::CUstream>(0x5000);
  const auto given = [&] {
    address = 0x700000000;
    return api::CUDA_SUCCESS;
  };
  CHECK(f.memory.allocate_async({.address = &address, .bytes = kMiB, .stream = stream, .capturing = true}, given) ==
        api::CUDA_SUCCESS);
  CHECK(f.memory.free_async(address, stream, false, given, true) == api::CUDA_SUCCESS);
  CHECK_FALSE(asked);
}

TEST_CASE("converted memory freed into a capture is not freed under the graph: the driver answers") {
  Fixture f({.backend = Choice::kManaged, .limit_bytes = 64 * kMiB});
  f.driver.enter_context(0);
  api::CUdeviceptr address = 0;
  REQUIRE(f.memory.allocate(&address, kMiB) == api::CUDA_SUCCESS);
  f.driver.capturing.store(true);
  const auto stream = reinterpret_cast<api::CUstream>(0x5000);
  CHECK(f.memory.free_async(
            address, stream, false, [] { return api::CUDA_ERROR_INVALID_VALUE; }, true) ==
        api::CUDA_ERROR_INVALID_VALUE);
  f.driver.capturing.store(false);
  CHECK(f.ledger.live_bytes(0) == kMiB);
  CHECK(f.driver.memory.count(address) == 1);
}

TEST_CASE("an allocation or free that the driver refuses changes no sum, and its answer reaches the program") {
  Fixture f(limited(10 * kMiB));
  f.driver.enter_context(0);
  CHECK(f.memory.allocate_native(
            kMiB, Kind::kAsync, [] { return api::CUDA_ERROR_NOT_PERMITTED; }, [] { return 0; }) ==
        api::CUDA_ERROR_NOT_PERMITTED);
  CHECK(f.ledger.live_bytes(0) == 0);
  api::CUdeviceptr address = 0;
  REQUIRE(f.memory.allocate(&address, kMiB) == api::CUDA_SUCCESS);
  CHECK(f.memory.free(address, [] { return api::CUDA_ERROR_ILLEGAL_ADDRESS; }) == api::CUDA_ERROR_ILLEGAL_ADDRESS);
  CHECK(f.ledger.live_bytes(0) == kMiB);
  CHECK(f.memory.free(address + 1, [] { return api::CUDA_ERROR_INVALID_VALUE; }) == api::CUDA_ERROR_INVALID_VALUE);
  CHECK(f.ledger.live_bytes(0) == kMiB);
}

TEST_CASE("bad arguments are the driver's to answer") {
  Fixture f(limited(10 * kMiB));
  f.driver.enter_context(0);
  f.driver.set<api::cuMemAlloc_v2_fn>(Symbol::k_cuMemAlloc_v2, [](api::CUdeviceptr* address, size_t) {
    return address == nullptr ? api::CUDA_ERROR_INVALID_VALUE : api::CUDA_ERROR_UNKNOWN;
  });
  CHECK(f.memory.allocate(nullptr, kMiB) == api::CUDA_ERROR_INVALID_VALUE);
  CHECK(f.ledger.live_bytes(0) == 0);
  f.driver.leave_context();
  api::CUdeviceptr address = 0;
  CHECK(f.memory.allocate(&address, 64 * kMiB) == api::CUDA_ERROR_UNKNOWN);  // no context: no limit of any GPU
}

TEST_CASE("nvshare 7: memory is charged to the GPU of the context that is current when it is taken") {
  Fixture f(limited(10 * kMiB));
  api::CUdeviceptr address = 0;
  f.driver.enter_context(0);
  REQUIRE(f.memory.allocate(&address, 8 * kMiB) == api::CUDA_SUCCESS);
  const auto second = f.driver.enter_context(1);
  REQUIRE(f.memory.allocate(&address, 7 * kMiB) == api::CUDA_SUCCESS);
  CHECK(f.ledger.live_bytes(0) == 8 * kMiB);
  CHECK(f.ledger.live_bytes(1) == 7 * kMiB);
  f.driver.leave_context();
  // Freed while another context is current: the bytes are those of its own GPU.
  REQUIRE(f.memory.free(address, [&] { return real::cuMemFree_v2(address); }) == api::CUDA_SUCCESS);
  CHECK(f.ledger.live_bytes(0) == 8 * kMiB);
  CHECK(f.ledger.live_bytes(1) == 0);
  f.driver.enter_context(1);
  Memory::ContextEnd(f.memory, second).gone();
  CHECK(f.ledger.live_bytes(0) == 8 * kMiB);
}

TEST_CASE("nvshare 13: cuMemGetInfo's free bytes fall with what is taken and never pass below zero") {
  Fixture f({.backend = Choice::kManaged, .limit_bytes = 64 * kMiB});
  f.driver.enter_context(0);
  std::size_t free_bytes = 0;
  std::size_t total = 0;
  REQUIRE(f.memory.info(&free_bytes, &total) == api::CUDA_SUCCESS);
  CHECK(total == 64 * kMiB);
  CHECK(free_bytes == 64 * kMiB);
  api::CUdeviceptr address = 0;
  REQUIRE(f.memory.allocate(&address, 40 * kMiB) == api::CUDA_SUCCESS);
  REQUIRE(f.memory.info(&free_bytes, &total) == api::CUDA_SUCCESS);
  CHECK(free_bytes == 24 * kMiB);
  // A GPU smaller than what is charged to it (a limit that came late, a driver that says less): zero, no underflow.
  f.driver.device_bytes = 16 * kMiB;
  REQUIRE(f.memory.info(&free_bytes, &total) == api::CUDA_SUCCESS);
  CHECK(free_bytes == 0);
  CHECK(total == 16 * kMiB);
}

TEST_CASE("a query for all of a GPU's memory reports no more than CUDA gives, and needs no context") {
  for (const Choice backend : {Choice::kManaged, Choice::kNative}) {
    Fixture f({.backend = backend, .limit_bytes = kMiB << 20});
    f.driver.enter_context(0);
    api::CUdeviceptr address = 0;
    REQUIRE(f.memory.allocate(&address, 40 * kMiB) == api::CUDA_SUCCESS);
    f.driver.leave_context();
    // NVML's total counts what the GPU keeps for itself.
    const std::uint64_t total = f.driver.device_bytes + 600 * kMiB;
    const Memory::Shown seen = f.memory.shown(0, total, f.driver.device_bytes);
    CHECK(seen.total == total);
    CHECK(seen.free == f.driver.device_bytes - 40 * kMiB);
    CHECK(seen.own == 40 * kMiB);
    // Others have most of it, and no rotad can make them evict.
    CHECK(f.memory.shown(0, total, 5 * kMiB).free == 5 * kMiB);
    // With a rotad that does not matter to memory that moves.
    f.memory.set_served(true);
    const std::uint64_t left = f.memory.shown(0, total, 5 * kMiB).free;
    CHECK(left == (backend == Choice::kNative ? 5 * kMiB : f.driver.device_bytes - 40 * kMiB));
  }
}

TEST_CASE("a pitched allocation has the driver's pitch, converted or not") {
  for (const Choice backend : {Choice::kNative, Choice::kManaged}) {
    Fixture f(limited(64 * kMiB, backend));
    f.driver.enter_context(0);
    api::CUdeviceptr address = 0;
    std::size_t pitch = 0;
    REQUIRE(f.memory.allocate_pitch(&address, &pitch, 1000, 100, 4) == api::CUDA_SUCCESS);
    CHECK(pitch == 1024);
    CHECK(f.ledger.live_bytes(0) == 1024 * 100);
    CHECK(f.driver.managed_allocations.load() == (backend == Choice::kManaged ? 1 : 0));
  }
}

TEST_CASE(
    "a pitched allocation waits for nothing: no memory is given to a driver's free, and no probe stays for ever") {
  for (const Choice backend : {Choice::kNative, Choice::kManaged}) {
    Fixture f(limited(64 * kMiB, backend));
    f.driver.enter_context(0);
    f.driver.set<api::cuMemFree_v2_fn>(Symbol::k_cuMemFree_v2, [](api::CUdeviceptr address) {
      if (address != 0) FAIL_CHECK("a call that waits");  // 0 only asks whether frees are refused
      return FakeDriver::the().take_memory(address);
    });
    api::CUdeviceptr address = 0;
    std::size_t pitch = 0;
    for (const unsigned element : {4U, 8U, 16U, 4U}) {
      REQUIRE(f.memory.allocate_pitch(&address, &pitch, 1000, 100, element) == api::CUDA_SUCCESS);
    }
    CHECK(f.memory.has_deferred() == (backend == Choice::kManaged));
    f.driver.set<api::cuMemFree_v2_fn>(Symbol::k_cuMemFree_v2,
                                       [](api::CUdeviceptr where) { return FakeDriver::the().take_memory(where); });
    f.memory.collect_deferred();
    CHECK(f.driver.memory.size() == (backend == Choice::kManaged ? 1 : 4));  // those share a span
    CHECK(f.ledger.live_bytes(0) == 4 * 1024 * 100);
  }
}

TEST_CASE("whatever pitch a GPU has, what it took is what is charged") {
  Fixture f(limited(64 * kMiB));
  f.driver.enter_context(0);
  api::CUdeviceptr address = 0;
  std::size_t pitch = 0;
  for (const std::size_t unit : {64, 2048}) {
    static std::size_t rounding;
    rounding = unit;
    f.driver.set<api::cuMemAllocPitch_v2_fn>(
        Symbol::k_cuMemAllocPitch_v2, [](api::CUdeviceptr* where, size_t* row, size_t width, size_t height, unsigned) {
          *row = (width + rounding - 1) / rounding * rounding;
          return FakeDriver::the().give_memory(where, *row * height);
        });
    REQUIRE(f.memory.allocate_pitch(&address, &pitch, 10, 100, 4) == api::CUDA_SUCCESS);
    CHECK(pitch == unit);
    CHECK(f.ledger.live_bytes(0) == unit * 100);
    REQUIRE(f.memory.free(address, [&] { return real::cuMemFree_v2(address); }) == api::CUDA_SUCCESS);
  }
}

TEST_CASE("a program that exports memory gets the driver's answer, and native memory from then on") {
  Fixture f({.backend = Choice::kManaged, .limit_bytes = kNoLimit});
  f.driver.enter_context(0);
  f.driver.set<api::cuIpcGetMemHandle_fn>(Symbol::k_cuIpcGetMemHandle, [](api::CUipcMemHandle*, api::CUdeviceptr) {
    return api::CUDA_ERROR_INVALID_VALUE;
  });
  api::CUdeviceptr address = 0;
  REQUIRE(f.memory.allocate(&address, kMiB) == api::CUDA_SUCCESS);
  api::CUipcMemHandle handle{};
  CHECK(f.memory.explained(real::cuIpcGetMemHandle(&handle, address + 100), address + 100, "cuIpcGetMemHandle") ==
        api::CUDA_ERROR_INVALID_VALUE);
  REQUIRE(f.memory.allocate(&address, kMiB) == api::CUDA_SUCCESS);
  CHECK(f.driver.managed_allocations.load() == 1);
}

TEST_CASE("four threads allocate and free through the driver: ledger and driver agree at the end") {
  Fixture f({.backend = Choice::kManaged, .limit_bytes = kNoLimit});
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      f.driver.enter_context(0);
      std::vector<api::CUdeviceptr> own;
      for (int i = 0; i < 300; ++i) {
        api::CUdeviceptr address = 0;
        if (f.memory.allocate(&address, 4096) == api::CUDA_SUCCESS) own.push_back(address);
        if (i % 3 == 0) {
          const api::CUdeviceptr last = own.back();
          own.pop_back();
          if (i % 2 == 0) {
            f.memory.free(last, [&] { return real::cuMemFree_v2(last); });
          } else {
            f.memory.free_async(last, nullptr, false, [] { return api::CUDA_ERROR_UNKNOWN; });
          }
        }
      }
      f.driver.leave_context();
    });
  }
  for (std::thread& thread : threads) thread.join();
  f.driver.enter_context(0);
  api::CUdeviceptr address = 0;
  REQUIRE(f.memory.allocate(&address, 4096) == api::CUDA_SUCCESS);
  f.memory.collect_deferred();
  CHECK_FALSE(f.memory.has_deferred());
  std::uint64_t held = 0;
  for (const auto& [where, bytes] : f.driver.memory) held += bytes;
  CHECK(f.ledger.live_bytes(0) == held);
}

TEST_CASE("arrays are charged what they take: levels, layers, formats, and for sparse ones nothing") {
  CHECK(array_bytes(100, 0, 0, 1, api::CU_AD_FORMAT_FLOAT, 0, 1) == 400);
  CHECK(array_bytes(64, 64, 0, 4, api::CU_AD_FORMAT_UNSIGNED_INT8, 0, 1) == 64 * 64 * 4);
  CHECK(array_bytes(4, 4, 0, 1, api::CU_AD_FORMAT_HALF, 0, 3) == 2 * (16 + 4 + 1));
  // Beyond 64 bits: for the driver to refuse.
  CHECK(array_bytes(SIZE_MAX, SIZE_MAX, 0, 1, api::CU_AD_FORMAT_FLOAT, 0, 1) == 0);
  CHECK(array_bytes(SIZE_MAX / 2, 1, 0, 4, api::CU_AD_FORMAT_UNSIGNED_INT8, 0, 1) == 0);
  CHECK(array_bytes(4, 4, 6, 1, api::CU_AD_FORMAT_HALF, 0x01, 2) == 2 * 6 * (16 + 4));
  CHECK(array_bytes(4096, 4096, 4096, 4, api::CU_AD_FORMAT_FLOAT, 0x40, 1) == 0);
}
