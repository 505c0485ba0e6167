// Signal handlers that run in threads at the gate: Python's Ctrl-C sets a flag there, which is acted on once the call
// has returned.
#include <signal.h>

#include "tests/unit/runtime/monitor/turning_program.h"
#include "tests/unit/runtime/turn/machine_process.h"

using namespace rota;
using namespace std::chrono_literals;

namespace {

constinit std::atomic<int> handled{0};

// Handles SIGUSR1 in this way during its lifetime.
class Handler {
 public:
  explicit Handler(int flags) {
    struct sigaction action{};
    action.sa_handler = [](int) { handled.fetch_add(1); };
    action.sa_flags = flags;
    sigaction(SIGUSR1, &action, &before_);
  }
  ~Handler() { sigaction(SIGUSR1, &before_, nullptr); }
  Handler(const Handler&) = delete;
  Handler& operator=(const Handler&) = delete;

 private:
  struct sigaction before_{};
};

struct Interrupted : gate::Attendant {
  std::atomic<int> count{0};
  void arrived() override {}
  void interrupted(int) override { count.fetch_add(1); }
  bool submits_nothing(const driver::Call&) override { return false; }
};

// Repeated until `condition`: a signal that arrives before the thread sleeps interrupts nothing.
template <typename Condition>
bool interrupt_until(pthread_t thread, Condition&& condition) {
  return test::eventually([&] {
    if (condition()) return true;
    pthread_kill(thread, SIGUSR1);
    return false;
  });
}

}  // namespace

TEST_CASE(
    "a signal handler that runs in a thread at the gate is noticed, with SA_RESTART as well, and the call returns as "
    "always") {
  const Handler handler(GENERATE(0, SA_RESTART));
  const bool about_to_open = GENERATE(false, true);
  INFO("about to open " << about_to_open);
  test::FakeDriver driver;
  driver.launch_result.store(api::CUDA_ERROR_INVALID_VALUE);
  gate::Gate gate;
  Interrupted attendant;
  gate.set_attendant(&attendant);
  gate.close();
  std::atomic<int> result{-1};
  std::atomic<int> error{-1};
  if (about_to_open) gate.rouse(std::chrono::steady_clock::now() + 1h);
  std::thread thread([&] {
    errno = 77;
    result = gates::cuLaunchKernel(nullptr, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr);
    error = errno;
  });
  REQUIRE(test::eventually([&] { return gate.standing() == 1; }));
  REQUIRE(interrupt_until(thread.native_handle(), [&] { return attendant.count.load() >= 2; }));
  CHECK(gate.standing() == 1);
  CHECK(driver.launches.load() == 0);
  gate.open();
  thread.join();
  CHECK(result.load() == api::CUDA_ERROR_INVALID_VALUE);
  CHECK(error.load() == 77);
  gate.set_attendant(nullptr);
}

TEST_CASE("a handler that runs while a thread waits for work in flight counts once the gate has closed") {
  const Handler handler(SA_RESTART);
  test::FakeDriver driver;
  gate::Gate gate;
  struct : Interrupted {
    std::atomic<bool> full{true};
    bool may_submit(const driver::Call&) override { return !full.load(); }
  } attendant;
  gate.set_attendant(&attendant);
  gate.set_metered(true);
  std::thread thread([] { gates::cuLaunchKernel(nullptr, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr); });
  // A signal that arrives before the thread sleeps is missed, so it is sent again.
  CHECK(test::eventually([&] {
    REQUIRE(test::eventually([&] { return gate.held_up() == 1; }));
    const int before = handled.load();
    pthread_kill(thread.native_handle(), SIGUSR1);
    REQUIRE(test::eventually([&] { return handled.load() > before; }));
    CHECK(attendant.count.load() == 0);
    gate.close();
    REQUIRE(test::eventually([&] { return gate.standing() == 1; }));
    const bool told = test::eventually([&] { return attendant.count.load() == 1; }, 20ms);
    gate.open();
    return told;
  }));
  attendant.full = false;
  gate.resume();
  thread.join();
  gate.set_attendant(nullptr);
}

