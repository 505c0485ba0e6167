// Pairs of timing events: which of them count, when they end, and what rotad is asked for because of them, and for how
// long.
#include "runtime/turn/pairs.h"

#include <catch2/catch.hpp>
#include <set>

#include "tests/unit/runtime/turn/machine_process.h"

using namespace rota;
using namespace rota::turn;
using namespace std::chrono_literals;

namespace {

Pairs::EventId event_of(int number) {
  return reinterpret_cast<Pairs::EventId>(std::uintptr_t{0x1000} + static_cast<std::uintptr_t>(number) * 16);
}
const Pairs::Key kStream{reinterpret_cast<const void*>(0x50), nullptr, 0};
const Pairs::Key kOther{reinterpret_cast<const void*>(0x60), nullptr, 0};

// A program, from the view of its hooks and its monitor, which use Pairs.
struct Timed {
  explicit Timed(int events = 8) {
    for (int i = 0; i < events; ++i) pairs.made(event_of(i), true);
    look();
  }
  Pairs::Wish look() {
    return pairs.look(situation, now, [&](Pairs::EventId event) { return passed.count(event) != 0; });
  }
  // Looks every millisecond for this long; returns the last wish.
  Pairs::Wish run(Time time) {
    Pairs::Wish wish;
    for (const Time until = now + time; now < until;) {
      now += 1ms;
      wish = look();
    }
    return wish;
  }
  // Whether the pair counts, and may continue.
  bool opens(int event, const Pairs::Key& stream = kStream) {
    if (pairs.place(event_of(event), stream, now) != Pairs::Place::kOpens) return false;
    const Pairs::Opens answer = pairs.open(event_of(event), stream, now);
    if (answer != Pairs::Opens::kFirst && answer != Pairs::Opens::kNow) return false;
    passed.erase(event_of(event));
    pairs.recorded(event_of(event), stream, Pairs::Place::kOpens, true, now);
    return true;
  }
  bool closes(int event, const Pairs::Key& stream = kStream) {
    if (pairs.place(event_of(event), stream, now) != Pairs::Place::kCloses) return false;
    passed.erase(event_of(event));
    pairs.recorded(event_of(event), stream, Pairs::Place::kCloses, true, now);
    return true;
  }
  void pass(int event) { passed.insert(event_of(event)); }
  // A pair of the first two events, which takes the GPU this long.
  bool pair(Time time = 1ms, bool read = false) {
    if (!opens(0)) return false;
    CHECK(closes(1));
    now += time;
    pass(1);
    look();
    if (read) pairs.read(event_of(0), event_of(1), time, now);
    return true;
  }

  Pairs pairs;
  Pairs::Situation situation{.shared = true, .runs = true};
  Time now = 100s;
  std::set<Pairs::EventId> passed;
};

}  // namespace

TEST_CASE(
    "where nobody makes timing events, or nobody else uses the GPU, it does not matter where events are recorded") {
  Pairs pairs;
  const auto never = [](Pairs::EventId) { return false; };
  pairs.look({.shared = true}, 1s, never);
  CHECK_FALSE(pairs.has_events());
  CHECK_FALSE(pairs.matter());
  pairs.made(event_of(0), false);
  CHECK_FALSE(pairs.has_events());
  pairs.made(event_of(0), true);
  CHECK(pairs.matter());
  pairs.look({}, 1s, never);
  CHECK(pairs.has_events());
  CHECK_FALSE(pairs.matter());
}

TEST_CASE("threads that wait for another answer are told once there may be one") {
  Timed program;
  REQUIRE(program.opens(0));
  program.situation.waited_for = true;
  program.situation.hold = true;
  CHECK_FALSE(program.look().changed);
  program.situation.hold = false;
  CHECK(program.look().changed);
  program.situation.waited_for = false;
  CHECK_FALSE(program.look().changed);
}

TEST_CASE("a pair is under way from its first event until the GPU has passed its second") {
  Timed program;
  CHECK_FALSE(program.look().measures);
  REQUIRE(program.opens(0));
  CHECK(program.pairs.open_pairs() != 0);
  CHECK(program.look().measures);
  REQUIRE(program.closes(1));
  CHECK(program.pairs.open_pairs() == 0);
  CHECK(program.run(20ms).measures);
  CHECK(program.pairs.in_flight());
  program.pass(1);
  CHECK_FALSE(program.look().measures);
  CHECK_FALSE(program.pairs.in_flight());
}

