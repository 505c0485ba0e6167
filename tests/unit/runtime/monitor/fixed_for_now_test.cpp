// Memory that is pinned temporarily: while something captures, and while the process is being checkpointed from
// outside. rotad is told, so that it asks others in the meantime.
#include <atomic>
#include <catch2/catch.hpp>

#include "tests/unit/runtime/monitor/swapping_program.h"

using namespace rota;
using namespace rota::test;

namespace {

std::atomic<bool> checkpointed;
std::atomic<int> asked;  // whether it is

void can_be_checkpointed(FakeDriver& driver) {
  maps(driver);
  checkpointed = false;
  asked = 0;
  driver.set<api::cuCheckpointProcessGetState_fn>(
      Symbol::k_cuCheckpointProcessGetState, [](int, api::CUprocessState* state) {
        ++asked;
        *state = checkpointed ? api::CU_PROCESS_STATE_LOCKED : api::CU_PROCESS_STATE_RUNNING;
        return api::CUDA_SUCCESS;
      });
}

// Rests, with memory on the GPU that it can move.
struct Resting : Holding {
  explicit Resting(Speaking& rotad) : Holding(rotad, can_be_checkpointed) {
    rest();
    REQUIRE(eventually([&] { return fixed() == 0; }));
  }
};

}  // namespace

TEST_CASE("memory of a process that captures counts as fixed, until the capture ends") {
  Speaking rotad;
  Resting program(rotad);
  const auto stream = reinterpret_cast<api::CUstream>(0x1000);
  const auto done = [] { return api::CUDA_SUCCESS; };
  program.driver.enter_context(0);
  REQUIRE(program.contexts.begin_capture(stream, false, done) == api::CUDA_SUCCESS);
  REQUIRE(program.contexts.captures() == 1);
  rotad.ask_for(kBytes);
  CHECK(eventually([&] { return program.fixed() == kBytes; }));
  CHECK(program.memory.swap().resident_bytes(0) == kBytes);
  rotad.ask_for(0);
  REQUIRE(program.contexts.end_capture(stream, false, done) == api::CUDA_SUCCESS);
  CHECK(eventually([&] { return program.fixed() == 0; }));
  program.driver.leave_context();
}

TEST_CASE("memory of a process that is being checkpointed is neither evicted nor restored, and counts as pinned") {
  Speaking rotad;
  Resting program(rotad);
  memory::SwapBackend& swap = program.memory.swap();
  checkpointed = true;
  SECTION("nor leaves") {
    rotad.ask_for(kBytes);
    CHECK(eventually([&] { return program.fixed() == kBytes; }));
    CHECK(swap.resident_bytes(0) == kBytes);
    rotad.ask_for(0);
    checkpointed = false;
    CHECK(eventually([&] { return program.fixed() == 0; }));
  }
  SECTION("nor comes") {
    api::CUdeviceptr address = 0;
    REQUIRE(swap.allocate({program.context, 0}, &address, kBytes) == api::CUDA_SUCCESS);  // without a turn
    REQUIRE(swap.out_bytes(0) == kBytes);
    program.launch();
    rotad.wait_for(Kind::kWant);
    rotad.grant(2, 1, 1024 * kMega);
    CHECK(eventually([&] { return asked.load() > 2; }));
    CHECK(swap.out_bytes(0) == kBytes);
    checkpointed = false;
    program.launcher.join();
    CHECK(swap.out_bytes(0) == 0);
  }
}
