// Limits: how much memory processes may have, individually and together, according to everything that they belong to: a
// session, a user, a cgroup, the host. A pure state machine next to the scheduler's core; the server drives both.
//
// Each of these is an account with a limit, and each client is charged to some of them. A client says how much it is
// going to have before it takes it (protocol.h, Reserve), and takes no more than it was granted. Far from
// limits of accounts it is granted a little more than it asked for, the less the nearer the GPU's end is, so that few
// allocations have to ask. Before any request is
// refused, what others hold in reserve and what they have freed since is called back (Tighten): limits hold to the
// byte, and memory that one process has freed is available to the next.
//
// A call goes to all that share what is short, so it costs as much as there are of them: the next one for the same
// account or GPU comes after a while in proportion, and is one for all who have asked by then. All else that a message
// costs here does not depend on how many clients there are, but on how many requests have not been answered yet.
//
// Two amounts are limited. `device` is what the account's clients have on each GPU, including what has been measured
// beyond their allocations (contexts, modules, heaps). No call asks for the latter, so it is never refused, but
// allocations may be refused because of it. The assumed size of a context that will be measured counts in its place
// until then; one that nothing measures counts toward no limit on `device`, but is left out of what clients are told is
// left. `host` is what the clients may have to have in host memory: the part of `device` that Unified Memory can move,
// but no more than the amount by which all clients of a GPU exceed it, since nothing is evicted from a GPU that holds
// everything.
//
// A limit on `host` also bounds the host memory that clients which swap have, by *shares*: what each may have, so that
// together they never exceed any account's limit. Part of that memory is reclaimable (*spare*: copies of what is on the
// GPU as well, memory prepared for later): it counts against nobody's allocations, and is given back, in equal parts,
// when another client needs host memory for what is evicted. What is reserved for the host is at least one extent of
// swap memory below the limit, since otherwise two clients could not exchange their places on the GPU.
//
// An account refuses only its own members. What a client says that it has counts in full within its own accounts, and
// for others only as far as it is *confirmed*: by a grant, by what the driver and the kernel say of its process, or
// because it was said while clients of an earlier daemon were expected. Others are the clients of a *shared* account
// (the host, a cgroup), and all that use the same GPU.
//
// How large a GPU is, what contexts take there and what is unmanaged is in the scheduler's accounting (bookkeeping.h)
// and only there.
//
// Besides the accounts, each GPU itself sets a limit. All of a client's swap memory must be on the GPU whenever the
// client runs, together with all contexts and with all memory there that is never evicted. So no client is granted
// memory if the memory of some client could then no longer be restored:
//
//   contexts + what stays, of all clients + the most that one client has to have there at once <= the GPU
//
// Swap memory that a client has pinned since (other processes can reach it) counts as what stays. A client pins without
// a request, so clients that together no longer fit wait for one another.
//
// If two clients ask for the last free memory, the first one gets it. Memory that cannot be refused (contexts, modules,
// what graphs take) may still get in the way.
#pragma once

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "scheduler/core/bookkeeping.h"
#include "scheduler/core/event.h"
#include "scheduler/limits/room_queue.h"

namespace rota::scheduler {

inline constexpr Bytes kNoLimit = UINT64_MAX;

struct Limits {
  Bytes device = kNoLimit;  // on each GPU
  Bytes host = kNoLimit;
  friend bool operator==(const Limits&, const Limits&) = default;
};

// What one client has reserved on one GPU.
struct Reservation {
  Bytes device = 0;
  Bytes movable = 0;  // the part of it that can be evicted
  Bytes fixed = 0;    // the part of it that cannot
  // What must be there at once whenever the client runs: swap memory, in the extents in which it moves, which may be
  // larger than what has been allocated in them.
  Bytes swapped = 0;
  friend bool operator==(const Reservation&, const Reservation&) = default;
};
// What it may take there.
inline Bytes on_gpu(const Reservation& each) {
  return std::max(each.device, each.swapped);
}

template <typename Choose>
Reservation each_of(const Reservation& one, const Reservation& other, const Choose& choose) {
  return {choose(one.device, other.device), choose(one.movable, other.movable), choose(one.fixed, other.fixed),
          choose(one.swapped, other.swapped)};
}

inline Reservation least_of(const Reservation& one, const Reservation& other) {
  return each_of(one, other, [](Bytes a, Bytes b) { return std::min(a, b); });
}

inline Reservation most_of(const Reservation& one, const Reservation& other) {
  return each_of(one, other, [](Bytes a, Bytes b) { return std::max(a, b); });
}

class Quota {
 public:
  // How long others have to report what they do not need before an allocation is refused.
  static constexpr Time kPatience = std::chrono::milliseconds(250);
  // Between two calls to all that share an account or a GPU, for each that is asked. A little more than a client's
  // answer costs rotad (tests/bench/rotad_bench).
  static constexpr Time kBetweenCalls = std::chrono::microseconds(20);
  // How many readings have to begin after a request before measured memory refuses it: contexts that have ended still
  // count after one (server/measure.cpp).
  static constexpr unsigned kReadings = 2;

