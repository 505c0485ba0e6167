// A program with memory that rotad may ask for, and a rotad played by the test.
#pragma once

#include <catch2/catch.hpp>
#include <cstdint>

#include "tests/unit/runtime/monitor/mapping_driver.h"
#include "tests/unit/runtime/monitor/turning_program.h"

namespace rota::test {

inline constexpr std::uint64_t kBytes = 64 * kMega;

struct Speaking : FakeRotad {
  Speaking() { keep_limits(); }
  void wait_for(Kind kind) {
    while (next().kind != kind) {
    }
  }
};

// A program that has the turn, and memory on the GPU that can be evicted.
struct Holding : Program {
  Holding(Speaking& to, void (*prepare)(FakeDriver&)) : Program(memory::Choice::kSwap, true, prepare), rotad(to) {
    launch();
    rotad.wait_for(Kind::kWant);
    rotad.grant(1, 1, 1024 * kMega);
    launcher.join();
    driver.finished = UINT64_MAX;
    REQUIRE(eventually([&] { return !gate.closed(); }));
    REQUIRE(memory.swap().serves(0));
    add_memory();
    REQUIRE(memory.swap().resident_bytes(0) == kBytes);
  }
  void add_memory() {
    api::CUdeviceptr address = 0;
    REQUIRE(memory.swap().allocate({context, 0}, &address, kBytes) == api::CUDA_SUCCESS);
  }
  void rest() {
    rotad.somebody_waits(1);
    rotad.wait_for(Kind::kGiveBack);
    rotad.grant(0, 0);
    rotad.somebody_waits(0);
  }
  void next_turn() {
    launch();
    rotad.wait_for(Kind::kWant);
    rotad.grant(2, 1, 1024 * kMega);
    launcher.join();
  }
  std::uint64_t fixed() const { return rotad.usage().gpus[0].fixed_bytes.load(); }
  std::uint64_t fixed_for_now() const { return rotad.usage().gpus[0].fixed_for_now_bytes.load(); }
  Speaking& rotad;
};

}  // namespace rota::test
