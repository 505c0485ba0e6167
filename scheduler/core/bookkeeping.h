// The scheduler's books: clients, their memory on each GPU, who holds and who wants what, and the sums that follow.
//
// The sums per GPU are kept up to date with every change rather than added up in each step: with a thousand clients a
// step has to stay well below a microsecond or two.
#pragma once

#include <algorithm>
#include <bit>
#include <list>
#include <memory>
#include <unordered_map>
#include <vector>

#include "scheduler/core/event.h"
#include "scheduler/core/outside.h"
#include "scheduler/core/virtual_time.h"
#include "scheduler/protocol/measuring.h"

namespace rota::scheduler {

constexpr GpuMask bit(GpuIndex gpu) {
  return GpuMask{1} << gpu;
}

template <typename Visit>
void for_each_gpu(GpuMask mask, Visit visit) {
  for (; mask != 0; mask &= mask - 1) visit(static_cast<GpuIndex>(std::countr_zero(mask)));
}

// What is found out of a client on one GPU, in turns (sharing.h).
struct Measurement {
  double u = -1;        // the part of its own time, not that in which it waits, in which the GPU worked for it; below
                        // 0: not known
  double own_rate = 0;  // calls per second of its own time,
  double alone = 0;     // the same if it contends, else 0
  // At the beginning of what is being measured now,
  event::Activity from{};
  Time held_from{};
  Time waited_from{};
  std::uint64_t wakes_from = 0;
  // and of the window in which it is seen whether it contends.
  event::Activity window_from{};
};

// A session on one GPU, or a client that belongs to none: what virtual_time.h calls a party.
struct Party {
  SessionId session = 0;  // 0: a client alone
  Standing standing;
  VirtualTime members;  // of its clients, each a party of its own here
};

// How far it goes in the queue (order.h); all 0 where it is first come first served.
struct Rank {
  Time party{};
  Time member{};  // among clients of one party
};

// One client's memory on one GPU, and its place there.
struct Share {
  GpuIndex gpu;
  Bytes context;
  Bytes used = 0;
  Bytes fixed = 0;
  Bytes peak = 0;  // the most it used within the memory window
  Time peak_at{};
  // Of a holder that asks before it takes; 0 for any other.
  Bytes promised = 0;
  Bytes asked = 0;  // in all, more than is promised; 0: it asks for nothing
  // Of clients that swap (clearing.h).
  bool swaps = false;  // has said that some of its memory is there which only it can take away
  Bytes resident = 0;
  Bytes shortage = 0;   // what the driver has refused it although it holds the GPU
  Bytes free = 0;       // and what it called free then
  Bytes gone_then = 0;  // Gpu::gone when it said so
  Bytes to_clear = 0;   // what it has been asked to clear, as long as it does not hold the GPU
  Bytes asked_now = 0;  // while it is settled who is asked
  Bytes told = 0;       // and what it has last been told of that,
  Bytes told_of = 0;    // with so many resident bytes
  // When it was asked, or when some of its memory last went, not counting the time in between in which it was not
  // asked.
  Time progress_at{};
  Time asked_in_vain{};    // for so long when it was last not asked any more
  Time unwilling_until{};  // 0: it is asked for room
  bool stuck = false;      // has been found not to clear, and has not cleared anything since
  // Of sharing.
  std::shared_ptr<Party> party{};
  Standing::As stands = Standing::As::kAway;
  Standing standing{};  // in its party
  Rank rank{};
  bool beside = false;  // it takes no turns: it runs beside those who do
  Time switching{};     // how long its turns take to begin; 0: not known
  Measurement measurement{};
};

// What a client has done and how it has used its turns, as it says (event::Activity), and when rotad heard of it.
struct Evidence {
  event::Activity last{};
  Time called_at{};         // when it was last heard to have called, or came to the gate; 0: never
  Time rested_at{};         // when it last came back after a long pause; 0: never
  Time held_when_heard{};   // Client::held_time when it last said how long its turns take to begin
  std::uint64_t wakes = 0;  // how often it has come to the gate after a pause of its own
};

// What a client that measures has asked for, and taken (alone.h).
struct Measuring {
  bool asks = false;
  Time presses_since{};  // others are to leave its GPUs since then; 0: they are not
  Time left{};           // what it might take then
  Time until{};          // it has them alone until then; 0: it has not
  GpuMask gpus = 0;      // that it has pressed others on
  protocol::TimeTaken taken;
};

struct Client {
  ClientId id;
  ClientState state;
  Evidence evidence;
  Time held_time{};      // how long it has held any
  Time waited_time{};    // and waited for some
  bool was_due = false;  // this grant's time to drain has come, whatever it is told since
  SessionId session = 0;
  bool woke = false;  // it waits, or will, after a pause of its own, not because its turn was over or it is new
  bool asks = false;  // for room, before it takes it
  std::uint32_t last_grant = 0;
  std::vector<Share> shares;
  std::uint64_t ask_number = 0;  // the order in which clients asked; 0: it asks for nothing
  bool swaps = false;            // on some GPU
  Time last_held{};              // when its last grant ended; 0: it has had none

