// Threads that leave a call without returning from it: by siglongjmp out of a signal handler, as watchdogs do.
#include <alloca.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <cstring>
#include <optional>
#include <thread>

#include "runtime/client/bell.h"
#include "runtime/client/budget.h"
#include "runtime/gate/gate.h"
#include "runtime/memory/charge.h"
#include "tests/unit/runtime/eventually.h"
#include "tests/unit/runtime/fake_residency.h"
#include "tests/unit/runtime/monitor/turning_program.h"

using namespace rota;
using namespace std::chrono_literals;
using gate::Gate;
using test::eventually;
using Clock = std::chrono::steady_clock;

namespace {

const driver::Call kCall{Symbol::k_cuLaunchKernel, nullptr, true, false};

// A handler jumps to `out`, which the thread that it runs in has set.
thread_local sigjmp_buf out;

class Watchdog {
 public:
  Watchdog() {
    struct sigaction action{};
    action.sa_handler = [](int) { siglongjmp(out, 1); };
    sigaction(SIGUSR2, &action, &before_);
  }
  ~Watchdog() { sigaction(SIGUSR2, &before_, nullptr); }
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

 private:
  struct sigaction before_{};
};

// Whether it came back by a jump. `deep`: how many bytes of the stack are between here and the call.
template <typename Call>
[[gnu::noinline]] bool jumps_out_of(std::size_t deep, const Call& call) {
  if (sigsetjmp(out, 1) != 0) return true;
  static_cast<volatile char*>(alloca(deep))[0] = 1;
  call();
  return false;
}

[[gnu::noinline, maybe_unused]] void overwrite_stack() {
  volatile char all[1 << 14];
  for (volatile char& each : all) each = 0x5a;
}

[[gnu::noinline, maybe_unused]] void submit(std::atomic<bool>& inside, const std::atomic<bool>& until) {
  const gate::Scope scope(kCall);
  inside = true;
  while (!until.load()) usleep(100);
}

[[gnu::noinline, maybe_unused]] bool passes() {
  const gate::Scope scope(kCall);
  return !scope.refused();
}

}  // namespace

// TSan and ASan follow no jump across the frames of a handler.
#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)

TEST_CASE("a thread that jumps out of its wait at the gate leaves nothing behind that could be overwritten") {
  const Watchdog watchdog;
  const bool metered = GENERATE(false, true);
  const bool awake = GENERATE(false, true);
  INFO("metered " << metered << ", awake " << awake);
  Gate gate;
  struct : gate::Attendant {
    void arrived() override {}
    bool submits_nothing(const driver::Call&) override { return false; }
    bool may_submit(const driver::Call&) override { return may.load(); }
    std::atomic<bool> may{false};
  } attendant;
  gate.set_attendant(&attendant);
  if (metered) {
    gate.set_metered(true);
  } else {
    gate.close();
  }
  if (awake) gate.rouse(Clock::now() + 200ms);
  const auto waiting = [&] { return metered ? gate.held_up() : gate.standing(); };
  std::atomic<int> jumps{0};
  std::atomic<bool> stop{false};
  std::thread jumper([&] {
    for (int i = 0; i < 3; ++i) {
      if (jumps_out_of(100, [] { (void)passes(); })) jumps.fetch_add(1);
      overwrite_stack();
    }
    while (!stop.load()) usleep(100);
  });
  for (int i = 0; i < 3; ++i) {
    REQUIRE(eventually([&] { return waiting() != 0; }));
    REQUIRE(eventually([&] {
      pthread_kill(jumper.native_handle(), SIGUSR2);
      usleep(1000);
      return jumps.load() > i;
    }));
  }
  // Others wait and go on as always.
  std::atomic<bool> passed{false};
  std::thread other([&] { passed = passes(); });
  REQUIRE(eventually([&] { return waiting() != 0; }));
  usleep(1000);
  CHECK_FALSE(passed.load());
  attendant.may = true;
  gate.resume();
  gate.open();
  CHECK(eventually([&] { return passed.load(); }));
  other.join();
  gate.close();
  CHECK(gate.wait_until_empty(Clock::now() + 20s));
  // Who has left is forgotten a while after all were woken: it takes that time, so once is enough.
  if (!metered && !awake) CHECK(eventually([&] { return waiting() == 0; }, 60s));
  stop = true;
  jumper.join();
  gate.set_attendant(nullptr);
}

