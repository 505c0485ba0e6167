// How much a process has in flight while programs take turns, and the threads that wait for that.
#include "runtime/monitor/meter.h"

#include <catch2/catch.hpp>
#include <thread>

#include "generated/driver_gates.h"
#include "tests/unit/runtime/fake_driver.h"

using namespace rota;
using namespace std::chrono_literals;
using monitor::Meter;
using turn::Time;

namespace {

const api::CUstream kStream = reinterpret_cast<api::CUstream>(0x500);
const api::CUstream kOther = reinterpret_cast<api::CUstream>(0x600);

Time now_is{0};

// A program each of whose calls keeps the GPU busy for this long; the GPU processes them in order.
struct Program {
  explicit Program(Time each) : each(each) { context = driver.enter_context(0); }
  bool call(api::CUstream stream = kStream) {
    if (!meter.enter({Symbol::k_cuLaunchKernel, stream, true, false}, [] { return now_is; })) return false;
    driver.submitted.fetch_add(1);
    return true;
  }
  // Lets time pass; the monitor checks now and then.
  void pass(Time time, bool standing = false) {
    for (const Time end = now_is + time; now_is < end;) {
      now_is += 100us;
      worked += 100us;
      while (worked >= each && driver.finished < driver.submitted) {
        driver.finished.fetch_add(1);
        worked -= each;
      }
      if (driver.finished == driver.submitted) worked = Time{0};
      meter.look(now_is, standing);
    }
  }
  std::uint64_t in_flight() const { return driver.submitted - driver.finished; }

