// Memory of a pool that has outlived all contexts on its GPU.
#include <catch2/catch.hpp>
#include <cstring>

#include "tests/unit/runtime/monitor/mapping_driver.h"
#include "tests/unit/runtime/monitor/turning_program.h"

using namespace rota;
using namespace rota::test;

namespace {

constexpr std::uint64_t kBytes = 64 * kMega;

void has_pools(FakeDriver& driver) {
  maps(driver);
  driver.set<api::cuDeviceGetDefaultMemPool_fn>(Symbol::k_cuDeviceGetDefaultMemPool,
                                                [](api::CUmemoryPool* pool, api::CUdevice) {
                                                  *pool = reinterpret_cast<api::CUmemoryPool>(0x9000);
                                                  return api::CUDA_SUCCESS;
                                                });
  driver.set<api::cuStreamGetId_fn>(Symbol::k_cuStreamGetId, [](api::CUstream, unsigned long long* number) {
    *number = 7;
    return api::CUDA_SUCCESS;
  });
  driver.set<api::cuMemPoolGetAttribute_fn>(Symbol::k_cuMemPoolGetAttribute,
                                            [](api::CUmemoryPool, api::CUmemPool_attribute which, void* value) {
                                              const std::uint64_t all = UINT64_MAX;
                                              if (which == api::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD) {
                                                std::memcpy(value, &all, sizeof all);
                                              }
                                              return api::CUDA_SUCCESS;
                                            });
}

// Holds the GPU, with a rotad that moves swap memory.
struct Swapping : Rotad {
  Swapping() { keep_limits(); }
  protocol::Message next(Kind kind) {
    for (;;) {
      const protocol::Message message = Rotad::next();
      if (message.kind == kind) return message;
    }
  }
  // Grants the whole GPU permanently.
  void answer_reserve() {
    const protocol::Reserve ask = next(Kind::kReserve).body.reserve;
    protocol::Message message{.kind = Kind::kReserved};
    message.body.reserved = {.gpu = ask.gpu,
                             .number = ask.number,
                             .device_bytes = 1024 * kMega,
                             .movable_bytes = 1024 * kMega,
                             .granted = 1,
                             .text = {},
                             .full = 0,
                             .fixed_bytes = 1024 * kMega,
                             .swapped_bytes = 1024 * kMega};
    say(message);
  }
};
struct Pooled : Program {
  explicit Pooled(Swapping& rotad) : Program(memory::Choice::kSwap, true, has_pools), rotad(rotad) {
    launch();
    rotad.next(Kind::kWant);
    rotad.grant(1, 1, 1024 * kMega);
    launcher.join();
    driver.finished = UINT64_MAX;
    REQUIRE(eventually([&] { return !gate.closed(); }));
  }
  void end_context() {
    contexts.end_context(context, [] { return api::CUDA_SUCCESS; }, [](api::CUresult) { return true; });
    REQUIRE(contexts.none(0));
  }
  Swapping& rotad;
};

}  // namespace

TEST_CASE("what lies on a GPU where no context is left counts as fixed, until there is one that could move it") {
  Swapping rotad;
  Pooled program(rotad);
  api::CUdeviceptr address = 0;
  REQUIRE(program.memory.swap().serves(0));
  REQUIRE(program.memory.swap().allocate({nullptr, 0}, &address, kBytes) == api::CUDA_SUCCESS);
  CHECK(program.memory.swap().resident_bytes(0) == kBytes);
  rotad.somebody_waits(1);
  rotad.next(Kind::kGiveBack);
  rotad.grant(0, 0);
  rotad.somebody_waits(0);
  const auto fixed = [&] { return rotad.usage().gpus[0].fixed_bytes.load(); };
  CHECK(rotad.usage().gpus[0].resident_bytes == kBytes);
  CHECK(eventually([&] { return fixed() == 0; }));
  program.end_context();
  CHECK(eventually([&] { return fixed() == kBytes; }));
  program.contexts.add(program.context, 0, true);
  CHECK(eventually([&] { return fixed() == 0; }));
}

TEST_CASE("what a pool has no use for goes back to the driver where no context is left, too") {
  Swapping rotad;
  Pooled program(rotad);
  api::CUdeviceptr address = 0;
  const auto no_call = [] { return api::CUDA_ERROR_UNKNOWN; };
  program.allocator = std::thread([&] {
    program.driver.enter_context(0);
    program.result = program.memory.allocate_async({.address = &address, .bytes = kBytes}, no_call);
    program.driver.leave_context();
  });
  rotad.answer_reserve();
  program.allocator.join();
  REQUIRE(program.result == api::CUDA_SUCCESS);
  REQUIRE(program.memory.swap().resident_bytes(0) == kBytes);
  REQUIRE(program.memory.free_async(address, nullptr, false, no_call) == api::CUDA_SUCCESS);
  REQUIRE_FALSE(program.memory.has_deferred());
  program.end_context();
  program.memory.trim_pool(reinterpret_cast<api::CUmemoryPool>(0x9000), 0);
  CHECK(eventually([&] { return program.memory.swap().resident_bytes(0) == 0; }));
  // What went is taken off the list after that.
  CHECK(eventually([&] { return !program.memory.has_deferred(); }));
}
