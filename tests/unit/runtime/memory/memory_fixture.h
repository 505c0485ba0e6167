// Memory over the fake driver, as the tests of this folder build it.
#pragma once

#include <catch2/catch.hpp>

#include "runtime/memory/memory.h"
#include "tests/unit/runtime/fake_driver.h"

namespace rota::test {

inline constexpr std::uint64_t kMiB = 1 << 20;

struct Fixture {
  explicit Fixture(memory::Settings settings = {})
      : memory(
            [this](int, const memory::OwnWork& work) {
              if (our_turn) work();
            },
            ledger, settings) {}
  FakeDriver driver;
  bool our_turn = true;
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
