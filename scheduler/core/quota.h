// Limits: how much memory processes may have, each alone and all together, by everything that they belong to: a
// session, a user, a cgroup, the host. A pure state machine beside the scheduler's core; the server drives both.
//
// Each of these is an account with a limit, and each client is charged to some. A client says how much it is going to
// have before it takes it (protocol.h, Reserve) and takes no more than it was granted. Far from every limit it is
// granted a little more than it asked for, so that few allocations have to ask; what others have in hand of that, and
// what they have freed since, is called back (Tighten) before anybody is refused: limits hold to the byte, and memory
// that one process has freed is there for the next.
//
// Two amounts are limited. `device` is what the account's clients have on each GPU, what has been measured beside their
// allocations (contexts, modules, heaps) included. That is refused to nobody, since no call asks for it, but
// allocations are for its sake. What is only assumed of contexts counts for no limit on it. `host` is what they may
// have to have in the host's memory: what of it Unified Memory can move, but no more than what all clients of a GPU
// have together beyond that GPU, since nothing is moved out of a GPU that holds everything.
//
// Beside all accounts there is each GPU itself. Swap memory has to be there all at once whenever its client runs,
// beside the contexts of all and what anybody has there that never leaves. So nobody is granted memory beside which
// some client could not come back any more:
//
//   contexts + what stays, of all clients + the most that one client has to have there at once <= the GPU
//
// Of two that ask for the last of it the first one has it. What nobody can be refused (contexts, modules, what graphs
// take) may still come to be in the way.
#pragma once

#include <array>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "scheduler/core/event.h"

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
  Bytes movable = 0;  // the part of it that can leave the GPU
  Bytes fixed = 0;    // the part of it that cannot
  // What has to be there at once whenever the client runs: swap memory, in the pieces that it moves in, which may be
  // more than what has been allocated in them.
  Bytes swapped = 0;
  friend bool operator==(const Reservation&, const Reservation&) = default;
};

class Quota {
 public:
  // How long others have to say what they do not need, before an allocation is refused.
  static constexpr Time kPatience = std::chrono::milliseconds(250);

  struct Account {
    std::string name;  // for messages, e.g. "session 3f2a…", "user alice"
    Limits limits;
    std::size_t clients = 0;
    std::array<Reservation, protocol::kMaxGpus> sums{};
    std::array<Bytes, protocol::kMaxGpus> measured{};  // beside what is reserved

    // What counts for the limit.
    Bytes device(GpuIndex gpu) const { return sums[gpu].device + measured[gpu]; }
  };
  // What a client is told.
  struct Answer {
    ClientId client;
    GpuIndex gpu;
    std::uint32_t number;  // the one it asked with
    bool granted;
    Reservation reserved;  // what it may have from now on, also when it was refused
    std::string why;       // it was refused
  };
  struct Outcome {
    std::vector<Answer> answers;
    std::set<ClientId> tighten;  // are to say what they have, with the number of the latest round
    bool changed = false;        // what others leave of GPU memory may be something else for anybody
  };

  // Until then clients of an earlier daemon may still say what they have: nobody is granted more of what is limited.
  void hold_until(Time until) { held_until_ = until; }
  // The client is charged to these accounts, by key; `name` and `limits` are those of a new one. For one that is there,
  // the lower limits hold.
  struct Membership {
    std::string key;
    std::string name;
    Limits limits;
  };
  void join(ClientId client, const std::vector<Membership>& accounts);
  // A limit for the account from now on, whatever it was.
  void set_limits(const std::string& key, Limits limits);
  // `total` as the first client said it; `context` is what the client's context takes of it.
  void add_gpu(ClientId client, GpuIndex gpu, Bytes total, Bytes context);
  // What the client has there beside what it reserves has been measured: counts from now on, instead of what add_gpu()
  // assumed.
  Outcome measured(ClientId client, GpuIndex gpu, Bytes context, Time now);
  // What others have on a GPU whom rotad does not know (Core::gpu): what clients have there has that much less room.
  Outcome set_outside(GpuIndex gpu, Bytes bytes, Time now);
  Bytes outside(GpuIndex gpu) const { return gpus_[gpu].outside; }
  // What the client asks to have in all. Answered in this outcome or a later one, once.
  Outcome reserve(ClientId client, GpuIndex gpu, std::uint32_t number, Reservation wanted, Time now);
  // Whether what a client asks to have takes more than the GPU holds, so that limits on the host's memory matter.
  bool exceeds_gpu(ClientId client, GpuIndex gpu, Bytes device) const;
  // What the client has, and will not exceed: also more than it was granted, if it says so, but no more than the GPU
  // and the host can hold. `answered`: the number of the latest answer that it has seen for this GPU, `round`: the
  // latest round of tightening. What crossed with an answer is not believed: the client is asked again.
  Outcome state(ClientId client, GpuIndex gpu, Reservation has, std::uint32_t answered, std::uint32_t round, Time now);
  Outcome leave(ClientId client, Time now);
  Outcome tick(Time now);
  // When tick() is due at the latest.
  std::optional<Time> next_deadline() const;
  std::uint32_t round() const { return round_; }

