// Which clients may run on GPUs that a waiter ahead of them wants but cannot use yet: backfilling, as batch schedulers
// call it.
//
// A client that wants several GPUs (a *gang*) gets them all at once, so it starts when the last holder in its way has
// given back. Each waiter gets an estimate of that time: the latest at which a holder in its way begins to drain, or,
// on GPUs that waiters ahead of it want, one turn after those start. Until then its other GPUs are *open*: a client
// behind it may have them for a turn that ends when the waiter starts. Once that time is so near that such a turn would
// be shorter than a quarter of a regular one, all of the waiter's GPUs are reserved for it.
//
// So the turns of all holders in a waiter's way end together, and nobody that was let in before it delays it.
//
// First come, first served is not enough, however: where programs want neighbouring pairs of a ring of GPUs, each would
// run once between two turns of its neighbour, and a GPU that was idle once, because of the order in which the programs
// came, would be idle in every round. So with fixed turns, a gang that has waited for half a turn and finds its GPUs
// free may overtake waiters for which they are reserved and whose other holders still drain; each waiter is overtaken
// once.
//
// Estimates may be wrong: holders are late, clients that have had less of a GPU come and go first. So no waiter is
// passed over for ever: its GPUs are reserved from the first estimate on that was made while nobody was ahead of it,
// and in any case once it has waited for twice as long as was first estimated.
#pragma once

#include <array>
#include <optional>
#include <vector>

#include "scheduler/core/bookkeeping.h"
#include "scheduler/core/policy/pressure.h"
#include "scheduler/core/policy/sharing.h"

namespace rota::scheduler {

class Backfill {
 public:
  // The shortest turn on an open GPU, as a fraction of a regular one: 5 hand-overs, 7.5 where memory moves (sharing.h).
  static constexpr int kShortestPart = 4;
  // A client whose turn was shorter than this fraction of a regular one keeps its place in the queue.
  static constexpr int kKeepsPlacePart = 2;
  // How many waiters that cannot run are passed while GPUs are open. Bounds the cost of a step: 2 000 may wait.
  static constexpr int kMostPassed = 32;

  // The arguments must outlive this object.
  Backfill(const Settings& settings, const Bookkeeping& books, const Sharing& sharing, const Pressure& pressure)
      : settings_(settings), books_(books), sharing_(sharing), pressure_(pressure) {}

  // The queue is served from its head.
  void begin(Time now);
  // GPUs that waiters want that have been passed, and that are not reserved for them yet.
  GpuMask open() const { return open_; }
  // Until when the client may run, if the GPUs in `open` are open and it can have all others; nothing: it may not.
  std::optional<Time> may_run_until(const Client& client, GpuMask open) const;
  // Until when the client may run although its GPUs, all of which are free, are reserved for waiters ahead of it;
  // nothing: it may not. Otherwise those have been overtaken, once each.
  std::optional<Time> may_overtake_until(const Client& client) const;
  void overtaken(Client& waiter) {
    waiter.overtaken = true;
    waiter.reserves_at = {};
    firm_ |= waiter.state.wanted;
  }
  // A waiter that cannot run is passed. `in_way`: GPUs on which it conflicts with the holders; `pressed`: on which it
  // or a waiter ahead does; `reserved`: those reserved for waiters ahead. Returns the GPUs that are reserved from here
  // on.
  GpuMask pass(Client& waiter, GpuMask in_way, GpuMask pressed, GpuMask reserved);
  // How long a turn on all of these GPUs lasts.
  Time turn(GpuMask gpus) const;

 private:
  struct Passed {
    Client* waiter;
    GpuMask in_way;
  };
  Time estimate_last(GpuMask pressed);
  Time estimate(const Passed& passed, GpuMask pressed);
  Time shortest(GpuMask gpus) const { return turn(gpus) / kShortestPart; }
  Time drained_at(const Client& waiter, GpuIndex gpu, GpuMask pressed) const;

  const Settings& settings_;
  const Bookkeeping& books_;
  const Sharing& sharing_;
  const Pressure& pressure_;
  Time now_{};
  std::vector<Passed> passed_;
  std::size_t estimated_ = 0;  // of these
  int passed_while_open_ = 0;
  GpuMask open_ = 0;
  GpuMask wanted_ = 0;  // by waiters that have been passed and estimated
  GpuMask firm_ = 0;    // by waiters that have been passed and must not be overtaken
  std::array<Time, protocol::kMaxGpus> open_until_{};
  std::array<Time, protocol::kMaxGpus> free_at_{};  // once those waiters have had their turns
};

}  // namespace rota::scheduler