TEST_CASE("streams have pairs of their own, and an event without a time opens and closes none") {
  Timed program;
  program.pairs.made(event_of(7), false);
  REQUIRE(program.opens(0));
  CHECK_FALSE(program.closes(7));
  CHECK_FALSE(program.opens(7, kOther));
  REQUIRE(program.opens(2, kOther));
  REQUIRE(program.closes(1));
  program.pass(1);
  CHECK(program.look().measures);
  CHECK(program.pairs.open_pairs() != 0);
  REQUIRE(program.closes(3, kOther));
  program.pass(3);
  CHECK_FALSE(program.look().measures);
}

TEST_CASE(
    "what the driver refuses, an event that is destroyed or captured and a context that ends leave no pair behind") {
  Timed program;
  const auto open = [&] {
    REQUIRE(program.pairs.open(event_of(0), kStream, program.now) != Pairs::Opens::kNotYet);
    program.pairs.recorded(event_of(0), kStream, Pairs::Place::kOpens, true, program.now);
  };
  REQUIRE(program.pairs.open(event_of(0), kStream, program.now) == Pairs::Opens::kFirst);
  program.pairs.recorded(event_of(0), kStream, Pairs::Place::kOpens, false, program.now);
  CHECK_FALSE(program.look().measures);
  open();
  program.pairs.recorded(event_of(1), kStream, Pairs::Place::kCloses, false, program.now);
  CHECK_FALSE(program.look().measures);
  open();
  program.pairs.recorded(event_of(1), kStream, Pairs::Place::kCloses, true, program.now);
  program.pairs.ended(event_of(1));
  CHECK_FALSE(program.look().measures);
  program.pairs.made(event_of(1), true);
  open();
  program.pairs.forget(event_of(0));
  CHECK_FALSE(program.look().measures);
  CHECK(program.pairs.open_pairs() == 0);
  open();
  program.pairs.context_ended();
  CHECK_FALSE(program.look().measures);
  CHECK(program.pairs.open_pairs() == 0);
}

TEST_CASE("of pairs that nobody reads the first sixteen count, and who reads is believed for a minute") {
  Timed program;
  unsigned counted = 0;
  for (int i = 0; i < 100; ++i) counted += program.pair() ? 1 : 0;
  CHECK(counted == Pairs::kOnCredit);
  program.pairs.read(event_of(0), event_of(7), 1ms, program.now);
  program.run(20s);
  for (int i = 0; i < 100; ++i) REQUIRE(program.pair());
  program.run(61s);
  CHECK_FALSE(program.pair());
  program.pairs.made(event_of(8), false);
  program.pairs.read(event_of(0), event_of(8), 1ms, program.now);  // the driver would have refused this
  CHECK_FALSE(program.pair());
  program.pairs.read(event_of(0), event_of(1), 1ms, program.now);
  CHECK(program.pair());
}

TEST_CASE("a pair that is not closed, or does not end, is left to itself after a quarter of a second") {
  Timed program;
  REQUIRE(program.opens(0));
  CHECK(program.run(Pairs::kLongest - 2ms).measures);
  CHECK_FALSE(program.run(3ms).measures);
  CHECK(program.pairs.open_pairs() == 0);
  program.pairs.read(event_of(0), event_of(1), 1ms, program.now);
  CHECK(program.pairs.place(event_of(1), kStream, program.now) == Pairs::Place::kOpens);
  REQUIRE(program.opens(2));
  REQUIRE(program.closes(3));
  CHECK_FALSE(program.run(Pairs::kLongest + 2ms).measures);
}

TEST_CASE("after a pair that takes longer than it may be alone none keeps others away until a shorter one is read") {
  Timed program;
  program.situation.beside = true;
  program.look();
  // A pair of 400 ms every half second, for ten seconds; the others leave at once.
  int alone = 0;
  const auto pair = [&](Time time) {
    if (!program.opens(0) && program.look().alone) {
      program.situation.alone_until = program.now + 250ms;
      program.look();
      ++alone;
      REQUIRE(program.opens(0));
    }
    const bool counts = program.closes(1);
    program.run(time);
    program.pass(1);
    program.run(10ms);
    program.situation.alone_until = Time{0};
    program.look();
    program.pairs.read(event_of(0), event_of(1), time, program.now);
    return counts;
  };
  for (int i = 0; i < 20; ++i) {
    pair(400ms);
    program.run(90ms);
  }
  CHECK(alone == 1);
  // The next kernel is short: its first pair shows it.
  CHECK_FALSE(pair(5ms));
  CHECK(pair(5ms));
  CHECK(alone == 2);
}

TEST_CASE("a pair that was disturbed because the others had not left says nothing about how long it takes alone") {
  Timed program;
  program.situation.beside = true;
  program.look();
  CHECK_FALSE(program.opens(0));
  program.run(Pairs::kLongestWait);
  REQUIRE(program.opens(0));
  REQUIRE(program.closes(1));
  CHECK_FALSE(program.run(Pairs::kLongest + 2ms).measures);
  CHECK(program.pairs.place(event_of(2), kStream, program.now) == Pairs::Place::kOpens);
}

