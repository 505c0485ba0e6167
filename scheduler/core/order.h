// Which client is next: first urgent ones (event::Want::urgent), then, with measured turns, the one that has had least
// of the GPU (Share::rank, set before it is queued), otherwise first come, first served. A waiter that cannot run yet
// has its GPUs reserved against those behind it, except for those that they may use until it can (backfill.h). So a
// client that wants many GPUs is not starved by clients that want one.
#pragma once

#include <algorithm>
#include <list>
#include <optional>
#include <utility>

#include "scheduler/core/bookkeeping.h"

namespace rota::scheduler {

class Order {
 public:
  // Between urgent turns of one client; longer where hand-overs take long. Profilers interrupt its threads all the
  // time.
  static constexpr Time kBetweenUrgent = std::chrono::seconds(1);
  // Of all clients of a GPU: a few at once, and a third of the time in the long run.
  static constexpr int kUrgentTurns = 3;

  // Queues the client, which must not be in the queue, before each client that it goes before on every GPU that both
  // want.
  void enqueue(Client& client) {
    if (!std::exchange(client.keeps_place, false)) client.queue_number = ++queued_;
    queue_.splice(place_before(client, queue_.end()), client.parked, client.node);
  }
  // The ranks of some clients in the queue have grown: clients that now go before them move forward.
  void ranks_grew() {
    for (auto at = queue_.begin(); at != queue_.end();) {
      const auto other = at++;
      queue_.splice(place_before(**other, other), queue_, other);
    }
  }
  // From now on the client, which must be in the queue, goes before all that are not urgent.
  void hurry(Client& client) {
    for_each_gpu(client.state.wanted, [&](GpuIndex index) {
      Rank& rank = client.share(index)->rank;
      const Rank& least = foremost(index)->share(index)->rank;
      rank = {std::min(rank.domain, least.domain), std::min(rank.group, least.group),
              std::min(rank.member, least.member)};
    });
    client.urgent = true;
    const auto place = std::find_if(queue_.begin(), queue_.end(),
                                    [&](const Client* other) { return other == &client || !other->urgent; });
    if (*place != &client) queue_.splice(place, queue_, client.node);
  }
  // The client must be in the queue.
  void remove(Client& client) { client.parked.splice(client.parked.end(), queue_, client.node); }

  // The queue changes to first come, first served, or back to ranks. Clients that wait keep their places, and nobody
  // overtakes them because of their earlier ranks.
  void forget_ranks() {
    for (Client* client : queue_) {
      for (Share& share : client->shares) share.rank = {};
    }
  }

  // The first client in the queue that wants this GPU and is not passed over; null if there is none.
  const Client* first(GpuIndex gpu) const { return find(gpu, false); }

  // From the head of the queue: calls `grant(client, until)`, which takes the client out of the queue, for each client
  // that can run; with a time that is not 0 if it is let in before waiters ahead of it, until then. `conflicts(client,
  // gpu)` tells which cannot. On the GPUs in `beside` there may be clients that run concurrently with others' turns
  // (`is_beside(client, gpu)`); reservations do not block those. Returns the GPUs on which some client cannot run.
  template <typename Backfill, typename IsBeside, typename Conflicts, typename Grant>
  GpuMask serve(const Bookkeeping& books, Backfill& backfill, GpuMask beside, Time now, IsBeside is_beside,
                Conflicts conflicts, Grant grant) {
    while (true) {
      GpuMask reserved = 0;
      GpuMask pressed = 0;
      bool let_in = false;
      backfill.begin(now);
      for (auto next = queue_.begin(); next != queue_.end() && (books.waited() & (~reserved | beside)) != 0;) {
        Client& client = **next++;
        if (client.passed_over) continue;
        GpuMask ahead = client.state.wanted & (reserved | backfill.open());  // that waiters ahead of it want
        for_each_gpu(ahead & beside, [&](GpuIndex index) {
          if (is_beside(client, index)) ahead &= ~bit(index);
        });
        GpuMask in_way = 0;
        for_each_gpu(client.state.wanted, [&](GpuIndex index) {
          if (conflicts(client, index)) in_way |= bit(index);
        });
        pressed |= in_way;
        if (const auto until = in_way == 0 ? may_run_until(backfill, client, ahead, reserved) : std::nullopt) {
          let_in |= *until != Time{};
          grant(client, *until);
        } else {
          reserved |= backfill.pass(client, in_way, pressed, reserved);
        }
      }
      if (!let_in) return pressed;  // otherwise it may be in the way of waiters ahead of it
    }
  }

 private:
  // For a client that conflicts with no holder: until when it may run, 0 if it is its turn; nothing if it may not.
  // `ahead`: what waiters ahead of it want of its GPUs.
  template <typename Backfill>
  std::optional<Time> may_run_until(Backfill& backfill, const Client& client, GpuMask ahead, GpuMask reserved) {
    if (ahead == 0) return Time{};
    if ((ahead & reserved) == 0) return backfill.may_run_until(client, ahead);
    const std::optional<Time> until = backfill.may_overtake_until(client);
    if (!until) return until;
    for (Client* other : queue_) {
      if (other == &client) break;
      if ((other->state.wanted & client.state.wanted) != 0 && !other->passed_over) backfill.overtaken(*other);
    }
    return until;
  }
  const Client* foremost(GpuIndex gpu) const { return find(gpu, true); }
  const Client* find(GpuIndex gpu, bool passed_over) const {
    for (const Client* client : queue_) {
      if ((client->state.wanted & bit(gpu)) != 0 && (passed_over || !client->passed_over)) return client;
    }
    return nullptr;
  }

  using Place = std::list<Client*>::iterator;
  // The foremost place that the client reaches from `from` without passing any that it does not go before.
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
      const auto [rank, others] = comparable(one, second);
      before &= rank != others ? rank < others : client.queue_number < other.queue_number;
    });
    return before;
  }
  static std::pair<Time, Time> comparable(const Share& one, const Share& other) {
    if (one.group == other.group) return {one.rank.member, other.rank.member};
    if (&one.group->domain == &other.group->domain) return {one.rank.group, other.rank.group};
    return {one.rank.domain, other.rank.domain};
  }

  std::list<Client*> queue_;  // urgent clients first, then by rank, then in order of arrival
  std::uint64_t queued_ = 0;
};

}  // namespace rota::scheduler
