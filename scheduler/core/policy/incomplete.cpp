// Decides which turns were futile, and what explains it.
#include "scheduler/core/policy/incomplete.h"

#include <algorithm>
#include <utility>

namespace rota::scheduler {

namespace {

// What stays on the GPU in addition to this client's memory.
Bytes stays(const Gpu& gpu, const Client& client, const Share& share) {
  const Bytes own_stuck = share.stuck ? client.movable(share) : 0;
  return gpu.contexts + gpu.taken_outside() + (gpu.fixed - share.fixed) + (gpu.stuck - own_stuck);
}

Bytes without_room(const Gpu& gpu, Bytes bytes) {
  return bytes > gpu.total ? bytes - gpu.total : 0;
}

}  // namespace

void Incomplete::heard(const Client& holder, Share& share) {
  if ((holder.state.held & bit(share.gpu)) == 0) {
    share.refused = false;
  } else if (share.shortage != 0) {
    share.refused = true;
  } else if (share.resident >= share.used) {
    share.refused = false;  // all of it was restored after all
  }
}

void Incomplete::ending(Client& client, Time now) {
  const Time took = now - client.state.held_since;
  for (Share& share : client.shares) {
    if ((client.state.held & bit(share.gpu)) == 0) continue;
    const bool was_futile = std::exchange(share.refused, false) && share.swaps && share.resident < share.used;
    if (was_futile) {
      share.futile_until = now + std::max(kVerdict, kRest * took);
      gpus_ |= bit(share.gpu);
    } else if (share.resident >= share.used) {
      share.futile_until = {};
    }
  }
}

Bytes Incomplete::beyond(const Client& client, const Share& share) const {
  const Gpu& gpu = books_.gpu(share.gpu);
  return without_room(gpu, stays(gpu, client, share) + share.used);
}

Bytes Incomplete::beyond_what_is_fixed_for_good(const Client& client, const Share& share) const {
  const Gpu& gpu = books_.gpu(share.gpu);
  return without_room(gpu, stays(gpu, client, share) - (gpu.later - client.later(share)) + share.used);
}

bool Incomplete::cannot_run(const Client& client, const Share& share) const {
  const bool holds = (client.state.held & bit(share.gpu)) != 0;
  const bool all_there = !share.swaps || share.resident >= share.used;
  const bool was_futile = share.futile_until != Time{};
  return (holds ? (was_futile || share.refused) && !all_there : was_futile) && beyond(client, share) != 0;
}

Bytes Incomplete::lacks(const Client& client, const Share& share) const {
  const bool holds = (client.state.held & bit(share.gpu)) != 0;
  return !holds ? share.lacks : cannot_run(client, share) ? beyond(client, share) : 0;
}

Bytes Incomplete::lacks_for_good(const Client& client, const Share& share) const {
  return std::min(lacks(client, share), beyond_what_is_fixed_for_good(client, share));
}

// Where nobody else could make use of the GPU, it may as well try.
bool Incomplete::futile(const Client& client, GpuIndex index) const {
  if ((client.state.wanted & bit(index)) == 0 || (client.state.held & bit(index)) != 0) return false;
  if (!cannot_run(client, *client.share(index))) return false;
  const std::vector<Client*>& all = books_.gpu(index).all;
  return std::any_of(all.begin(), all.end(), [&](const Client* other) {
    const bool there = ((other->state.held | other->state.wanted) & bit(index)) != 0;
    return other != &client && there && !cannot_run(*other, *other->share(index));
  });
}

void Incomplete::expire(GpuIndex index, Time now) {
  bool left = false;
  for (Client* client : books_.gpu(index).all) {
    Share& share = *client->share(index);
    if (share.futile_until <= now) share.futile_until = {};
    left |= share.futile_until != Time{};
  }
  if (!left) gpus_ &= ~bit(index);
}

std::optional<Time> Incomplete::next_deadline() const {
  std::optional<Time> next;
  for_each_gpu(gpus_, [&](GpuIndex index) {
    for (const Client* client : books_.gpu(index).all) {
      const Time until = client->share(index)->futile_until;
      if (until != Time{} && (!next || until < *next)) next = until;
    }
  });
  return next;
}

GpuMask Incomplete::due(Time now) const {
  GpuMask due = 0;
  for_each_gpu(gpus_, [&](GpuIndex index) {
    for (const Client* client : books_.gpu(index).all) {
      const Time until = client->share(index)->futile_until;
      if (until != Time{} && until <= now) due |= bit(index);
    }
  });
  return due;
}

}  // namespace rota::scheduler
