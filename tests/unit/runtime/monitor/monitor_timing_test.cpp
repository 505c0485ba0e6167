// Timed work, with the monitor, the gate and a rotad played by the test: which threads wait for what, and what is left
// alone meanwhile.
#include <catch2/catch.hpp>
#include <thread>

#include "tests/unit/runtime/monitor/turning_program.h"

using namespace rota;
using namespace rota::monitor;
using namespace rota::turn;
using namespace std::chrono_literals;

namespace {

std::atomic<int> marks{0};
std::atomic<api::CUevent> of_program[2]{};

// A program whose calls and events go to the fake driver. Any other event recorded there is rota's.
struct TimingProgram : test::Program {
  TimingProgram() {
    driver.set<api::cuEventRecord_fn>(Symbol::k_cuEventRecord, [](api::CUevent event, api::CUstream) {
      if (event != of_program[0] && event != of_program[1]) ++marks;
      return api::CUDA_SUCCESS;
    });
    driver.set<api::cuCtxRecordEvent_fn>(Symbol::k_cuCtxRecordEvent, [](api::CUcontext, api::CUevent) {
      ++marks;
      return api::CUDA_SUCCESS;
    });
    driver.enter_context(0);
    for (api::CUevent& event : events) {
      REQUIRE(real::cuEventCreate(&event, 0) == api::CUDA_SUCCESS);
      monitor.timing().made(event, true);
    }
    of_program[0] = events[0];
    of_program[1] = events[1];
  }
  void record(int event) {
    CHECK(monitor.record(events[event], nullptr, false, [&] { return gates::cuEventRecord(events[event], nullptr); }) ==
          api::CUDA_SUCCESS);
  }
  // Holds the GPU, which other clients use too.
  void hold_beside_others(test::Rotad& rotad, std::uint32_t watch = protocol::kWatchAlone) {
    rotad.watch(protocol::kWatchTimings | watch);
    launch();
    CHECK(next_want(rotad).alone == 0);
    rotad.grant(1, 1, 1024 * test::kMega);
    launcher.join();
    driver.finished = UINT64_MAX;
    REQUIRE(test::eventually([] { return Timing::matters(); }));
  }
  static protocol::Want next_want(test::Rotad& rotad) {
    for (;;) {
      const protocol::Message message = rotad.next();
      if (message.kind == test::Kind::kWant) return message.body.want;
    }
  }
  api::CUevent events[2]{};
};

}  // namespace

TEST_CASE("the thread that opens a pair waits until rotad says that it is alone, and the calls within it do not") {
  test::Rotad rotad;
  rotad.keep_limits();
  TimingProgram program;
  program.hold_beside_others(rotad);
  std::atomic<bool> opened{false};
  program.launcher = std::thread([&] {
    program.driver.enter_context(0);
    program.record(0);
    opened = true;
    program.record(1);
    program.driver.leave_context();
  });
  const protocol::Want want = program.next_want(rotad);
  CHECK(want.alone == 1);
  CHECK(want.gpus == 1);
  CHECK_FALSE(opened);
  rotad.alone(static_cast<std::uint64_t>((monitor::now() + 250ms).count()));
  program.launcher.join();
  CHECK(opened);
  // Nothing follows, so the series ends soon.
  CHECK(program.next_want(rotad).alone == 0);
  CHECK_FALSE(program.monitor.timing().inside());
}

TEST_CASE("a rotad that never answers holds no pair back for more than a moment, and one that goes for none at all") {
  test::Rotad rotad;
  rotad.keep_limits();
  TimingProgram program;
  program.hold_beside_others(rotad);
  const Time begun = monitor::now();
  program.record(0);
  CHECK(monitor::now() - begun >= Pairs::kLongestWait);
  CHECK(program.monitor.timing().inside());
  program.record(1);
  CHECK_FALSE(program.monitor.timing().inside());
  rotad.die();
  REQUIRE(test::eventually([] { return !Timing::matters(); }));
  program.record(0);
  CHECK_FALSE(program.monitor.timing().inside());
}

TEST_CASE("between the two events of a pair nothing of ours is recorded, and no call is held back") {
  test::Rotad rotad;
  rotad.keep_limits();
  TimingProgram program;
  program.hold_beside_others(rotad, protocol::kWatchCalls | protocol::kWatchSamples | protocol::kWatchMeter);
  rotad.somebody_waits(1, static_cast<std::uint64_t>((monitor::now() + 1h).count()));
  const auto launch = [] { gates::cuLaunchKernel(nullptr, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr); };
  REQUIRE(test::eventually([&] { return program.gate.metered(); }));
  const auto marked = [&](int before) {
    launch();
    return marks > before;
  };
  const int first = marks;
  REQUIRE(test::eventually([&] { return marked(first); }));
  int before = 0;
  for (bool in_time = false; !in_time;) {  // not on a machine that is busy: it lasts no longer than that
    const Time begun = monitor::now();
    program.record(0);
    // A mark that the monitor had decided on just before may still come; once it has checked again, none.
    const std::uint64_t earlier = rotad.usage().gpus[0].calls;
    launch();
    REQUIRE(test::eventually([&] { return rotad.usage().gpus[0].calls > earlier; }));
    before = marks;
    const std::uint64_t calls = rotad.usage().gpus[0].calls;
    program.driver.finished = 0;  // nothing finishes: after a few calls the next would wait
    for (int i = 0; i < 200; ++i) launch();
    const std::uint32_t held_up = program.gate.held_up();
    // The monitor has checked in the meantime.
    REQUIRE(test::eventually([&] { return rotad.usage().gpus[0].calls >= calls + 200; }));
    const int after = marks;
    const bool inside = program.monitor.timing().inside();
    in_time = monitor::now() - begun < Pairs::kLongest;
    program.record(1);
    program.driver.finished = UINT64_MAX;
    if (!in_time) continue;
    CHECK(held_up == 0);
    CHECK(after == before);
    CHECK(inside);
  }
  REQUIRE(test::eventually([&] { return marked(before); }));
}
