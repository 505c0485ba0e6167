// The scheduler's accounting: clients, their memory on each GPU, which of them hold or want a GPU, and the resulting
// sums.
//
// The sums per GPU are updated with every change rather than computed in each step: a step must stay well below a
// microsecond or two even with a thousand clients.
#pragma once

#include <algorithm>
#include <bit>
#include <list>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "scheduler/core/event.h"
#include "scheduler/core/outside.h"
#include "scheduler/core/virtual_time.h"
#include "scheduler/rules/measuring.h"

namespace rota::scheduler {

constexpr GpuMask bit(GpuIndex gpu) {
  return GpuMask{1} << gpu;
}

template <typename Visit>
void for_each_gpu(GpuMask mask, Visit visit) {
  for (; mask != 0; mask &= mask - 1) visit(static_cast<GpuIndex>(std::countr_zero(mask)));
}

// What is measured of a client while clients take turns (sharing.h).
struct Measurement {
  double u = -1;        // fraction of its own time (not of the time it waits) in which the GPU worked for it; negative:
                        // unknown
  double own_rate = 0;  // calls per second of its own time
  double alone = 0;     // the same if it contends, otherwise 0
  // When the current measurement began:
  event::Activity from{};
  Time held_from{};
  Time waited_from{};
  std::uint64_t wakes_from = 0;
  // When the window began in which collisions are looked for:
  event::Activity window_from{};
};

struct Group;

// A trust domain on one GPU.
struct Domain {
  DomainId id = 0;
  std::size_t groups = 0;  // with clients there
  Standing standing{};
  VirtualTime virtual_time{};                                      // of its groups
  std::unordered_map<SessionId, std::weak_ptr<Group>> sessions{};  // of those
};

// A session on one GPU, or a client that belongs to no session: a scheduling group (virtual_time.h) of its domain.
struct Group {
  Domain& domain;
  SessionId session = 0;  // 0: a single client
  Standing standing{};
  VirtualTime members{};  // of its clients
};

// Its position in the queue (order.h); all 0 if the queue is first come, first served.
struct Rank {
  Time domain{};
  Time group{};   // among those of one domain
  Time member{};  // among clients of one group
};

// One client's memory on one GPU, and its place there.
struct Share {
  GpuIndex gpu;
  Bytes context;
  Bytes used = 0;
  Bytes fixed = 0;
  Bytes fixed_for_now = 0;  // the part of it that is pinned temporarily
  Bytes peak = 0;           // the peak of `used` within the memory window
  Time peak_at{};
  Bytes promised = 0;  // for a holder; 0 for any other
  Bytes asked = 0;     // the total, more than is promised; 0: it asks for nothing
  // For clients that swap (policy/clearing.h).
  bool swaps = false;  // it has reported memory there that only it can evict
  Bytes resident = 0;
  Bytes shortage = 0;   // its deficit: what the driver has refused it although it holds the GPU
  Bytes free = 0;       // what the driver reported as free then
  Bytes gone_then = 0;  // Gpu::evicted when it reported that
  std::uint32_t refusals = 0;
  Bytes to_clear = 0;   // what it has been asked to evict while it does not hold the GPU
  Bytes asked_now = 0;  // scratch value while the clients to ask are chosen
  Bytes told = 0;       // the value of to_clear that it was last told,
  Bytes told_of = 0;    // and its resident bytes then
  // When it was asked, or when some of its memory was last evicted, not counting any time in between in which it was
  // not asked.
  Time progress_at{};
  Time asked_without_progress{};  // how long it had been asked without progress when the request last ended
  Time unresponsive_until{};      // 0: it may be asked to evict memory
  bool stuck = false;             // unresponsive: it evicted nothing when asked, nor since
  // incomplete.h: in this turn the driver has refused it memory that has not come since; until when its last turn
  // counts as futile (0: it does not); and by how much its memory does not fit, if it is passed over for that.
  bool refused = false;
  Time futile_until{};
  Bytes arrived = 0;  // the most that was there in this turn, in steps (event.h)
  Bytes lacks = 0;
  // For sharing.
  std::shared_ptr<Group> group{};
  Standing::As stands = Standing::As::kAway;
  Standing standing{};  // in its group
  Rank rank{};
  bool beside = false;  // it takes no turns: it runs concurrently with those that do
  Time switching{};     // how long its turns take to begin; 0: unknown
};

// What a client reports that it has done and how it has used its turns (event::Activity), and when rotad received that.
struct Evidence {
  event::Activity last{};
  Time called_at{};         // when it last reported calls, or came to the gate; 0: never
  Time rested_at{};         // when it last came back after a long pause; 0: never
  Time held_when_heard{};   // Client::held_time when it last reported how long its turns take to begin
  std::uint64_t wakes = 0;  // how often it has come to the gate after it paused by itself
  // Busy periods, in which it makes calls, by event::Activity::open: when the current one began and when it last made a
  // call, how long the last was, and how many there have been.
  Time busy_since{};
  Time last_call{};
  Time last_busy_period{};
  std::uint64_t busy_periods = 0;
  // The shorter of its last two; 0: not known yet. Its first is its start, and tells nothing about others.
  Time busy_period{};
  // It has made calls since it was heard last, at `before`: in another busy period if it has held the GPU that long
  // without calls.
  void goes_on(Time before, Time pause) {
    if (last.open - last_call >= pause) end_busy_period(before);
    last_call = last.open;
  }
  // The current one has ended; the next begins at `next`.
  void end_busy_period(Time next) {
    if (last_call > busy_since) {
      const Time before = std::exchange(last_busy_period, last_call - busy_since);
      ++busy_periods;
      if (busy_periods != 1) busy_period = busy_periods == 2 ? last_busy_period : std::min(last_busy_period, before);
    }
    busy_since = next;
  }
};

// What a client that measures has asked for, and how much time it has taken (policy/alone.h).
struct Measuring {
  bool asks = false;
  Time presses_since{};  // since when others are asked to yield its GPUs; 0: they are not
  Time until{};          // until when it has exclusive use of them; 0: it does not
  GpuMask gpus = 0;      // on which it has pressed others
  protocol::TimeTaken taken;
};

struct Client {
  ClientId id;
  ClientState state;
  Evidence evidence;
  Measurement measurement;
  Time held_time{};      // how long it has held any GPU
  Time waited_time{};    // how long it has waited for GPUs
  bool was_due = false;  // the current grant's time to drain has come, whatever it is told afterwards
  DomainId domain = 0;
  SessionId session = 0;
  bool woke = false;  // it waits, or will, after it paused by itself, not because its turn was over or it is new
  std::uint32_t last_grant = 0;
  std::vector<Share> shares;
  std::uint64_t ask_number = 0;  // in the order in which clients asked; 0: it asks for nothing
  bool swaps = false;            // on some GPU
  Time last_held{};              // when its last grant ended; 0: it has had none