TEST_CASE("a thread that has jumped out of a call inside the gate waits at the closed gate as any other") {
  const Watchdog watchdog;
  // The next call is made from a frame that is as deep, less deep, and deeper than that of the call that was left.
  const std::size_t deep = GENERATE(100, 2000, 10);
  INFO("deep " << deep);
  Gate gate;
  std::atomic<bool> inside{false};
  std::atomic<bool> never{false};
  std::atomic<int> step{0};
  std::thread thread([&] {
    CHECK(jumps_out_of(100, [&] { submit(inside, never); }));
    step = 1;
    while (step.load() != 2) usleep(100);
    (void)jumps_out_of(deep, [] { CHECK(passes()); });
    step = 3;
  });
  REQUIRE(eventually([&] { return inside.load(); }));
  pthread_kill(thread.native_handle(), SIGUSR2);
  REQUIRE(eventually([&] { return step.load() == 1; }));
  gate.close();
  step = 2;
  CHECK(eventually([&] { return gate.standing() == 1; }));
  CHECK(step.load() == 2);
  CHECK(gate.wait_until_empty(Clock::now() + 20s));
  gate.open();
  thread.join();
  CHECK(step.load() == 3);
  gate.close();
  CHECK(gate.wait_until_empty(Clock::now() + 20s));
  CHECK(gate.traffic().inside == 0);
}

TEST_CASE("the closer does not wait for a thread that has jumped out of its call and makes no other") {
  const Watchdog watchdog;
  Gate gate;
  std::atomic<bool> inside{false};
  std::atomic<bool> never{false};
  std::atomic<bool> stop{false};
  std::thread thread([&] {
    CHECK(jumps_out_of(2000, [&] { submit(inside, never); }));
    while (!stop.load()) usleep(100);
  });
  REQUIRE(eventually([&] { return inside.load(); }));
  gate.close();
  CHECK_FALSE(gate.wait_until_empty(Clock::now() + 50ms));
  pthread_kill(thread.native_handle(), SIGUSR2);
  CHECK(gate.wait_until_empty(Clock::now() + 20s));
  stop = true;
  thread.join();
}

TEST_CASE("a handler that makes a call of its own inside a call leaves the outer one inside") {
  static std::atomic<int> handled;
  handled = 0;
  struct sigaction action{};
  struct sigaction before{};
  action.sa_handler = [](int) {
    if (passes()) handled.fetch_add(1);
  };
  const bool own_stack = GENERATE(false, true);
  action.sa_flags = own_stack ? SA_ONSTACK : 0;
  sigaction(SIGUSR1, &action, &before);
  Gate gate;
  std::atomic<bool> inside{false};
  std::atomic<bool> done{false};
  std::thread thread([&] {
    alignas(16) static char place[1 << 16];
    stack_t stack{};
    stack.ss_sp = place;
    stack.ss_size = sizeof place;
    sigaltstack(&stack, nullptr);
    submit(inside, done);
  });
  REQUIRE(eventually([&] { return inside.load(); }));
  gate.close();
  pthread_kill(thread.native_handle(), SIGUSR1);
  REQUIRE(eventually([&] { return handled.load() == 1; }));
  CHECK_FALSE(gate.wait_until_empty(Clock::now() + 30ms));
  done = true;
  CHECK(gate.wait_until_empty(Clock::now() + 20s));
  thread.join();
  sigaction(SIGUSR1, &before, nullptr);
}

