// The gate with threads. Run under TSan too: `guarded` below is plain data, written by the closer and read inside.
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <memory>
#include <new>
#include <thread>
#include <vector>

#include "generated/driver_gates.h"
#include "runtime/gate/gate.h"
#include "tests/unit/runtime/eventually.h"
#include "tests/unit/runtime/fake_driver.h"

using namespace rota;
using namespace std::chrono_literals;
using gate::Gate;
using Clock = std::chrono::steady_clock;
using test::eventually;

namespace {

const driver::Call kCall{Symbol::k_cuLaunchKernel, nullptr, true, false};

struct Capturing : gate::Attendant {
  std::atomic<int> arrivals{0};
  std::atomic<bool> captures{false};
  void arrived() override { arrivals.fetch_add(1); }
  bool submits_nothing(const driver::Call&) override { return captures.load(); }
};

void close_while_threads_enter(gate::Barrier barrier) {
  Gate gate(barrier);
  long guarded = 0;
  std::atomic<bool> stop{false};
  std::atomic<bool> exclusive{false};
  std::atomic<int> violations{0};
  std::atomic<long> passes{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      long last = 0;
      while (!stop.load(std::memory_order_relaxed)) {
        const gate::Scope scope(kCall);
        if (exclusive.load(std::memory_order_relaxed)) violations.fetch_add(1);
        if (guarded < last) violations.fetch_add(1);
        last = guarded;
        passes.fetch_add(1, std::memory_order_relaxed);
      }
    });
  }
  for (int round = 0; round < 100; ++round) {
    const long before = passes.load();
    eventually([&] { return passes.load() > before; });
    gate.close();
    REQUIRE(gate.wait_until_empty(Clock::now() + 20s));
    exclusive.store(true);
    ++guarded;
    exclusive.store(false);
    gate.open();
  }
  stop.store(true);
  for (std::thread& thread : threads) thread.join();
  CHECK(violations.load() == 0);
  CHECK(guarded == 100);
}

}  // namespace

TEST_CASE("once the gate is closed and empty, no thread is inside (membarrier)") {
  close_while_threads_enter(gate::Barrier::kBest);
}

TEST_CASE("once the gate is closed and empty, no thread is inside (fenced, without membarrier)") {
  close_while_threads_enter(gate::Barrier::kFenced);
}

TEST_CASE("nvshare 5: no launch reaches the driver between giving the GPU back and getting it again") {
  test::FakeDriver driver;
  Gate gate;
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      while (!stop.load()) gates::cuLaunchKernel(nullptr, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr);
    });
  }
  for (int round = 0; round < 200; ++round) {
    const int before = driver.launches.load();
    eventually([&] { return driver.launches.load() > before; });
    gate.close();
    REQUIRE(gate.wait_until_empty(Clock::now() + 20s));
    driver.in_exclusive_hands.store(true);
    std::this_thread::yield();
    driver.in_exclusive_hands.store(false);
    gate.open();
  }
  stop.store(true);
  for (std::thread& thread : threads) thread.join();
  CHECK(driver.intrusions.load() == 0);
}

TEST_CASE("nvshare 4: a launch returns the driver's own result, and nothing else is called") {
  test::FakeDriver driver;
  Gate gate;
  driver.launch_result.store(api::CUDA_ERROR_INVALID_VALUE);
  const auto launch = [] { return gates::cuLaunchKernel(nullptr, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr); };
  CHECK(launch() == api::CUDA_ERROR_INVALID_VALUE);
  // The same for a thread that had to wait for its turn.
  gate.close();
  std::thread waiter([&] { CHECK(launch() == api::CUDA_ERROR_INVALID_VALUE); });
  CHECK(eventually([&] { return gate.standing() == 1; }));
  gate.open();
  waiter.join();
  CHECK(driver.launches.load() == 2);
  CHECK(driver.synchronizations.load() == 0);
}

TEST_CASE("a gate that refuses answers all threads that wait at it or come, and lets no call through") {
  test::FakeDriver driver;
  Gate gate;
  gate.close();
  const auto launch = [] { return gates::cuLaunchKernel(nullptr, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr); };
  std::thread waiter([&] { CHECK(launch() == api::CUDA_ERROR_UNKNOWN); });
  CHECK(eventually([&] { return gate.standing() == 1; }));
  gate.refuse(api::CUDA_ERROR_UNKNOWN);
  waiter.join();
  CHECK(launch() == api::CUDA_ERROR_UNKNOWN);
  CHECK(driver.launches.load() == 0);
  CHECK(gate.wait_until_empty(Clock::now() + 20s));
  gate.pass();  // returns
  // A call that only needs memory in place is refused where it is not.
  {
    const gate::MappingScope scope;
    CHECK_FALSE(scope.refused());
  }
  gate::out_of_place.store(true);
  {
    const gate::MappingScope scope;
    CHECK(scope.refused());
  }
  CHECK_FALSE(gate::wait_in_place());
  gate::out_of_place.store(false);
}

