// Others make room: for what the driver has refused because it is out of memory, and by evicting before a lease is
// given back.
#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <thread>
#include <vector>

#include "tests/unit/runtime/monitor/turning_program.h"

using namespace rota;
using namespace rota::test;

namespace {

// How many of the next calls the driver refuses as out of memory.
std::atomic<int> refusals;
std::atomic<int> calls;

api::CUresult refused_at_first() {
  ++calls;
  return refusals.fetch_sub(1) > 0 ? api::CUDA_ERROR_OUT_OF_MEMORY : api::CUDA_SUCCESS;
}

struct Refusing : Program {
  explicit Refusing(int times, std::chrono::nanoseconds for_now_patience = 1min)
      : Program(memory::Choice::kNative, true, [](FakeDriver&) {}, for_now_patience) {
    refusals = times;
    calls = 0;
    driver.set<api::cuMemAlloc_v2_fn>(Symbol::k_cuMemAlloc_v2, [](api::CUdeviceptr* address, std::size_t) {
      *address = 0x700000000;
      return refused_at_first();
    });
    driver.set<api::cuModuleLoadData_fn>(Symbol::k_cuModuleLoadData,
                                         [](api::CUmodule*, const void*) { return refused_at_first(); });
  }
  void start_loading() {
    allocator = std::thread([this] {
      driver.enter_context(0);
      api::CUmodule module = nullptr;
      result = gates::cuModuleLoadData(&module, nullptr);
      driver.leave_context();
    });
  }
};

}  // namespace

TEST_CASE("a call that the driver refuses for want of memory is tried once more when the others have left the GPU") {
  Rotad rotad;
  Refusing program(1);
  program.hold(rotad, 1, 100 * kMega);
  SECTION("native memory") {
    program.start_allocating(50 * kMega);
  }
  SECTION("a module, through its gate") {
    program.start_loading();
  }
  CHECK(rotad.next_ask() == 1024 * kMega);
  CHECK(calls.load() == 1);
  CHECK(program.gate.traffic().inside == 0);
  CHECK(program.result.load() == -1);
  rotad.promise(1024 * kMega);
  program.allocator.join();
  CHECK(program.result.load() == api::CUDA_SUCCESS);
  CHECK(calls.load() == 2);
}

