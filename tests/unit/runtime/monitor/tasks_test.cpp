// A process on several GPUs: a task for each, which take their turns by themselves until something couples them.
#include <atomic>
#include <catch2/catch.hpp>
#include <thread>

#include "generated/driver_gates.h"
#include "runtime/memory/memory.h"
#include "runtime/monitor/monitor.h"
#include "runtime/turn/couplings.h"
#include "tests/unit/runtime/eventually.h"
#include "tests/unit/runtime/fake_driver.h"
#include "tests/unit/runtime/monitor/fake_rotad.h"
#include "tests/unit/runtime/monitor/long_call.h"

using namespace rota;
using namespace std::chrono_literals;
using protocol::Kind;
using protocol::Message;
using test::eventually;
using turn::Couplings;

namespace {

// A program with contexts on two GPUs.
struct Program {
  explicit Program(test::FakeRotad& rotad)
      : memory(ledger, {.backend = memory::Choice::kNative, .small_bytes = 0}),
        monitor(gate, contexts, memory),
        rotad(rotad) {
    for (int device : {1, 0}) monitor.context_made(driver.enter_context(device), device, true);
    driver.finished = UINT64_MAX;
  }
  ~Program() {
    for (std::thread& thread : threads) thread.join();
  }
  static void launch() { gates::cuLaunchKernel(nullptr, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr); }
  // A graph may have nodes on any GPU.
  static void launch_graph() { gates::cuGraphLaunch(nullptr, nullptr); }
  void in_thread(int device, void (*call)()) {
    threads.emplace_back([this, device, call] {
      driver.enter_context(device);
      call();
      driver.leave_context();
      ++done;
    });
  }
  Message next(Kind kind) const {
    for (;;) {
      const Message message = rotad.next();
      if (message.kind == Kind::kUsage) continue;
      CHECK(message.kind == kind);
      return message;
    }
  }
  // The want of these GPUs together. Before that the program may ask for one of them, and take that back.
  Message next_want(std::uint64_t gpus) const {
    Message message = rotad.next();
    while (message.kind != Kind::kWant || message.body.want.gpus != gpus) {
      CHECK(message.kind != Kind::kGiveBack);
      message = rotad.next();
    }
    return message;
  }
  // Launches on a GPU, and is granted it.
  void hold(int device, std::uint32_t grant) {
    in_thread(device, launch);
    const Message want = next(Kind::kWant);
    CHECK(want.body.want.gpus == 1U << index_of(device));
    CHECK(want.body.want.task == 1U << index_of(device));
    const int before = done.load();
    rotad.grant_on(index_of(device), grant);
    REQUIRE(eventually([&] { return done.load() > before; }));
  }
  // As rotad numbers it: in the order in which the program touched them.
  static unsigned index_of(int device) { return device == 1 ? 0 : 1; }

  test::FakeDriver driver;
  gate::Gate gate;
  driver::Contexts contexts;
  memory::Ledger ledger;
  memory::Memory memory;
  monitor::Monitor monitor;
  test::FakeRotad& rotad;
  std::atomic<int> done{0};
  std::vector<std::thread> threads;
};

}  // namespace

TEST_CASE("a program asks for the GPU that it uses, and keeps the one that it has") {
  test::FakeRotad rotad;
  Program program(rotad);
  program.hold(0, 5);
  program.hold(1, 5);  // the same number, on another GPU
  CHECK_FALSE(program.gate.closed(3));
  // Somebody waits for one of them, and it is idle.
  rotad.somebody_waits_on(Program::index_of(1), 1);
  const Message back = program.next(Kind::kGiveBack);
  CHECK(back.body.give_back.grant == 5);
  CHECK(back.body.give_back.gpu == Program::index_of(1));
  CHECK(program.gate.closed(2));
  CHECK_FALSE(program.gate.closed(1));
  program.in_thread(0, Program::launch);
  CHECK(eventually([&] { return program.done.load() == 3; }));
}

