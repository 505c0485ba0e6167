// Converted memory that is freed by cuMemFreeAsync, for which the driver has only a call that waits.
#include <unistd.h>

#include <atomic>
#include <future>
#include <thread>

#include "generated/driver_real.h"
#include "tests/unit/runtime/memory/memory_fixture.h"
#include "tests/unit/runtime/sleeping_thread.h"

using namespace rota;
using namespace rota::memory;
using namespace rota::test;

namespace {

constexpr Settings kManaged64{.backend = Choice::kManaged, .limit_bytes = 64 * kMiB};

// Address 0 only asks whether the driver refuses frees, which never waits.
api::CUresult forbidden_free(api::CUdeviceptr address) {
  if (address != 0) FAIL_CHECK("a free that waits for the GPU");
  return api::CUDA_SUCCESS;
}

struct Freed : Fixture {
  Freed() : Fixture(kManaged64) { context = driver.enter_context(0); }
  api::CUdeviceptr allocated(std::uint64_t bytes) {
    api::CUdeviceptr address = 0;
    REQUIRE(memory.allocate(&address, bytes) == api::CUDA_SUCCESS);
    return address;
  }
  void free_in_order(api::CUdeviceptr address) {
    REQUIRE(memory.free_async(address, nullptr, false, no_call) == api::CUDA_SUCCESS);
  }
  api::CUresult free_now(api::CUdeviceptr address) {
    return memory.free_waiting(address, false, [&] { return real::cuMemFree_v2(address); });
  }
  bool driver_has(api::CUdeviceptr address) { return driver.memory.count(address) == 1; }
  void forbid_frees() { driver.set<api::cuMemFree_v2_fn>(Symbol::k_cuMemFree_v2, forbidden_free); }
  void allow_frees() {
    driver.set<api::cuMemFree_v2_fn>(Symbol::k_cuMemFree_v2,
                                     [](api::CUdeviceptr address) { return FakeDriver::the().take_memory(address); });
  }
  api::CUcontext context;
};

}  // namespace

TEST_CASE("memory freed in stream order is in use until the stream has come that far, and free from then on") {
  Freed f;
  f.forbid_frees();
  const api::CUdeviceptr address = f.allocated(40 * kMiB);
  f.driver.submitted = 5;
  f.free_in_order(address);
  CHECK(f.ledger.live_bytes(0) == 40 * kMiB);
  api::CUdeviceptr other = 0;
  CHECK(f.memory.allocate(&other, 30 * kMiB) == api::CUDA_ERROR_OUT_OF_MEMORY);
  std::size_t free_bytes = 0;
  std::size_t total = 0;
  REQUIRE(f.memory.info(&free_bytes, &total) == api::CUDA_SUCCESS);
  CHECK(free_bytes == 24 * kMiB);
  f.driver.finished = 5;
  REQUIRE(f.memory.info(&free_bytes, &total) == api::CUDA_SUCCESS);
  CHECK(free_bytes == 64 * kMiB);
  CHECK(f.memory.allocate(&other, 30 * kMiB) == api::CUDA_SUCCESS);
  CHECK(f.driver_has(address));
  CHECK(f.ledger.find(address)->freeing);
}

TEST_CASE("an allocation of the same size gets the memory again without the driver being asked") {
  Freed f;
  f.forbid_frees();
  const api::CUdeviceptr address = f.allocated(4 * kMiB);
  f.free_in_order(address);
  const int asked = f.driver.allocation_calls.load();
  CHECK(f.allocated(4 * kMiB) == address);
  CHECK(f.driver.allocation_calls.load() == asked);
  CHECK_FALSE(f.memory.has_deferred());
  CHECK(f.ledger.live_bytes(0) == 4 * kMiB);
  CHECK_FALSE(f.ledger.find(address)->freeing);
  // Not while the GPU may still use it, not for another size, and not where the driver has to be asked.
  f.driver.submitted = 1;
  f.free_in_order(address);
  CHECK(f.allocated(4 * kMiB) != address);
  f.driver.finished = 1;
  CHECK(f.allocated(2 * kMiB) != address);
  api::CUdeviceptr under_capture = 0;
  REQUIRE(f.memory.allocate(&under_capture, 4 * kMiB, false) == api::CUDA_SUCCESS);
  CHECK(under_capture != address);
}