TEST_CASE("a thread that jumps out of an allocation that waits for memory keeps no other from waking, and no bytes") {
  const Watchdog watchdog;
  test::Rotad rotad;
  test::Program program;
  program.hold(rotad, 1, 100 * test::kMega);
  std::atomic<int> step{0};
  std::thread thread([&] {
    program.driver.enter_context(0);
    CHECK(jumps_out_of(100, [&] { (void)program.allocate(101 * test::kMega); }));
    overwrite_stack();
    program.driver.leave_context();
    step = 1;
  });
  CHECK(rotad.next_ask() == 101 * test::kMega);
  CHECK(eventually([&] {
    pthread_kill(thread.native_handle(), SIGUSR2);
    usleep(1000);
    return step.load() == 1;
  }));
  thread.join();
  program.start_allocating(101 * test::kMega + 1);
  // The monitor may have given the first one's bytes back before, and said so.
  std::uint64_t asked = rotad.next_ask();
  if (asked == 0) asked = rotad.next_ask();
  CHECK(asked == 101 * test::kMega + 1);
  rotad.promise(200 * test::kMega);
  program.allocator.join();
  CHECK(program.result.load() == api::CUDA_SUCCESS);
}

TEST_CASE("a thread that waits for what limits allow jumps out once rotad has answered, and keeps nobody waiting") {
  const Watchdog watchdog;
  test::FakeResidency memory;
  memory::Ledger& ledger = memory.books;
  client::Bell bell;
  client::Budget budget(memory, bell);
  budget.serve(true);
  budget.limit(0);
  REQUIRE(ledger.reserve(0, 1, memory::Kind::kConverted));
  std::atomic<int> step{0};
  std::thread thread([&] {
    CHECK(jumps_out_of(100, [&] { (void)budget.may_take(0, 1, memory::Kind::kConverted, [] {}); }));
    overwrite_stack();
    step = 1;
  });
  std::optional<client::Budget::Ask> ask;
  REQUIRE(eventually([&] {
    ask = budget.take_ask(0);
    return ask.has_value();
  }));
  for (int i = 0; i < 20; ++i) {
    pthread_kill(thread.native_handle(), SIGUSR2);
    usleep(1000);
  }
  CHECK(step.load() == 0);
  budget.answer(0, {.gpu = 0,
                    .number = ask->number,
                    .device_bytes = 10,
                    .movable_bytes = 10,
                    .granted = 1,
                    .text = {},
                    .full = 0,
                    .fixed_bytes = 10,
                    .swapped_bytes = 10});
  CHECK(eventually([&] { return step.load() == 1; }));
  thread.join();
  CHECK_FALSE(budget.wait_for_others(0));
  REQUIRE(ledger.reserve(0, 1, memory::Kind::kConverted));
  CHECK(budget.may_take(0, 1, memory::Kind::kConverted, [] {}));
}

TEST_CASE("a thread that jumps out when rotad has refused its bytes has given them back once") {
  const Watchdog watchdog;
  test::FakeResidency memory;
  memory::Ledger& ledger = memory.books;
  client::Bell bell;
  client::Budget budget(memory, bell);
  budget.serve(true);
  budget.limit(0);
  REQUIRE(ledger.reserve(0, 10, memory::Kind::kConverted));
  std::thread thread([&] {
    CHECK(jumps_out_of(100, [&] {
      memory::Charge charge(ledger, 0, 1, memory::Kind::kConverted);
      (void)ledger.reserve(0, 1, memory::Kind::kConverted);
      charge.begin();
      (void)budget.may_take(0, 1, memory::Kind::kConverted, [&] { charge.cancel(); });
    }));
    overwrite_stack();
  });
  std::optional<client::Budget::Ask> ask;
  REQUIRE(eventually([&] {
    ask = budget.take_ask(0);
    return ask.has_value();
  }));
  // It waits until the thread has its answer.
  pthread_kill(thread.native_handle(), SIGUSR2);
  budget.answer(0, {.gpu = 0,
                    .number = ask->number,
                    .device_bytes = 10,
                    .movable_bytes = 10,
                    .granted = 0,
                    .text = {},
                    .full = 0,
                    .fixed_bytes = 10,
                    .swapped_bytes = 10});
  thread.join();
  CHECK(ledger.live_bytes(0) == 10);
}
#endif
