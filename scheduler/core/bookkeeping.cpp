// Changes to the accounting, and the resulting sums.
#include "scheduler/core/bookkeeping.h"

namespace rota::scheduler {

namespace {

constexpr std::size_t kFewDomains = 16;

constexpr std::uint32_t is_gang(GpuMask wanted) {
  return (wanted & (wanted - 1)) != 0 ? 1 : 0;
}

}  // namespace

Bookkeeping::Bookkeeping() : gpus_(protocol::kMaxGpus) {}

Client* Bookkeeping::find(ClientId id) const {
  const auto found = clients_.find(id);
  return found == clients_.end() ? nullptr : found->second.get();
}

GpuMask Bookkeeping::touched() const {
  GpuMask mask = 0;
  for (GpuIndex index = 0; index < gpus_.size(); ++index) {
    if (gpus_[index].clients != 0) mask |= bit(index);
  }
  return mask;
}

Client& Bookkeeping::join(const event::Join& join) {
  auto client = std::make_unique<Client>();
  client->id = join.client;
  client->domain = join.domain;
  client->last_grant = join.last_grant;
  client->parked.push_back(client.get());
  client->node = client->parked.begin();
  return *clients_.emplace(join.client, std::move(client)).first->second;
}

void Bookkeeping::add_gpu(Client& client, GpuIndex index, Bytes total, Bytes context) {
  Gpu& gpu = gpus_[index];
  gpu.total = total;
  context = std::min(context != 0 ? context : assumed_context(gpu.total), gpu.total);
  Share* share = client.share(index);
  if (share == nullptr) {
    client.shares.push_back({.gpu = index, .context = 0, .group = group(gpu, client)});
    share = &client.shares.back();
    client.state.touched |= bit(index);
    gpu.all.push_back(&client);
    if (++gpu.clients > 1) shared_ |= bit(index);
  }
  gpu.contexts += context - share->context;
  share->context = context;
  changed_ |= bit(index);
}

bool Bookkeeping::use(Client& client, const event::Usage& usage, std::chrono::nanoseconds window, Time now) {
  const GpuIndex index = usage.gpu;
  Share* share = client.share(index);
  Gpu& gpu = gpus_[index];
  // What is on the GPU counts, including what the client keeps beyond its allocations.
  const Bytes used = std::min(std::max(usage.used, usage.resident), gpu.total);
  const Bytes fixed = std::min(usage.fixed, used);
  const bool refused =
      (share->swaps || usage.resident != 0 || usage.shortage != 0) && use_swap(client, *share, usage, now);
  const Bytes for_now = share->swaps ? std::min(usage.fixed_for_now, fixed) : 0;
  Bytes peak = share->peak;
  if (used >= peak || now - share->peak_at > window) peak = used;
  if (used >= peak) share->peak_at = now;
  const bool same = used == share->used && fixed == share->fixed && for_now == share->fixed_for_now;
  if (same && peak == share->peak) return refused;
  // What could not be evicted now can be: that the client evicted nothing when it was asked no longer counts.
  if (for_now < share->fixed_for_now) set_stuck(client, *share, false);
  const bool holds = (client.state.held & bit(index)) != 0;
  const bool wants = (client.state.wanted & bit(index)) != 0;
  gpu.used += used - share->used;
  gpu.fixed += fixed - share->fixed;
  if (holds) {
    gpu.held_used += peak - share->peak;
    gpu.held_fixed += fixed - share->fixed;
  }
  if (holds || wants) gpu.interested += peak - share->peak;
  discount_movable(client, *share);
  share->used = used;
  share->fixed = fixed;
  share->fixed_for_now = for_now;
  share->peak = peak;
  count_movable(client, *share);
  changed_ |= bit(index);
  // It has more than it was promised: it allocated while it had no lease, or did not ask. This counts as an ask.
  if (used > std::max(share->promised, share->asked)) ask(client, index, used);
  return refused;
}

bool Bookkeeping::use_swap(Client& client, Share& share, const event::Usage& usage, Time now) {
  Gpu& gpu = gpus_[share.gpu];
  if (!share.swaps) {
    share.swaps = client.swaps = true;
    gpu.swappers.push_back(&client);
  }
  const bool holds = (client.state.held & bit(share.gpu)) != 0;
  const Bytes resident = std::min(usage.resident, gpu.total);
  // A refusal that is already known counts as before: a part of the deficit may have been restored since, or a turn
  // begun.
  const bool again = usage.refusals == 0 || usage.refusals != share.refusals;
  const Bytes shortage = !holds || usage.shortage == 0 ? 0
                         : again                       ? std::min(usage.shortage, gpu.total)
                                                       : share.shortage;
  const Bytes free = again ? std::min(usage.free, gpu.total) : share.free;
  const bool refused = again && shortage != 0;
  share.refusals = usage.refusals;
  const bool same = resident == share.resident && shortage == share.shortage && free == share.free;
  if (same && (!refused || usage.refusals == 0)) return refused;
  changed_ |= bit(share.gpu);
  if (resident != share.resident) set_stuck(client, share, false);
  if (holds && share.resident < share.used && resident >= share.arrived + step_of(gpu.total)) {
    share.arrived = resident;
    client.arrived_at = now;
  }
  discount_movable(client, share);
  if (resident < share.resident) {
    const Bytes went = share.resident - resident;
    gpu.gone += went;
    share.to_clear -= std::min(share.to_clear, went);
    share.progress_at = now;
    share.asked_without_progress = {};
  }
  share.resident = resident;
  count_movable(client, share);
  set_shortage(share, shortage);
  share.free = free;
  if (refused) share.gone_then = gpu.gone;
  return refused;
}

void Bookkeeping::set_shortage(Share& share, Bytes bytes) {
  gpus_[share.gpu].lacking += (bytes != 0 ? 1U : 0U) - (share.shortage != 0 ? 1U : 0U);
  share.shortage = bytes;
}

// The most that clients can have on a GPU, according to the accounting: contexts, and everything that they have
// allocated lately. Unified Memory that belongs to another GPU may have moved to this one if its owner uses both.
Bytes Bookkeeping::explained(GpuIndex index) const {
  Bytes sum = gpus_[index].contexts;
  for (const auto& [id, client] : clients_) {
    if (client->share(index) == nullptr) continue;
    for (const Share& share : client->shares) {
      const Bytes most = std::max(share.peak, share.promised);
      if (share.gpu == index) {
        sum += most;
      } else if (!share.swaps) {
        sum += most - std::min(most, share.fixed);
      }
    }
  }
  return sum;
}

void Bookkeeping::measure(const event::Measured& measured, Time now) {
  Gpu& gpu = gpus_[measured.gpu];
  const Bytes before = gpu.taken_outside();
  const Bytes in_use = gpu.total - std::min(gpu.total, measured.free);
  gpu.measured.measured(in_use, measured.others, explained(measured.gpu), now);
  if (gpu.taken_outside() != before) changed_ |= bit(measured.gpu);
}

void Bookkeeping::forget_measured(GpuIndex index) {
  Gpu& gpu = gpus_[index];
  const Bytes before = gpu.taken_outside();
  gpu.measured.forget();
  if (gpu.taken_outside() != before) changed_ |= bit(index);
}

void Bookkeeping::count_movable(const Client& client, const Share& share) {
  if (!share.swaps) return;
  const Bytes movable = client.movable(share);
  gpus_[share.gpu].movable += movable;
  if (share.stuck) gpus_[share.gpu].stuck += movable;
  if (movable != 0) movable_ |= bit(share.gpu);
  gpus_[share.gpu].later += client.later(share);
  if (gpus_[share.gpu].later != 0) later_ |= bit(share.gpu);
}

void Bookkeeping::discount_movable(const Client& client, const Share& share) {
  if (!share.swaps) return;
  const Bytes movable = client.movable(share);
  gpus_[share.gpu].movable -= movable;
  if (share.stuck) gpus_[share.gpu].stuck -= movable;
  if (gpus_[share.gpu].movable == 0) movable_ &= ~bit(share.gpu);
  gpus_[share.gpu].later -= client.later(share);
  if (gpus_[share.gpu].later == 0) later_ &= ~bit(share.gpu);
}

void Bookkeeping::set_stuck(Client& client, Share& share, bool stuck) {
  if (!stuck) share.unresponsive_until = {};
  if (share.stuck == stuck) return;
  discount_movable(client, share);
  share.stuck = stuck;
  count_movable(client, share);
  changed_ |= bit(share.gpu);
}

void Bookkeeping::ask(Client& client, GpuIndex index, Bytes bytes) {
  if ((client.state.held & bit(index)) == 0) return;
  // More than any GPU has, yet sums over all clients stay far from overflowing 64 bits.
  bytes = std::min(bytes, protocol::kMaxGpuBytes);
  Share& share = *client.share(index);
  if (bytes <= share.promised) {
    end_ask(client, share);
    return;
  }
  if (bytes == share.asked) return;
  Gpu& gpu = gpus_[index];
  if (share.asked == 0) {
    if (client.ask_number == 0) client.ask_number = ++asks_;
    gpu.askers.push_back(&client);
    gpu.asked += bytes - share.promised;
    asked_ |= bit(index);
  } else {
    gpu.asked += bytes - share.asked;
  }
  share.asked = bytes;
  changed_ |= bit(index);
}

void Bookkeeping::end_ask(Client& client, Share& share) {
  if (share.asked == 0) return;
  Gpu& gpu = gpus_[share.gpu];
  gpu.asked -= share.asked - share.promised;
  share.asked = 0;
  gpu.askers.erase(std::find(gpu.askers.begin(), gpu.askers.end(), &client));
  if (gpu.askers.empty()) asked_ &= ~bit(share.gpu);
  const auto asks = [](const Share& other) { return other.asked != 0; };
  if (std::none_of(client.shares.begin(), client.shares.end(), asks)) client.ask_number = 0;
  changed_ |= bit(share.gpu);
}

void Bookkeeping::promise(Client& client, GpuIndex index, Bytes bytes) {
  Share& share = *client.share(index);
  end_ask(client, share);
  gpus_[index].held += bytes - share.promised;
  share.promised = bytes;
  changed_ |= bit(index);
}

void Bookkeeping::set_held(Client& client, GpuMask gpus, Time now) {
  const GpuMask changed = client.state.held ^ gpus;
  if (client.swaps) {
    for (const Share& share : client.shares) discount_movable(client, share);
  }
  for_each_gpu(changed, [&](GpuIndex index) {
    Gpu& gpu = gpus_[index];
    Share& share = *client.share(index);
    if ((gpus & bit(index)) != 0) {
      gpu.holders.push_back(&client);
      share.promised = share.peak;
      gpu.held += share.peak;
      gpu.held_used += share.peak;
      gpu.held_fixed += share.fixed;
      if ((client.state.wanted & bit(index)) == 0) gpu.interested += share.peak;
    } else {
      end_ask(client, share);
      gpu.holders.erase(std::find(gpu.holders.begin(), gpu.holders.end(), &client));
      gpu.held -= client.counted(share);
      share.promised = 0;
      gpu.held_used -= share.peak;
      gpu.held_fixed -= share.fixed;
      if ((client.state.wanted & bit(index)) == 0) gpu.interested -= share.peak;
    }
  });
  for_each_gpu(gpus, [&](GpuIndex index) { gpus_[index].latest_grant = now; });
  client.state.held = gpus;
  changed_ |= changed;
  for_each_gpu(changed, [&](GpuIndex index) { stand(client, *client.share(index), now); });
  if (!client.swaps) return;
  client.arrived_at = {};
  for (Share& share : client.shares) {
    set_shortage(share, 0);
    share.arrived = share.resident;
    if ((gpus & bit(share.gpu)) != 0) {
      share.stuck = false;  // it has another turn: its earlier failure no longer counts
      share.unresponsive_until = share.asked_without_progress = {};
    }
    count_movable(client, share);
    if (share.to_clear != 0) changed_ |= bit(share.gpu);  // a client that holds any GPU is not asked
  }
}

void Bookkeeping::set_beside(Client& client, Share& share, bool beside, Time now) {
  if (share.beside == beside) return;
  share.beside = beside;
  stand(client, share, now);
  changed_ |= bit(share.gpu);
}

std::shared_ptr<Group> Bookkeeping::group(Gpu& gpu, const Client& client) {
  Domain& domain = Bookkeeping::domain(gpu, client.domain);
  const SessionId session = client.session;
  if (session != 0) {
    const auto known = domain.sessions.find(session);
    if (known != domain.sessions.end()) return known->second.lock();
  }
  const auto group = std::make_shared<Group>(Group{.domain = domain, .session = session});
  ++domain.groups;
  if (session != 0) domain.sessions.emplace(session, group);
  return group;
}

Domain& Bookkeeping::domain(Gpu& gpu, DomainId id) {
  std::unique_ptr<Domain>& domain = gpu.domains[id];
  if (domain == nullptr) domain = std::make_unique<Domain>(Domain{.id = id});
  return *domain;
}

void Bookkeeping::leave_group(Share& share) {
  if (share.group.use_count() == 1) {
    Gpu& gpu = gpus_[share.gpu];
    Domain& domain = share.group->domain;
    domain.sessions.erase(share.group->session);
    if (--domain.groups == 0) {
      // Domains without clients are forgotten once that makes no difference. Seldom: a pass looks at all of them.
      if (gpu.domains.size() < gpu.most_domains) return share.group.reset();
      std::erase_if(gpu.domains, [&](const auto& entry) {
        return entry.second->groups == 0 && gpu.virtual_time.may_forget(entry.second->standing);
      });
      gpu.most_domains = std::max(gpu.domains.size() * 2, kFewDomains);
    }
  }
  share.group.reset();
}

void Bookkeeping::set_session(Client& client, SessionId session, Time now) {
  if (client.session == session) return;
  client.session = session;
  for (Share& share : client.shares) {
    const Standing::As stands = share.stands;
    stand_as(share, Standing::As::kAway, now);
    leave_group(share);
    share.group = group(gpus_[share.gpu], client);
    share.standing = {};
    stand_as(share, stands, now);
    changed_ |= bit(share.gpu);
  }
}

void Bookkeeping::had_before(const event::HadBefore& had, Time now) {
  Gpu& gpu = gpus_[had.gpu];
  gpu.virtual_time.resume(domain(gpu, had.domain).standing, {had.ahead, had.owed}, now);
}

void Bookkeeping::returned(Client& client, const event::Returned& returned, Time now) {
  Share& share = *client.share(returned.gpu);
  Group& group = *share.group;
  group.domain.virtual_time.resume(group.standing, {returned.party, returned.party_owed}, now);
  group.members.resume(share.standing, {returned.member, returned.member_owed}, now);
  client.held_time = std::max(client.held_time, returned.held);
  client.waited_time = std::max(client.waited_time, returned.waited);
}

Time Bookkeeping::even_at(const Share& holder, const Share& other, Time now) const {
  const Group& one = *holder.group;
  const Group& second = *other.group;
  if (&one == &second) return one.members.even_at(holder.standing, other.standing, now);
  const Domain& domain = one.domain;
  if (&domain == &second.domain) return domain.virtual_time.even_at(one.standing, second.standing, now);
  return gpus_[holder.gpu].virtual_time.even_at(domain.standing, second.domain.standing, now);
}

void Bookkeeping::stand_as(Share& share, Standing::As as, Time now) {
  Gpu& gpu = gpus_[share.gpu];
  Group& group = *share.group;
  const auto change = [&](VirtualTime& virtual_time, Standing& standing) {
    virtual_time.advance(now);
    virtual_time.change(standing, share.stands, as, gpu.credit);
  };
  change(gpu.virtual_time, group.domain.standing);
  change(group.domain.virtual_time, group.standing);
  change(group.members, share.standing);
  share.stands = as;
}

void Bookkeeping::charge(Share& share, Time more) {
  Group& group = *share.group;
  gpus_[share.gpu].virtual_time.charge(group.domain.standing, more);
  group.domain.virtual_time.charge(group.standing, more);
  group.members.charge(share.standing, more);
}

void Bookkeeping::stand(const Client& client, Share& share, Time now) {
  using As = Standing::As;
  const auto has = [&](GpuMask gpus) { return (gpus & bit(share.gpu)) != 0; };
  As as = has(client.state.wanted) ? As::kWaits : As::kAway;
  if (has(client.state.held)) as = share.beside ? As::kBeside : As::kHolds;
  const bool due = client.state.waiters != 0 && client.state.drain_at <= now;
  const bool ends_by_itself = share.stands == As::kHolds && as != As::kHolds && !due;
  const Time had = now - client.state.held_since;
  // An urgent client does not wait until it is its turn, nor does one that is let in before waiters ahead of it.
  const bool in_its_turn = !client.urgent_turn && client.let_in_until == Time{};
  if (share.stands == As::kWaits && as == As::kHolds && in_its_turn) {
    gpus_[share.gpu].virtual_time.next(share.group->domain.standing);
    share.group->domain.virtual_time.next(share.group->standing);
    share.group->members.next(share.standing);
  }
  stand_as(share, as, now);
  if (ends_by_itself && had < kShortestCharged) charge(share, kShortestCharged - had);
}

void Bookkeeping::set_wanted(Client& client, GpuMask gpus, Time now) {
  const GpuMask changed = client.state.wanted ^ gpus;
  for_each_gpu(changed, [&](GpuIndex index) {
    Gpu& gpu = gpus_[index];
    const bool wants = (gpus & bit(index)) != 0;
    if ((client.state.held & bit(index)) == 0) {
      const Bytes peak = client.share(index)->peak;
      gpu.interested += wants ? peak : -peak;
    }
    gpu.waiters += wants ? 1 : -1;
    if (gpu.waiters == 0) {
      waited_ &= ~bit(index);
    } else {
      waited_ |= bit(index);
    }
  });
  gangs_ += is_gang(gpus);
  gangs_ -= is_gang(client.state.wanted);
  client.state.wanted = gpus;
  changed_ |= changed;
  for_each_gpu(changed, [&](GpuIndex index) { stand(client, *client.share(index), now); });
}

void Bookkeeping::leave(Client& client) {
  for (Share& share : client.shares) {
    Gpu& gpu = gpus_[share.gpu];
    leave_group(share);
    gpu.contexts -= share.context;
    gpu.used -= share.used;
    gpu.fixed -= share.fixed;
    if (share.swaps) {
      discount_movable(client, share);
      gpu.gone += share.resident;
      gpu.swappers.erase(std::find(gpu.swappers.begin(), gpu.swappers.end(), &client));
    }
    gpu.all.erase(std::find(gpu.all.begin(), gpu.all.end(), &client));
    if (gpu.clients == 2) shared_ &= ~bit(share.gpu);
    if (--gpu.clients == 0) {
      gpu.crowded = false;
      gpu.measured.forget();  // the next GPU with this index may be a different one
    }
    changed_ |= bit(share.gpu);
  }
  clients_.erase(client.id);
}

}  // namespace rota::scheduler