TEST_CASE("a pair that would not be over in time begins the next series") {
  Timed program;
  program.situation.beside = true;
  program.look();
  CHECK_FALSE(program.opens(0));
  CHECK(program.look().alone);
  program.situation.alone_until = program.now + 250ms;
  program.look();
  REQUIRE(program.pair(110ms, true));
  program.now += 1ms;
  REQUIRE(program.pair(10ms, true));  // how long pairs take: 85 ms by now
  program.now += 1ms;
  REQUIRE(program.pair(2ms, true));
  // Half of the time is not over, but rotad has given it less.
  program.situation.alone_until = program.now + 40ms;
  program.look();
  CHECK_FALSE(program.opens(0));
  CHECK_FALSE(program.look().alone);
  program.situation.alone_until = Time{0};
  CHECK_FALSE(program.opens(0));
  CHECK(program.look().alone);
}

TEST_CASE("pairs take a fifth of any ten seconds at most") {
  Timed program;
  Time measured{0};
  for (const Time until = program.now + 60s; program.now < until;) {
    const Time begun = program.now;
    if (program.pair(10ms, true)) measured += program.now - begun;
    program.now += 1ms;
    program.look();
  }
  CHECK(measured <= 6 * protocol::kMostAlone);
  CHECK(measured >= 5 * protocol::kMostAlone);
}

TEST_CASE("pairs that follow each other are one series, for which rotad is asked once, and told when it is over") {
  Timed program;
  program.situation.beside = true;
  CHECK_FALSE(program.look().alone);
  CHECK_FALSE(program.opens(0));  // not yet
  CHECK(program.look().alone);
  CHECK_FALSE(program.look().measures);
  program.now += 3ms;
  CHECK_FALSE(program.opens(0));
  program.situation.alone_until = program.now + 250ms;
  CHECK(program.look().alone);
  for (int i = 0; i < 15; ++i) {
    REQUIRE(program.pair(2ms, true));
    CHECK(program.run(Pairs::kLinger - 2ms).alone);
  }
  CHECK_FALSE(program.run(Pairs::kLinger).alone);
  // The page shows it a moment longer: that does not apply to what comes next.
  CHECK_FALSE(program.opens(0));
  CHECK(program.look().alone);
  CHECK_FALSE(program.opens(0));
  program.situation.alone_until = program.now + 250ms;
  program.look();
  CHECK(program.opens(0));
}

TEST_CASE("a series that has lasted for half of its time comes to its end, and the next begins") {
  Timed program;
  program.situation = {.shared = true, .beside = true, .runs = true, .alone_until = program.now + 250ms};
  program.look();
  program.situation.alone_until = Time{0};
  program.look();
  program.opens(0);
  program.situation.alone_until = program.now + 250ms;
  program.look();
  REQUIRE(program.pair(100ms, true));
  REQUIRE(program.opens(0));
  program.now += 40ms;
  REQUIRE(program.closes(1));
  CHECK_FALSE(program.opens(2));
  CHECK(program.look().alone);  // it waits for what is queued
  program.pass(1);
  CHECK_FALSE(program.look().alone);
  program.situation.alone_until = Time{0};
  CHECK_FALSE(program.opens(2));
  CHECK(program.look().alone);
}

TEST_CASE("if the others do not yield, the pair is taken as it is, and not asked for again for a second") {
  Timed program;
  program.situation.beside = true;
  program.look();
  CHECK_FALSE(program.opens(0));
  program.run(Pairs::kLongestWait - 1ms);
  CHECK_FALSE(program.opens(0));
  program.run(1ms);
  REQUIRE(program.opens(0));
  CHECK_FALSE(program.look().alone);
  CHECK(program.look().measures);
  REQUIRE(program.closes(1));
  program.pass(1);
  program.run(10ms);
  REQUIRE(program.opens(0));
  CHECK_FALSE(program.look().alone);
  REQUIRE(program.closes(1));
  program.pass(1);
  program.run(Pairs::kAfterFutile);
  CHECK_FALSE(program.opens(0));
  CHECK(program.look().alone);
  // Futile again: twice as long.
  program.run(Pairs::kLongestWait);
  REQUIRE(program.pair());
  program.run(Pairs::kAfterFutile + 10ms);
  REQUIRE(program.pair());
  program.run(Pairs::kAfterFutile);
  CHECK_FALSE(program.opens(0));
  // Not futile.
  CHECK(program.look().alone);
  program.situation.alone_until = program.now + 250ms;
  program.look();
  REQUIRE(program.pair());
  program.run(10ms);
  program.situation.alone_until = Time{0};
  program.look();
  CHECK_FALSE(program.opens(0));
  program.run(Pairs::kLongestWait);
  REQUIRE(program.pair());
  program.run(Pairs::kAfterFutile);
  CHECK_FALSE(program.opens(0));
}

