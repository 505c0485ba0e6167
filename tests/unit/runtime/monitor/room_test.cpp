// Room is asked for before it is taken: which allocation waits, for how long, and what ends the wait.
#include "runtime/client/budget.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <thread>
#include <vector>

#include "tests/unit/runtime/monitor/turning_program.h"

using namespace rota;
using namespace rota::test;

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
  program.launch();  // the program's other threads continue
  program.launcher.join();
  CHECK(program.result.load() == -1);
  CHECK(program.driver.managed_allocations.load() == before);
  rotad.promise(130 * kMega);
  program.allocator.join();
  CHECK(program.result.load() == api::CUDA_SUCCESS);
  CHECK(program.driver.managed_allocations.load() == before + 1);
}

TEST_CASE("memory whose free its stream has passed is available again before any program is asked for more") {
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

TEST_CASE("a program that does not hold the GPU asks for nothing") {
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

TEST_CASE("memory that another thread frees serves the one that waits, and rotad hears that less is needed") {
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

TEST_CASE("a wait for memory ends when there is nothing to wait for any more") {
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
    CHECK(eventually([&] { return rotad.usage().gpus[0].device_bytes.load() == 200 * kMega; }));
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
    "an allocation does not wait for memory inside the gate, nor while anything captures, and rotad is still asked") {
  Rotad rotad;
  Program program;
  program.hold(rotad, 1, 100 * kMega);
  SECTION("inside the gate") {
    program.gate.run_if_open(0, [&] { CHECK(program.allocate(200 * kMega) == api::CUDA_SUCCESS); });
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

// TSan's runtime treats everything after a cancellation as part of a signal handler, and ASan itself fails if a thread
// ends with frames left.
#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
TEST_CASE("a thread that is cancelled while it waits for memory leaves none reserved") {
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
    // It promises what it is asked for; a promise never decreases.
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
