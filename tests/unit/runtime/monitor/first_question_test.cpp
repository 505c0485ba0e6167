// The first question about free memory: rotad measures for it, it waits for rotad once, and says no more than is known.
#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <cstdlib>

#include "runtime/memory/memory.h"
#include "runtime/monitor/monitor.h"
#include "tests/unit/runtime/eventually.h"
#include "tests/unit/runtime/fake_driver.h"
#include "tests/unit/runtime/monitor/fake_rotad.h"

using namespace rota;
using namespace std::chrono_literals;

namespace {

constexpr std::uint64_t kMega = 1 << 20;

struct Rotad : test::FakeRotad {
  Rotad() { keep_limits(); }
  void next_state() {
    while (next().kind != protocol::Kind::kState) {
    }
  }
};

// On a GPU of 1 GiB.
struct Program {
  Program() {
    context = driver.enter_context(0);
    monitor.context_made(context, 0, true);
  }
  ~Program() { monitor.at_exit(); }

  test::FakeDriver driver;
  gate::Gate gate;
  driver::Contexts contexts;
  memory::Ledger ledger;
  memory::Memory memory{ledger, {.backend = memory::Choice::kManaged, .limit_bytes = memory::kNoLimit}};
  monitor::Monitor monitor{gate, contexts, memory};
  api::CUcontext context = nullptr;
};

}  // namespace

TEST_CASE("the first question after each new context has rotad measure, and no other question has") {
  Rotad rotad;
  rotad.limit(300 * kMega, 300 * kMega);
  Program program;
  rotad.next_state();  // what was measured when the GPU was named is known by now
  std::size_t free = 0;
  std::size_t total = 0;
  for (int asked = 0; asked < 3; ++asked) {
    REQUIRE(test::eventually([&] { return program.memory.info(&free, &total) == api::CUDA_SUCCESS && free != 0; }));
    CHECK(rotad.named_again() <= 1);  // not at all, if the state had not been followed by the answer yet
  }
  const int before = rotad.named_again();
  program.monitor.context_made(program.context, 0, true);  // retained once more
  REQUIRE(program.memory.info(&free, &total) == api::CUDA_SUCCESS);
  CHECK(rotad.named_again() == before);
  const api::CUcontext another = program.driver.enter_context(0);
  program.monitor.context_made(another, 0, false);
  REQUIRE(program.memory.info(&free, &total) == api::CUDA_SUCCESS);
  // On a busy machine the answer may take longer than anybody waits for it.
  CHECK(test::eventually([&] { return rotad.named_again() != before; }));
  CHECK(rotad.named_again() == before + 1);
  program.driver.leave_context();
}

TEST_CASE(
    "while rotad does not answer, what a session's limit and an assumed context leave is all that is called free") {
  setenv("ROTA_SESSION", "abc,gpu=104857600", 1);
  {
    Rotad rotad;
    rotad.limit(protocol::kUnlimited, protocol::kUnlimited);
    rotad.answer_gpus(false);
    Program program;
    std::size_t free = 0;
    std::size_t total = 0;
    const auto begun = std::chrono::steady_clock::now();
    REQUIRE(program.memory.info(&free, &total) == api::CUDA_SUCCESS);
    CHECK(std::chrono::steady_clock::now() - begun >= 250ms);
    CHECK(total == 100 * kMega);
    CHECK(free == 36 * kMega);  // a sixteenth of the GPU is assumed for the context
    // Nobody waits for it again, however long it takes.
    const auto again = std::chrono::steady_clock::now();
    for (int asked = 0; asked < 100; ++asked) REQUIRE(program.memory.info(&free, &total) == api::CUDA_SUCCESS);
    CHECK(std::chrono::steady_clock::now() - again < 100 * 250ms);
    CHECK(free == 36 * kMega);
  }
  unsetenv("ROTA_SESSION");
}
