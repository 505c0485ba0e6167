// A core whose clients swap, for its tests.
#pragma once

#include <catch2/catch.hpp>

#include "scheduler/core/clearing.h"
#include "scheduler/core/core.h"

namespace rota::scheduler {

inline constexpr Bytes kMega = Bytes{1} << 20;

// A GPU of 1 000 MB with contexts of 10 MB; bytes are in MB. Clients swap: their memory stays there until they move it.
struct SwapMachine {
  Bytes total = 1000;  // of the GPU; to be changed before there are clients
  explicit SwapMachine(Mode mode = Mode::kAutomatic)
      : core([mode] {
          Settings settings;
          settings.mode = mode;
          settings.quantum = std::chrono::milliseconds(100);
          settings.grace = std::chrono::minutes(1);
          return settings;
        }()) {}

  void join(ClientId id, Bytes used) {
    core.step(event::Join{id, true}, now);
    core.step(event::AddGpu{id, 0, total * kMega, 10 * kMega}, now);
    has(id, used, 0);
  }
  std::vector<Decision> want(ClientId id) { return core.step(event::Want{id, 1}, now); }
  std::vector<Decision> has(ClientId id, Bytes used, Bytes resident, Bytes fixed = 0) {
    return core.step(event::Usage{id, 0, used * kMega, fixed * kMega, resident * kMega, 0, 0}, now);
  }
  std::vector<Decision> refused(ClientId id, Bytes used, Bytes resident, Bytes shortage, Bytes free) {
    ++refusals;
    return still_refused(id, used, resident, shortage, free);
  }
  // The page shows an earlier refusal beside newer figures.
  std::vector<Decision> still_refused(ClientId id, Bytes used, Bytes resident, Bytes shortage, Bytes free) {
    return core.step(event::Usage{id, 0, used * kMega, 0, resident * kMega, shortage * kMega, free * kMega, refusals},
                     now);
  }
  std::vector<Decision> give_back(ClientId id) { return core.step(event::GiveBack{id, state(id).grant}, now); }
  // A client that has had its turn, and rests with all its memory on the GPU.
  void rests(ClientId id, Bytes used) {
    join(id, used);
    want(id);
    REQUIRE(holds(id));
    has(id, used, used);
    now += std::chrono::milliseconds(1);
    give_back(id);
  }
  // Advances the time to each of the core's own deadlines.
  std::vector<Decision> wait(Time time) {
    std::vector<Decision> all;
    const Time until = now + time;
    while (core.next_deadline() && *core.next_deadline() <= until) {
      now = std::max(now, *core.next_deadline());
      for (const Decision& decision : core.step(event::Tick{}, now)) all.push_back(decision);
    }
    now = until;
    return all;
  }
  const ClientState& state(ClientId id) const { return *core.client(id); }
  bool holds(ClientId id) const { return state(id).held != 0; }
  bool pressed(ClientId id) const { return state(id).waiters != 0; }
  Bytes clears(ClientId id) const { return core.bytes_to_clear(id, 0) / kMega; }
  Bytes outside() const { return core.gpu(0).outside / kMega; }

  Time now = std::chrono::seconds(10);
  std::uint32_t refusals = 0;
  Core core;
};

}  // namespace rota::scheduler