TEST_CASE("closing is revocable: threads that wait at the gate go on when it opens again") {
  Gate gate;
  Capturing attendant;
  gate.set_attendant(&attendant);
  gate.close();
  std::atomic<int> through{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&] {
      const gate::Scope scope(kCall);
      through.fetch_add(1);
    });
  }
  CHECK(eventually([&] { return gate.standing() == 3; }));
  CHECK(through.load() == 0);
  CHECK(attendant.arrivals.load() == 3);
  gate.open();
  for (std::thread& thread : threads) thread.join();
  CHECK(through.load() == 3);
  CHECK(gate.standing() == 0);
  gate.set_attendant(nullptr);
}

TEST_CASE("a thread at a gate that is about to open passes once it does, awake or asleep") {
  Gate gate;
  std::chrono::steady_clock::time_point until{};  // already past: no thread is awake
  SECTION("one is awake for it") {
    until = std::chrono::steady_clock::now() + std::chrono::hours(1);
  }
  SECTION("nobody is") {}
  for (int round = 0; round < 50; ++round) {
    gate.close();
    std::vector<std::thread> threads;
    threads.reserve(3);
    for (int i = 0; i < 3; ++i) {
      threads.emplace_back([&] { const gate::Scope scope(kCall); });
    }
    gate.rouse(until);
    CHECK(eventually([&] { return gate.standing() == 3; }));
    gate.open();
    for (std::thread& thread : threads) thread.join();
    CHECK(gate.standing() == 0);
  }
}

TEST_CASE("a call inside a call passes the closed gate, and the closer waits for both") {
  Gate gate;
  std::atomic<int> step{0};
  std::thread thread([&] {
    const gate::Scope outer(kCall);
    step.store(1);
    eventually([&] { return gate.closed(); });
    {
      const gate::Scope inner(kCall);
      step.store(2);
    }
    eventually([&] { return step.load() == 3; });
  });
  REQUIRE(eventually([&] { return step.load() == 1; }));
  gate.close();
  CHECK(eventually([&] { return step.load() == 2; }));
  CHECK_FALSE(gate.wait_until_empty(Clock::now() + 5ms));
  step.store(3);
  CHECK(gate.wait_until_empty(Clock::now() + 20s));
  thread.join();
}

TEST_CASE("a thread of rota's own, which opens the gate, waits for nothing in front of it") {
  Gate gate;
  Capturing attendant;
  gate.set_attendant(&attendant);
  gate.close();
  gate::out_of_place.store(true);
  std::thread([&] {
    gate::exempt_this_thread();
    CHECK(gate::may_not_wait());
    const gate::Scope submits(kCall);
    CHECK_FALSE(submits.refused());
  }).join();
  std::thread([&] {
    gate::exempt_this_thread();
    const gate::MappingScope maps;
    CHECK(gate::wait_in_place());
  }).join();
  gate::out_of_place.store(false);
  // The next thread that gets the record waits again.
  std::thread waits([&] { const gate::Scope submits(kCall); });
  CHECK(eventually([&] { return gate.standing() == 1; }));
  gate.open();
  waits.join();
}

TEST_CASE("a call that submits nothing, as into a capturing stream, passes the closed gate") {
  Gate gate;
  Capturing attendant;
  attendant.captures.store(true);
  gate.set_attendant(&attendant);
  gate.close();
  {
    const gate::Scope scope(kCall);
    CHECK(gate.traffic().inside == 1);
  }
  CHECK(attendant.arrivals.load() == 0);
  gate.set_attendant(nullptr);
}

TEST_CASE("nothing is moved under a call that reads addresses: the closer waits for it") {
  for (const gate::Barrier barrier : {gate::Barrier::kBest, gate::Barrier::kFenced}) {
    Gate gate(barrier);
    std::atomic<int> step{0};
    std::thread thread([&] {
      const gate::MappingScope scope;
      step.store(1);
      eventually([&] { return step.load() == 2; });
    });
    REQUIRE(eventually([&] { return step.load() == 1; }));
    gate.close();
    CHECK_FALSE(gate.wait_until_empty(Clock::now() + 5ms));
    step.store(2);
    CHECK(gate.wait_until_empty(Clock::now() + 20s));
    thread.join();
  }
}

