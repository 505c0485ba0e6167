// A model of programs whose memory fits on a GPU together: each runs kernels of a given length, with work on the CPU
// between them, in bursts or endlessly. A GPU runs one program's kernels at a time. If several have kernels ready, they
// are interleaved in slices, as the driver does, with a small loss at each change. A kernel on several GPUs is one of
// ranks that wait for each other: it makes progress only while all of its GPUs run it, and occupies each GPU that does.
// Time advances in steps; nothing waits.
//
// The core decides which programs may run, as it would for real ones: they want, hold, give back when idle or when
// their time is up, and report what they have done. Or a fixed candidate decides, to compare the core's choice with.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "scheduler/core/core.h"

namespace rota::scheduler::sim {

using namespace std::chrono_literals;

struct Program {
  Time kernel{};
  Time cpu{};               // between two kernels
  std::uint32_t burst = 0;  // kernels; 0: endless
  Time think{};             // between bursts
  GpuMask gpus = 1;         // all of which it needs at the same time
};

// How programs share when there is no core: by a fixed candidate. In turns, each program runs for kTurn, in order.
struct Fixed {
  Candidate candidate;
  std::vector<bool> light;
};

struct Result {
  std::vector<double> kernels;            // per second, of each
  std::vector<std::vector<Time>> bursts;  // how long each took
  Time last_change{};                     // of the core's candidate
  std::uint32_t changes = 0;              // after the first second
  Time out_of_step{};                     // how long some GPU had a different candidate from the first GPU's
  Candidate candidate{};                  // the final candidate,
  SharingWhy why;                         // the reason for it,
  std::vector<ClientUse> uses;            // and how each program uses the GPU
};

class World {
 public:
  static constexpr Time kStep = 250us;
  static constexpr Time kSlice = 2ms;   // of the driver's time slicing
  static constexpr Time kLoss = 160us;  // for each change of slice: 8%, as measured
  static constexpr Time kHandOver = 250us;
  static constexpr Time kIdle = 2ms;   // after which a turn is given back
  static constexpr Time kTurn = 50ms;  // of Fixed

  World(std::vector<Program> programs, std::optional<Fixed> fixed) : fixed_(std::move(fixed)) {
    Settings settings;
    settings.measured_turns = true;
    core_ = std::make_unique<Core>(settings);
    for (const Program& program : programs) all_.push_back({.program = program});
    for (std::size_t i = 0; i < all_.size(); ++i) {
      step({event::Join{id(i)}});
      for_each_gpu(programs[i].gpus, [&](GpuIndex gpu) { step({event::AddGpu{id(i), gpu, Bytes{80} << 30, 1}}); });
      gpus_ |= programs[i].gpus;
      all_[i].left = programs[i].kernel;
      all_[i].in_burst = programs[i].burst;
    }
  }

  Result run(Time length) {
    Result result;
    result.bursts.resize(all_.size());
    Candidate before = Candidate::kTogether;
    for (const Time end = now_ + length; now_ < end; now_ += kStep) {
      for (std::size_t i = 0; i < all_.size(); ++i) act(i, result.bursts[i]);
      if (!fixed_) {
        if (const auto at = core_->next_deadline(); at && *at <= now_) {
          for (std::size_t i = 0; i < all_.size(); ++i) tell(i);
          step({event::Tick{}});
        }
        const Candidate candidate = core_->gpu(0).candidate;
        if (candidate != before) {
          result.last_change = now_;
          if (now_ > 1s) ++result.changes;
        }
        before = candidate;
        bool same = true;
        for_each_gpu(gpus_, [&](GpuIndex gpu) { same = same && core_->gpu(gpu).candidate == candidate; });
        if (!same) result.out_of_step += kStep;
      }
      std::popcount(gpus_) == 1 ? compute() : compute_on_several();
    }
    for (const Each& each : all_) {
      result.kernels.push_back(static_cast<double>(each.done) / std::chrono::duration<double>(length).count());
    }
    result.candidate = before;
    result.why = core_->sharing_why(0);
    for (std::size_t i = 0; i < all_.size(); ++i) result.uses.push_back(core_->use(id(i), 0, now_));
    return result;
  }
  // For the core of a later rotad, which knows the clients by the same numbers.
  std::vector<event::MeasuredBefore> measured() const { return core_->measured(now_); }
  void tell_measured(const event::MeasuredBefore& measured) { step(measured); }