  // The lowest limit of the client's accounts on a GPU, and how much they leave beyond what it has reserved there.
  // kNoLimit: none.
  Bytes limit(ClientId client) const;
  Bytes left(ClientId client, GpuIndex gpu) const;
  Reservation reserved(ClientId client, GpuIndex gpu) const;
  // What all other clients have reserved there that cannot leave the GPU.
  Bytes fixed_of_others(ClientId client, GpuIndex gpu) const;
  // What the clients of an account have or may have to have in the host's memory.
  Bytes host_bytes(const Account& account) const;
  void for_each_account(const std::function<void(const std::string& key, const Account&)>& visit) const;

 private:
  struct Ask {
    std::uint32_t number = 0;
    Reservation wanted;
    Time deadline{};
    std::uint32_t round = 0;
    std::set<ClientId> awaited;      // have not answered this round
    std::set<const Account*> tried;  // in whose name others have been asked
    std::uint64_t order = 0;
  };
  struct Member {
    std::vector<Account*> accounts;
    std::array<Reservation, protocol::kMaxGpus> reserved{};
    std::array<std::uint32_t, protocol::kMaxGpus> answered{};  // numbers
    std::array<Bytes, protocol::kMaxGpus> contexts{};          // measured or assumed
    std::array<Bytes, protocol::kMaxGpus> measured{};          // of that
    std::map<GpuIndex, Ask> asks;
  };
  struct Gpu {
    Bytes total = 0;
    Bytes contexts = 0;
    Bytes reserved = 0;
    Bytes fixed = 0;  // of that
    Bytes outside = 0;
  };
  // Who refuses.
  struct Refusal {
    const Account* account;  // null: the GPU itself
    bool host;
  };

  Bytes excess(GpuIndex gpu, Bytes more) const;
  Bytes host_need(const Account& account, GpuIndex gpu, Bytes excess, const Reservation& sum) const;
  Bytes most_swapped(GpuIndex gpu, const Member& member, Bytes own) const;
  bool fits(const Member& member, GpuIndex gpu, const Reservation& wanted) const;
  std::optional<Refusal> refusal(const Member& member, GpuIndex gpu, const Reservation& wanted) const;
  Bytes most(const Member& member, GpuIndex gpu) const;
  void count_measured(Member& member, GpuIndex gpu, Bytes context, Outcome& outcome);
  void book(Member& member, GpuIndex gpu, const Reservation& reservation, Outcome& outcome);
  Answer grant(ClientId client, Member& member, GpuIndex gpu, const Ask& ask, Outcome& outcome);
  Answer refuse(ClientId client, const Member& member, GpuIndex gpu, const Ask& ask, const Refusal& by) const;
  void call_back(ClientId client, GpuIndex gpu, Ask& ask, const Refusal& by, Outcome& outcome);
  void settle(Outcome& outcome, Time now);
  bool limited(const Member& member, GpuIndex gpu, const Reservation& wanted) const;

  std::map<std::string, Account> accounts_;
  std::map<ClientId, Member> members_;
  std::array<Gpu, protocol::kMaxGpus> gpus_{};
  std::uint32_t round_ = 0;
  std::uint64_t asks_ = 0;
  Time held_until_{};  // 0: nothing is held
};

}  // namespace rota::scheduler