  // admission.h: GPUs that it holds and must yield, since the memory of their holders no longer fits together.
  GpuMask yields = 0;

  // order.h: this client's node while it does not wait, so that queueing allocates nothing.
  std::list<Client*> parked;
  std::list<Client*>::iterator node;
  std::uint64_t queue_number = 0;  // increases with each client that is queued
  bool keeps_place = false;        // when queued again, it keeps its number

  // backfill.h: from when on all GPUs that it waits for are reserved for it (0: not known yet); and until when it may
  // hold GPUs that it got although waiters ahead of it want them (0: it got none of those).
  Time reserves_at{};
  Time let_in_until{};
  bool overtaken = false;  // while it waits

  bool passed_over = false;  // on some GPU that it waits for, a turn would be futile (policy/incomplete.h)

  // The client is urgent (event::Want::urgent): it waits at the head of the queue, or holds a turn that it got in this
  // way; and when it last became urgent.
  bool urgent = false;
  bool urgent_turn = false;
  Time urgent_at{};

  Measuring measuring;

  // pressure.h: since when it is under pressure, when missing memory of it was last restored in this turn (0: none
  // has), and its entry among the deadlines (0: none).
  Time pressed_since{};
  Time arrived_at{};
  Time deadline{};
  // event::Withdraw: since when and by when it has to give back; 0: it has not.
  Time withdrawn_at{};
  Time withdrawn_by{};

