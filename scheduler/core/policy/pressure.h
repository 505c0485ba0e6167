// Which holders must yield, from when, and by when at the latest: the holders of a GPU on which a waiter conflicts with
// them, holders that no longer fit together, and those that are withdrawn (event::Withdraw).
#pragma once

#include <optional>
#include <set>
#include <utility>

#include "scheduler/core/bookkeeping.h"
#include "scheduler/core/order.h"
#include "scheduler/core/policy/alone.h"
#include "scheduler/core/policy/sharing.h"

namespace rota::scheduler {

class Pressure {
 public:
  // How long an urgent turn lasts while others wait: enough for a call to return and for a program to end, but of no
  // use to a program that is being profiled. Judgement.
  static constexpr Time kUrgentTurn = std::chrono::milliseconds(100);

  // The arguments must outlive this object; the settings may change.
  Pressure(const Settings& settings, const Bookkeeping& books, const Order& order, const Sharing& sharing,
           const Alone& alone)
      : settings_(settings), books_(books), order_(order), sharing_(sharing), alone_(alone) {}

  // Updates a holder's waiters, its time to drain and its deadline. `pressed`: GPUs on which a client waits because of
  // the holders. Returns whether what its lease page shows has changed.
  bool refresh(Client& client, GpuMask pressed, Time now);
  // When a holder will begin to drain while clients wait on these GPUs because of the holders; 0: it will not.
  Time drains_at(const Client& holder, GpuMask pressed, Time now) const {
    return demand(holder, pressed, now).drain_at;
  }
  // The client's grant has ended.
  void relieve(Client& client);

  // When the next holder will be late; nothing while no holder must yield.
  std::optional<Time> next_deadline() const;
  // A holder that is late now; nothing if none is.
  std::optional<ClientId> late(Time now) const;

 private:
  struct Demand {
    std::uint32_t waiters = 0;
    Time drain_at{};
  };
  // When a turn ends on one GPU: `over`, or later if the holder is owed more.
  struct End {
    Time over;
    Time even;
  };
  Demand demand(const Client& holder, GpuMask pressed, Time now) const;
  bool let_in_before(const Client& holder, GpuIndex gpu) const;
  End end(const Client& holder, GpuIndex gpu, Time now) const;

  const Settings& settings_;
  const Bookkeeping& books_;
  const Order& order_;
  const Sharing& sharing_;
  const Alone& alone_;
  std::set<std::pair<Time, ClientId>> deadlines_;
};

}  // namespace rota::scheduler
