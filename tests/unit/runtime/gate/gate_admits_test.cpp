// Single calls that are let in although the gates are closed.
#include <alloca.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <csetjmp>
#include <thread>
#include <vector>

#include "runtime/gate/gate.h"
#include "tests/unit/runtime/eventually.h"

using namespace rota;
using namespace std::chrono_literals;
using gate::Gate;
using Clock = std::chrono::steady_clock;
using test::eventually;

namespace {

// The stream's handle says which GPU a call reaches; a call without a stream reaches all.
struct Sorting : gate::Attendant {
  using gate::Attendant::reached;
  void arrived() override {}
  bool submits_nothing(const driver::Call&) override { return captures.load(); }
  bool may_submit(const driver::Call&) override { return false; }
  gate::Devices reached(const driver::Call& call) override {
    return call.has_stream ? gate::Devices{1} << reinterpret_cast<std::uintptr_t>(call.stream) : gate::kAllDevices;
  }
  std::atomic<bool> captures{false};
};

driver::Call on(std::uintptr_t device) {
  return {Symbol::k_cuLaunchKernel, reinterpret_cast<api::CUstream>(device), true, false};
}
constexpr driver::Call kOnAll{Symbol::k_cuGraphLaunch, nullptr, false, false};

// Threads that each make one call, which lasts until the test lets them leave.
struct Callers {
  explicit Callers(Gate& gate) : gate(gate) {}
  ~Callers() {
    leave = true;
    gate.open();
    for (std::thread& thread : threads) thread.join();
  }
  void call(const driver::Call& call) {
    threads.emplace_back([this, call] {
      {
        const gate::Scope scope(call);
        ++inside;
        while (!leave.load()) usleep(100);
      }
      ++done;
    });
  }
  Gate& gate;
  std::atomic<int> inside{0};
  std::atomic<int> done{0};
  std::atomic<bool> leave{false};
  std::vector<std::thread> threads;
};

bool empty(Gate& gate, gate::Devices devices = gate::kAllDevices) {
  return gate.wait_until_empty(Clock::now(), devices);
}

}  // namespace

TEST_CASE("one of the waiting threads is admitted, and no other") {
  const bool fenced = GENERATE(false, true);
  INFO("fenced " << fenced);
  Gate gate(fenced ? gate::Barrier::kFenced : gate::Barrier::kBest);
  gate.close();
  const std::uint64_t before = gate.traffic().calls;
  Callers callers(gate);
  for (int i = 0; i < 2; ++i) callers.call(on(0));
  REQUIRE(eventually([&] { return gate.standing() == 2; }));
  gate.admit();
  CHECK_FALSE(empty(gate));  // whether or not it has entered yet
  REQUIRE(eventually([&] { return callers.inside.load() == 1 && gate.standing() == 1; }));
  usleep(20'000);
  CHECK(callers.inside.load() == 1);
  CHECK(gate.closed());
  CHECK_FALSE(empty(gate));
  CHECK(gate.traffic().inside == 1);
  callers.leave = true;
  CHECK(gate.wait_until_empty(Clock::now() + 20s));
  CHECK(gate.traffic().calls == before + 1);
  usleep(20'000);
  CHECK(callers.done.load() == 1);
  gate.admit();
  CHECK(eventually([&] { return callers.done.load() == 2; }));
  CHECK(gate.wait_until_empty(Clock::now() + 20s));
}

TEST_CASE("the gate is never found empty between an admission and the call that it lets in") {
  const bool fenced = GENERATE(false, true);
  INFO("fenced " << fenced);
  Gate gate(fenced ? gate::Barrier::kFenced : gate::Barrier::kBest);
  gate.close();
  const std::uint64_t before = gate.traffic().calls;
  std::atomic<bool> stop{false};
  std::atomic<int> entered{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&] {
      while (!stop.load()) {
        const gate::Scope scope(on(0));
        ++entered;
      }
    });
  }
  for (int round = 1; round <= 500; ++round) {
    gate.admit();
    if (!gate.wait_until_empty(Clock::now() + 20s)) FAIL("nobody took the admission of round " << round);
    if (entered.load() != round) FAIL(entered.load() << " calls in round " << round);
  }
  CHECK(gate.traffic().calls == before + 500);
  stop = true;
  gate.open();
  for (std::thread& thread : threads) thread.join();
}