TEST_CASE("what the driver refuses again is refused") {
  Rotad rotad;
  Refusing program(1000);
  program.hold(rotad, 1, 1024 * kMega);
  SECTION("native memory") {
    program.start_allocating(50 * kMega);
  }
  SECTION("a module, through its gate") {
    program.start_loading();
  }
  program.allocator.join();
  CHECK(program.result.load() == api::CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(calls.load() == 2);
  CHECK(program.ledger.live_bytes(0) == 0);
}

namespace {

// A rotad that says where others have memory that is pinned temporarily.
struct Saying : FakeRotad {
  Saying() { keep_limits(); }
  void wait_for(Kind kind) {
    while (next().kind != kind) {
    }
  }
  void let_hold(Refusing& program) {
    program.launch();
    wait_for(Kind::kWant);
    grant(1, 1, 1024 * kMega);
    program.launcher.join();
    program.driver.finished = UINT64_MAX;
  }
};

}  // namespace

TEST_CASE("an allocation waits for memory that is pinned temporarily, outside the gate, where the turn can end") {
  Saying rotad;
  Refusing program(1'000'000);
  rotad.let_hold(program);
  rotad.others_have(1, 0);
  program.start_loading();
  REQUIRE(eventually([] { return calls.load() >= 2; }));
  REQUIRE(eventually([&] { return program.gate.traffic().inside == 0; }));
  const int before = calls.load();
  // The owner of that memory gets its turn, and after it its memory can be evicted.
  rotad.somebody_waits(1, 1);
  rotad.wait_for(Kind::kGiveBack);
  rotad.grant(0, 0);
  rotad.wait_for(Kind::kWant);
  CHECK(program.result.load() == -1);
  CHECK(calls.load() == before);
  rotad.others_have(0, 1);
  refusals = 0;
  rotad.somebody_waits(0);
  rotad.grant(2, 1, 1024 * kMega);
  program.allocator.join();
  CHECK(program.result.load() == api::CUDA_SUCCESS);
}

TEST_CASE(
    "a program that waits for others to evict lets its turn end before it is revoked, and goes on in the next one") {
  Saying rotad;
  Refusing program(1'000'000);
  rotad.let_hold(program);
  rotad.others_have(0, 1);
  rotad.others_clear(1);
  program.start_loading();
  REQUIRE(eventually([] { return calls.load() >= 3; }));
  CHECK(program.gate.traffic().inside == 1);
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  rotad.clear(0, static_cast<std::uint64_t>(std::chrono::nanoseconds(now + 300ms).count()));
  rotad.somebody_waits(1, 1);
  rotad.wait_for(Kind::kGiveBack);
  CHECK(program.result.load() == -1);
  rotad.clear(0);
  rotad.grant(0, 0);
  rotad.wait_for(Kind::kWant);
  refusals = 0;
  rotad.somebody_waits(0);
  rotad.grant(2, 1, 1024 * kMega);
  program.allocator.join();
  CHECK(program.result.load() == api::CUDA_SUCCESS);
}

TEST_CASE(
    "an allocation waits only a limited time for memory that is pinned temporarily, and not for that of another GPU") {
  Saying rotad;
  Refusing program(1'000'000, 300ms);
  rotad.let_hold(program);
  const auto begun = std::chrono::steady_clock::now();
  SECTION("for now") {
    rotad.others_have(1, 0);
    program.start_loading();
    program.allocator.join();
    CHECK(std::chrono::steady_clock::now() - begun >= 300ms);
  }
  SECTION("on another GPU") {
    rotad.others_have(2, 0);
    program.start_loading();
    program.allocator.join();
    CHECK(calls.load() == 2);
  }
  CHECK(program.result.load() == api::CUDA_ERROR_OUT_OF_MEMORY);
}

TEST_CASE("no memory is evicted for more than the GPU has, for a call inside the gate, or while anything captures") {
  Rotad rotad;
  Refusing program(1);
  SECTION("more than the GPU has") {
    program.hold(rotad, 1, 4096 * kMega);
    CHECK(program.allocate(1025 * kMega) == api::CUDA_ERROR_OUT_OF_MEMORY);
  }
  SECTION("inside the gate") {
    program.hold(rotad, 1, 100 * kMega);
    program.gate.run_if_open(0, [&] { CHECK(program.allocate(50 * kMega) == api::CUDA_ERROR_OUT_OF_MEMORY); });
  }
  SECTION("while anything captures") {
    program.hold(rotad, 1, 100 * kMega);
    program.contexts.begin_capture(reinterpret_cast<api::CUstream>(0x500), false, [&] {
      program.driver.capturing.store(true);
      return api::CUDA_SUCCESS;
    });
    CHECK(program.allocate(50 * kMega) == api::CUDA_ERROR_OUT_OF_MEMORY);
  }
  CHECK(calls.load() == 1);
}

TEST_CASE("a program without a turn waits for one before others evict memory for it") {
  Rotad rotad;
  Refusing program(1);
  program.start_allocating(50 * kMega);
  CHECK(rotad.next().kind == Kind::kWant);
  CHECK(calls.load() == 1);
  rotad.grant(1, 1, 100 * kMega);
  CHECK(rotad.next_ask() == 1024 * kMega);
  rotad.promise(1024 * kMega);
  program.allocator.join();
  CHECK(program.result.load() == api::CUDA_SUCCESS);
}

namespace {

// Where prefetches go, and how many of the moves to the host have finished.
std::atomic<std::uint64_t> to_host{0};
std::atomic<std::uint64_t> to_gpu{0};
std::atomic<bool> moves_end{true};

void put_in_front(FakeDriver& driver) {
  driver.set<api::cuMemPrefetchAsync_fn>(
      Symbol::k_cuMemPrefetchAsync, [](api::CUdeviceptr, std::size_t bytes, api::CUdevice to, api::CUstream) {
        (to < 0 ? to_host : to_gpu) += bytes;
        if (to < 0 && !moves_end) FakeDriver::the().submitted = UINT64_MAX;  // the event behind it is not reached
        return api::CUDA_SUCCESS;
      });
}

struct Watched : Program {
  explicit Watched(bool move_out = true) : Program(memory::Choice::kManaged, move_out, put_in_front) {}
  static void watch() {
    to_host = to_gpu = 0;
    moves_end = true;
  }
};

}  // namespace

TEST_CASE(
    "before the lease goes to a program that needs the memory, as much is evicted to the host, and restored later") {
  Rotad rotad;
  Watched program;
  program.hold(rotad, 1, 600 * kMega);
  REQUIRE(program.allocate(300 * kMega) == api::CUDA_SUCCESS);
  REQUIRE(program.allocate(200 * kMega) == api::CUDA_SUCCESS);
  Watched::watch();
  rotad.clear(250 * kMega);
  rotad.somebody_waits(1, 1);
  CHECK(rotad.next().kind == Kind::kGiveBack);
  CHECK(to_host == 250 * kMega);
  CHECK(to_gpu == 0);
  rotad.grant(0, 0);
  rotad.clear(0);
  rotad.somebody_waits(0);
  program.launch();
  CHECK(rotad.next().kind == Kind::kWant);
  rotad.grant(2, 1, 600 * kMega);
  program.launcher.join();
  CHECK(to_gpu == 500 * kMega);
  CHECK(to_host == 250 * kMega);
}

TEST_CASE(
    "a move that gets nowhere keeps the lease for as long as a slow link takes, and no longer than rotad has time") {
  Rotad rotad;
  Watched program;
  program.driver.device_bytes = std::uint64_t{1} << 40;
  std::uint64_t bytes = 0;
  std::uint64_t by = 0;
  std::chrono::milliseconds least{0};
  SECTION("10 GB/s") {
    bytes = 700 * kMega;
    least = 70ms;
  }
  SECTION("rotad takes the lease back at once; the move takes 80 s") {
    bytes = 800'000 * kMega;
    by = 1;
  }
  program.hold(rotad, 1, bytes);
  REQUIRE(program.allocate(bytes) == api::CUDA_SUCCESS);
  Watched::watch();
  moves_end = false;
  program.driver.finished = 0;
  program.driver.submitted = 0;
  rotad.clear(bytes, by);
  const auto begun = std::chrono::steady_clock::now();
  rotad.somebody_waits(1, 1);
  CHECK(rotad.next().kind == Kind::kGiveBack);  // within 20 s
  CHECK(std::chrono::steady_clock::now() - begun >= least);
  CHECK(to_host == bytes);
}

TEST_CASE("a program that is told not to move its memory out gives back at once") {
  Rotad rotad;
  Watched program(false);
  program.hold(rotad, 1, 600 * kMega);
  REQUIRE(program.allocate(300 * kMega) == api::CUDA_SUCCESS);
  Watched::watch();
  rotad.clear(250 * kMega);
  rotad.somebody_waits(1, 1);
  CHECK(rotad.next().kind == Kind::kGiveBack);
  CHECK(to_host == 0);
}

TEST_CASE("a call into a capture, which needs no turn, waits for one while memory is out of place") {
  Rotad rotad;
  Program program;
  const auto stream = reinterpret_cast<api::CUstream>(0x500);
  program.contexts.begin_capture(stream, false, [&] {
    program.driver.capturing.store(true);
    return api::CUDA_SUCCESS;
  });
  gate::out_of_place.store(true);  // allocated while the gate is closed
  program.launcher = std::thread([&] {
    program.driver.enter_context(0);
    gates::cuLaunchKernel(nullptr, 1, 1, 1, 1, 1, 1, 0, stream, nullptr, nullptr);
    program.driver.leave_context();
  });
  CHECK(eventually([&] { return program.gate.standing() == 1 || program.driver.launches != 0; }));
  REQUIRE(program.driver.launches == 0);
  CHECK(rotad.next().kind == Kind::kWant);
  rotad.grant(1, 1, 100 * kMega);
  program.launcher.join();
  CHECK(program.driver.launches == 1);
  CHECK_FALSE(gate::out_of_place);
}
