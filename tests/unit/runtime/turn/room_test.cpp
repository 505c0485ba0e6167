// Room is asked for before it is taken: which allocation waits, for how long, and what ends the wait.
#include "runtime/turn/room.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <thread>
#include <vector>

#include "generated/driver_gates.h"
#include "runtime/turn/monitor.h"
#include "tests/unit/runtime/fake_driver.h"
#include "tests/unit/runtime/turn/fake_rotad.h"

using namespace rota;
using namespace std::chrono_literals;
using protocol::Kind;

namespace {

constexpr std::uint64_t kMega = 1 << 20;

template <typename Condition>
bool eventually(Condition&& condition) {
  const auto until = std::chrono::steady_clock::now() + 20s;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > until) return false;
    std::this_thread::sleep_for(200us);
  }
  return true;
}

struct Rotad : test::FakeRotad {
  Rotad() { speak(protocol::kRoomVersion); }
  // The next message that is no kUsage.
  protocol::Message next() {
    for (;;) {
      const protocol::Message message = FakeRotad::next();
      if (message.kind != Kind::kUsage) return message;
    }
  }
  // What is asked for on GPU 0 next.
  std::uint64_t next_ask() {
    const protocol::Message message = next();
    CHECK(message.kind == Kind::kRoom);
    CHECK(message.version == protocol::kRoomVersion);
    CHECK(message.body.room.gpu == 0);
    return message.body.room.bytes;
  }
};

// A program on a GPU of 1 GiB, with managed memory.
struct Program {
  explicit Program(memory::Choice backend = memory::Choice::kManaged, bool move_out = true)
      : memory([this](const memory::OwnWork& work) { gate.run_if_open(work); }, ledger,
               {.backend = backend, .limit_bytes = UINT64_MAX, .move_out = move_out}) {
    driver.device_bytes = 1024 * kMega;
    context = driver.enter_context(0);
    monitor.context_made(context, 0, true);
  }
  ~Program() {
    monitor.at_exit();
    for (std::thread* thread : {&launcher, &allocator}) {
      if (thread->joinable()) thread->join();
    }
  }
  void launch() {
    launcher = std::thread([this] {
      driver.enter_context(0);
      gates::cuLaunchKernel(nullptr, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr);
      driver.leave_context();
    });
  }
  // Holds the GPU under this grant, by a launch.
  void hold(Rotad& rotad, std::uint32_t grant, std::uint64_t promised) {
    launch();
    CHECK(rotad.next().kind == Kind::kWant);
    rotad.grant(grant, 1, promised);
    launcher.join();
    driver.finished = UINT64_MAX;
  }
  api::CUresult allocate(std::uint64_t bytes) {
    api::CUdeviceptr address = 0;
    return memory.allocate(&address, bytes);
  }
  // In a thread of its own; `result` says how it went.
  void start_allocating(std::uint64_t bytes) {
    allocator = std::thread([this, bytes] {
      driver.enter_context(0);
      result = allocate(bytes);
      driver.leave_context();
    });
  }

  test::FakeDriver driver;
  gate::Gate gate;
  gate::Contexts contexts;
  memory::Ledger ledger;
  memory::Memory memory;
  turn::Monitor monitor{gate, contexts, memory};
  api::CUcontext context = nullptr;
  std::atomic<int> result{-1};
  std::thread launcher;
  std::thread allocator;
};

}  // namespace

TEST_CASE("an allocation within the promise asks nobody") {
  Rotad rotad;
  Program program;
  program.hold(rotad, 1, 100 * kMega);
  CHECK(program.allocate(60 * kMega) == api::CUDA_SUCCESS);
  CHECK(program.allocate(40 * kMega) == api::CUDA_SUCCESS);
  program.start_allocating(1);
  CHECK(rotad.next_ask() == 100 * kMega + 1);
}

