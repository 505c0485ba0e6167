// How the monitor waits: asleep, awake, on the bell or on the socket.
#include "runtime/turn/pace.h"

#include <catch2/catch.hpp>

#include "tests/unit/runtime/turn/machine_process.h"

using namespace rota;
using namespace rota::turn;
using namespace std::chrono_literals;
using How = Pace::Wait::How;

namespace {

constexpr Time kAwake = 200us;
constexpr Time kNow = 100s;

Pace connected() {
  Pace pace(kAwake);
  pace.begin({.connected = true});
  return pace;
}

}  // namespace

TEST_CASE("without anything to do the monitor sleeps until the bell rings, and polls the socket now and then") {
  CHECK(connected().wait(kNow).how == How::kForBell);
  CHECK(connected().wait(kNow).most == Pace::kLookAtSocket);
  CHECK(Pace(kAwake).wait(kNow).most == Pace::kWithoutRotad);
  Pace asked(kAwake);
  asked.begin({.asked = true});
  CHECK(asked.wait(kNow).most == Pace::kLookAtSocket);
}

TEST_CASE("it does not wait where something is due") {
  Pace pace = connected();
  pace.at(kNow);
  CHECK(pace.wait(kNow).how == How::kNot);
  Pace due = connected();
  due.due();
  CHECK(due.wait(kNow).how == How::kNot);
}

TEST_CASE("it waits no longer than until the first look, the next turn, or the next attempt to send") {
  Pace pace = connected();
  pace.at(kNow + 100ms);
  pace.at(kNow + 50ms);
  CHECK(pace.wait(kNow).most == 50ms);
  pace.turn(kNow + 10ms, 1);
  pace.turn(kNow + 20ms, 2);
  CHECK(pace.wait(kNow).most == 10ms);
  Pace unsent(kAwake);
  unsent.begin({.connected = true, .unsent = true});
  CHECK(unsent.wait(kNow).most == Pace::kSendAgain);
}

TEST_CASE("a turn that is about to begin is waited for awake, with a thread at its gate, and no longer than that") {
  Pace pace = connected();
  pace.turn(kNow, 4);
  const Pace::Wait wait = pace.wait(kNow + 50us);
  CHECK(wait.how == How::kForTurn);
  CHECK(wait.devices == 4);
  CHECK(wait.until == kNow + kAwake);
  CHECK(pace.wait(kNow + kAwake).how == How::kForBell);
}

TEST_CASE("rotad's answer for a GPU is waited for on the socket") {
  Pace pace = connected();
  pace.unanswered();
  CHECK(pace.wait(kNow).how == How::kForMessage);
}

TEST_CASE("the end of a drain is waited for awake at first, then asleep, and never by the bell") {
  test::Process process;
  process.hold();
  process.seen.lease.waiters = 1;
  process.seen.lease.drain_at = process.now;
  while (process.machine.phase() != Phase::kDraining) process.run(20us);
  process.seen.looked = true;
  const auto wait = [&] {
    process.look();
    Pace pace = connected();
    pace.task(process.machine);
    return pace.wait(process.now).how;
  };
  CHECK(wait() == How::kAwake);
  process.now = process.machine.draining_since() + kAwake;
  CHECK(wait() == How::kSleep);
}