 private:
  struct Each {
    Program program;
    Time left{};                 // of the kernel that is ready, or running; 0: there is none
    Time ready_at{};             // when the next kernel is ready
    std::uint32_t in_burst = 0;  // kernels left in it
    Time burst_began{};
    std::uint64_t done = 0;
    bool holds = false;
    bool closing = false;  // its turn is over: what is running finishes,
    bool closed = false;   // and nothing new starts
    bool wants = false;
    Time open_at{};  // if it holds: since when it may run
    Time open_for{};
    Time idle_since{};
    std::uint64_t spell = 0;  // samples in a row that found it busy
    event::Activity said{};
    Time said_at{};
  };

  static ClientId id(std::size_t i) { return static_cast<ClientId>(i + 1); }
  void step(const Event& event) {
    for (const Decision& decision : core_->step(event, now_)) {
      if (decision.change != Change::kGranted) continue;
      Each& each = all_[decision.client - 1];
      // A current holder continues.
      if (!each.holds) begin_turn(each);
    }
  }
  void begin_turn(Each& each) {
    each.holds = true;
    each.wants = each.closing = each.closed = false;
    each.open_at = now_ + kHandOver;
    each.idle_since = now_;
    ++each.said.switches;
    each.said.switching += kHandOver;
  }
  void tell(std::size_t i) {
    Each& each = all_[i];
    event::Activity activity = each.said;
    activity.client = id(i);
    activity.calls = each.done;
    activity.open = each.open_for;
    activity.counted = now_;
    step(activity);
    each.said_at = now_;
  }
  bool in_turns(std::size_t i) const {
    return fixed_->candidate == Candidate::kTurns || (fixed_->candidate == Candidate::kLightOpen && !fixed_->light[i]);
  }

  // Whether its turn is over and what was running has finished. Little is in flight, so nothing is queued behind that.
  static bool ended(const Each& each) {
    const bool begun = each.left != Time{} && each.left != each.program.kernel;
    return each.closing && (each.closed || !begun);
  }

  void act(std::size_t i, std::vector<Time>& bursts) {
    Each& each = all_[i];
    if (each.left == Time{} && now_ >= each.ready_at) {
      each.left = each.program.kernel;
      if (each.program.burst != 0 && each.in_burst == each.program.burst) each.burst_began = now_;
    }
    if (each.program.burst != 0 && each.in_burst == 0) {
      bursts.push_back(now_ - each.burst_began);
      each.in_burst = each.program.burst;
      each.left = {};
      each.ready_at = now_ + each.program.think;
    }
    const bool needs = each.left != Time{};
    if (needs || !each.holds) each.idle_since = now_;
    if (fixed_) return act_fixed(i, needs);
    if (needs && !each.holds && !each.wants) {
      each.wants = true;
      tell(i);
      step(event::Want{id(i), each.program.gpus});
    }
    if (!each.holds) return;
    if (each.holds && now_ >= each.open_at) {
      each.open_for += kStep;
      // A sample a millisecond.
      if (now_ / 1ms != (now_ - kStep) / 1ms) {
        ++each.said.samples;
        each.said.busy += needs ? 1 : 0;
        each.spell = needs ? each.spell + 1 : 0;
        if (each.spell >= 5) each.said.in_spells += each.spell == 5 ? 5 : 1;
      }
    }
    if (now_ - each.said_at >= 50ms) tell(i);
    const ClientState& state = *core_->client(id(i));
    each.closing = state.waiters != 0 && state.drain_at != Time{} && now_ >= state.drain_at && now_ >= each.open_at;
    if (state.waiters == 0 || !(ended(each) || now_ - each.idle_since >= kIdle)) return;
    each.holds = false;
    tell(i);
    step(event::GiveBack{id(i), state.grant});
  }

