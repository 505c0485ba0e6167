// The turn machine and pauses of a program whose memory has to be brought back: which ones a turn sits out.
#include <catch2/catch.hpp>

#include "tests/unit/runtime/turn/machine_process.h"

using namespace rota::test;

TEST_CASE("memory that comes at once in the midst of a turn makes no long pauses of the program sat out") {
  Process process;
  process.hold();
  process.run(10s);  // alone
  // An allocation has ended up out of place (the gate was closed for a moment, to free), and is brought in at once.
  process.seen.resident = false;
  process.look();
  REQUIRE(process.did(Act::kBringBack));
  REQUIRE(process.machine.gate_open());
  // Another client waits, the quantum has not ended, and this process is idle.
  process.seen.lease.waiters = 1;
  process.seen.lease.drain_at = process.now + 10s;
  process.seen.looked = process.seen.done = true;
  process.run(100ms);
  CHECK(process.did(Act::kGiveBack));
}

namespace {

// A turn of 10 s, others waiting, whose memory takes 200 ms to come back; the program has called and is on its own
// then.
void begin_turn(Process& process, std::uint32_t grant) {
  process.seen.standing = 1;
  process.look();
  process.seen.lease = {.grant = grant, .held = 1, .waiters = 1, .drain_at = process.now + 10s};
  process.seen.resident = process.resident = false;
  process.look();
  process.run(200ms);
  process.resident = true;
  process.run(20ms);
  REQUIRE(process.machine.gate_open());
  process.seen.standing = 0;
  process.seen.looked = true;
}

}  // namespace

TEST_CASE("a pause shorter than a move is sat out in the midst of a turn, and ends one that is nearly over") {
  Process process;
  begin_turn(process, 1);
  const auto pause = [&](Time length) {
    process.seen.done = true;
    process.run(length);
    const bool gave_back = process.did(Act::kGiveBack);
    process.seen.done = false;
    ++process.seen.calls;
    return gave_back;
  };
  process.run(4s);
  CHECK_FALSE(pause(150ms));
  process.run(4s);
  CHECK(pause(50ms));
}

TEST_CASE("a pause is not sat out if the last three were worth two moves, until one is not") {
  Process process;
  std::uint32_t grant = 0;
  // A turn that takes 200 ms to bring memory back, work, and a pause; how long it took until the turn was given back.
  const auto turn = [&](Time length) {
    begin_turn(process, ++grant);
    process.seen.done = false;
    ++process.seen.calls;
    process.run(1s);
    process.seen.done = true;
    const Time begun = process.now;
    while (process.now - begun < length && !process.did(Act::kGiveBack)) process.run(1ms);
    const Time sat_out = process.now - begun;
    process.seen.lease = {};
    process.run(length - sat_out);
    return sat_out;
  };
  for (int number = 0; number < 3; ++number) CHECK(turn(450ms) >= 200ms);
  CHECK(turn(450ms) < 40ms);
  CHECK(turn(300ms) < 40ms);  // which this one is not worth
  CHECK(turn(450ms) >= 200ms);
}
