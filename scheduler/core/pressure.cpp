// Times to drain, and what happens to those who do not.
#include "scheduler/core/pressure.h"

#include <algorithm>

namespace rota::scheduler {

bool Pressure::refresh(Client& client, GpuMask pressed, Time now) {
  std::uint32_t waiters = 0;
  Time drain_at{};
  for_each_gpu(client.state.held & pressed, [&](GpuIndex index) {
    const Gpu& gpu = books_.gpu(index);
    waiters = std::max(waiters, gpu.waiters);
    drain_at = std::max(drain_at, gpu.latest_grant + settings_.quantum);
  });
  if (client.yields != 0) {
    const Time own = client.state.held_since + settings_.quantum;
    drain_at = waiters == 0 ? own : std::min(drain_at, own);
    waiters = std::max(waiters, 1U);
  }
  ClientState& state = client.state;
  const bool was_pressed = state.waiters != 0;
  if (waiters != 0 && !was_pressed) client.pressed_since = now;
  const Time deadline = waiters != 0 ? std::max(drain_at, client.pressed_since) + settings_.grace : Time{};
  if (deadline != client.deadline) {
    if (client.deadline.count() != 0) deadlines_.erase({client.deadline, client.id});
    if (deadline.count() != 0) deadlines_.emplace(deadline, client.id);
    client.deadline = deadline;
  }
  if (was_pressed == (waiters != 0) && state.drain_at == drain_at) return false;
  state.waiters = waiters;
  state.drain_at = drain_at;
  return true;
}

void Pressure::relieve(Client& client) {
  client.state.waiters = 0;
  client.state.drain_at = {};
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