  Share* share(GpuIndex gpu) {
    const auto found = std::find_if(shares.begin(), shares.end(), [gpu](const Share& s) { return s.gpu == gpu; });
    return found == shares.end() ? nullptr : &*found;
  }
  const Share* share(GpuIndex gpu) const { return const_cast<Client*>(this)->share(gpu); }
  // What counts for it on a GPU: its promise if it holds the GPU, otherwise its recent peak.
  Bytes counted(const Share& share) const { return (state.held & bit(share.gpu)) != 0 ? share.promised : share.peak; }
  // What it will be able to evict on a GPU that it does not hold, in addition to what it could evict now.
  Bytes later(const Share& share) const { return (state.held & bit(share.gpu)) != 0 ? 0 : share.fixed_for_now; }
  // What it could evict on a GPU that it does not hold.
  Bytes movable(const Share& share) const {
    const bool holds = (state.held & bit(share.gpu)) != 0;
    return holds || share.resident <= share.fixed ? 0 : share.resident - share.fixed;
  }
};

struct Gpu {
  Bytes total = 0;
  Bytes contexts = 0;    // of all clients that touch it: a context stays even while its client does not run
  Bytes used = 0;        // of all clients
  Bytes fixed = 0;       // of all clients
  Bytes held = 0;        // counted bytes of the holders
  Bytes held_used = 0;   // recent peaks of the holders
  Bytes asked = 0;       // asked for beyond what the askers are promised
  Bytes held_fixed = 0;  // bytes of the holders that cannot be evicted
  Bytes interested = 0;  // recent peaks of holders and waiters
  std::uint32_t clients = 0;
  std::uint32_t waiters = 0;
  bool crowded = false;     // see GpuState
  bool lacks_room = false;  // a waiter's memory does not fit together with that of the holders
  Time latest_grant{};
  VirtualTime virtual_time;  // of domains
  // Those with clients, and those without that have had more than their share: they may come back.
  std::unordered_map<DomainId, std::unique_ptr<Domain>> domains;
  std::size_t most_domains = 0;  // above which those that make no difference are forgotten
  Time credit{};                 // how far below the level a returning client may be (virtual_time.h)
  Time urgent_until{};           // time given to urgent turns lately (Core::hurry)
  std::vector<Client*> all;      // clients that touch it
  std::vector<Client*> holders;  // in the order of their grants
  std::vector<Client*> askers;   // holders that ask for more than they are promised, in the order in which they asked

  // What clients that swap have there (policy/clearing.h).
  std::vector<Client*> swappers;
  Bytes movable = 0;  // what clients that do not hold the GPU could evict
  Bytes later = 0;    // what they could evict if it were not pinned temporarily
  Bytes stuck = 0;    // the part of that which they did not evict when asked
  Bytes gone = 0;     // total that was evicted since rotad started
  Bytes outside = 0;  // in use by nobody that rotad knows, inferred from refusals
  Time outside_seen{};
  Time fits_since{};         // since when a holder has been refused memory that should be free; 0: no holder is
  Bytes least_outside = 0;   // the least that refusals have shown since then
  std::size_t clearing = 0;  // clients that have been asked to evict memory
  std::size_t lacking = 0;   // holders that have been refused memory (Share::shortage)
  Time look_at{};            // when to check again even if nothing happens; 0: never
  Outside measured;          // unmanaged memory according to the driver
  // What counts as unmanaged memory: the same figure for admission, promises, limits and clearing.
  Bytes taken_outside() const { return std::max(outside, measured.bytes()); }
  // Whether swap memory needs any attention: where no client swaps, this costs nothing.
  bool has_swap() const { return !swappers.empty() || outside != 0 || look_at != Time{}; }
};

class Bookkeeping {
 public:
  // The least that a turn costs which its holder ends: a client that makes no use of its turns takes the others' time.
  // Twice what a hand-over takes where it is fast.
  static constexpr Time kShortestCharged = std::chrono::microseconds(500);

  Bookkeeping();

  Client* find(ClientId client) const;  // null: unknown
  Gpu& gpu(GpuIndex index) { return gpus_[index]; }
  const Gpu& gpu(GpuIndex index) const { return gpus_[index]; }
  GpuMask touched() const;                    // GPUs that some client touches
  GpuMask shared() const { return shared_; }  // GPUs that several clients touch
  GpuMask waited() const { return waited_; }  // GPUs that some client wants and does not hold yet
  GpuMask asked() const { return asked_; }    // GPUs with askers
  // How many clients wait for more than one GPU.
  std::uint32_t gangs() const { return gangs_; }
  // GPUs where clients that do not hold them have memory that could be evicted.
  GpuMask movable() const { return movable_; }
  // GPUs where such clients have memory that is pinned temporarily.
  GpuMask later() const { return later_; }