  // admission.h: held GPUs on which the holders have grown too large together, and this one was granted last.
  GpuMask yields = 0;

  // order.h: this client's node while it does not wait, so that queueing allocates nothing.
  std::list<Client*> parked;
  std::list<Client*>::iterator node;
  std::uint64_t queue_number = 0;  // grows with each that is queued
  bool keeps_place = false;        // it is queued with the number that it had

  // It is in a hurry (event::Want::urgent): waits before all others, or holds a turn that it got so; and since when it
  // last was.
  bool urgent = false;
  bool urgent_turn = false;
  Time urgent_at{};

  Measuring measuring;

  // pressure.h: since when it is under pressure, and its entry among the deadlines (0: none).
  Time pressed_since{};
  Time deadline{};

  Share* share(GpuIndex gpu) {
    const auto found = std::find_if(shares.begin(), shares.end(), [gpu](const Share& s) { return s.gpu == gpu; });
    return found == shares.end() ? nullptr : &*found;
  }
  const Share* share(GpuIndex gpu) const { return const_cast<Client*>(this)->share(gpu); }
  // What it counts with on a GPU: with its promise where it holds it and asks first, else with what it used lately.
  Bytes counted(const Share& share) const {
    return asks && (state.held & bit(share.gpu)) != 0 ? share.promised : share.peak;
  }
  // What it could clear on a GPU that it does not hold.
  Bytes movable(const Share& share) const {
    const bool holds = (state.held & bit(share.gpu)) != 0;
    return holds || share.resident <= share.fixed ? 0 : share.resident - share.fixed;
  }
};

struct Gpu {
  Bytes total = 0;
  Bytes contexts = 0;    // of all clients that touch it: a context stays whether its client runs or not
  Bytes used = 0;        // of all clients
  Bytes fixed = 0;       // of all clients
  Bytes held = 0;        // counted bytes of the holders
  Bytes held_used = 0;   // what the holders used lately
  Bytes asked = 0;       // by the askers, beyond what they are promised
  Bytes held_fixed = 0;  // fixed bytes of the holders
  Bytes interested = 0;  // what holders and waiters used lately
  std::uint32_t clients = 0;
  std::uint32_t waiters = 0;
  bool crowded = false;     // see GpuState
  bool lacks_room = false;  // somebody waits whose memory does not fit beside that of the holders
  Time latest_grant{};
  VirtualTime virtual_time;  // of parties
  Time credit{};             // how far behind the mean a client may be that comes back
  Time urgent_until{};       // who was let go before others lately, counted in time (Core::hurry)
  std::vector<Client*> all;  // who touches it
  std::unordered_map<SessionId, std::weak_ptr<Party>> sessions;  // of those
  std::vector<Client*> holders;                                  // in the order of their grants
  std::vector<Client*> askers;  // holders that ask for more than is promised, in the order they asked

  // What clients that swap have there (clearing.h).
  std::vector<Client*> swappers;
  Bytes movable = 0;  // what those who do not hold the GPU could clear
  Bytes stuck = 0;    // of that, what they have been found not to clear
  Bytes gone = 0;     // what has gone since rotad began
  Bytes outside = 0;  // that nobody has whom rotad knows, as refusals show
  Time outside_seen{};
  Time fits_since{};         // since when a holder is refused memory that should be free; 0: none is
  std::size_t clearing = 0;  // clients that have been asked to clear
  Time look_at{};            // when time alone changes something; 0: never
  Outside measured;          // the same as the driver's count shows it
  // What counts as taken by those whom rotad does not know: in admission, promises, limits and clearing alike.
  Bytes taken_outside() const { return std::max(outside, measured.bytes()); }
  // Whether there is anything to look at for swap memory: where nobody swaps it costs nothing.
  bool has_swap() const { return !swappers.empty() || outside != 0 || look_at != Time{}; }
};

class Bookkeeping {
 public:
  Bookkeeping();

