// Programs that want sets of GPUs, each busy whenever it holds its set, driven by the scheduler core: they drain when
// their time is up, give back, and want their set again. Events in simulated time; nothing waits.
#pragma once

#include <algorithm>
#include <bit>
#include <catch2/catch.hpp>
#include <chrono>
#include <optional>
#include <random>
#include <vector>

#include "scheduler/core/core.h"

namespace rota::scheduler::gangs {

using namespace std::chrono_literals;

struct Program {
  GpuMask gpus = 1;
  DomainId domain = 0;
  bool never_gives_back = false;  // it is revoked each time
};

class Gangs {
 public:
  struct Seen {
    Time held{};
    Time longest_wait{};
    std::uint64_t turns = 0;
  };
  // The longest turn. Nobody reports how long hand-overs take, so measured turns take 50 ms, or as long as fixed ones
  // where memory does not fit.
  static constexpr Time kTurn = 200ms;
  static constexpr Bytes kTotal = Bytes{80} << 30;

  // In automatic mode no two of them fit on a GPU.
  Gangs(Mode mode, bool measured_turns, unsigned seed) : random_(seed) {
    Settings settings;
    settings.mode = mode;
    settings.measured_turns = measured_turns;
    settings.quantum = kTurn;
    settings.grace = 500ms;
    core_.step(event::Configure{settings}, now_);
  }

