// Which GPUs this rotad has: those that its clients have named and that no other rotad has. A GPU that another rotad
// has is taken as soon as that rotad releases it. The machine's rotad (/run/rota/rotad.sock, root's) asks others for
// theirs; a user's own rotad gives it all of its GPUs at once, with the programs on them.
//
// A pure state machine, like core.h: events and the time in, actions out. It takes no lock and closes no connection;
// server/claiming.cpp carries its actions out, and a model of several rotads explores it (claims_test.cpp).
//
//   a client names a GPU → kTry → taken() → kServe
//                               → held_by() → kAsk (the machine's only), or kSendAway, or kRefuse
//   the other one releases it → gone() → kTry
//   the machine's asks → kWithdraw: no grant from now on → quiet() → kLetGo: everything at once
#pragma once

#include <chrono>
#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace rota::scheduler {

class Claims {
 public:
  using Time = std::chrono::nanoseconds;
  using Client = std::uint32_t;
  using Gpu = std::string;   // its UUID as text
  using Pid = std::int32_t;  // 0: in a pid namespace that this rotad cannot see into

  // How long the machine's rotad leaves its clients without an answer while another one gives it the GPU: a short wait
  // is better than memory that can no longer be evicted. Less than clients wait for an answer (turn/service.cpp).
  static constexpr Time kAsking = std::chrono::seconds(2);
  // How long a GPU that came from another rotad is granted to nobody until all programs of that rotad have come: what
  // they have there counts first. They come in milliseconds.
  static constexpr Time kArriving = std::chrono::milliseconds(500);
  // After that, those of this rotad's own clients that have waited for the GPU go first, for as long as a program takes
  // to allocate and to begin: the other's programs have just had it, and a turn may last seconds. With kArriving less
  // than a program waits for a rotad that is gone (turn::Machine::kSilentGrace).
  static constexpr Time kHeadStart = std::chrono::milliseconds(400);
  // How long a GPU that came with others is reserved for the programs that came with it.
  static constexpr Time kKept = std::chrono::seconds(2);
  // How long holders have to give back when another rotad is to have the GPUs.
  static constexpr Time kWithdrawing = std::chrono::seconds(10);

  // Who has the lock of a GPU, as far as that is known.
  struct Holder {
    bool machine = false;  // it is the machine's, and programs of this rotad's user can reach it
    bool answers = false;  // it can be asked
    bool former = false;   // it had this rotad's address before: no program finds it any more, and it gives up, too
  };

  enum class Act {
    kTry,       // take the lock of `gpu`; answer with taken() or held_by()
    kAsk,       // ask the holder of `gpu` for it
    kServe,     // `client` is served on `gpu`, whose lock this rotad has
    kRefuse,    // tell `client` that it is not served on `gpu`, for now
    kSendAway,  // close `client`'s connection: another rotad serves it
    kDrop,      // give the lock of `gpu` back unless a client is served there; then released()
    kWithdraw,  // grant nothing, and ask all holders to give back; answer with quiet() when none is left
    kOverdue,   // take back what holders have not given back; answer with quiet()
    kLetGo,     // close all clients' connections and give back all locks; then let_go()
  };
  struct Action {
    Act act;
    Gpu gpu{};
    Client client = 0;
  };
  using Actions = std::vector<Action>;

  // `machine`: this is the machine's rotad.
  explicit Claims(bool machine) : machine_(machine) {}

  // A client names a GPU. If this rotad has it, the answer is kServe.
  Actions named(Client client, Pid pid, const Gpu& gpu, Time now);
  // The client has ended.
  Actions left(Client client);
  // The lock was given back: the last client that was served there has ended.
  Actions released(const Gpu& gpu);
  // Answers to kTry.
  Actions taken(const Gpu& gpu, Time now);
  Actions held_by(const Gpu& gpu, const Holder& holder, Time now);
  // The rotad that had the GPU has let it go, or has ended.
  Actions gone(const Gpu& gpu);
  // Whether the machine's rotad can be reached, polled while clients wait: it serves them.
  Actions machine_is_there(bool there);
  // Tries again: nothing says when that holder releases the GPU.
  Actions again(const Gpu& gpu);
  // The rotad that had it gives it up, and `others` with it; these processes will come.
  Actions given(const Gpu& gpu, const std::vector<Gpu>& others, const std::vector<Pid>& movers, Time now);
  // The machine's rotad asks for the GPUs.
  Actions asked(Time now);
  // Another rotad listens at this one's address, so no program can reach this one any more.
  Actions give_up(Time now);
  // The answer to kWithdraw: no client holds anything.
  Actions quiet();
  // kLetGo has been carried out.
  void let_go();
  Actions tick(Time now);

  // When tick() is due.
  std::optional<Time> next_deadline() const;
  // Nothing is granted.
  bool withdrawing() const { return phase_ != Phase::kServing; }
  // When holders are to have given back.
  Time withdraw_by() const { return withdraw_by_; }
  // For tests.
  friend auto operator<=>(const Claims&, const Claims&) = default;

  // Whether anybody waits for a GPU that another rotad has.
  bool waits_for(const Gpu& gpu) const;

 private:
  enum class Phase { kServing, kWithdrawing, kLettingGo };
  struct Waiter {
    Pid pid = 0;
    bool refused = false;
    friend auto operator<=>(const Waiter&, const Waiter&) = default;
  };
  struct Claim {
    bool has = false;  // the lock
    bool tries = false;
    bool asked = false;                // the holder
    std::map<Client, Waiter> clients;  // that are not served yet
    std::optional<Time> refuse_at;
    std::optional<Time> serve_at;  // even if not all movers have come
    std::optional<Time> keep_until;
    std::optional<Time> first_until;  // movers in `clients` are served then
    friend auto operator<=>(const Claim&, const Claim&) = default;
  };

  void serve_if_ready(const Gpu& gpu, Claim& claim, Actions& actions, Time now);
  void send_away_all(const Gpu& gpu, Claim& claim, Actions& actions);
  static void refuse_all(const Gpu& gpu, Claim& claim, Actions& actions);
  void try_lock(const Gpu& gpu, Claim& claim, Actions& actions);

  bool machine_;
  Phase phase_ = Phase::kServing;
  Time withdraw_by_{0};
  bool overdue_ = false;
  std::map<Gpu, Claim> claims_;  // GPUs with clients that are not served, and GPUs that this rotad has
  std::set<Pid> movers_;         // that have not come yet
  std::set<Pid> moved_;          // all of them
  std::set<Pid> sent_away_;      // sent away only once: a program that comes back cannot reach the other rotad
};

}  // namespace rota::scheduler