TEST_CASE("an admission waits for a call, until it is withdrawn or the gate opens or closes again") {
  Gate gate;
  gate.close();
  gate.admit();
  CHECK_FALSE(empty(gate));
  CHECK(gate.traffic().inside == 1);
  SECTION("for one that comes later") {
    {
      const gate::Scope scope(on(0));
    }
    CHECK(empty(gate));
    CHECK(gate.closed());
  }
  SECTION("withdrawn") {
    gate.withdraw();
  }
  SECTION("closed again") {
    gate.close();
  }
  SECTION("opened") {
    gate.open();
    gate.close();
  }
  CHECK(empty(gate));
  CHECK(gate.traffic().inside == 0);
  Callers callers(gate);
  callers.call(on(0));
  REQUIRE(eventually([&] { return gate.standing() == 1; }));
  usleep(20'000);
  CHECK(callers.inside.load() == 0);
}

TEST_CASE("nobody is admitted at an open gate") {
  Gate gate;
  gate.admit();
  CHECK(gate.wait_until_empty(Clock::now()));
}

TEST_CASE("an admission is for calls that reach no other closed gate") {
  Sorting sorting;
  Gate gate;
  gate.set_attendant(&sorting);
  gate.count(7);
  gate.close(7);
  Callers callers(gate);
  callers.call(kOnAll);
  callers.call(on(2));
  REQUIRE(eventually([&] { return gate.standing() == 2; }));
  gate.admit(3);
  usleep(20'000);
  CHECK(callers.inside.load() == 0);
  CHECK_FALSE(empty(gate, 1));
  CHECK(empty(gate, 4));
  CHECK(gate.traffic(4).inside == 0);
  SECTION("one call of any of them uses it up") {
    callers.call(on(1));
    REQUIRE(eventually([&] { return callers.inside.load() == 1; }));
    callers.call(on(0));
    REQUIRE(eventually([&] { return gate.standing() == 3; }));
    usleep(20'000);
    CHECK(callers.inside.load() == 1);
    CHECK_FALSE(empty(gate, 2));
    CHECK(empty(gate, 1));  // it is known to be inside for the other one
  }
  SECTION("each task has its own") {
    gate.admit(4);
    REQUIRE(eventually([&] { return callers.inside.load() == 1; }));
    CHECK_FALSE(empty(gate, 4));
    gate.withdraw(3);
    CHECK(empty(gate, 3));
    CHECK_FALSE(empty(gate, 4));
  }
  SECTION("and of the others that are open") {
    gate.open(4);
    REQUIRE(eventually([&] { return callers.inside.load() == 2; }));
  }
  callers.leave = true;
  gate.open();
  for (std::thread& thread : callers.threads) thread.join();
  callers.threads.clear();
  gate.set_attendant(nullptr);
}

TEST_CASE("calls that go into captures, and calls that refuse, leave an admission to others") {
  Sorting sorting;
  Gate gate;
  gate.set_attendant(&sorting);
  gate.close();
  gate.admit();
  sorting.captures = true;
  {
    const gate::Scope scope(on(0));
  }
  CHECK_FALSE(empty(gate));
  sorting.captures = false;
  gate.refuse(api::CUDA_ERROR_ILLEGAL_ADDRESS);
  {
    const gate::Scope scope(on(0));
    CHECK(scope.refused());
  }
  CHECK_FALSE(empty(gate));
  gate.set_attendant(nullptr);
}

TEST_CASE("what is admitted is not metered: the GPU waits for it") {
  Sorting sorting;  // lets no call go on
  Gate gate;
  gate.set_attendant(&sorting);
  gate.set_metered(true);
  Callers callers(gate);
  callers.call(on(0));
  REQUIRE(eventually([&] { return gate.held_up() == 1; }));
  gate.close();
  REQUIRE(eventually([&] { return gate.standing() == 1; }));
  gate.admit();
  CHECK(eventually([&] { return callers.inside.load() == 1; }));
  gate.set_metered(false);
  gate.set_attendant(nullptr);
}

TEST_CASE("no call is admitted whose memory is not in place, nor one that only queries memory") {
  Gate gate;
  gate.close();
  gate::out_of_place.store(1);
  Callers callers(gate);
  callers.call(on(0));
  std::thread looks([] { const gate::MappingScope scope; });
  REQUIRE(eventually([&] { return gate.standing() == 2; }));
  gate.admit();
  usleep(20'000);
  CHECK(callers.inside.load() == 0);
  CHECK(gate.standing() == 2);
  gate::out_of_place.store(0);
  gate.admit();
  CHECK(eventually([&] { return callers.inside.load() == 1; }));
  CHECK(gate.closed());
  gate.open();
  looks.join();
}

// TSan and ASan follow no jump across the frames of a handler.
#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)

namespace {

thread_local sigjmp_buf back;
std::atomic<bool> never{false};

[[gnu::noinline]] void submit(std::atomic<bool>& inside) {
  const gate::Scope scope(on(0));
  inside = true;
  while (!never.load()) usleep(100);
}

// From so deep on the stack that the thread's own code is seen to have left it.
[[gnu::noinline]] void submit_deep(std::atomic<bool>& inside) {
  static_cast<volatile char*>(alloca(4096))[0] = 1;
  submit(inside);
}

}  // namespace

TEST_CASE(
    "a thread that jumps out of a wait leaves the admission to others, and one that jumps out of an admitted call ends "
    "it") {
  struct sigaction action{};
  struct sigaction before{};
  action.sa_handler = [](int) { siglongjmp(back, 1); };
  sigaction(SIGUSR2, &action, &before);
  Gate gate;
  gate.close();
  std::atomic<int> go{0};
  std::atomic<int> jumps{0};
  std::atomic<bool> inside{false};
  std::atomic<bool> stop{false};
  std::thread jumper([&] {
    for (int i = 0; i < 2; ++i) {
      while (go.load() <= i) usleep(100);
      if (sigsetjmp(back, 1) == 0) submit_deep(inside);
      ++jumps;
    }
    while (!stop.load()) usleep(100);
  });
  go = 1;
  REQUIRE(eventually([&] { return gate.standing() == 1; }));
  pthread_kill(jumper.native_handle(), SIGUSR2);
  REQUIRE(eventually([&] { return jumps.load() == 1; }));
  gate.admit();
  usleep(20'000);
  CHECK_FALSE(empty(gate));
  {
    const gate::Scope scope(on(0));
  }
  CHECK(empty(gate));
  go = 2;
  gate.admit();
  REQUIRE(eventually([&] { return inside.load(); }));
  CHECK_FALSE(empty(gate));
  pthread_kill(jumper.native_handle(), SIGUSR2);
  CHECK(gate.wait_until_empty(Clock::now() + 20s));
  CHECK(gate.traffic().inside == 0);
  stop = true;
  jumper.join();
  sigaction(SIGUSR2, &before, nullptr);
}

namespace {

// Compiled with -fnon-call-exceptions in some programs; an exception that a handler throws passes through rota's
// frames.
struct Thrown {};

[[gnu::noinline]] void submit_until_thrown(std::atomic<int>& thrown) {
  try {
    const gate::Scope scope(on(0));
  } catch (const Thrown&) {
    ++thrown;
  }
}

}  // namespace

TEST_CASE("a thread whose handler throws out of a wait is not inside, and waits again at the same place") {
  struct sigaction action{};
  struct sigaction before{};
  action.sa_handler = [](int) { throw Thrown(); };
  sigaction(SIGUSR2, &action, &before);
  Gate gate;
  gate.close();
  std::atomic<int> thrown{0};
  std::thread thrower([&] {
    while (thrown.load() < 3) submit_until_thrown(thrown);
    const gate::HeldInPlace outer;  // whose level the inner one lowers while it waits
    gate::out_of_place = gate::kAllDevices;
    submit_until_thrown(thrown);
  });
  for (int i = 0; i < 4; ++i) {
    REQUIRE(eventually([&] { return gate.standing() == 1; }));
    CHECK(empty(gate));
    pthread_kill(thrower.native_handle(), SIGUSR2);
    REQUIRE(eventually([&] { return thrown.load() == i + 1; }));
  }
  thrower.join();
  gate::out_of_place = 0;
  CHECK(gate.traffic().inside == 0);
  sigaction(SIGUSR2, &before, nullptr);
}

#endif
