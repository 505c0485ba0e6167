// Memory over the fake driver, as the tests of this folder build it.
#pragma once

#include <catch2/catch.hpp>

#include "runtime/memory/memory.h"
#include "tests/unit/runtime/fake_driver.h"
#include "tests/unit/runtime/memory/fake_turns.h"

namespace rota::test {

inline constexpr std::uint64_t kMiB = 1 << 20;

struct Fixture {
  explicit Fixture(memory::Settings settings = {}) : memory(ledger, settings) { memory.set_turns(&turns); }
  FakeDriver driver;
  FakeTurns turns;
  memory::Ledger ledger;
  memory::Memory memory;
};

inline memory::Settings limited(std::uint64_t bytes, memory::Choice backend = memory::Choice::kNative) {
  return {.backend = backend, .limit_bytes = bytes};
}

inline api::CUresult no_call() {
  FAIL_CHECK("the driver was called");
  return api::CUDA_SUCCESS;
}

}  // namespace rota::test