TEST_CASE("a GPU is idle while another one is busy, and inside a call for it no other GPU's turn is held up") {
  test::FakeRotad rotad;
  Program program(rotad);
  program.hold(0, 1);
  program.hold(1, 2);
  rotad.somebody_waits_on(Program::index_of(1), 1);
  REQUIRE(eventually([&] { return program.gate.sorted(); }));
  {
    const test::LongCall busy(program.driver);  // on GPU 0
    CHECK(program.next(Kind::kGiveBack).body.give_back.gpu == Program::index_of(1));
    CHECK(program.gate.wait_until_empty(std::chrono::steady_clock::now(), 2));
    CHECK_FALSE(program.gate.wait_until_empty(std::chrono::steady_clock::now(), 1));
  }
  CHECK_FALSE(program.gate.closed(1));
}

TEST_CASE(
    "a call that reaches two GPUs keeps the one that is held, whose work may wait for it, and asks for the other") {
  test::FakeRotad rotad;
  Program program(rotad);
  program.hold(0, 7);
  program.in_thread(0, Program::launch_graph);
  Message want = rotad.next();
  for (; want.kind != Kind::kWant; want = rotad.next()) CHECK(want.kind != Kind::kGiveBack);
  CHECK(want.body.want.gpus == 1U << Program::index_of(1));
  CHECK(program.done.load() == 1);
  CHECK_FALSE(program.gate.closed(1));
  rotad.grant_on(Program::index_of(1), 8);
  CHECK(eventually([&] { return program.done.load() == 2; }));
  // Their turns end apart; after that they are asked for together.
  unsigned back = 0;
  for (int device : {0, 1}) rotad.somebody_waits_on(Program::index_of(device), 1);
  for (int i = 0; i < 2; ++i) back |= 1U << program.next(Kind::kGiveBack).body.give_back.gpu;
  CHECK(back == 3);
  for (int device : {0, 1}) rotad.grant_on(Program::index_of(device), 0);  // rotad has got them
  program.in_thread(0, Program::launch_graph);
  CHECK(program.next_want(3).body.want.task == 3);
  rotad.grant(9, 3);
  CHECK(eventually([&] { return program.done.load() == 3; }));
  // They go back together.
  rotad.somebody_waits_on(Program::index_of(1), 1);
  CHECK(program.next(Kind::kGiveBack).body.give_back.grant == 9);
  CHECK(program.gate.closed(1));
  CHECK(program.gate.closed(2));
}

TEST_CASE(
    "a copy between two GPUs that are both held couples them from their next turns on: its work uses memory of both") {
  test::FakeRotad rotad;
  Program program(rotad);
  program.hold(0, 3);
  program.hold(1, 4);
  api::CUdeviceptr there = 0;
  api::CUdeviceptr here = 0;
  program.driver.enter_context(1);
  REQUIRE(program.memory.allocate(&there, 1 << 20) == api::CUDA_SUCCESS);
  program.driver.enter_context(0);
  REQUIRE(program.memory.allocate(&here, 1 << 20) == api::CUDA_SUCCESS);
  CHECK(program.memory.device_of(there + 100) == 1);
  program.driver.set<api::cuMemcpyDtoDAsync_v2_fn>(
      Symbol::k_cuMemcpyDtoDAsync_v2,
      [](api::CUdeviceptr, api::CUdeviceptr, std::size_t, api::CUstream) { return api::CUDA_SUCCESS; });
  CHECK(gates::cuMemcpyDtoDAsync_v2(here, here + 4096, 4096, nullptr) == api::CUDA_SUCCESS);
  CHECK(gates::cuMemcpyDtoDAsync_v2(there, here, 4096, nullptr) == api::CUDA_SUCCESS);
  unsigned back = 0;
  for (int device : {0, 1}) rotad.somebody_waits_on(Program::index_of(device), 1);
  for (int i = 0; i < 2; ++i) back |= 1U << program.next(Kind::kGiveBack).body.give_back.gpu;
  CHECK(back == 3);
  rotad.grant(0, 0);
  program.in_thread(1, Program::launch);
  program.next_want(3);
  rotad.grant(5, 3);
}