  // What a user can do about each limit, for messages, e.g. "raise `rota run --gpu-mem`".
  struct Remedy {
    std::string device;
    std::string host;
  };
  struct Call;
  struct HostUse {
    Bytes has = 0;
    Bytes spare = 0;  // the part of it that can be given back
    Bytes lacks = 0;  // what it needs beyond its share
    friend bool operator==(const HostUse&, const HostUse&) = default;
  };
  // The calls to give back what is not needed, of all that share something.
  struct Calls {
    std::weak_ptr<Call> latest;
    Time next{};
  };
  struct Account {
    std::string key;
    std::string name;  // for messages, e.g. "session 3f2a…", "user alice"
    Limits limits;
    Bytes host_budget = kNoLimit;  // as configured; limits.host may be lower: what the machine has left
    Remedy remedy;
    bool shared = false;  // by users that do not trust each other: only what is confirmed counts
    std::set<ClientId> clients = {};
    std::array<Reservation, protocol::kMaxGpus> sums{};
    std::array<Bytes, protocol::kMaxGpus> measured{};  // beyond what is reserved, or about to be
    std::array<Bytes, protocol::kMaxGpus> contexts{};  // measured or assumed
    // What its clients have together. What they say is reclaimable counts only as far as they have it on GPUs.
    HostUse host = {};
    std::map<GpuIndex, Calls> calls = {};

    // What counts toward the limit.
    Bytes device(GpuIndex gpu) const { return sums[gpu].device + measured[gpu]; }
  };
  // What a client is told.
  struct Answer {
    ClientId client;
    GpuIndex gpu;
    std::uint32_t number;  // the number of the ask
    bool granted;
    Reservation reserved;              // what it may have from now on, even if it was refused
    std::string why;                   // set if it was refused,
    protocol::RefusalReason reason{};  // and so is this
    // Refused because of memory that others have there.
    bool full() const { return !granted && reason == protocol::RefusalReason::kGpuFull; }
  };
  struct Outcome {
    std::vector<Answer> answers;
    std::set<ClientId> tighten;  // clients that are to report what they have, with the number of the latest round
    std::set<GpuIndex> measure;  // to be measured at once: a request depends on it
    std::vector<RoomQueue::Answer> rooms;  // to allocations that wait for memory of others
    bool changed = false;                  // what is left of GPU memory may have changed for any client
  };

  // `books`, the scheduler's accounting, must outlive it.
  explicit Quota(const Bookkeeping& books) : books_(books) {}