TEST_CASE("memory goes back to the driver behind the program's own waiting free, and when the monitor collects") {
  Freed f;
  const api::CUdeviceptr first = f.allocated(kMiB);
  const api::CUdeviceptr second = f.allocated(kMiB);
  const api::CUdeviceptr third = f.allocated(2 * kMiB);
  f.free_in_order(first);
  REQUIRE(f.free_now(second) == api::CUDA_SUCCESS);
  CHECK_FALSE(f.driver_has(first));
  CHECK_FALSE(f.memory.has_deferred());
  f.driver.submitted = 1;
  f.free_in_order(third);
  f.memory.collect_deferred();
  CHECK(f.driver_has(third));  // it is still in use
  f.driver.finished = 1;
  f.memory.collect_deferred();
  CHECK_FALSE(f.driver_has(third));
  CHECK(f.ledger.live_bytes(0) == 0);
  CHECK(f.ledger.entries() == 0);
}

TEST_CASE("a free that the driver refuses, and one of a pool's memory, wait for nothing and collect nothing") {
  Freed f;
  const api::CUdeviceptr address = f.allocated(kMiB);
  f.free_in_order(address);
  f.forbid_frees();
  const auto refuse = [] { return api::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED; };
  CHECK(f.memory.free_waiting(0x1234, false, refuse) == api::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  api::CUdeviceptr pooled = 0;
  REQUIRE(f.memory.allocate_async({.address = &pooled, .bytes = kMiB},
                                  [&] { return f.driver.give_memory(&pooled, kMiB); }) == api::CUDA_SUCCESS);
  CHECK(f.memory.free_waiting(pooled, false, [] { return api::CUDA_SUCCESS; }) == api::CUDA_SUCCESS);
  CHECK(f.memory.has_deferred());
}

TEST_CASE("a free in one context gives back nothing of another one, which may be busy") {
  Freed f;
  const api::CUdeviceptr first = f.allocated(kMiB);
  f.free_in_order(first);
  const api::CUcontext other = f.driver.enter_context(0);
  REQUIRE(other != f.context);
  const api::CUdeviceptr second = f.allocated(kMiB);
  REQUIRE(f.free_now(second) == api::CUDA_SUCCESS);
  CHECK(f.driver_has(first));
  f.memory.collect_deferred();
  CHECK_FALSE(f.driver_has(first));
}

TEST_CASE("memory that the program has made synchronous is not given out again as new") {
  Freed f;
  const api::CUdeviceptr address = f.allocated(kMiB);
  f.memory.set_synchronous(address, true);
  f.free_in_order(address);
  CHECK(f.allocated(kMiB) != address);
}

TEST_CASE("memory that was freed in stream order cannot be freed again, by either call, although the driver has it") {
  Freed f;
  const api::CUdeviceptr address = f.allocated(kMiB);
  f.driver.submitted = 1;
  f.free_in_order(address);
  CHECK(f.memory.free_async(address, nullptr, false, no_call) == api::CUDA_ERROR_INVALID_VALUE);
  CHECK(f.memory.free_waiting(address, false, no_call) == api::CUDA_ERROR_INVALID_VALUE);
  CHECK(f.driver_has(address));
  f.driver.finished = 1;
  CHECK(f.free_now(address) == api::CUDA_ERROR_INVALID_VALUE);
  f.memory.collect_deferred();
  CHECK(f.ledger.entries() == 0);
  CHECK(f.ledger.live_bytes(0) == 0);
}

TEST_CASE("a deferred free ends with its own context, whichever context's stream it waits for") {
  Freed f;
  static api::CUcontext of_stream;
  of_stream = f.driver.enter_context(0);
  f.driver.leave_context();
  f.driver.set<api::cuStreamGetCtx_fn>(Symbol::k_cuStreamGetCtx, [](api::CUstream, api::CUcontext* context) {
    *context = of_stream;
    return api::CUDA_SUCCESS;
  });
  const api::CUdeviceptr address = f.allocated(kMiB);
  f.driver.submitted = 1;
  REQUIRE(f.memory.free_async(address, reinterpret_cast<api::CUstream>(0x5000), false, no_call) == api::CUDA_SUCCESS);
  {
    Memory::ContextEnd end(f.memory, f.context);
    f.driver.take_memory(address);
    end.gone();
  }
  CHECK_FALSE(f.memory.has_deferred());
  CHECK(f.ledger.live_bytes(0) == 0);
  // The driver gives the address to a new allocation; the event of the old one is reached.
  f.driver.next_address = address;
  f.driver.leave_context();
  f.driver.enter_context(0);
  CHECK(f.allocated(kMiB) == address);
  f.driver.finished = 1;
  f.memory.collect_deferred();
  CHECK(f.driver_has(address));
  CHECK(f.ledger.live_bytes(0) == kMiB);
}

TEST_CASE("the end of the stream's context is the end of the memory's use, and its event is not touched again") {
  Freed f;
  static api::CUcontext of_stream;
  of_stream = f.driver.enter_context(0);
  f.driver.leave_context();
  f.driver.set<api::cuStreamGetCtx_fn>(Symbol::k_cuStreamGetCtx, [](api::CUstream, api::CUcontext* context) {
    *context = of_stream;
    return api::CUDA_SUCCESS;
  });
  const api::CUdeviceptr address = f.allocated(kMiB);
  f.driver.submitted = 1;
  REQUIRE(f.memory.free_async(address, reinterpret_cast<api::CUstream>(0x5000), false, no_call) == api::CUDA_SUCCESS);
  {
    Memory::ContextEnd end(f.memory, of_stream);
    f.driver.destroy(of_stream);
    f.memory.collect_deferred();  // the event has ended, although nobody has said so yet
    end.gone();
  }
  CHECK(f.ledger.live_bytes(0) == 0);
  CHECK(f.driver_has(address));
  f.memory.collect_deferred();
  CHECK_FALSE(f.driver_has(address));
  CHECK(f.driver.dead_uses.load() == 0);
}

TEST_CASE("a context that the driver does not destroy keeps its deferred frees") {
  Freed f;
  const api::CUdeviceptr address = f.allocated(kMiB);
  f.free_in_order(address);
  {
    const Memory::ContextEnd refused(f.memory, f.context);
  }
  CHECK(f.memory.has_deferred());
  f.memory.collect_deferred();
  CHECK_FALSE(f.driver_has(address));
}

TEST_CASE("a context's end waits for memory of it that is on its way to the driver") {
  Freed f;
  const api::CUdeviceptr address = f.allocated(kMiB);
  f.free_in_order(address);
  static std::atomic<int> inside;
  static std::atomic<bool> go_on;
  inside = 0;
  go_on = false;
  f.driver.set<api::cuMemFree_v2_fn>(Symbol::k_cuMemFree_v2, [](api::CUdeviceptr where) {
    if (where != 0) inside.fetch_add(1);
    while (where != 0 && !go_on.load()) std::this_thread::yield();
    return FakeDriver::the().take_memory(where);
  });
  auto collector = std::async(std::launch::async, [&] { f.memory.collect_deferred(); });
  while (inside.load() == 0) std::this_thread::yield();
  std::atomic<bool> ending{false};
  std::atomic<bool> freed_first{false};
  auto destroyer = std::async(std::launch::async, [&] {
    ending = true;
    Memory::ContextEnd end(f.memory, f.context);
    freed_first = go_on.load();
    end.gone();
  });
  while (!ending.load()) std::this_thread::yield();
  // Others allocate meanwhile.
  {
    FakeDriver::the().enter_context(0);
    f.allocated(2 * kMiB);
    FakeDriver::the().leave_context();
  }
  go_on = true;
  collector.wait();
  destroyer.wait();
  CHECK(freed_first.load());
  CHECK(f.ledger.live_bytes(0) == 2 * kMiB);
}

TEST_CASE("what is free is told with the answers that another thread is just getting from the driver") {
  Freed f;
  f.free_in_order(f.allocated(40 * kMiB));
  static std::atomic<int> inside;
  static std::atomic<bool> go_on;
  inside = 0;
  go_on = false;
  f.driver.set<api::cuEventQuery_fn>(Symbol::k_cuEventQuery, [](api::CUevent) {
    inside.fetch_add(1);
    while (!go_on.load()) std::this_thread::yield();
    return api::CUDA_SUCCESS;
  });
  auto monitor = std::async(std::launch::async, [&] { f.memory.sweep_deferred(); });
  while (inside.load() == 0) std::this_thread::yield();
  std::atomic<pid_t> asking{0};
  std::size_t free_bytes = 0;
  std::thread program([&] {
    FakeDriver::the().enter_context(0);
    asking = gettid();
    std::size_t total = 0;
    f.memory.info(&free_bytes, &total);
    FakeDriver::the().leave_context();
  });
  while (asking.load() == 0 || !sleeps_or_is_gone(asking)) std::this_thread::yield();
  go_on = true;
  monitor.wait();
  program.join();
  CHECK(inside.load() == 1);
  CHECK(free_bytes == 64 * kMiB);
}

TEST_CASE("the driver's own stream-ordered memory goes the driver's way, and is free at once") {
  Freed f;
  api::CUdeviceptr address = 0;
  REQUIRE(f.memory.allocate_async({.address = &address, .bytes = kMiB},
                                  [&] { return f.driver.give_memory(&address, kMiB); }) == api::CUDA_SUCCESS);
  bool called = false;
  CHECK(f.memory.free_async(address, nullptr, false, [&] {
    called = true;
    return api::CUDA_SUCCESS;
  }) == api::CUDA_SUCCESS);
  CHECK(called);
  CHECK(f.ledger.live_bytes(0) == 0);
}
