// A program that takes turns with a rotad played by the test, as the tests of room use it.
#pragma once

#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <cstdint>
#include <thread>

#include "generated/driver_gates.h"
#include "runtime/memory/memory.h"
#include "runtime/monitor/monitor.h"
#include "tests/unit/runtime/eventually.h"
#include "tests/unit/runtime/fake_driver.h"
#include "tests/unit/runtime/monitor/fake_rotad.h"

namespace rota::test {

using namespace std::chrono_literals;
using protocol::Kind;

inline constexpr std::uint64_t kMega = 1 << 20;

struct Rotad : FakeRotad {
  Rotad() { promise_room(); }
  // The next message that is not kUsage.
  protocol::Message next() {
    for (;;) {
      const protocol::Message message = FakeRotad::next();
      if (message.kind != Kind::kUsage) return message;
    }
  }
  // The next amount asked for on GPU 0.
  std::uint64_t next_ask() {
    const protocol::Message message = next();
    CHECK(message.kind == Kind::kRoom);
    CHECK(message.version == protocol::kVersion);
    CHECK(message.body.room.gpu == 0);
    return message.body.room.bytes;
  }
};

// A program on a GPU of 1 GiB, with managed memory.
struct Program {
  // `prepare` changes the driver before rota uses it.
  explicit Program(
      memory::Choice backend = memory::Choice::kManaged, bool move_out = true,
      void (*prepare)(FakeDriver&) = [](FakeDriver&) {}, std::chrono::nanoseconds for_now_patience = 1min)
      : memory(ledger, {.backend = backend, .limit_bytes = UINT64_MAX, .move_out = move_out}),
        monitor(gate, contexts, memory, for_now_patience) {
    driver.device_bytes = 1024 * kMega;
    prepare(driver);
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
  // Holds the GPU under this grant, through a launch.
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
  // In a separate thread; `result` receives the result.
  void start_allocating(std::uint64_t bytes) {
    allocator = std::thread([this, bytes] {
      driver.enter_context(0);
      result = allocate(bytes);
      driver.leave_context();
    });
  }

  FakeDriver driver;
  gate::Gate gate;
  driver::Contexts contexts;
  memory::Ledger ledger;
  memory::Memory memory;
  monitor::Monitor monitor;
  api::CUcontext context = nullptr;
  std::atomic<int> result{-1};
  std::thread launcher;
  std::thread allocator;
};

}  // namespace rota::test
