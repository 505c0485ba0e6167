// Computes when holders must drain, and finds those that are late.
#include "scheduler/core/policy/pressure.h"

#include <algorithm>

namespace rota::scheduler {

// At once if the first in the queue is urgent. Otherwise at the end of the turn, or later, once the holder has had as
// much of the GPU as the first in the queue; or earlier, once the holder has had more, if that client comes back after
// a pause and will be done soon, going by its last two busy periods. So a program that needs little of a GPU gets it at
// once and without interruption, and nobody has to say which program that is.
Pressure::End Pressure::end(const Client& holder, GpuIndex index, Time now) const {
  const Gpu& gpu = books_.gpu(index);
  const Client* next = order_.first(index);
  // Holders that ran together end their turn together. A client that joins them while another one waits does not extend
  // it.
  const Time together = next == nullptr ? gpu.latest_grant : std::min(gpu.latest_grant, next->state.wanted_since);
  const Time begun = holder.urgent_turn ? holder.state.held_since : std::max(holder.state.held_since, together);
  const Time over = begun + (holder.urgent_turn ? std::min(kUrgentTurn, sharing_.turn(index)) : sharing_.turn(index));
  const auto at = [](Time time) { return End{time, time}; };
  if (next != nullptr && next->urgent) return at(holder.urgent_turn ? over : std::min(over, next->urgent_at));
  if (!settings_.measured_turns || next == nullptr) return at(over);
  const std::int64_t holders = std::max<std::int64_t>(gpu.virtual_time.holders(), 1);
  const Time even = books_.even_at(*holder.share(index), *next->share(index), now);
  // However much the holder is owed, a turn has an end: if the other had to yield sooner than that, it would have the
  // GPU again at once, and the debt would remain.
  const Time longest = std::max(sharing_.turn(index), Sharing::kCredit + 3 * sharing_.switching(index));
  const Time even_at = std::min(even, begun + (even == Time::max() ? longest : VirtualTime::kMostOwed));
  // Where memory comes in page by page, preempting a holder costs more than is known.
  if (!next->woke || sharing_.pages_in(index)) return {over, std::max(over, even_at)};
  // Preempting a holder costs two hand-overs.
  const Time cost = holder.share(index)->switching + next->share(index)->switching;
  Time worth_while = even_at + cost * holders;
  // Where memory moves, two jobs that preempt each other move it more often than their work is worth: the holder may go
  // on for as long as a busy period of the other.
  if (gpu.crowded) {
    worth_while = std::max(worth_while, begun + holder.share(index)->switching + next->evidence.busy_period);
  }
  return at(std::max(std::min(over, worth_while), std::max(even_at, next->state.wanted_since)));
}

// Whether the holder was let in before the first waiter there (backfill.h). If that waiter became urgent only
// afterwards, the holder drains like any other.
bool Pressure::let_in_before(const Client& holder, GpuIndex index) const {
  if (holder.let_in_until == Time{}) return false;
  const Client* next = order_.first(index);
  if (next == nullptr || next->state.wanted_since > holder.state.held_since) return false;
  return !next->urgent || next->urgent_at <= holder.state.held_since;
}

Pressure::Demand Pressure::demand(const Client& client, GpuMask pressed, Time now) const {
  std::uint32_t waiters = 0;
  Time drain_at{};
  Time even_at = Time::max();
  bool let_in_before = false;
  for_each_gpu(client.state.held & pressed, [&](GpuIndex index) {
    if (sharing_.open_to(client, index) && alone_.on(index) != &client) return;
    waiters = std::max(waiters, books_.gpu(index).waiters);
    const End end = this->end(client, index, now);
    drain_at = std::max(drain_at, end.over);
    even_at = std::min(even_at, end.even);
    let_in_before |= this->let_in_before(client, index);
  });
  // A client that is owed more of one of its GPUs does not make up for that at the cost of those that wait for another.
  if (waiters != 0) drain_at = let_in_before ? client.let_in_until : std::max(drain_at, even_at);
  if (client.yields != 0) {
    // At the end of its turn, or at once if it has nothing to lose: the driver refuses it the memory to begin it.
    Time own{};
    for_each_gpu(client.yields, [&](GpuIndex index) {
      const Time turn = client.share(index)->refused ? Time{} : sharing_.turn(index);
      own = std::max(own, client.state.held_since + turn);
    });
    drain_at = waiters == 0 ? own : std::min(drain_at, own);
    waiters = std::max(waiters, 1U);
  }
  if (client.withdrawn_by.count() != 0) {
    drain_at = waiters == 0 ? client.withdrawn_at : std::min(drain_at, client.withdrawn_at);
    waiters = std::max(waiters, 1U);
  }
  // Others yield the GPUs of a client that measures, and wait until it is done.
  for_each_gpu(client.state.held & alone_.gpus(), [&](GpuIndex index) {
    const Client* measures = alone_.on(index);
    if (measures == nullptr || measures == &client || Alone::may_stay(client)) return;
    const Time at = measures->measuring.presses_since;
    drain_at = waiters == 0 ? at : std::min(drain_at, at);
    waiters = std::max(waiters, 1U);
  });
  if (waiters != 0 && alone_.is_first(client)) drain_at = std::max(drain_at, Alone::undisturbed_until(client));
  return {waiters, drain_at};
}

bool Pressure::refresh(Client& client, GpuMask pressed, Time now) {
  auto [waiters, drain_at] = demand(client, pressed, now);
  ClientState& state = client.state;
  const bool was_pressed = state.waiters != 0;
  if (waiters != 0 && !was_pressed) client.pressed_since = now;
  client.was_due |= was_pressed && state.drain_at <= now;
  if (waiters != 0 && was_pressed && std::chrono::abs(state.drain_at - drain_at) < std::chrono::microseconds(10)) {
    drain_at = state.drain_at;  // it differs only by rounding
  }
  const Time begun = std::max({drain_at, client.pressed_since, client.arrived_at});
  Time deadline = waiters != 0 ? begun + settings_.grace : Time{};
  if (client.withdrawn_by.count() != 0) deadline = std::min(deadline, client.withdrawn_by);
  const bool moved = deadline != client.deadline;
  if (moved) {
    if (client.deadline.count() != 0) deadlines_.erase({client.deadline, client.id});
    if (deadline.count() != 0) deadlines_.emplace(deadline, client.id);
    client.deadline = deadline;
  }
  if (was_pressed == (waiters != 0) && state.drain_at == drain_at) return moved && waiters != 0;
  state.waiters = waiters;
  state.drain_at = drain_at;
  return true;
}

void Pressure::relieve(Client& client) {
  client.state.waiters = 0;
  client.state.drain_at = {};
  client.withdrawn_at = client.withdrawn_by = {};
  client.was_due = false;
  if (client.deadline.count() != 0) deadlines_.erase({client.deadline, client.id});
  client.deadline = {};
}

std::optional<Time> Pressure::next_deadline() const {
  if (deadlines_.empty()) return std::nullopt;
  return deadlines_.begin()->first;
}

std::optional<ClientId> Pressure::late(Time now) const {
  if (deadlines_.empty() || deadlines_.begin()->first > now) return std::nullopt;
  return deadlines_.begin()->second;
}

}  // namespace rota::scheduler