  // Until then clients of an earlier daemon may still report what they have: nobody is granted more of what is limited.
  void hold_until(Time until) {
    held_until_ = until;
    shares_due_ = true;
  }
  // The client is charged to these accounts, identified by key; `name` and `limits` apply to a new account. For an
  // existing one the lower limits apply, each with its remedy.
  struct Membership {
    std::string key;
    std::string name;
    Limits limits;
    Remedy remedy = {};
    bool shared = false;
  };
  // Returns whether a shared account is new.
  bool join(ClientId client, const std::vector<Membership>& accounts);
  // Sets the limits of the account, whatever they were.
  void set_limits(const std::string& key, Limits limits);
  // The same for an existing account, with new limits from the configuration and their remedies. The machine may have
  // less host memory left for a shared account: that limit does not rise here. Clients keep what they have beyond a
  // lower limit. tick() grants what waits for a higher one.
  void configure(const Membership& account);
  // `context`: what the client's contexts there count in the accounting. `measurable`: they will be measured, and count
  // until then as if they had been.
  void add_gpu(ClientId client, GpuIndex gpu, Bytes context, bool measurable = false);
  // What the client has there beyond its reservations has been measured: counts from now on, instead of what add_gpu()
  // assumed.
  Outcome measured(ClientId client, GpuIndex gpu, Bytes context, Time now);
  // It has turned out that nothing measures it: what add_gpu() assumed counts toward no limit on `device` any more.
  Outcome not_measured(ClientId client, GpuIndex gpu, Time now);
  // There is a reading that was begun at this time, or none can be had now.
  Outcome read(GpuIndex gpu, std::optional<Time> begun, Time now);
  // The accounting has changed in the GPU's size or its unmanaged memory: requests may fit now.
  Outcome gpu_changed(GpuIndex gpu, Time now);
  // The total that the client asks for. Answered once, in this outcome or a later one: after `patience` at the latest,
  // or as soon as everybody has been asked and has answered.
  Outcome reserve(ClientId client, GpuIndex gpu, std::uint32_t number, Reservation wanted, Time now,
                  Time patience = kPatience);
  // Whether an ask of this client's has not been answered.
  bool asks(ClientId client, GpuIndex gpu) const;
  // Whether what a client asks for takes more than the GPU holds, so that limits on host memory matter.
  bool exceeds_gpu(ClientId client, GpuIndex gpu, Bytes device) const;
  // What the client has and will not exceed. It may report more than it was granted, but no more than the GPU and the
  // host can hold. `answered`: the number of the latest answer that it has seen for this GPU; `round`: the latest round
  // of tightening. A report that crossed with an answer is not used: the client is asked again.
  Outcome state(ClientId client, GpuIndex gpu, Reservation has, std::uint32_t answered, std::uint32_t round, Time now);
  // According to the driver and the kernel its process has this much on the GPU, and this much in the host's memory:
  // the client's figures are confirmed up to that.
  Outcome confirm(ClientId client, GpuIndex gpu, Bytes on_gpu, Bytes on_host, Time now);
  // So much of its swap memory stays there for good. Counted up to what it has been granted, and may exceed that: what
  // it is granted from then on stays, too.
  Outcome pin(ClientId client, GpuIndex gpu, Bytes bytes, Time now);
  // Whether it says that it has more than it was granted.
  bool claims(ClientId client, GpuIndex gpu) const;
  // What its swap memory leaves free of the GPU: more where others have contexts, nothing of a GPU
  // below 2 GiB.
  Bytes kept_free(ClientId client, GpuIndex gpu) const;
  // An allocation or a context that the driver has refused waits for memory of others that cannot be evicted, and so
  // does what this has refused last; but what would stay, and was refused by this, waits for any memory of others.
  // Answered once, in this outcome or a later one.
  Outcome await_room(RoomQueue::Request request, Time now);
  // What a client has there that cannot be evicted, and whether it waits (RoomQueue::has, blocks).
  struct Stays {
    std::uint32_t gang = 0;
    Bytes bytes = 0;
    bool blocks = false;
    Time began{};
    friend bool operator==(const Stays&, const Stays&) = default;
  };
  Outcome stays(ClientId client, GpuIndex gpu, const Stays& what, Time now);
  void set_memory_wait(Time patience) { rooms_.set_patience(patience); }
  const RoomQueue& rooms() const { return rooms_; }
  // `ended`: its process has (RoomQueue::leave).
  Outcome leave(ClientId client, Time now, bool ended = false);
  Outcome tick(Time now);
  // When tick() is due at the latest.
  std::optional<Time> next_deadline() const;
  std::uint32_t round() const { return round_; }

