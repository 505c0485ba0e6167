// Profilers run their own code within driver calls, on any thread that makes them, including rota's.
#include <atomic>
#include <catch2/catch.hpp>

#include "tests/unit/runtime/monitor/swapping_program.h"

using namespace rota;
using namespace rota::test;

namespace {

// Calls of cuStreamCreate, which rota's own thread makes for what it moves.
std::atomic<int> streams;
std::atomic<bool> calls_back;

void profiled(FakeDriver& driver) {
  maps(driver);
  static api::cuStreamCreate_fn* create = nullptr;
  create = reinterpret_cast<api::cuStreamCreate_fn*>(real::table[static_cast<std::size_t>(Symbol::k_cuStreamCreate)]);
  streams = 0;
  calls_back = false;
  driver.set<api::cuStreamCreate_fn>(Symbol::k_cuStreamCreate, [](api::CUstream* stream, unsigned int flags) {
    ++streams;
    if (calls_back.load()) gates::cuLaunchKernel(nullptr, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr);
    return create(stream, flags);
  });
}

}  // namespace

TEST_CASE("a turn of a program whose memory is in place begins without a stream of rota's") {
  Speaking rotad;
  Holding program(rotad, profiled);
  program.rest();
  streams = 0;
  program.next_turn();
  CHECK(streams.load() == 0);
  CHECK(program.memory.swap().resident_bytes(0) == kBytes);
}

TEST_CASE("what a profiler submits in a driver call of rota's own thread waits for no turn, which that thread begins") {
  Speaking rotad;
  Holding program(rotad, profiled);
  program.rest();
  REQUIRE(program.gate.closed());
  const auto launches = program.driver.launches.load();
  calls_back = true;
  rotad.ask_for(kBytes);  // a move creates a stream
  REQUIRE(eventually([&] { return program.driver.launches.load() > launches; }));
  calls_back = false;
  rotad.ask_for(0);
  program.next_turn();
  CHECK(program.memory.swap().resident_bytes(0) == kBytes);
}