  void act_fixed(std::size_t i, bool needs) {
    Each& each = all_[i];
    if (!in_turns(i)) {
      each.holds = true;
      return;
    }
    if (each.holds) {
      const bool waited = std::any_of(all_.begin(), all_.end(), [&](const Each& other) {
        return &other != &each && !other.holds && other.left != Time{};
      });
      each.closing = waited && now_ - each.open_at >= kTurn;
      if (waited && (ended(each) || now_ - each.idle_since >= kIdle)) each.holds = false;
    } else if (needs) {
      const bool taken = std::any_of(all_.begin(), all_.end(), [&](const Each& other) {
        return other.holds && in_turns(static_cast<std::size_t>(&other - all_.data()));
      });
      const std::size_t others = all_.size();
      // In order: no waiter comes between the last holder and this one.
      bool next = !taken;
      for (std::size_t j = 1; j < others && next; ++j) {
        const std::size_t k = (last_ + j) % others;
        if (k == i) break;
        if (in_turns(k) && !all_[k].holds && all_[k].left != Time{}) next = false;
      }
      if (next) {
        begin_turn(each);
        last_ = i;
      }
    }
  }

  // The GPU, for one step.
  void compute() {
    Time time = kStep;
    while (time > Time{}) {
      std::vector<std::size_t> ready;
      for (std::size_t i = 0; i < all_.size(); ++i) {
        if (all_[i].holds && now_ >= all_[i].open_at && all_[i].left != Time{} && !all_[i].closed) ready.push_back(i);
      }
      if (ready.empty()) return;
      const bool goes_on = std::find(ready.begin(), ready.end(), running_) != ready.end();
      if (!goes_on || (ready.size() > 1 && slice_ <= Time{})) {
        const auto next = std::upper_bound(ready.begin(), ready.end(), running_);
        const std::size_t chosen = next == ready.end() ? ready.front() : *next;
        // Only if they are interleaved: in turns the hand-over has its own cost.
        if (chosen != running_ && ready.size() > 1) time -= kLoss;
        running_ = chosen;
        slice_ = kSlice;
      }
      Each& each = all_[running_];
      const Time part = std::min({std::max(time, Time{}), each.left, ready.size() > 1 ? slice_ : time});
      if (part <= Time{}) return;
      each.left -= part;
      slice_ -= part;
      time -= part;
      if (each.left == Time{}) finish(each);
    }
  }

  // Its kernel has finished.
  void finish(Each& each) const {
    ++each.done;
    each.closed = each.closing;
    if (each.program.burst != 0 && --each.in_burst == 0) return;
    if (each.program.cpu == Time{}) {
      each.left = each.program.kernel;
    } else {
      each.ready_at = now_ + each.program.cpu;
    }
  }

  // The GPUs, for one step, in which each runs one program.
  void compute_on_several() {
    std::array<Time, 64> time{};
    for_each_gpu(gpus_, [&](GpuIndex gpu) {
      std::vector<std::size_t> ready;
      for (std::size_t i = 0; i < all_.size(); ++i) {
        const Each& each = all_[i];
        const bool runs = each.holds && now_ >= each.open_at && each.left != Time{} && !each.closed;
        if (runs && (each.program.gpus & bit(gpu)) != 0) ready.push_back(i);
      }
      auto& [running, slice] = on_gpu_[gpu];
      time[gpu] = kStep;
      slice -= kStep;
      if (ready.empty() || (slice > Time{} && std::ranges::find(ready, running) != ready.end())) return;
      const auto next = std::ranges::upper_bound(ready, running);
      const std::size_t chosen = next == ready.end() ? ready.front() : *next;
      if (std::exchange(running, chosen) != chosen && ready.size() > 1) time[gpu] -= kLoss;
      slice = kSlice;
    });
    for (std::size_t i = 0; i < all_.size(); ++i) {
      Each& each = all_[i];
      if (!each.holds || now_ < each.open_at || each.closed) continue;
      Time part = each.left;
      for_each_gpu(each.program.gpus,
                   [&](GpuIndex gpu) { part = std::min(part, on_gpu_[gpu].first == i ? time[gpu] : Time{}); });
      if (part <= Time{}) continue;
      each.left -= part;
      if (each.left == Time{}) finish(each);
    }
  }

  std::optional<Fixed> fixed_;
  std::unique_ptr<Core> core_;
  std::vector<Each> all_;
  Time now_ = 1s;
  GpuMask gpus_ = 0;
  std::size_t running_ = 0;
  Time slice_{};
  std::map<GpuIndex, std::pair<std::size_t, Time>>
      on_gpu_;  // which program runs, and the rest of its slice; only if there are several GPUs
  std::size_t last_ = 0;
};

// As the core decides.
inline Result shared(const std::vector<Program>& programs, Time length) {
  return World(programs, std::nullopt).run(length);
}

}  // namespace rota::scheduler::sim