  Client& join(const event::Join& join);
  void add_gpu(Client& client, GpuIndex index, Bytes total, Bytes context);
  // For a GPU that the client touches. `window`: how long its peak counts. Returns whether this says that the driver
  // has refused the client memory again.
  bool use(Client& client, const event::Usage& usage, std::chrono::nanoseconds window, Time now);
  // What the driver reports about a GPU, or that it has not reported anything for too long.
  void measure(const event::Measured& measured, Time now);
  void forget_measured(GpuIndex index);
  // Sets whether a client's memory there counts as out of reach.
  void set_stuck(Client& client, Share& share, bool stuck);
  // What a holder asks for on a GPU, in total. Ignored if the client does not hold the GPU.
  void ask(Client& client, GpuIndex index, Bytes bytes);
  // Raises a holder's promise; this answers its ask if it is covered.
  void promise(Client& client, GpuIndex index, Bytes bytes);
  // Each GPU that is new to a holder is promised what counted for it there until then.
  void set_held(Client& client, GpuMask gpus, Time now);
  // What an earlier rotad knew (event.h). The client touches the GPU, and neither holds nor wants any.
  void had_before(const event::HadBefore& had, Time now);
  void returned(Client& client, const event::Returned& returned, Time now);
  // From now on the client belongs to this session on all GPUs.
  void set_session(Client& client, SessionId session, Time now);
  // By the current standing of its domain, its group and itself.
  static Rank rank(const Share& share) {
    const Group& group = *share.group;
    return {group.domain.standing.served, group.standing.served, share.standing.served};
  }
  // When a holder will have had as much of a GPU as another client, or when it did: compared by domain, within one
  // domain by group, and within one group by client. Time::max(): never, as things are.
  Time even_at(const Share& holder, const Share& other, Time now) const;
  // Sets whether it takes turns there or runs concurrently with those that do.
  void set_beside(Client& client, Share& share, bool beside, Time now);
  // How long it has held GPUs, including the current grant.
  static Time held_time(const Client& client, Time now) {
    return client.held_time + (client.state.held != 0 ? now - client.state.held_since : Time{});
  }
  // How long it has waited for GPUs without holding any.
  static Time waited_time(const Client& client, Time now) {
    const bool waits = client.state.wanted != 0 && client.state.held == 0;
    return client.waited_time + (waits ? now - client.state.wanted_since : Time{});
  }

  void set_wanted(Client& client, GpuMask gpus, Time now);
  // The client must neither hold nor want anything.
  void leave(Client& client);

  // GPUs whose holders, waiters or memory have changed since the step began.
  GpuMask changed() const { return changed_; }
  void begin_step() { changed_ = 0; }
  void mark_changed(GpuMask gpus) { changed_ |= gpus; }

 private:
  void stand(const Client& client, Share& share, Time now);
  void stand_as(Share& share, Standing::As as, Time now);
  void charge(Share& share, Time more);
  std::shared_ptr<Group> group(Gpu& gpu, const Client& client);
  static Domain& domain(Gpu& gpu, DomainId id);
  void leave_group(Share& share);
  void end_ask(Client& client, Share& share);
  Bytes explained(GpuIndex index) const;
  bool use_swap(Client& client, Share& share, const event::Usage& usage, Time now);
  void set_shortage(Share& share, Bytes bytes);
  void count_movable(const Client& client, const Share& share);
  void discount_movable(const Client& client, const Share& share);

  std::unordered_map<ClientId, std::unique_ptr<Client>> clients_;
  std::vector<Gpu> gpus_;

  GpuMask shared_ = 0;
  GpuMask waited_ = 0;
  GpuMask asked_ = 0;
  GpuMask movable_ = 0;
  GpuMask later_ = 0;
  GpuMask changed_ = 0;
  std::uint64_t asks_ = 0;
  std::uint32_t gangs_ = 0;
};

}  // namespace rota::scheduler