TEST_CASE("a handler that ran while a thread waited counts again if the gate closes before the thread has passed") {
  const Handler handler(SA_RESTART);
  test::FakeDriver driver;
  gate::Gate gate;
  struct : Interrupted {
    gate::Gate* gate = nullptr;
    std::atomic<bool> too_late{true};
    std::atomic<int> told_before{-1};
    bool may_submit(const driver::Call&) override {
      if (!too_late.load()) return true;
      if (told_before.load() < 0) {
        gate->close();
        told_before = count.load();
      }
      return false;
    }
  } attendant;
  attendant.gate = &gate;
  gate.set_attendant(&attendant);
  gate.set_metered(true);
  gate.close();
  std::thread thread([] { gates::cuLaunchKernel(nullptr, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr); });
  REQUIRE(test::eventually([&] { return gate.standing() == 1; }));
  REQUIRE(interrupt_until(thread.native_handle(), [&] { return attendant.count.load() >= 1; }));
  gate.open();
  CHECK(test::eventually([&] {
    const int before = attendant.told_before.load();
    return before >= 0 && attendant.count.load() > before;
  }));
  attendant.too_late = false;
  gate.open();
  thread.join();
  gate.set_attendant(nullptr);
}

// As in room_test.cpp: neither sanitizer supports cancellation.
#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
TEST_CASE("a thread that is cancelled at the gate leaves nothing behind, and the others go on") {
  gate::Gate gate;
  gate.close();
  std::thread before([&] { gate.pass(); });
  REQUIRE(test::eventually([&] { return gate.standing() == 1; }));
  std::thread cancelled([&] { gate.pass(); });
  REQUIRE(test::eventually([&] { return gate.standing() == 2; }));
  std::thread after([&] { gate.pass(); });
  REQUIRE(test::eventually([&] { return gate.standing() == 3; }));
  pthread_cancel(cancelled.native_handle());
  cancelled.join();
  CHECK(gate.standing() == 2);
  gate.open();
  before.join();
  after.join();
  CHECK(gate.standing() == 0);
}
#endif

TEST_CASE("a thread that a grant wakes at the gate has not been interrupted") {
  gate::Gate gate;
  Interrupted attendant;
  gate.set_attendant(&attendant);
  for (int round = 0; round < 100; ++round) {
    gate.close();
    std::vector<std::thread> threads;
    for (int i = 0; i < 3; ++i) threads.emplace_back([&] { gate.pass(); });
    gate.open();
    for (std::thread& thread : threads) thread.join();
  }
  CHECK(attendant.count.load() == 0);
  gate.set_attendant(nullptr);
}

TEST_CASE("a process is not idle while a thread that its grant has woken has not run yet") {
  static std::atomic<bool> woken;
  static std::atomic<bool> runs;
  woken = runs = false;
  gate::tell_of_waits([](std::optional<std::chrono::nanoseconds> stood) {
    if (!stood) return;
    woken = true;
    while (!runs.load()) std::this_thread::sleep_for(100us);
  });
  test::Rotad rotad;
  test::Program program;
  program.driver.finished = UINT64_MAX;
  program.launch();
  CHECK(rotad.next().kind == protocol::Kind::kWant);
  const auto in_an_hour = (std::chrono::steady_clock::now() + 1h).time_since_epoch();
  rotad.somebody_waits(1, static_cast<std::uint64_t>(std::chrono::nanoseconds(in_an_hour).count()));
  rotad.grant(1, 1, 1024 * test::kMega);
  REQUIRE(test::eventually([] { return woken.load(); }));
  SECTION("it runs soon") {
    CHECK_FALSE(test::eventually([&] { return !rotad.quiet(); }, 20ms));
    CHECK(program.driver.launches.load() == 0);
    runs = true;
    CHECK(rotad.next().kind == protocol::Kind::kGiveBack);
    CHECK(program.driver.launches.load() == 1);
  }
  SECTION("it does not, as in a signal handler") {
    CHECK(rotad.next().kind == protocol::Kind::kGiveBack);
    CHECK(program.driver.launches.load() == 0);
    rotad.grant(0, 0);
    CHECK(rotad.next().kind == protocol::Kind::kWant);
    runs = true;
    rotad.grant(2, 1, 1024 * test::kMega);
  }
  program.launcher.join();
  gate::tell_of_waits(nullptr);
}