TEST_CASE("the time in which another program measures and this one has yielded does not count as a futile request") {
  Timed program;
  program.situation.beside = true;
  program.look();
  CHECK_FALSE(program.opens(0));
  program.run(Pairs::kLongestWait / 2);
  program.situation.runs = false;
  CHECK_FALSE(program.run(Pairs::kLongestWait).alone);
  CHECK_FALSE(program.opens(0));  // its gate has opened, and the monitor has not checked again
  program.situation.runs = true;
  program.look();
  CHECK_FALSE(program.opens(0));
  CHECK(program.run(Pairs::kLongestWait / 2).alone);
  program.situation.alone_until = program.now + 250ms;
  program.look();
  CHECK(program.opens(0));
  CHECK(program.look().alone);
}

TEST_CASE("an end of the turn that waits for a pair lets no other begin") {
  Timed program;
  REQUIRE(program.opens(0));
  program.situation.hold = true;
  CHECK(program.look().measures);
  CHECK_FALSE(program.opens(2, kOther));
  REQUIRE(program.closes(1));
  program.pass(1);
  CHECK_FALSE(program.look().measures);
  CHECK_FALSE(program.opens(2, kOther));
  program.situation.hold = false;
  program.look();
  CHECK(program.opens(2, kOther));
}

TEST_CASE("what is queued ahead is no more than can be done in time") {
  Timed program(200);
  program.pairs.read(event_of(0), event_of(1), 1ms, program.now);
  int queued = 0;
  const auto queue = [&] {
    while (queued < 100 && program.opens(2 * queued)) {
      REQUIRE(program.closes(2 * queued + 1));
      ++queued;
    }
  };
  queue();
  CHECK(queued == static_cast<int>(Pairs::kFirstAhead));
  // Ten milliseconds each: five are enough to be ahead.
  for (int done = 0; done < 4; ++done) {
    program.now += 10ms;
    program.pass(2 * done + 1);
    program.look();
    queue();
  }
  CHECK(queued <= static_cast<int>(Pairs::kFirstAhead) + 4);
  Timed quick(200);
  quick.pairs.read(event_of(0), event_of(1), 1ms, quick.now);
  int more = 0;
  for (; more < 8; ++more) {
    REQUIRE(quick.opens(2 * more));
    REQUIRE(quick.closes(2 * more + 1));
  }
  quick.now += 1ms;
  for (int i = 0; i < 7; ++i) quick.pass(2 * i + 1);
  quick.look();
  for (; more < 100 && quick.opens(2 * more); ++more) REQUIRE(quick.closes(2 * more + 1));
  CHECK(more == 100);
}

TEST_CASE("a turn that is over ends when the pair is, and nothing is marked before") {
  test::Process process;
  process.hold();
  process.seen.measures = true;
  process.seen.lease.waiters = 1;
  process.seen.lease.drain_at = process.now + 10ms;
  process.run(100ms);
  CHECK(process.machine.phase() == Phase::kHolding);
  CHECK(process.machine.gate_open());
  CHECK(process.machine.held_by_measurement());
  CHECK_FALSE(process.did(Act::kMark));
  process.seen.measures = false;
  process.run(1ms);
  CHECK(process.machine.phase() == Phase::kDraining);
  CHECK_FALSE(process.machine.held_by_measurement());
}

TEST_CASE("rotad is asked once to have others yield, told once that it is over, and asked anew under each grant") {
  test::Process process;
  process.hold();
  const auto wants = [&](bool alone) {
    return std::count_if(process.done.begin(), process.done.end(), [&](const Action& action) {
      return action.act == Act::kWant && action.gpus == 1 && !action.urgent && action.alone == alone;
    });
  };
  process.seen.alone = true;
  process.run(100ms);
  CHECK(wants(true) == 1);
  process.seen.lease.waiters = 1;  // it is idle, in between, while somebody waits for it to be done
  process.seen.lease.drain_at = process.now + 1s;
  process.seen.looked = process.seen.done = true;
  process.run(50ms);
  CHECK(process.machine.phase() == Phase::kHolding);
  process.seen.alone = false;
  process.run(1ms);
  CHECK(wants(false) == 1);
  process.run_until(Phase::kResting);
  process.seen.lease = {};
  process.look();
  process.seen.alone = true;
  process.hold(2);
  process.run(1ms);
  CHECK(wants(true) + wants(false) <= 1);
  CHECK(process.machine.gate_open());
}