TEST_CASE("a call that reads addresses does not wait at the closed gate, and does not count as one that submits") {
  Gate gate;
  const auto before = gate.traffic().calls;
  gate.close();
  {
    const gate::MappingScope scope;
    const gate::MappingScope within;
    CHECK(gate.traffic().inside == 1);
  }
  CHECK(gate.traffic().inside == 0);
  CHECK(gate.traffic().calls == before);
  CHECK(gate.standing() == 0);
}

TEST_CASE("a profiler's submission within a call that reads addresses waits, and the closer does not wait for it") {
  Gate gate;
  gate.close();
  std::atomic<bool> through{false};
  std::thread thread([&] {
    const gate::MappingScope looking;
    const gate::Scope scope(kCall);
    through.store(true);
  });
  REQUIRE(eventually([&] { return gate.standing() == 1; }));
  CHECK(gate.wait_until_empty(Clock::now() + 20s));
  CHECK_FALSE(through.load());
  gate.open();
  thread.join();
  CHECK(through.load());
  CHECK(gate.traffic().inside == 0);
}

TEST_CASE("a call that reads addresses within one that submits leaves the outer one inside") {
  Gate gate;
  const gate::Scope outer(kCall);
  gate.close();
  {
    const gate::MappingScope inner;
    const gate::Scope innermost(kCall);  // the outer one has the lease
  }
  CHECK_FALSE(gate.wait_until_empty(Clock::now() + 5ms));
}

// Enters and never leaves: no destructor runs, and nothing is left on the heap for a leak checker to find.
void enter_for_good() {
  alignas(gate::Scope) static thread_local char place[sizeof(gate::Scope)];
  new (place) gate::Scope(kCall);
}

TEST_CASE("a thread that ended inside is not waited for") {
  Gate gate;
  std::thread([] { enter_for_good(); }).join();
  gate.close();
  CHECK(gate.wait_until_empty(Clock::now() + 20s));
}

#ifndef __SANITIZE_THREAD__
TEST_CASE("a thread that died inside without any clean-up is noticed") {
  Gate gate;
  pthread_t thread{};
  pthread_create(
      &thread, nullptr,
      [](void*) -> void* {
        enter_for_good();
        syscall(SYS_exit, 0);
        return nullptr;
      },
      nullptr);
  pthread_join(thread, nullptr);
  gate.close();
  CHECK(gate.wait_until_empty(Clock::now() + 20s));
}
#endif

TEST_CASE("rota's own work does not wait: it enters an open gate and leaves a closed one alone") {
  Gate gate;
  int ran = 0;
  const auto work = [&] {
    ++ran;
    CHECK(gate.traffic().inside == 1);
  };
  const std::uint64_t calls = gate.traffic().calls;
  CHECK(gate.run_if_open(0, work));
  CHECK(ran == 1);
  CHECK(gate.traffic().inside == 0);
  CHECK(gate.traffic().calls == calls + 1);  // it counts as a call
  CHECK_THROWS_AS(gate.run_if_open(0, [] { throw std::bad_alloc(); }), std::bad_alloc);
  CHECK(gate.traffic().inside == 0);
  gate.close();
  CHECK_FALSE(gate.run_if_open(0, work));
  CHECK(ran == 1);
  CHECK(gate.traffic().inside == 0);
}

TEST_CASE("a gate that was opened for good does not close any more") {
  Gate gate;
  gate.open_for_good();
  gate.close();
  CHECK_FALSE(gate.closed());
  const gate::Scope scope(kCall);
}

TEST_CASE("calls are counted as they leave, so that a busy program is told from an idle one") {
  Gate gate;
  const auto before = gate.traffic().calls;
  for (int i = 0; i < 5; ++i) const gate::Scope scope(kCall);
  CHECK(gate.traffic().calls == before + 5);
}

TEST_CASE("nvshare 9: a forked child finds a gate of its own, although a parent's thread was inside") {
  Gate gate;
  std::atomic<int> step{0};
  std::thread inside([&] {
    const gate::Scope scope(kCall);
    step.store(1);
    eventually([&] { return step.load() == 2; });
  });
  REQUIRE(eventually([&] { return step.load() == 1; }));
  gate.close();
  const pid_t child = fork();
  if (child == 0) {
    gate::forget_other_threads();
    Gate own;
    {
      const gate::Scope scope(kCall);
    }
    own.close();
    _exit(own.wait_until_empty(Clock::now() + 5s) ? 0 : 1);
  }
  int status = -1;
  CHECK(waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  step.store(2);
  inside.join();
}