TEST_CASE("one beyond it asks for all that the program then has, and waits until that is promised") {
  Rotad rotad;
  Program program;
  program.hold(rotad, 1, 100 * kMega);
  CHECK(program.allocate(60 * kMega) == api::CUDA_SUCCESS);
  const int before = program.driver.managed_allocations.load();
  program.start_allocating(70 * kMega);
  CHECK(rotad.next_ask() == 130 * kMega);
  rotad.promise(129 * kMega);
  program.launch();  // the others of the program go on
  program.launcher.join();
  CHECK(program.result.load() == -1);
  CHECK(program.driver.managed_allocations.load() == before);
  rotad.promise(130 * kMega);
  program.allocator.join();
  CHECK(program.result.load() == api::CUDA_SUCCESS);
  CHECK(program.driver.managed_allocations.load() == before + 1);
}

TEST_CASE("what a stream has passed since it was freed is room again before anybody is asked for more") {
  Rotad rotad;
  Program program;
  program.hold(rotad, 1, 100 * kMega);
  api::CUdeviceptr first = 0;
  REQUIRE(program.memory.allocate(&first, 60 * kMega) == api::CUDA_SUCCESS);
  const auto freed = [&](std::uint64_t passed) {
    program.driver.finished = 0;
    program.driver.submitted.fetch_add(1);
    const auto refused = [] { return api::CUDA_ERROR_UNKNOWN; };
    REQUIRE(program.memory.free_async(first, nullptr, false, refused) == api::CUDA_SUCCESS);
    program.driver.finished = passed;
  };
  SECTION("passed: nobody is asked") {
    freed(UINT64_MAX);
    CHECK(program.allocate(80 * kMega) == api::CUDA_SUCCESS);
  }
  SECTION("not passed: it counts") {
    freed(0);
    program.start_allocating(80 * kMega);
    CHECK(rotad.next_ask() == 140 * kMega);
  }
}

TEST_CASE("who does not hold the GPU asks for nothing") {
  Rotad rotad;
  Program program;
  CHECK(program.allocate(500 * kMega) == api::CUDA_SUCCESS);
  program.hold(rotad, 1, 500 * kMega);
}

TEST_CASE("a grant that promises less than the program has by then opens no gate until rotad has promised it") {
  Rotad rotad;
  Program program;
  program.launch();
  CHECK(rotad.next().kind == Kind::kWant);
  CHECK(program.allocate(500 * kMega) == api::CUDA_SUCCESS);
  const int launches = program.driver.launches.load();
  rotad.grant(1, 1, 300 * kMega);
  CHECK(rotad.next_ask() == 500 * kMega);
  CHECK(program.gate.closed());
  CHECK(program.driver.launches.load() == launches);
  SECTION("and runs then") {
    rotad.promise(500 * kMega);
    program.launcher.join();
    CHECK(program.driver.launches.load() == launches + 1);
  }
  SECTION("or gives the grant back, if others wait for its turn, and is granted all of it next") {
    rotad.somebody_waits(1);
    const protocol::Message back = rotad.next();
    CHECK(back.kind == Kind::kGiveBack);
    CHECK(back.body.give_back.grant == 1);
    CHECK(rotad.next().kind == Kind::kWant);
    CHECK(program.driver.launches.load() == launches);
    rotad.somebody_waits(0);
    rotad.grant(2, 1, 500 * kMega);
    program.launcher.join();
  }
}

TEST_CASE("a rotad that promises nothing is asked for nothing") {
  Rotad rotad;
  rotad.speak(2);
  Program program;
  program.hold(rotad, 1, 0);
  CHECK(program.allocate(500 * kMega) == api::CUDA_SUCCESS);
}

TEST_CASE("memory that another thread frees is room for the one that waits, and rotad hears that less is needed") {
  Rotad rotad;
  Program program;
  program.hold(rotad, 1, 100 * kMega);
  api::CUdeviceptr first = 0;
  REQUIRE(program.memory.allocate(&first, 60 * kMega) == api::CUDA_SUCCESS);
  program.start_allocating(70 * kMega);
  CHECK(rotad.next_ask() == 130 * kMega);
  REQUIRE(program.memory.free(first, [] { return api::CUDA_SUCCESS; }) == api::CUDA_SUCCESS);
  program.allocator.join();
  CHECK(program.result.load() == api::CUDA_SUCCESS);
  CHECK(rotad.next_ask() == 70 * kMega);
}