  // The lowest limit of the client's accounts on a GPU, and how much its accounts have left beyond what it has reserved
  // there, and beyond all contexts, assumed ones included. kNoLimit: none.
  Bytes limit(ClientId client) const;
  Bytes left(ClientId client, GpuIndex gpu) const;
  Reservation reserved(ClientId client, GpuIndex gpu) const;
  // What all other clients have there that cannot be evicted, as far as it is confirmed.
  Bytes fixed_of_others(ClientId client, GpuIndex gpu) const;
  // What the clients of an account have, or may have to have, in host memory.
  Bytes host_bytes(const Account& account) const;

  // --- host memory of clients that swap

  struct HostShare {
    Bytes most = kNoLimit;   // that it may have
    Bytes spare = kNoLimit;  // of that, what may be reclaimable
    friend bool operator==(const HostShare&, const HostShare&) = default;
  };
  // What a client says, read after its share was published. No more is believed than it may have, or has reserved on
  // GPUs.
  void use_host(ClientId client, HostUse use);
  // Shares the host's memory out anew. Returns the clients whose shares have changed: they have to be published, and
  // what the clients say read again, before this is called once more. Nobody is given what another may still have.
  std::vector<ClientId> share_host(Time now);
  HostShare host_share(ClientId client) const;
  // Gives a client that has no share yet, and one of whose accounts has a limit, a share as large as what it has: it
  // may get more with the next share_host(). Returns whether it got one.
  bool bound_host(ClientId client);

  // All accounts, in the order of their keys: the first behind this key. Null: there are no more.
  using Entry = std::pair<const std::string, Account>;
  const Entry* account_after(const std::string& key) const;
  // The accounts of users that do not trust each other.
  std::vector<const Entry*> shared_accounts() const;

 private:
  struct Ask {
    std::uint32_t number = 0;
    Reservation wanted;
    Time deadline{};
    Time due{};                                // when it is checked again at the latest
    Time since{};                              // when it was made
    unsigned readings = 0;                     // that have begun since
    bool measures = false;                     // it waits for readings
    std::vector<std::shared_ptr<Call>> calls;  // whose answers it waits for
    std::set<const Account*> tried;            // accounts on whose behalf others have been asked
    std::uint64_t order = 0;
  };
  // What a client has on a GPU that cannot be evicted, and the part of its swap memory that can.
  struct There {
    Bytes stays = 0;
    Bytes moves = 0;
    Bytes pinned = 0;  // swap memory among what stays
  };
  struct Member {
    std::vector<Account*> accounts;
    std::array<Reservation, protocol::kMaxGpus> reserved{};    // or claimed
    std::array<Reservation, protocol::kMaxGpus> granted{};     // and not given back
    std::array<Reservation, protocol::kMaxGpus> confirmed{};   // by the driver and the kernel
    std::array<Reservation, protocol::kMaxGpus> counted{};     // of what is reserved, for others
    std::array<Bytes, protocol::kMaxGpus> pinned{};            // of its swap memory, as it says
    std::array<There, protocol::kMaxGpus> there{};             // of what is counted
    std::array<std::uint32_t, protocol::kMaxGpus> answered{};  // numbers
    std::array<Bytes, protocol::kMaxGpus> contexts{};          // measured or assumed
    std::array<Bytes, protocol::kMaxGpus> measured{};          // the same, if it counts toward limits; otherwise 0
    std::map<GpuIndex, Ask> asks;
    std::map<GpuIndex, Time> full_at;  // when a request was refused last because of memory that others have
    HostUse host;
    HostShare share;
    HostUse host_counted;         // in the sums of its accounts
    Bytes counted_in_all = 0;     // on_gpu(), of all GPUs
    std::size_t swaps_on = 0;     // GPUs
    Bytes host_bound = kNoLimit;  // the most that any share allows it which it may not have replaced yet
    std::uint64_t lacks_since = 0;
  };
  struct Gpu {
    Bytes reserved = 0;          // as far as it is confirmed
    Bytes stays = 0;             // of all clients
    Bytes pinned = 0;            // the part of it that is swap memory
    std::multiset<Bytes> moves;  // of each client that has some there
    std::set<ClientId> having;   // clients that have anything reserved there
    Calls calls;
  };
  // What refuses a request.
  struct Refusal {
    const Account* account;  // null: the GPU itself
    bool host;
  };

