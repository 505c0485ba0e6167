// Who is next: who is in a hurry (event::Want::urgent), then who has had least of the GPU where turns are measured
// (Share::rank, set before it is queued), else first come first served. A waiter that cannot run yet reserves its whole
// set against those behind it, so that a client that wants many GPUs is not starved by those that want one.
#pragma once

#include <algorithm>
#include <list>
#include <utility>

#include "scheduler/core/bookkeeping.h"

namespace rota::scheduler {

class Order {
 public:
  // Of one client, or longer where hand-overs take long. Profilers interrupt its threads all the time.
  static constexpr Time kBetweenUrgent = std::chrono::seconds(1);
  // Of all clients of a GPU: some at once, and in the long run a third of the time.
  static constexpr int kUrgentTurns = 3;

  // Before others that want one of its GPUs, if it goes before them on all that both want; the client is not in the
  // queue.
  void enqueue(Client& client) {
    if (!std::exchange(client.keeps_place, false)) client.queue_number = ++queued_;
    queue_.splice(place_before(client, queue_.end()), client.parked, client.node);
  }
  // Ranks have grown of some who are in the queue: others that go before those now come forward.
  void ranks_grew() {
    for (auto at = queue_.begin(); at != queue_.end();) {
      const auto other = at++;
      queue_.splice(place_before(**other, other), queue_, other);
    }
  }
  // From now on the client, which is in the queue, goes before all who are not in a hurry.
  void hurry(Client& client) {
    for_each_gpu(client.state.wanted, [&](GpuIndex index) {
      Rank& rank = client.share(index)->rank;
      const Rank& least = first(index)->share(index)->rank;
      rank = {std::min(rank.party, least.party), std::min(rank.member, least.member)};
    });
    client.urgent = true;
    const auto place = std::find_if(queue_.begin(), queue_.end(),
                                    [&](const Client* other) { return other == &client || !other->urgent; });
    if (*place != &client) queue_.splice(place, queue_, client.node);
  }
  // The client is in the queue.
  void remove(Client& client) { client.parked.splice(client.parked.end(), queue_, client.node); }

  // From now on it is first come first served, or by ranks again: those who wait keep their places and are overtaken by
  // nobody for what they had before.
  void forget_ranks() {
    for (Client* client : queue_) {
      for (Share& share : client->shares) share.rank = {};
    }
  }

  // The first in the queue who wants this GPU; null: nobody.
  const Client* first(GpuIndex gpu) const {
    for (const Client* client : queue_) {
      if ((client->state.wanted & bit(gpu)) != 0) return client;
    }
    return nullptr;
  }

  // From the head of the queue: `grant(client)` for everybody who can run, which takes the client out of the queue.
  // `conflicts(client, gpu)` says who cannot. On some GPUs, `beside`, there may be clients that take nobody's turn, and
  // nothing is reserved against those: `is_beside(client, gpu)`. Returns the GPUs at which somebody cannot.
  template <typename IsBeside, typename Conflicts, typename Grant>
  GpuMask serve(const Bookkeeping& books, GpuMask beside, IsBeside is_beside, Conflicts conflicts, Grant grant) {
    GpuMask reserved = 0;
    GpuMask pressed = 0;
    for (auto next = queue_.begin(); next != queue_.end() && (books.waited() & (~reserved | beside)) != 0;) {
      Client& client = **next++;
      GpuMask blocked = client.state.wanted & reserved;
      for_each_gpu(blocked & beside, [&](GpuIndex index) {
        if (is_beside(client, index)) blocked &= ~bit(index);
      });
      for_each_gpu(client.state.wanted, [&](GpuIndex index) {
        if (!conflicts(client, index)) return;
        blocked |= bit(index);
        pressed |= bit(index);
      });
      if (blocked == 0) {
        grant(client);
      } else {
        reserved |= client.state.wanted;
      }
    }
    return pressed;
  }

 private:
  using Place = std::list<Client*>::iterator;
  // The foremost to which a client comes from `from`, past none that it does not go before.
  Place place_before(const Client& client, Place from) {
    Place place = from;
    for (Place at = from; at != queue_.begin();) {
      const Client& other = **--at;
      const GpuMask both = client.state.wanted & other.state.wanted;
      if (both == 0) continue;
      if (!goes_before(client, other, both)) break;
      place = at;
    }
    return place;
  }
  static bool goes_before(const Client& client, const Client& other, GpuMask gpus) {
    if (other.urgent) return false;
    bool before = true;
    for_each_gpu(gpus, [&](GpuIndex index) {
      const Share& one = *client.share(index);
      const Share& second = *other.share(index);
      const bool mates = one.party == second.party;
      const Time rank = mates ? one.rank.member : one.rank.party;
      const Time others = mates ? second.rank.member : second.rank.party;
      before &= rank != others ? rank < others : client.queue_number < other.queue_number;
    });
    return before;
  }

  std::list<Client*> queue_;  // who is in a hurry, then by rank, and of one rank in order of arrival
  std::uint64_t queued_ = 0;
};

}  // namespace rota::scheduler
