// Which client is next, by how much of the GPU each has had.
#include "scheduler/core/virtual_time.h"

#include <array>
#include <catch2/catch.hpp>
#include <cmath>
#include <random>
#include <vector>

#include "scheduler/core/core.h"

namespace rota::scheduler {
namespace {

using namespace std::chrono_literals;

// Groups of one client each, except those that `group` names.
struct Groups {
  explicit Groups(std::size_t clients) : as(clients), standings(clients), group(clients) {
    for (std::size_t i = 0; i < clients; ++i) group[i] = i;
  }
  void change(std::size_t client, Standing::As next, Time now) {
    time.advance(now);
    time.change(of(client), std::exchange(as[client], next), next, 100ms);
  }
  Standing& of(std::size_t client) { return standings[group[client]]; }
  Time ahead(std::size_t one, std::size_t other, Time now) {
    return time.served(of(one), now) - time.served(of(other), now);
  }
  VirtualTime time;
  std::vector<Standing::As> as;
  std::vector<Standing> standings;
  std::vector<std::size_t> group;
};

// Clients that all want one GPU, one at a time.
struct Turns {
  Turns() { configure(true); }
  void configure(bool measured, Mode mode = Mode::kExclusive) {
    Settings settings;
    settings.mode = mode;
    settings.measured_turns = measured;
    core.step(event::Configure{settings}, now);
  }
  void come(ClientId id, GpuMask gpus = 1) {
    core.step(event::Join{id}, now);
    for_each_gpu(gpus, [&](GpuIndex index) { core.step(event::AddGpu{id, index, Bytes{80} << 30, 1}, now); });
  }
  void want(ClientId id, GpuMask gpus = 1) { core.step(event::Want{id, gpus}, now); }
  bool holds(ClientId id) const { return core.client(id)->held != 0; }
  void give_back(ClientId id) { core.step(event::GiveBack{id, core.client(id)->grant}, now); }
  // How long each has held the GPU in the end, if all always want it and yield when they are asked to.
  std::vector<Time> all(Time length, const std::vector<ClientId>& ids) {
    std::vector<Time> held(ids.size());
    for (const ClientId id : ids) {
      if (!holds(id)) want(id);
    }
    for (const Time end = now + length; now < end;) {
      const auto one = std::find_if(ids.begin(), ids.end(), [&](ClientId id) { return holds(id); });
      REQUIRE(one != ids.end());
      const ClientState& state = *core.client(*one);
      REQUIRE(state.waiters != 0);
      const Time until = std::max(state.drain_at, now + 1us);
      held[static_cast<std::size_t>(one - ids.begin())] += until - now;
      now = until;
      give_back(*one);
      want(*one);
    }
    return held;
  }
  Core core{Settings{}};
  Time now = 1s;
};

TEST_CASE("many short programs one after the other leave a long one its part") {
  Turns turns;
  turns.come(1);
  turns.want(1);
  turns.now += 10s;
  Time held{};
  ClientId next = 2;
  // There is always a new client; each holds the GPU once.
  const Time begin = turns.now;
  turns.come(next);
  turns.want(next);
  for (int i = 0; i < 200; ++i) {
    const bool its_own = turns.holds(1);
    const ClientId holder = its_own ? 1 : next;
    REQUIRE(turns.holds(holder));
    const Time from = turns.now;
    turns.now = std::max(turns.now + 1ms, std::min(turns.core.client(holder)->drain_at, turns.now + 100ms));
    if (its_own) held += turns.now - from;
    turns.give_back(holder);
    if (its_own) {
      turns.want(1);
    } else {
      turns.core.step(event::Leave{next}, turns.now);
      turns.come(++next);
      turns.want(next);
    }
  }
  CHECK(held >= (turns.now - begin) / 3);
}

TEST_CASE("who stays longer than its turn has less of the GPU afterwards") {
  Turns turns;
  for (const ClientId id : {1U, 2U, 3U}) turns.come(id);
  for (const ClientId id : {1U, 2U, 3U}) turns.want(id);
  REQUIRE(turns.holds(1));
  turns.now += 3s;
  turns.give_back(1);
  const std::vector<Time> held = turns.all(6s, {1, 2, 3});
  CHECK(held[0] <= 500ms);
  CHECK(static_cast<double>(held[1].count()) == Approx(held[2].count()).epsilon(0.1));
  const std::vector<Time> later = turns.all(6s, {1, 2, 3});
  for (const Time each : later) CHECK(each.count() == Approx(2e9).epsilon(0.2));
}

TEST_CASE("what somebody has had of one GPU is not held against it on another") {
  Turns turns;
  turns.come(1, 1);
  turns.come(2, 3);
  turns.come(3, 2);
  turns.want(2);
  turns.want(1);
  turns.now += 5s;
  turns.give_back(2);  // it has had five seconds of GPU 0 while another wanted it
  turns.want(3, 2);
  turns.want(2, 2);
  // And none of GPU 1: there it has its turns.
  std::array<Time, 2> held{};
  for (int i = 0; i < 40; ++i) {
    const ClientId holder = turns.holds(2) ? 2 : 3;
    const Time until = std::max(turns.core.client(holder)->drain_at, turns.now + 1ms);
    held[holder - 2] += until - turns.now;
    turns.now = until;
    turns.give_back(holder);
    turns.want(holder, 2);
  }
  CHECK(held[0].count() == Approx(held[1].count()).epsilon(0.2));
}

TEST_CASE("a program that comes back after a pause has some credit, and no more for a longer pause") {
  Groups groups(3);
  const auto change = [&](std::size_t which, Standing::As as, Time now) { groups.change(which, as, now); };
  const auto ahead = [&](std::size_t one, std::size_t other, Time now) { return groups.ahead(one, other, now); };
  change(0, Standing::As::kHolds, 0s);
  change(1, Standing::As::kWaits, 0s);
  change(0, Standing::As::kWaits, 1s);
  change(1, Standing::As::kHolds, 1s);
  CHECK(ahead(0, 1, 2s) == 0s);
  change(1, Standing::As::kAway, 2s);
  change(0, Standing::As::kHolds, 2s);
  change(1, Standing::As::kWaits, 60s);
  CHECK(ahead(0, 1, 60s) == 100ms);
  // A client that has never been present has none.
  change(2, Standing::As::kWaits, 60s);
  CHECK(ahead(2, 1, 60s) == 100ms);
  // A client that had to wait keeps what it is owed, however briefly it leaves.
  change(0, Standing::As::kHolds, 60s);
  change(0, Standing::As::kWaits, 62s);
  change(1, Standing::As::kAway, 62s);
  change(1, Standing::As::kWaits, 62s);
  CHECK(ahead(0, 1, 62s) > 1s);
  // No group is present for a while: all start as equals, except for credit.
  for (const std::size_t each : {0U, 1U, 2U}) change(each, Standing::As::kAway, 62s);
  for (const std::size_t each : {0U, 1U, 2U}) change(each, Standing::As::kWaits, 200s);
  CHECK(std::chrono::abs(ahead(0, 1, 200s)) <= 100ms);
}

TEST_CASE("what a program is owed is forgotten while it is away") {
  Groups groups(2);
  const auto change = [&](std::size_t which, Standing::As as, Time now) { groups.change(which, as, now); };
  change(0, Standing::As::kHolds, 0s);
  change(1, Standing::As::kWaits, 0s);
  change(1, Standing::As::kAway, 10s);
  Time away = 1h;
  Time owed = 100ms;
  SECTION("for long") {}
  SECTION("or not for long") {
    away = 1s;
    owed = 9s;
  }
  change(1, Standing::As::kWaits, 10s + away);
  const Time ahead = groups.ahead(0, 1, 10s + away);
  CHECK(ahead >= owed);
  CHECK(ahead <= owed + 100ms);
}

TEST_CASE("programs that are interrupted all the time leave the others their turns") {
  Turns turns;
  turns.configure(false);
  constexpr ClientId kInterrupted = 12;
  std::vector<Time> last(kInterrupted + 2);
  for (ClientId id = 1; id <= kInterrupted + 1; ++id) turns.come(id);
  Time plain{};
  const Time begin = turns.now;
  while (turns.now < begin + 30s) {
    for (ClientId id = 1; id <= kInterrupted + 1; ++id) {
      if (turns.holds(id)) continue;
      const bool urgent = id <= kInterrupted && turns.now - last[id] >= 1010ms;
      if (urgent) last[id] = turns.now;
      turns.core.step(event::Want{id, 1, false, urgent}, turns.now);
    }
    for (ClientId id = 1; id <= kInterrupted + 1; ++id) {
      if (!turns.holds(id)) continue;
      const Time until = std::max(turns.core.client(id)->drain_at, turns.now) + 6ms;
      if (id == kInterrupted + 1) plain += until - turns.now;
      turns.now = until;
      turns.give_back(id);
      break;
    }
  }
  CHECK(plain >= 30s / 13 / 2);
}

TEST_CASE("a turn that ends in time is no pause, whatever its holder says of itself as it ends") {
  Turns turns;
  for (const ClientId id : {1U, 2U}) turns.come(id);
  for (const ClientId id : {1U, 2U}) turns.want(id);
  std::uint64_t switches = 0;
  const auto end_turn = [&](ClientId id) {
    turns.now = std::max(turns.core.client(id)->drain_at, turns.now + 1ms);
    ++switches;
    // Hand-overs have become more expensive: turns are longer from now on.
    turns.core.step(
        event::Activity{.client = id, .calls = switches, .switches = switches, .switching = switches * 20ms},
        turns.now);
    turns.give_back(id);
    turns.want(id);
  };
  end_turn(1);
  REQUIRE(turns.holds(2));
  turns.now += 1ms;
  // A client that comes back after a pause would be let in about now.
  CHECK(turns.core.client(2)->drain_at > turns.now + 200ms);
}

TEST_CASE("the mean stays the same however clients come, hold, run concurrently with others and go") {
  std::minstd_rand random(7);
  Groups groups(20);
  for (std::size_t i = 0; i < 10; ++i) groups.group[i] = i / 4;  // sessions of four, four and two
  Time now{};
  for (int i = 0; i < 100'000; ++i) {
    now += Time(random() % 10'000'000);
    groups.change(random() % groups.as.size(), static_cast<Standing::As>(random() % 4), now);
    std::int64_t here = 0;
    double sum = 0;
    for (const Standing& each : groups.standings) {
      if (!each.here()) continue;
      ++here;
      sum += static_cast<double>((groups.time.served(each, now) - groups.time.mean()).count());
    }
    if (here != 0 && std::abs(sum) > 2 * static_cast<double>(here))
      FAIL("the mean is off by " << sum / static_cast<double>(here));
  }
}

TEST_CASE("a program that holds the GPU for a year while another waits leaves new ones where they were to begin") {
  Groups groups(2);
  groups.change(0, Standing::As::kHolds, 0s);
  groups.change(1, Standing::As::kWaits, 0s);
  groups.time.advance(1h);
  const Time start = groups.time.start();
  CHECK(start > groups.time.level());
  groups.time.advance(365 * 24h);
  CHECK(groups.time.start() == start);
}

TEST_CASE("a session has as much of a GPU as one program next to it, and its programs equal parts of that") {
  Turns turns;
  const std::vector<ClientId> all{1, 2, 3, 4, 5};
  for (const ClientId id : all) turns.come(id);
  SECTION("however many they are") {
    for (const ClientId id : {2U, 3U, 4U, 5U}) turns.core.step(event::Session{id, 7}, turns.now);
    const std::vector<Time> held = turns.all(20s, all);
    CHECK(held[0].count() == Approx(10e9).epsilon(0.05));
    for (std::size_t i = 1; i < all.size(); ++i) CHECK(held[i].count() == Approx(2.5e9).epsilon(0.1));
  }
  SECTION("also next to another session") {
    for (const ClientId id : {1U, 2U}) turns.core.step(event::Session{id, 7}, turns.now);
    for (const ClientId id : {3U, 4U, 5U}) turns.core.step(event::Session{id, 8}, turns.now);
    const std::vector<Time> held = turns.all(24s, all);
    for (const std::size_t i : {0U, 1U}) CHECK(held[i].count() == Approx(6e9).epsilon(0.1));
    for (const std::size_t i : {2U, 3U, 4U}) CHECK(held[i].count() == Approx(4e9).epsilon(0.1));
  }
  SECTION("and if they say so only while they wait") {
    for (const ClientId id : all) turns.want(id);
    for (const ClientId id : {2U, 3U, 4U, 5U}) turns.core.step(event::Session{id, 7}, turns.now);
    const std::vector<Time> held = turns.all(20s, all);
    CHECK(held[0].count() == Approx(10e9).epsilon(0.05));
  }
  SECTION("and no program that comes to a session gets more for it") {
    for (const ClientId id : {2U, 3U}) turns.core.step(event::Session{id, 7}, turns.now);
    std::vector<Time> held = turns.all(5s, {1, 2, 3});
    for (const ClientId id : {4U, 5U}) turns.core.step(event::Session{id, 7}, turns.now);
    held = turns.all(20s, all);
    CHECK(held[0].count() == Approx(10e9).epsilon(0.05));
    turns.core.step(event::Leave{5}, turns.now);
    turns.core.step(event::Leave{4}, turns.now);
    held = turns.all(10s, {1, 2, 3});
    CHECK(held[0].count() == Approx(5e9).epsilon(0.05));
    CHECK(held[1].count() == Approx(2.5e9).epsilon(0.1));
  }
}

TEST_CASE(
    "a program that comes back in a session that is always there goes before its mates, not before other sessions") {
  Turns turns;
  for (const ClientId id : {1U, 2U, 3U}) turns.come(id);
  for (const ClientId id : {1U, 2U}) turns.core.step(event::Session{id, 7}, turns.now);
  turns.all(2s, {1, 2, 3});
  const auto one_away = [&](ClientId away, const std::vector<ClientId>& others) {
    if (turns.holds(away)) turns.give_back(away);
    turns.want(away, 0);
    turns.all(2s, others);
  };
  one_away(2, {1, 3});
  // Until the one outside the session holds the GPU: the session as a whole is even with it.
  while (!turns.holds(3)) {
    turns.now = std::max(turns.core.client(1)->drain_at, turns.now + 1us);
    turns.give_back(1);
    turns.want(1);
  }
  turns.want(2);
  CHECK(turns.core.client(3)->drain_at > turns.now + 10ms);
  turns.now = std::max(turns.core.client(3)->drain_at, turns.now);
  turns.give_back(3);
  CHECK(turns.holds(2));
}

TEST_CASE("what a program has had counts for its session, also if it named that later") {
  Turns turns;
  for (const ClientId id : {1U, 2U, 3U}) turns.come(id);
  for (const ClientId id : {1U, 2U, 3U}) turns.want(id);
  REQUIRE(turns.holds(1));
  turns.core.step(event::Session{1, 7}, turns.now);
  turns.now += 3s;
  turns.give_back(1);
  CHECK(turns.all(6s, {1, 2, 3})[0] <= 500ms);
}

TEST_CASE("a program that comes back and has had more than its mate waits for the end of that one's turn") {
  Turns turns;
  for (const ClientId id : {1U, 2U}) {
    turns.come(id);
    turns.core.step(event::Session{id, 7}, turns.now);
  }
  turns.all(1s, {1, 2});
  const ClientId one = turns.holds(1) ? 1 : 2;
  const ClientId other = 3 - one;
  turns.want(other, 0);
  turns.now += 3s;  // nobody waits: it leaves because it has nothing to do
  turns.give_back(one);
  turns.want(other);
  turns.now += 5ms;
  turns.want(one);
  turns.now += 1ms;
  CHECK(turns.core.client(other)->drain_at > turns.now + 10ms);
}

TEST_CASE("who goes at a pause just before the end of its turn has had its turn") {
  Turns turns;
  for (const ClientId id : {1U, 2U}) turns.come(id);
  for (const ClientId id : {1U, 2U}) turns.want(id);
  int percent = 30;
  bool early = true;
  SECTION("and waits for the end of the next") {
    percent = 90;
    early = false;
  }
  SECTION("unless it was not that near") {}
  // Client 2 has had much more, so any client that comes back after a pause would send it away at once.
  turns.now += 200ms;
  turns.core.step(event::Activity{.client = 1, .calls = 1, .switches = 1, .switching = 100ms}, turns.now);
  turns.give_back(1);
  turns.want(1);
  turns.now += 5s;
  turns.give_back(2);
  turns.want(2);
  REQUIRE(turns.holds(1));
  turns.now += (turns.core.client(1)->drain_at - turns.now) * percent / 100;
  turns.give_back(1);
  turns.now += 10ms;
  turns.want(1);
  CHECK((turns.core.client(2)->drain_at < turns.now + 500ms) == early);
}

TEST_CASE("a program that comes back after a pause and has had less does not wait for the end of a turn") {
  Turns turns;
  for (const ClientId id : {1U, 2U}) turns.come(id);
  turns.want(1);
  turns.now += 10s;
  turns.want(2);  // its first turn
  CHECK(turns.core.client(1)->drain_at <= turns.now);
  turns.give_back(1);
  REQUIRE(turns.holds(2));
  // Now the first one's turn was over: it comes back at once, and waits for the other's turn to end.
  turns.want(1);
  CHECK(turns.core.client(2)->drain_at > turns.now + 10ms);
}

TEST_CASE("where memory moves, a program that comes back waits no longer than its own work takes at a time") {
  Turns turns;
  struct Case {
    bool moves;
    std::vector<Time> spells;  // of client 1, its start first
    Time waits;                // at most this long after the other's turn has begun
  };
  const bool rests_with_the_gpu = GENERATE(false, true);  // as nobody wants it
  const Time enough = 700ms;                              // sending the other away is then worth two hand-overs
  const auto [moves, spells, waits] =
      GENERATE_COPY(Case{true, {10ms, 1s}, 1s}, Case{true, {10ms, 1s, 2s}, 1s}, Case{true, {10ms, 10s}, 3s},  // a turn
                    Case{true, {10ms, 20ms}, enough}, Case{true, {10s}, enough}, Case{true, {10ms, 1s, 20ms}, enough},
                    Case{true, {10ms, 20ms, 10s}, enough}, Case{false, {10ms, 10s}, enough});
  CAPTURE(rests_with_the_gpu, moves, spells.size(), spells.back().count());
  if (moves) turns.configure(true, Mode::kAutomatic);
  for (const ClientId id : {1U, 2U}) {
    turns.come(id);
    turns.core.step(event::Usage{.client = id, .gpu = 0, .used = Bytes{60} << 30, .resident = Bytes{10} << 30},
                    turns.now);
  }
  event::Activity activity{.client = 1};
  const auto works = [&](Time length, bool calls) {
    while (length > Time{}) {
      const Time step = std::min(length, Time{200ms});
      turns.now += step;
      activity.open += step;
      if (calls) ++activity.calls;
      turns.core.step(activity, turns.now);
      length -= step;
    }
  };
  turns.want(1);
  for (const Time spell : spells) {
    if (!turns.holds(1)) turns.want(1);
    turns.now += 100ms;
    activity.switching += 100ms;
    ++activity.switches;
    works(spell, true);
    if (rests_with_the_gpu) {
      works(5s, false);
    } else {
      turns.give_back(1);
      turns.now += 400ms;
    }
  }
  if (rests_with_the_gpu) turns.give_back(1);
  turns.want(2);
  const Time begun = turns.now;
  turns.core.step(event::Activity{.client = 2, .calls = 1}, turns.now);
  turns.now += 400ms;
  turns.want(1);
  REQUIRE(turns.core.gpu(0).crowded == moves);
  REQUIRE(turns.core.gpu(0).switching == 100ms);
  const Time until = turns.core.client(2)->drain_at - begun;
  if (waits == enough) {
    CHECK(until <= waits);
  } else {
    CHECK(until == waits);  // how long the other's own hand-over takes is not known
  }
}

}  // namespace
}  // namespace rota::scheduler