  Bytes total(GpuIndex gpu) const { return books_.gpu(gpu).total; }
  // What contexts and others have there. Of unmanaged memory only what is measured: what refusals show is a client's
  // claim, which may cost others turns but no memory.
  Bytes outside(GpuIndex gpu) const { return books_.gpu(gpu).measured.bytes(); }
  Bytes taken(GpuIndex gpu) const { return books_.gpu(gpu).contexts + outside(gpu); }
  Bytes excess(GpuIndex gpu, Bytes more) const;
  Bytes host_need(const Account& account, GpuIndex gpu, Bytes excess, const Reservation& sum) const;
  Bytes most_swapped(GpuIndex gpu, const Member& member, Bytes own) const;
  Bytes kept_free(const Member& member, GpuIndex gpu) const;
  bool fits(const Member& member, GpuIndex gpu, const Reservation& wanted) const;
  static Bytes stays_with(const Member& member, GpuIndex gpu, const Reservation& wanted);
  bool others_in_way(ClientId client, const Member& member, GpuIndex gpu, const Reservation& wanted) const;
  std::optional<Refusal> refusal(const Member& member, GpuIndex gpu, const Reservation& wanted) const;
  std::optional<Refusal> refusing_account(const Member& member, GpuIndex gpu, const Reservation& wanted) const;
  bool by_contexts(const Member& member, GpuIndex gpu, const Reservation& wanted, const Refusal& by) const;
  Bytes most(const Member& member, GpuIndex gpu) const;
  void count_context(Member& member, GpuIndex gpu, Bytes context, Bytes measured, Outcome& outcome);
  void book(ClientId client, Member& member, GpuIndex gpu, const Reservation& reservation, Outcome& outcome);
  void recount(Member& member, GpuIndex gpu, Outcome& outcome);
  // What of the member's memory the account's sums hold.
  static const Reservation& in(const Account& account, const Member& member, GpuIndex gpu) {
    return account.shared ? member.counted[gpu] : member.reserved[gpu];
  }
  static protocol::RefusalReason reason_of(const Refusal& by);
  Answer grant(ClientId client, Member& member, GpuIndex gpu, const Ask& ask, Outcome& outcome);
  Answer refuse(ClientId client, const Member& member, GpuIndex gpu, const Ask& ask, const Refusal& by) const;
  bool call_back(ClientId client, GpuIndex gpu, Ask& ask, const Refusal& by, Outcome& outcome, Time now);
  void decide(Outcome& outcome, Time now);
  void decide_rooms(Outcome& outcome, Time now);
  void decide(std::uint64_t order, Outcome& outcome, Time now);
  void look_again(Ask& ask, Time due);
  void forget(Member& member, GpuIndex gpu);
  void wait_no_longer(ClientId client);
  bool heard(ClientId client, GpuIndex gpu, std::uint32_t round);
  void count_host(Member& member);
  bool limited(const Member& member, GpuIndex gpu, const Reservation& wanted) const;
  struct Sharing;
  static bool uses_host(const Member& member);
  Bytes budget(const Account& account) const;

  const Bookkeeping& books_;
  std::map<std::string, Account> accounts_;
  std::map<ClientId, Member> members_;
  std::array<Gpu, protocol::kMaxGpus> gpus_{};
  std::set<const Entry*> shared_;
  struct Asking {
    ClientId client;
    GpuIndex gpu;
  };
  std::map<std::uint64_t, Asking> open_;           // asks that have not been answered, by Ask::order
  std::set<std::pair<Time, std::uint64_t>> dues_;  // of these
  std::vector<std::weak_ptr<Call>> calls_;         // whose answers are awaited
  RoomQueue rooms_;
  std::uint32_t round_ = 0;
  std::uint64_t asks_ = 0;
  std::uint64_t host_asks_ = 0;
  bool shares_due_ = false;  // something that share_host() depends on has changed
  Time held_until_{};        // 0: nothing is held
};

}  // namespace rota::scheduler