TEST_CASE("what was not served takes no turns, and does not keep the other GPU from its own") {
  test::FakeRotad rotad;
  rotad.refuse_gpus(1);
  test::FakeDriver driver;
  gate::Gate gate;
  driver::Contexts contexts;
  memory::Ledger ledger;
  memory::Memory memory(ledger, {.small_bytes = 0});
  monitor::Monitor monitor(gate, contexts, memory);
  monitor.context_made(driver.enter_context(0), 0, true);
  Program::launch();
  CHECK_FALSE(gate.closed(1));
  monitor.context_made(driver.enter_context(1), 1, true);
  CHECK(gate.closed(2));
  std::thread thread([&] {
    driver.enter_context(1);
    Program::launch();
  });
  CHECK(rotad.next().body.want.gpus == 1);
  CHECK_FALSE(gate.closed(1));
  rotad.grant(5, 1);
  thread.join();
}

TEST_CASE("GPUs are coupled without one that takes no turns, and then get theirs") {
  test::FakeRotad rotad;
  rotad.refuse_gpus(1);
  test::FakeDriver driver;
  gate::Gate gate;
  driver::Contexts contexts;
  memory::Ledger ledger;
  memory::Memory memory(ledger, {.small_bytes = 0});
  monitor::Monitor monitor(gate, contexts, memory);
  for (int device : {2, 1, 0}) monitor.context_made(driver.enter_context(device), device, true);
  REQUIRE(eventually([&] { return !gate.closed(4); }));
  std::thread thread([&] {
    driver.enter_context(0);
    Program::launch_graph();
  });
  for (Message want = rotad.next(); want.body.want.gpus != 3; want = rotad.next()) CHECK(want.kind != Kind::kGiveBack);
  rotad.grant(5, 3);
  thread.join();
}

TEST_CASE("couplings join what they have in common, and end at rest when nothing asks for them any more") {
  Couplings couplings;
  constexpr turn::Time kNow = 100s;
  constexpr auto kAnyway = Couplings::When::kAnyway;
  constexpr auto kAtOnce = Couplings::When::kAtOnce;
  CHECK_FALSE(couplings.ask(4, kAnyway, kNow));  // one GPU
  CHECK(couplings.ask(3, kAnyway, kNow));
  CHECK_FALSE(couplings.ask(3, kAnyway, kNow + 100ms));
  CHECK(couplings.ask(6, kAnyway, kNow + 500ms));
  CHECK(couplings.ask(24, kAnyway, kNow));
  CHECK(couplings.with(1, kNow) == 7);
  CHECK(couplings.with(8, kNow) == 24);
  CHECK(couplings.with(32, kNow) == 32);
  // Only what memory asks for is in a hurry.
  CHECK(couplings.with(8, kNow, kAtOnce) == 8);
  CHECK(couplings.ask(24, kAtOnce, kNow));
  CHECK_FALSE(couplings.ask(24, kAtOnce, kNow));
  CHECK(couplings.with(8, kNow, kAtOnce) == 24);
  CHECK(couplings.with(8, kNow + Couplings::kLasts + 1ms, kAtOnce) == 8);
  CHECK(couplings.with(1, kNow, kAtOnce) == 1);
  // Pairs of those that are coupled already are nothing new, however often they are asked for.
  for (int i = 0; i < 1000; ++i) CHECK_FALSE(couplings.ask(3, kAnyway, kNow + turn::Time(i)));
  // What a call has submitted may still run, however long ago that was.
  CHECK(couplings.with(1, kNow + 1h) == 7);
  couplings.at_rest(1);  // work on the other GPU may use memory of this one
  CHECK(couplings.with(1, kNow + 1h) == 7);
  couplings.at_rest(31);
  const turn::Time later = kNow + 200ms + Couplings::kLasts;
  CHECK(couplings.with(1, later) == 1);
  CHECK(couplings.with(2, later) == 6);
  CHECK(couplings.ask(3, kAnyway, later));
  CHECK(couplings.with(1, later) == 7);
  couplings.ask_after_drain(3, later);
  CHECK(couplings.with(1, later + Couplings::kLasts * 2) == 3);
  CHECK(couplings.with(1, later + Couplings::kLastsAfterDrain * 2) == 3);
  couplings.at_rest(3);
  CHECK(couplings.with(1, later + Couplings::kLasts * 2) == 3);
  CHECK(couplings.with(1, later + Couplings::kLastsAfterDrain * 2) == 1);
}