TEST_CASE("a wait for room ends when there is nothing to wait for any more") {
  Rotad rotad;
  Program program;
  program.hold(rotad, 1, 100 * kMega);
  program.start_allocating(200 * kMega);
  CHECK(rotad.next_ask() == 200 * kMega);
  SECTION("rotad has gone") {
    rotad.die();
  }
  SECTION("the process exits") {
    program.monitor.at_exit();
  }
  SECTION("the turn is over: the process gives the GPU back, since the thread stands as at the gate") {
    rotad.somebody_waits(1, 1);
    CHECK(rotad.next().kind == Kind::kGiveBack);
    // The next grant covers what it has by then.
    program.launch();
    CHECK(rotad.next().kind == Kind::kWant);
    CHECK(eventually([&] { return rotad.usage().device_bytes[0].load() == 200 * kMega; }));
    rotad.somebody_waits(0);
    rotad.grant(2, 1, 200 * kMega);
    program.launcher.join();
  }
  SECTION("rotad has revoked the grant") {
    rotad.grant(0, 0);
  }
  program.allocator.join();
  CHECK(program.result.load() == api::CUDA_SUCCESS);
}

TEST_CASE("under a grant that came in place of a revoked one rotad is asked again") {
  Rotad rotad;
  Program program;
  program.hold(rotad, 1, 100 * kMega);
  program.start_allocating(200 * kMega);
  CHECK(rotad.next_ask() == 200 * kMega);
  rotad.grant(2, 1, 150 * kMega);
  CHECK(rotad.next_ask() == 200 * kMega);
  rotad.promise(200 * kMega);
  program.allocator.join();
}

TEST_CASE(
    "an allocation does not wait for room inside the gate, nor while anything captures; rotad is asked all the same") {
  Rotad rotad;
  Program program;
  program.hold(rotad, 1, 100 * kMega);
  SECTION("inside the gate") {
    program.gate.run_if_open([&] { CHECK(program.allocate(200 * kMega) == api::CUDA_SUCCESS); });
  }
  SECTION("while anything captures") {
    program.contexts.begin_capture(reinterpret_cast<api::CUstream>(0x500), false, [&] {
      program.driver.capturing.store(true);
      return api::CUDA_SUCCESS;
    });
    REQUIRE(program.contexts.captures() == 1);
    CHECK(program.allocate(200 * kMega) == api::CUDA_SUCCESS);
  }
  CHECK(rotad.next_ask() == 200 * kMega);
}

TEST_CASE("two threads that each want more wait until both are covered") {
  Rotad rotad;
  Program program;
  program.hold(rotad, 1, 100 * kMega);
  std::atomic<int> other{-1};
  program.start_allocating(80 * kMega + 40 * kMega);
  CHECK(rotad.next_ask() == 120 * kMega);
  std::thread second([&] {
    program.driver.enter_context(0);
    other = program.allocate(30 * kMega);
    program.driver.leave_context();
  });
  CHECK(rotad.next_ask() == 150 * kMega);
  rotad.promise(150 * kMega);
  second.join();
  program.allocator.join();
  CHECK(other.load() == api::CUDA_SUCCESS);
}

// TSan's runtime takes all that comes after a cancellation for a signal handler's, and ASan's fails by itself where a
// thread's end leaves frames.
#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
TEST_CASE("a thread that is cancelled while it waits for room leaves none reserved") {
  Rotad rotad;
  Program program;
  program.hold(rotad, 1, 100 * kMega);
  program.start_allocating(200 * kMega);
  CHECK(rotad.next_ask() == 200 * kMega);
  pthread_cancel(program.allocator.native_handle());
  program.allocator.join();
  CHECK(program.ledger.live_bytes(0) == 0);
  CHECK(rotad.next_ask() == 0);
  CHECK(program.allocate(50 * kMega) == api::CUDA_SUCCESS);
}
#endif

