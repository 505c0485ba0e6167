// Estimates when waiters start, and what their GPUs may be used for until then.
#include "scheduler/core/policy/backfill.h"

#include <algorithm>
#include <utility>

namespace rota::scheduler {

void Backfill::begin(Time now) {
  now_ = now;
  passed_.clear();
  estimated_ = 0;
  passed_while_open_ = 0;
  open_ = wanted_ = firm_ = 0;
}

Time Backfill::turn(GpuMask gpus) const {
  Time longest{};
  for_each_gpu(gpus, [&](GpuIndex index) { longest = std::max(longest, sharing_.turn(index)); });
  return longest;
}

std::optional<Time> Backfill::may_run_until(const Client& client, GpuMask open) const {
  const GpuMask gpus = client.state.wanted;
  Time until = now_ + turn(gpus);
  for_each_gpu(open, [&](GpuIndex index) { until = std::min(until, open_until_[index]); });
  return until - now_ < shortest(gpus) ? std::nullopt : std::optional(until);
}

std::optional<Time> Backfill::may_overtake_until(const Client& client) const {
  const GpuMask gpus = client.state.wanted;
  if (settings_.measured_turns || std::popcount(gpus) < 2 || (gpus & firm_) != 0) return std::nullopt;
  const Time turn = this->turn(gpus);
  if (now_ - client.state.wanted_since < turn / 2) return std::nullopt;
  return now_ + turn;
}

GpuMask Backfill::pass(Client& waiter, GpuMask in_way, GpuMask pressed, GpuMask reserved) {
  const GpuMask gpus = waiter.state.wanted;
  if (books_.gangs() == 0) return gpus;  // who waits for one GPU waits for its holders
  passed_.push_back({&waiter, in_way});
  if (waiter.overtaken || waiter.urgent) firm_ |= gpus;
  GpuMask closed = in_way;
  if (const GpuMask free = gpus & ~in_way & ~reserved; free != 0) {
    const Time start = estimate_last(pressed);
    for_each_gpu(free, [&](GpuIndex index) {
      const bool is_open = (open_ & bit(index)) != 0;
      open_until_[index] = is_open ? std::min(open_until_[index], start) : start;
      if (open_until_[index] - now_ < shortest(bit(index))) {
        closed |= bit(index);
      } else {
        open_ |= bit(index);
      }
    });
  }
  open_ &= ~closed;
  if (open_ != 0 && ++passed_while_open_ > kMostPassed) closed |= std::exchange(open_, 0);
  return closed;
}

// When the last waiter that has been passed starts. It is estimated only when needed: where all GPUs are held nobody
// does.
Time Backfill::estimate_last(GpuMask pressed) {
  Time start{};
  for (; estimated_ != passed_.size(); ++estimated_) start = estimate(passed_[estimated_], pressed);
  return start;
}

Time Backfill::estimate(const Passed& passed, GpuMask pressed) {
  Client& waiter = *passed.waiter;
  const GpuMask gpus = waiter.state.wanted;
  Time start = now_;
  for_each_gpu(gpus, [&](GpuIndex index) {
    if ((wanted_ & bit(index)) != 0) {
      start = std::max(start, free_at_[index]);
    } else if ((passed.in_way & bit(index)) != 0) {
      start = std::max(start, drained_at(waiter, index, pressed));
    }
  });
  const bool first = (gpus & wanted_) == 0;
  if (waiter.reserves_at == Time{}) {
    waiter.reserves_at = first ? start : start + (start - now_);
  } else if (first) {
    waiter.reserves_at = std::min(waiter.reserves_at, start);
  }
  start = std::min(start, waiter.reserves_at);
  for_each_gpu(gpus, [&](GpuIndex index) { free_at_[index] = start + sharing_.turn(index); });
  wanted_ |= gpus;
  return start;
}

// When the last holder of a GPU begins to drain that is in the waiter's way.
Time Backfill::drained_at(const Client& waiter, GpuIndex index, GpuMask pressed) const {
  Time last = now_;
  for (const Client* holder : books_.gpu(index).holders) {
    if (holder != &waiter) last = std::max(last, pressure_.drains_at(*holder, pressed, now_));
  }
  return last;
}

}  // namespace rota::scheduler