  test::FakeDriver driver;
  api::CUcontext context = nullptr;
  Meter meter;
  Time each;
  Time worked{0};
};

// As many calls as it lets through, until the flow no longer changes.
std::uint64_t most_in_flight(Program& program) {
  std::uint64_t most = 0;
  for (int round = 0; round < 2000; ++round) {
    bool standing = false;
    while (!standing && program.in_flight() < 10'000) standing = !program.call();
    if (round >= 1000) most = std::max(most, program.in_flight());
    program.pass(100us, standing);
  }
  return most;
}

}  // namespace

TEST_CASE("no more is in flight in a stream than some milliseconds, however long its calls take") {
  for (const Time each : {200us, 500us, 1000us}) {
    Program program(each);
    const auto bytes = most_in_flight(program);
    INFO(each.count() << " ns a call, " << bytes << " in flight");
    CHECK(static_cast<int>(bytes) * each <= 2 * turn::Flow::kInFlight);
    CHECK(static_cast<int>(bytes) * each >= turn::Flow::kInFlight / 2);
  }
}

TEST_CASE("of long kernels one runs and one is ready") {
  Program program(10ms);
  CHECK(most_in_flight(program) == 2);
}

TEST_CASE("short calls are marked seldom") {
  Program program(100us);
  most_in_flight(program);
  const std::size_t before = program.driver.submitted;
  std::size_t events = 0;
  for (int i = 0; i < 1000; ++i) {
    if (!program.call()) program.pass(100us, true);
  }
  {
    const std::lock_guard lock(program.driver.mutex);
    events = program.driver.events.size();
  }
  CHECK(program.driver.submitted - before > 400);
  CHECK(events < 40);  // reused
}

TEST_CASE("a mark that has passed before the time that the monitor read does not undo the bound") {
  Program program(1ms);
  const Time before = now_is;
  now_is += 1ms;
  while (program.call()) {
  }
  program.driver.finished = program.driver.submitted.load();
  program.meter.look(before, true);
  std::uint64_t calls = 0;
  for (const std::uint64_t done = program.driver.submitted; program.call(); calls = program.driver.submitted - done) {
    if (calls > 20'000) break;
  }
  CHECK(calls <= 20'000);
}

TEST_CASE("where nothing passes for 20 ms, what is held back may be what the GPU waits for: it goes on") {
  Program program(1h);
  while (program.call()) {
  }
  program.meter.look(now_is, true);
  CHECK_FALSE(program.call());
  now_is += turn::Flow::kNothingPasses;
  CHECK(program.meter.look(now_is, true));
  CHECK(program.call());
}

TEST_CASE("a stream does not wait for another's work") {
  Program program(1h);
  while (program.call(kStream)) {
  }
  CHECK(program.call(kOther));
}

std::atomic<bool> queue_is_full{false};
std::atomic<bool> waits_for_room{false};

TEST_CASE("a thread for whose mark the driver has no memory yet keeps no other from submitting") {
  Program program(100us);
  program.driver.set<api::cuEventRecord_fn>(Symbol::k_cuEventRecord, [](api::CUevent, api::CUstream stream) {
    waits_for_room = stream == kStream;
    while (stream == kStream && queue_is_full) std::this_thread::yield();
    return api::CUDA_SUCCESS;
  });
  queue_is_full = true;
  std::thread thread([&] {
    program.driver.enter_context(0);
    for (int i = 0; i < 2; ++i) program.call(kStream);  // the second is marked
  });
  while (!waits_for_room) std::this_thread::yield();
  for (int i = 0; i < 2; ++i) CHECK(program.call(kOther));
  program.meter.look(now_is, false);
  queue_is_full = false;
  thread.join();
  CHECK(program.call(kStream));
}

TEST_CASE("streams come and go by the thousand, and few are remembered with few events") {
  Program program(100us);
  for (std::uintptr_t each = 1; each <= 4000; ++each) {
    const auto stream = reinterpret_cast<api::CUstream>(0x10'0000 + each * 16);
    if (!program.call(stream)) program.pass(100us, true);
    if (each % 16 == 0) program.pass(5ms);
  }
  CHECK(program.meter.streams() <= Meter::kMostStreams);
  const std::lock_guard lock(program.driver.mutex);
  CHECK(program.driver.events.size() <= 2 * Meter::kMostStreams);
}

TEST_CASE("the events of a stream whose handle turns up in another context are given back") {
  Program program(100us);
  for (int i = 0; i < 100; ++i) {
    program.driver.enter_context(0);
    for (int call = 0; call < 3; ++call) program.call(nullptr);
    program.pass(5ms);
  }
  const std::lock_guard lock(program.driver.mutex);
  CHECK(program.driver.events.size() <= 3 * Meter::kMostStreams);
  CHECK(program.driver.dead_uses == 0);
}

TEST_CASE("streams of a context that has ended are not asked about any more") {
  Program program(1ms);
  while (program.call()) {
  }
  program.meter.forget(program.context);
  {
    const std::lock_guard lock(program.driver.mutex);
    program.driver.contexts.clear();
  }
  CHECK(program.meter.look(now_is, true));  // a thread that waits because of them continues
  CHECK(program.driver.dead_uses == 0);
}

TEST_CASE(
    "a thread that waits for work in flight goes on when some has finished, or waits at the gate once that closes") {
  const test::FakeDriver driver;
  struct Strict : gate::Attendant {
    std::atomic<bool> may{false};
    std::atomic<int> arrivals{0};
    void arrived() override { arrivals.fetch_add(1); }
    bool submits_nothing(const driver::Call&) override { return false; }
    bool may_submit(const driver::Call&) override { return may.load(); }
  } strict;
  gate::Gate gate;
  gate.set_attendant(&strict);
  gate.open();
  gate.set_metered(true);
  std::atomic<bool> passed{false};
  std::thread thread([&] {
    const gate::Scope scope({Symbol::k_cuLaunchKernel, nullptr, true, false});
    passed = true;
  });
  const auto eventually = [](auto&& condition) {
    const auto until = std::chrono::steady_clock::now() + 20s;
    while (!condition() && std::chrono::steady_clock::now() < until) std::this_thread::sleep_for(100us);
    return condition();
  };
  CHECK(eventually([&] { return gate.held_up() == 1; }));
  CHECK(gate.standing() == 0);
  CHECK(gate.wait_until_empty(std::chrono::steady_clock::now() + 20s));  // the closer need not wait for it
  SECTION("some has passed") {
    strict.may = true;
    gate.resume();
  }
  SECTION("nothing is metered any more") {
    gate.set_metered(false);
  }
  SECTION("the gate closes") {
    gate.close();
    CHECK(eventually([&] { return gate.standing() == 1 && gate.held_up() == 0; }));
    CHECK_FALSE(passed);
    strict.may = true;
    gate.open();
  }
  thread.join();
  CHECK(passed);
  gate.set_attendant(nullptr);
}
