// A client in a hurry, because a signal handler has run in a thread that waits, goes first, for a short turn, once a
// second.
#include <catch2/catch.hpp>
#include <map>

#include "scheduler/core/core.h"

namespace rota::scheduler {
namespace {

using namespace std::chrono_literals;

// Programs that take turns on one GPU, each always wanting the next one.
struct Turns {
  explicit Turns(bool measured = false)
      : core([&] {
          return Settings{.mode = measured ? Mode::kAutomatic : Mode::kExclusive,
                          .quantum = 30s,
                          .measured_turns = measured,
                          .grace = 10s};
        }()) {}

  void client(ClientId id) {
    core.step(event::Join{id}, now);
    core.step(event::AddGpu{id, 0, 1000, 10}, now);
    core.step(event::Usage{id, 0, 600}, now);  // two of them do not fit
    want(id);
  }
  void want(ClientId id, bool urgent = false) { core.step(event::Want{id, 1, false, urgent}, now); }
  // The holder gives back when it is told to, and then wants its next turn.
  void run(Time time) {
    for (const Time until = now + time; now < until; now += 1ms) {
      const std::optional<ClientId> id = holder();
      if (!id) continue;
      const ClientState& state = *core.client(*id);
      held[*id] += 1ms;
      if (state.waiters == 0 || now < state.drain_at) continue;
      core.step(event::GiveBack{*id, state.grant}, now);
      want(*id);
    }
  }
  std::optional<ClientId> holder() const {
    for (ClientId id = 1; id <= 3; ++id) {
      if (core.client(id) != nullptr && core.client(id)->held != 0) return id;
    }
    return std::nullopt;
  }

  Time now = 10s;
  Core core;
  std::map<ClientId, Time> held;
};

}  // namespace

TEST_CASE("a user whose programs are always in a hurry, and never give back, does not keep others from their turns") {
  constexpr Time kTurn = 1s;
  constexpr Time kGrace = 1s;
  Core core({.mode = Mode::kAutomatic, .quantum = kTurn, .measured_turns = true, .grace = kGrace});
  Time now = 10s;
  constexpr ClientId kHonest = 1;
  constexpr ClientId kHostile = 40;
  for (ClientId id = kHonest; id <= kHonest + kHostile; ++id) {
    core.step(event::Join{.client = id, .domain = id == kHonest ? 1U : 2U}, now);
    core.step(event::AddGpu{id, 0, 10'000, 10}, now);
    core.step(event::Usage{id, 0, 6000}, now);  // two of them do not fit
  }
  Time waits_since = now;
  Time longest{};
  for (const Time until = now + 60s; now < until; now += 10ms) {
    for (ClientId id = kHonest + 1; id <= kHonest + kHostile; ++id) {
      const ClientState& state = *core.client(id);
      if (state.held == 0) core.step(event::Want{id, 1, false, true}, now);
    }
    const ClientState& honest = *core.client(kHonest);
    if (honest.held == 0) {
      longest = std::max(longest, now - waits_since);
      if (honest.wanted == 0) core.step(event::Want{kHonest, 1}, now);
    } else {
      waits_since = now;
      if (honest.waiters != 0 && now >= honest.drain_at) core.step(event::GiveBack{kHonest, honest.grant}, now);
    }
    core.step(event::Tick{}, now);
  }
  // Fair is one turn of the other user's and its grace, and a third of the time is for those in a hurry.
  CHECK(longest <= 2 * (kTurn + kGrace));
}

TEST_CASE("a program that is interrupted all the time, as by a profiler, gets no more of the GPU for that") {
  const bool measured = GENERATE(false, true);
  INFO("measured " << measured);
  Turns turns(measured);
  turns.client(1);
  turns.client(2);
  for (int i = 0; i < 12'000; ++i) {  // two minutes
    if (turns.core.client(2)->held == 0) turns.want(2, true);
    turns.run(10ms);
  }
  CHECK(turns.held[2] < 66s);
  CHECK(turns.held[1] > 54s);
}

}  // namespace rota::scheduler