TEST_CASE("threads that allocate and free at once have never taken more than is promised, and all come through") {
  constexpr int kThreads = 4;
  for (int round = 0; round < 5; ++round) {
    Rotad rotad;
    Program program;
    program.hold(rotad, 1, kMega);
    std::atomic<std::uint64_t> taken{0};
    std::atomic<int> beyond{0};
    std::atomic<int> running{kThreads};
    std::vector<std::thread> threads;
    for (int thread = 0; thread < kThreads; ++thread) {
      threads.emplace_back([&, thread] {
        program.driver.enter_context(0);
        std::uint64_t bytes = 4096;
        for (int i = 0; i < 200; ++i) {
          bytes = (bytes * 5 + static_cast<std::uint64_t>(thread) * 4096) % (16 * kMega) + 4096;
          api::CUdeviceptr address = 0;
          if (program.memory.allocate(&address, bytes) != api::CUDA_SUCCESS) std::abort();
          if (taken.fetch_add(bytes) + bytes > rotad.promised()) ++beyond;
          taken.fetch_sub(bytes);
          program.memory.free(address, [] { return api::CUDA_SUCCESS; });
        }
        program.driver.leave_context();
        --running;
      });
    }
    // What it is asked for, it promises; a promise never falls.
    while (running.load() != 0) {
      if (rotad.quiet()) {
        std::this_thread::sleep_for(100us);
        continue;
      }
      const protocol::Message message = static_cast<test::FakeRotad&>(rotad).next();
      if (message.kind == Kind::kRoom) rotad.promise(std::max(rotad.promised(), message.body.room.bytes));
    }
    for (std::thread& thread : threads) thread.join();
    CHECK(beyond.load() == 0);
    CHECK(program.ledger.live_bytes(0) == 0);
  }
}

// --- the driver's own refusals

namespace {

// How many of the next calls the driver refuses for want of memory.
std::atomic<int> refusals;
std::atomic<int> calls;

api::CUresult refused_at_first() {
  ++calls;
  return refusals.fetch_sub(1) > 0 ? api::CUDA_ERROR_OUT_OF_MEMORY : api::CUDA_SUCCESS;
}

struct Refusing : Program {
  explicit Refusing(int times) : Program(memory::Choice::kNative) {
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

TEST_CASE("nobody makes room for more than the GPU has, inside the gate, or while anything captures") {
  Rotad rotad;
  Refusing program(1);
  SECTION("more than the GPU has") {
    program.hold(rotad, 1, 4096 * kMega);
    CHECK(program.allocate(1025 * kMega) == api::CUDA_ERROR_OUT_OF_MEMORY);
  }
  SECTION("inside the gate") {
    program.hold(rotad, 1, 100 * kMega);
    program.gate.run_if_open([&] { CHECK(program.allocate(50 * kMega) == api::CUDA_ERROR_OUT_OF_MEMORY); });
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

TEST_CASE("who has no turn waits for one before others make room for its memory") {
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

// Where prefetches go, and how far the moves to the host have come.
std::atomic<std::uint64_t> to_host{0};
std::atomic<std::uint64_t> to_gpu{0};
std::atomic<bool> moves_end{true};

void watch_moves(Program& program) {
  to_host = to_gpu = 0;
  moves_end = true;
  program.driver.set<api::cuMemPrefetchAsync_fn>(
      Symbol::k_cuMemPrefetchAsync, [](api::CUdeviceptr, std::size_t bytes, api::CUdevice to, api::CUstream) {
        (to < 0 ? to_host : to_gpu) += bytes;
        if (to < 0 && !moves_end) test::FakeDriver::the().submitted = UINT64_MAX;  // the event behind it is not passed
        return api::CUDA_SUCCESS;
      });
}

}  // namespace

TEST_CASE("before the lease goes to somebody who needs the room, so much memory is moved to the host, and comes back") {
  Rotad rotad;
  Program program;
  program.hold(rotad, 1, 600 * kMega);
  REQUIRE(program.allocate(300 * kMega) == api::CUDA_SUCCESS);
  REQUIRE(program.allocate(200 * kMega) == api::CUDA_SUCCESS);
  watch_moves(program);
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
  Program program;
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
  watch_moves(program);
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
  Program program(memory::Choice::kManaged, false);
  program.hold(rotad, 1, 600 * kMega);
  REQUIRE(program.allocate(300 * kMega) == api::CUDA_SUCCESS);
  watch_moves(program);
  rotad.clear(250 * kMega);
  rotad.somebody_waits(1, 1);
  CHECK(rotad.next().kind == Kind::kGiveBack);
  CHECK(to_host == 0);
}
