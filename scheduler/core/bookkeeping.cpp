// Every change of the books, with the sums that follow from it.
#include "scheduler/core/bookkeeping.h"

namespace rota::scheduler {

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

Client& Bookkeeping::join(ClientId id) {
  auto client = std::make_unique<Client>();
  client->id = id;
  client->parked.push_back(client.get());
  client->node = client->parked.begin();
  return *clients_.emplace(id, std::move(client)).first->second;
}

void Bookkeeping::add_gpu(Client& client, GpuIndex index, Bytes total, Bytes context) {
  Gpu& gpu = gpus_[index];
  if (gpu.clients == 0) gpu.total = total;
  context = std::min(context != 0 ? context : assumed_context(gpu.total), gpu.total);
  Share* share = client.share(index);
  if (share == nullptr) {
    client.shares.push_back({.gpu = index, .context = 0});
    share = &client.shares.back();
    client.state.touched |= bit(index);
    ++gpu.clients;
  }
  gpu.contexts += context - share->context;
  share->context = context;
  changed_ |= bit(index);
}

void Bookkeeping::use(Client& client, GpuIndex index, Bytes used, Bytes fixed, std::chrono::nanoseconds window,
                      Time now) {
  Share* share = client.share(index);
  Gpu& gpu = gpus_[index];
  used = std::min(used, gpu.total);
  fixed = std::min(fixed, used);
  Bytes peak = share->peak;
  if (used >= peak || now - share->peak_at > window) peak = used;
  if (used >= peak) share->peak_at = now;
  if (used == share->used && fixed == share->fixed && peak == share->peak) return;
  const bool holds = (client.state.held & bit(index)) != 0;
  const bool wants = (client.state.wanted & bit(index)) != 0;
  gpu.used += used - share->used;
  gpu.fixed += fixed - share->fixed;
  if (holds) {
    gpu.held += peak - share->peak;
    gpu.held_fixed += fixed - share->fixed;
  }
  if (holds || wants) gpu.interested += peak - share->peak;
  share->used = used;
  share->fixed = fixed;
  share->peak = peak;
  changed_ |= bit(index);
}

void Bookkeeping::set_held(Client& client, GpuMask gpus, Time now) {
  const GpuMask changed = client.state.held ^ gpus;
  for_each_gpu(changed, [&](GpuIndex index) {
    Gpu& gpu = gpus_[index];
    const Share& share = *client.share(index);
    if ((gpus & bit(index)) != 0) {
      gpu.holders.push_back(&client);
      gpu.held += share.peak;
      gpu.held_fixed += share.fixed;
      if ((client.state.wanted & bit(index)) == 0) gpu.interested += share.peak;
    } else {
      gpu.holders.erase(std::find(gpu.holders.begin(), gpu.holders.end(), &client));
      gpu.held -= share.peak;
      gpu.held_fixed -= share.fixed;
      if ((client.state.wanted & bit(index)) == 0) gpu.interested -= share.peak;
    }
  });
  for_each_gpu(gpus, [&](GpuIndex index) { gpus_[index].latest_grant = now; });
  client.state.held = gpus;
  changed_ |= changed;
}

void Bookkeeping::set_wanted(Client& client, GpuMask gpus) {
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
  client.state.wanted = gpus;
  changed_ |= changed;
}

void Bookkeeping::leave(Client& client) {
  for (const Share& share : client.shares) {
    Gpu& gpu = gpus_[share.gpu];
    gpu.contexts -= share.context;
    gpu.used -= share.used;
    gpu.fixed -= share.fixed;
    if (--gpu.clients == 0) gpu.crowded = false;
    changed_ |= bit(share.gpu);
  }
  clients_.erase(client.id);
}

}  // namespace rota::scheduler