  Client* find(ClientId client) const;  // null: unknown
  Gpu& gpu(GpuIndex index) { return gpus_[index]; }
  const Gpu& gpu(GpuIndex index) const { return gpus_[index]; }
  GpuMask touched() const;                    // GPUs that somebody touches
  GpuMask shared() const { return shared_; }  // GPUs that several clients touch
  GpuMask waited() const { return waited_; }  // GPUs that somebody wants and does not hold yet
  GpuMask asked() const { return asked_; }    // GPUs with askers
  // GPUs where clients that do not hold them have memory that could be cleared.
  GpuMask movable() const { return movable_; }

  Client& join(ClientId id, bool asks);
  void add_gpu(Client& client, GpuIndex index, Bytes total, Bytes context);
  // Of a GPU that the client touches. `window`: how long its most counts.
  void use(Client& client, const event::Usage& usage, std::chrono::nanoseconds window, Time now);
  // What the driver says of a GPU, or that it has said nothing for too long.
  void measure(const event::Measured& measured, Time now);
  void forget_measured(GpuIndex index);
  // Whether a client's memory there counts as out of reach.
  void set_stuck(Client& client, Share& share, bool stuck);
  // What a holder asks for on a GPU, in all. One that does not ask first, or does not hold it, is not heard.
  void ask(Client& client, GpuIndex index, Bytes bytes);
  // Raises a holder's promise; covers its ask, if it does.
  void promise(Client& client, GpuIndex index, Bytes bytes);
  // With what each new GPU's holder counts with until then as its promise.
  void set_held(Client& client, GpuMask gpus, Time now);
  // From now on it belongs to this session on all GPUs.
  void set_session(Client& client, SessionId session, Time now);
  // As its party and it stand now.
  static Rank rank(const Share& share) { return {share.party->standing.served, share.standing.served}; }
  // When a holder will have had as much of a GPU as another client, or had it: as their parties have, or within one as
  // they have. Time::max(): never, as things are.
  Time even_at(const Share& holder, const Share& other, Time now) const;
  // Whether it takes turns there or runs beside those who do.
  void set_beside(Client& client, Share& share, bool beside, Time now);
  // How long it has held GPUs, with the grant in force.
  static Time held_time(const Client& client, Time now) {
    return client.held_time + (client.state.held != 0 ? now - client.state.held_since : Time{});
  }
  // And waited for some without holding any.
  static Time waited_time(const Client& client, Time now) {
    const bool waits = client.state.wanted != 0 && client.state.held == 0;
    return client.waited_time + (waits ? now - client.state.wanted_since : Time{});
  }

  void set_wanted(Client& client, GpuMask gpus, Time now);
  // Of a client that neither holds nor wants anything.
  void leave(Client& client);

  // GPUs whose holders, waiters or memory have changed since the step began.
  GpuMask changed() const { return changed_; }
  void begin_step() { changed_ = 0; }
  void mark_changed(GpuMask gpus) { changed_ |= gpus; }

 private:
  void stand(const Client& client, Share& share, Time now);
  void stand_as(Share& share, Standing::As as, Time now);
  std::shared_ptr<Party> party(Gpu& gpu, SessionId session);
  void leave_party(Share& share);
  void end_ask(Client& client, Share& share);
  Bytes explained(GpuIndex index) const;
  void use_swap(Client& client, Share& share, const event::Usage& usage, Time now);
  void count_movable(const Client& client, const Share& share);
  void discount_movable(const Client& client, const Share& share);

  std::unordered_map<ClientId, std::unique_ptr<Client>> clients_;
  std::vector<Gpu> gpus_;

  GpuMask shared_ = 0;
  GpuMask waited_ = 0;
  GpuMask asked_ = 0;
  GpuMask movable_ = 0;
  GpuMask changed_ = 0;
  std::uint64_t asks_ = 0;
};

}  // namespace rota::scheduler