TEST_CASE(
    "a process of which a handler has interrupted a wait asks to go first, once for all that come until its turn") {
  const Handler handler(SA_RESTART);
  test::Rotad rotad;
  test::Program program;
  program.launch();
  CHECK(rotad.next().body.want.urgent == 0);
  const int before = handled.load();
  REQUIRE(interrupt_until(program.launcher.native_handle(), [&] { return !rotad.quiet(); }));
  const protocol::Message urgent = rotad.next();
  CHECK(urgent.kind == protocol::Kind::kWant);
  CHECK(urgent.body.want.gpus == 1);
  CHECK(urgent.body.want.urgent == 1);
  CHECK(handled.load() > before);
  rotad.grant(1, 1, 1024 * test::kMega);
  program.launcher.join();
  program.driver.finished = UINT64_MAX;
  // The next turn is an ordinary one.
  rotad.somebody_waits(1, 1);
  CHECK(rotad.next().kind == protocol::Kind::kGiveBack);
  rotad.grant(0, 0);
  program.launch();
  const protocol::Message next = rotad.next();
  CHECK(next.kind == protocol::Kind::kWant);
  CHECK(next.body.want.urgent == 0);
  rotad.grant(2, 1, 1024 * test::kMega);
}

TEST_CASE("interrupted all the time, a process asks to go first about once a second") {
  test::Process process;
  process.seen.standing = 1;
  process.look();
  REQUIRE(process.did(test::Act::kWant));
  process.seen.interrupted = true;
  process.run(10s);
  const auto urgent = std::count_if(process.done.begin(), process.done.end(), [](const test::Action& action) {
    return action.act == test::Act::kWant && action.urgent;
  });
  CHECK(urgent >= 9);
  CHECK(urgent <= 10);
}

TEST_CASE("a program that waits because of its own drain asks to go first once that is over") {
  test::Process process;
  process.hold();
  process.press();
  process.seen.interrupted = true;
  process.seen.done = true;
  process.run(20ms);
  const auto want = std::find_if(process.done.begin(), process.done.end(),
                                 [](const test::Action& action) { return action.act == test::Act::kWant; });
  REQUIRE(want != process.done.end());
  CHECK(want->urgent);
}

TEST_CASE("the user is told once how to end a program whose memory is evicted, if its turn does not come soon") {
  const bool swapped = GENERATE(false, true);
  test::Process process;
  process.hold();
  process.press();
  process.seen.done = true;
  if (!swapped) process.seen.lease.in_the_way = 1;  // it leaves with the lease
  process.run_until(test::Phase::kWaiting);
  process.seen.lease = {};
  process.seen.resident = process.resident = !swapped;
  process.seen.interrupted = true;
  process.look();  // the bell has rung
  process.run(test::Machine::kSayInterrupted - 10ms);
  CHECK_FALSE(process.said(test::Note::kInterrupted));
  process.run(20ms);
  CHECK(process.said(test::Note::kInterrupted));
  process.run(10s);
  CHECK_FALSE(process.said(test::Note::kInterrupted));
}

TEST_CASE(
    "nobody is told anything of a program whose memory is on the GPU, and whose turn comes as soon as others yield") {
  test::Process process;
  process.seen.standing = 1;
  process.seen.interrupted = true;
  process.run(10s);
  CHECK_FALSE(process.said(test::Note::kInterrupted));
}
