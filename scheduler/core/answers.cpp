// What the core is asked: nothing changes.
#include <algorithm>
#include <cassert>
#include <cmath>
#include <utility>

#include "scheduler/core/core.h"

namespace rota::scheduler {

const ClientState* Core::client(ClientId id) const {
  const Client* found = books_.find(id);
  return found == nullptr ? nullptr : &found->state;
}

GpuState Core::gpu(GpuIndex index) const {
  assert(index < protocol::kMaxGpus);
  const Gpu& gpu = books_.gpu(index);
  const Bytes together = gpu.used + gpu.contexts + gpu.taken_outside();
  return {.total = gpu.total,
          .used = gpu.used,
          .contexts = gpu.contexts,
          .clients = gpu.clients,
          .holders = static_cast<std::uint32_t>(gpu.holders.size()),
          .waiters = gpu.waiters,
          .crowded = gpu.crowded,
          .outside = gpu.taken_outside(),
          .measured_outside = gpu.measured.bytes(),
          .too_much = together > gpu.total ? together - gpu.total : 0,
          .candidate = sharing_.candidate(index),
          .looking = (sharing_.looking() & bit(index)) != 0,
          .active = sharing_.active(index),
          .turn = sharing_.turn(index),
          .switching = sharing_.switching(index)};
}

SharingWhy Core::sharing_why(GpuIndex index) const {
  using protocol::SharingReason;
  if (settings_.mode != Mode::kAutomatic) return {SharingReason::kMode};
  if (books_.gpu(index).crowded) return {SharingReason::kMemory};
  if (!settings_.measured_turns) return {SharingReason::kFits};
  if (sharing_.active(index) < 2) return {SharingReason::kAlone};
  if (sharing_.undecided(index)) return {SharingReason::kMemoryLately};
  if (sharing_.watching(index)) return {SharingReason::kNoCollision};
  if ((sharing_.looking() & bit(index)) != 0) return {SharingReason::kMeasuring};
  const double trial = sharing_.trial(index);
  const bool better = (trial >= 1) == (sharing_.candidate(index) != Candidate::kTurns);
  // A trial that was made while more of them contended explains no other state.
  if (trial == 0 || !better) return {SharingReason::kFewContend};
  return {SharingReason::kTrial, trial};
}

ClientUse Core::use(ClientId id, GpuIndex index, Time now) const {
  const Client* client = books_.find(id);
  const Share* own = share(id, index);
  if (own == nullptr) return {};
  ClientUse use{.busy = {},
                .calls = {},
                .light = sharing_.candidate(index) == Candidate::kLightOpen && sharing_.open_to(*client, index),
                .held = Bookkeeping::held_time(*client, now),
                .waited = Bookkeeping::waited_time(*client, now),
                .fixed = own->fixed,
                .fixed_for_now = own->fixed_for_now,
                .lacks = incomplete_.lacks(*client, *own)};
  use.lacks_for_now = use.lacks - incomplete_.lacks_for_good(*client, *own);
  if (client->measurement.u >= 0) use.busy = client->measurement.u;
  if (client->measurement.own_rate > 0) use.calls = client->measurement.own_rate;
  return use;
}

std::optional<Time> Core::next_deadline() const {
  std::optional<Time> next = pressure_.next_deadline();
  for (const std::optional<Time> other :
       {clearing_.next_deadline(), sharing_.next_deadline(), alone_.next_deadline(), incomplete_.next_deadline()}) {
    if (other && (!next || *other < *next)) next = other;
  }
  return next;
}

const Share* Core::share(ClientId id, GpuIndex gpu) const {
  const Client* client = books_.find(id);
  return client == nullptr ? nullptr : client->share(gpu);
}

Bytes Core::counted_bytes(ClientId id, GpuIndex gpu) const {
  const Share* found = share(id, gpu);
  return found == nullptr ? 0 : books_.find(id)->counted(*found);
}

Bytes Core::promised_bytes(ClientId id, GpuIndex gpu) const {
  const Share* found = share(id, gpu);
  return found == nullptr ? 0 : found->promised;
}

Bytes Core::asked_bytes(ClientId id, GpuIndex gpu) const {
  const Share* found = share(id, gpu);
  return found == nullptr ? 0 : found->asked;
}

Bytes Core::resident_bytes(ClientId id, GpuIndex gpu) const {
  const Share* found = share(id, gpu);
  return found == nullptr ? 0 : found->resident;
}

void Core::for_each_holder(GpuIndex gpu, const std::function<void(ClientId)>& visit) const {
  for (const Client* holder : books_.gpu(gpu).holders) visit(holder->id);
}

Bytes Core::lacking_bytes(ClientId id, GpuIndex gpu) const {
  const Share* found = share(id, gpu);
  const bool holds = found != nullptr && (books_.find(id)->state.held & bit(gpu)) != 0;
  return holds && found->swaps && found->used > found->resident ? found->used - found->resident : 0;
}

Bytes Core::context_bytes(ClientId id, GpuIndex gpu) const {
  const Share* found = share(id, gpu);
  return found == nullptr ? 0 : found->context;
}

Bytes Core::bytes_to_clear(ClientId id, GpuIndex index) const {
  const Client* client = books_.find(id);
  const Share* own = client == nullptr ? nullptr : client->share(index);
  if (own == nullptr) return 0;
  if ((client->state.held & bit(index)) == 0) return own->to_clear;
  if (client->state.waiters == 0 || own->swaps) return 0;
  const Gpu& gpu = books_.gpu(index);
  // The next client: a holder that has asked for memory, or else the first in the queue.
  const Client* next = order_.first(index);
  if ((client->yields & bit(index)) != 0) {
    for (const Client* asker : gpu.askers) {
      const bool older = next == nullptr || next->ask_number == 0 || asker->ask_number < next->ask_number;
      if (asker != client && older) next = asker;
    }
  }
  if (next == nullptr) return 0;
  const Share& coming = *next->share(index);
  const bool holds = (next->state.held & bit(index)) != 0;
  Bytes stays = gpu.contexts + gpu.taken_outside() + gpu.fixed - gpu.held_fixed + std::max(coming.peak, coming.asked);
  // Swap memory stays, except for the deficit that remains once the holders' memory is evicted: its owners are asked
  // for that.
  stays += gpu.movable - next->movable(coming);
  if (!holds) stays -= coming.fixed;
  Bytes leaves = 0;  // the movable memory of the holders that yield
  for (const Client* holder : gpu.holders) {
    if (holder == next) continue;
    const Share& share = *holder->share(index);
    const bool goes = holder->state.waiters != 0;
    const Bytes remains = share.swaps ? std::max(share.resident, share.fixed) : share.fixed;
    stays += goes ? remains : holder->counted(share);
    if (goes && !share.swaps) leaves += share.used - share.fixed;
  }
  const Bytes room = gpu.total > stays ? gpu.total - stays : 0;
  if (leaves <= room) return 0;
  const Bytes movable = own->used - own->fixed;
  const double part = static_cast<double>(leaves - room) / static_cast<double>(leaves);
  return std::min(movable, static_cast<Bytes>(std::ceil(part * static_cast<double>(movable))));
}

Time Core::next_turn(ClientId id) const {
  const Client* client = books_.find(id);
  Time latest{};
  if (client == nullptr) return latest;
  for_each_gpu(client->state.wanted, [&](GpuIndex index) {
    if (order_.first(index) != client) return;
    for (const Client* holder : books_.gpu(index).holders) latest = std::max(latest, holder->state.drain_at);
  });
  return latest;
}

std::optional<ClientId> Core::first_waiting(GpuIndex index) const {
  const Client* first = order_.first(index);
  return first == nullptr ? std::nullopt : std::optional(first->id);
}

bool Core::sharer_waits(ClientId id, const std::function<bool(ClientId)>& may) const {
  const Client* holder = books_.find(id);
  if (holder == nullptr || !holder->evidence.last.shares) return false;
  bool waits = false;
  for_each_gpu(holder->state.held, [&](GpuIndex index) {
    for (const Client* other : books_.gpu(index).all) {
      waits = waits || (other != holder && other->evidence.last.shares && other->state.held == 0 &&
                        (other->state.wanted & bit(index)) != 0 && may(other->id));
    }
  });
  return waits;
}

Time Core::give_back_by(ClientId id) const {
  const Client* client = books_.find(id);
  return client == nullptr ? Time{} : client->deadline;
}

std::optional<Core::Carried> Core::carried(ClientId id, GpuIndex gpu, Time now) const {
  const Client* const client = books_.find(id);
  const Share* const share = client == nullptr ? nullptr : client->share(gpu);
  if (share == nullptr) return std::nullopt;
  const Group& group = *share->group;
  const VirtualTime::Earlier of_group = group.domain.virtual_time.earlier(group.standing, now);
  const VirtualTime::Earlier of_member = group.members.earlier(share->standing, now);
  return Carried{.returned = {.client = id,
                              .gpu = gpu,
                              .party = of_group.ahead,
                              .party_owed = of_group.owed,
                              .member = of_member.ahead,
                              .member_owed = of_member.owed,
                              .held = Bookkeeping::held_time(*client, now),
                              .waited = Bookkeeping::waited_time(*client, now)},
                 .place = client->state.wanted == 0 ? 0 : client->queue_number};
}

std::vector<event::HadBefore> Core::carried(GpuIndex index, Time now) const {
  std::vector<event::HadBefore> all;
  const Gpu& gpu = books_.gpu(index);
  for (const auto& [id, domain] : gpu.domains) {
    if (!domain->standing.known) continue;
    const VirtualTime::Earlier earlier = gpu.virtual_time.earlier(domain->standing, now);
    all.push_back({index, id, earlier.ahead, earlier.owed});
  }
  return all;
}

}  // namespace rota::scheduler