  // Returns its number in seen().
  std::size_t add(const Program& program) {
    all_.emplace_back();
    replace(all_.size() - 1, program);
    return all_.size() - 1;
  }
  // Puts another program in the place of one that has died.
  void replace(std::size_t i, const Program& program) {
    const ClientId id = ++last_client_;
    all_[i] = {.program = program, .client = id, .next = now_ + pick(5'000) * 1us, .seen = all_[i].seen};
    step(event::Join{id, program.domain});
    for_each_gpu(program.gpus, [&](GpuIndex gpu) {
      step(event::AddGpu{id, gpu, kTotal, 1});
      step(event::Usage{id, gpu, kTotal * 6 / 10});
    });
  }

  void run(Time length) {
    for (const Time end = now_ + length; now_ < end;) {
      Time next = end;
      for (std::size_t i = 0; i < all_.size(); ++i) next = std::min(next, std::max(when(i), now_));
      const auto deadline = core_.next_deadline();
      if (deadline) next = std::min(next, std::max(*deadline, now_));
      pass(next);
      if (deadline && *deadline <= now_) step(event::Tick{});
      for (std::size_t i = 0; i < all_.size(); ++i) {
        if (when(i) <= now_) act(i);
      }
    }
  }

  // Sets what the program wants from its next turn on. It was added with at least these GPUs.
  void regroup(std::size_t i, GpuMask gpus) { all_[i].program.gpus = gpus; }
  void interrupt(std::size_t i) {
    if (all_[i].wants) step(event::Want{id(i), all_[i].asked, false, true});
  }
  void measure_alone(std::size_t i) {
    if (all_[i].grant != 0) step(event::Want{id(i), core_.client(id(i))->held, false, false, true});
  }
  void kill(std::size_t i) {
    all_[i].dead = true;
    all_[i].wants = false;
    all_[i].grant = 0;
    step(event::Leave{id(i)});
  }

  const Seen& seen(std::size_t i) const { return all_[i].seen; }
  double held(std::size_t i) const { return std::chrono::duration<double>(seen(i).held).count(); }
  // Includes the current wait, if it still waits.
  Time longest_wait(std::size_t i) const {
    const Each& each = all_[i];
    return std::max(each.seen.longest_wait, each.wants ? now_ - each.since : Time{});
  }
  // GPU-seconds held by all.
  double gpu_seconds() const {
    double sum = 0;
    for (const Each& each : all_) sum += std::chrono::duration<double>(each.gpu_time).count();
    return sum;
  }
  // The longest time for which all of a waiter's GPUs were free.
  Time longest_idle() const { return longest_idle_; }
  std::uint64_t revoked() const { return revoked_; }
  std::uint64_t steps() const { return steps_; }
  unsigned pick(unsigned below) { return std::uniform_int_distribution<unsigned>(0, below - 1)(random_); }

 private:
  struct Each {
    Program program;
    ClientId client = 0;
    bool dead = false;
    bool wants = false;
    std::uint32_t grant = 0;
    Time since{};                // since when it waits or holds
    Time next{};                 // when it wants its GPUs, while it does neither
    std::optional<Time> done{};  // when its drain is over, once it has begun
    GpuMask asked = 0;           // the set that it has asked for last
    Time gpu_time{};
    Time could_since{};  // since when all GPUs that it waits for have been free; 0: they are not
    Seen seen;
  };

  ClientId id(std::size_t i) const { return all_[i].client; }

  Time when(std::size_t i) const {
    const Each& each = all_[i];
    if (each.dead || each.wants) return Time::max();
    if (each.grant == 0) return each.next;
    if (each.done) return *each.done;
    const ClientState& state = *core_.client(id(i));
    return state.waiters == 0 || each.program.never_gives_back ? Time::max() : std::max(state.drain_at, each.since);
  }
  void act(std::size_t i) {
    Each& each = all_[i];
    if (each.grant == 0) {
      each.wants = true;
      each.since = now_;
      each.asked = each.program.gpus;
      step(event::Want{id(i), each.asked});
    } else if (!each.done) {
      each.done = now_ + 500us + pick(2'500) * 1us;
    } else {
      over(each);
      step(event::GiveBack{id(i), core_.client(id(i))->grant});
    }
  }
  void over(Each& each) {
    each.grant = 0;
    each.done = {};
    each.next = now_ + pick(200) * 1us;
  }
  void pass(Time until) {
    const Time passed = until - now_;
    GpuMask held = 0;
    for (std::size_t i = 0; i < all_.size(); ++i) {
      Each& each = all_[i];
      if (each.grant == 0) continue;
      const GpuMask gpus = core_.client(id(i))->held;
      held |= gpus;
      each.seen.held += passed;
      each.gpu_time += passed * std::popcount(gpus);
    }
    for (Each& each : all_) {
      const bool could = each.wants && (each.asked & held) == 0;
      if (!could) each.could_since = {};
      if (could && each.could_since == Time{}) each.could_since = now_;
      if (could) longest_idle_ = std::max(longest_idle_, until - each.could_since);
    }
    now_ = until;
  }
  void step(const Event& event) {
    ++steps_;
    const std::vector<Decision> decisions = core_.step(event, now_);
    for (const Decision& decision : decisions) {
      const auto found = std::ranges::find(all_, decision.client, &Each::client);
      if (found == all_.end() || found->dead) continue;
      Each& each = *found;
      if (decision.change == Change::kRevoked) {
        ++revoked_;
        over(each);
      }
      if (decision.change != Change::kGranted) continue;
      if (core_.client(decision.client)->held != each.asked) FAIL("a set was granted in part");
      each.grant = decision.grant;
      each.wants = false;
      each.seen.longest_wait = std::max(each.seen.longest_wait, now_ - each.since);
      each.since = now_;
      ++each.seen.turns;
    }
    GpuMask held = 0;
    for (std::size_t i = 0; i < all_.size(); ++i) {
      if (all_[i].grant == 0) continue;
      const GpuMask gpus = core_.client(id(i))->held;
      if ((gpus & held) != 0) FAIL("two hold a GPU that they do not fit together");
      held |= gpus;
    }
  }

  Core core_{Settings{}};
  Time now_ = 1s;
  std::minstd_rand random_;
  std::vector<Each> all_;
  ClientId last_client_ = 0;
  Time longest_idle_{};
  std::uint64_t revoked_ = 0;
  std::uint64_t steps_ = 0;
};

}  // namespace rota::scheduler::gangs
