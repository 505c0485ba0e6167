// Who has to yield, from when, and until when at the latest: the holders of a GPU at which a waiter conflicts with
// them, and holders that have grown too large together.
#pragma once

#include <optional>
#include <set>
#include <utility>

#include "scheduler/core/alone.h"
#include "scheduler/core/bookkeeping.h"
#include "scheduler/core/order.h"
#include "scheduler/core/sharing.h"

namespace rota::scheduler {

class Pressure {
 public:
  // How long a turn that came before its time lasts while others wait: enough for a call to return and for a program to
  // end, of no use to one that is profiled. Judgement.
  static constexpr Time kUrgentTurn = std::chrono::milliseconds(100);

  // All outlive it; the settings may change.
  Pressure(const Settings& settings, const Bookkeeping& books, const Order& order, const Sharing& sharing,
           const Alone& alone)
      : settings_(settings), books_(books), order_(order), sharing_(sharing), alone_(alone) {}

  // Brings a holder's waiters, its time to drain and its deadline up to date. `pressed`: GPUs at which somebody waits
  // because of the holders. Whether what its lease page shows has changed.
  bool refresh(Client& client, GpuMask pressed, Time now);
  // Its grant has ended.
  void relieve(Client& client);

  // When the next holder is late; nothing while nobody has to yield.
  std::optional<Time> next_deadline() const;
  // A holder that is late by now; nothing: there is none.
  std::optional<ClientId> late(Time now) const;

 private:
  Time drain_at(const Client& holder, GpuIndex gpu, Time now) const;

  const Settings& settings_;
  const Bookkeeping& books_;
  const Order& order_;
  const Sharing& sharing_;
  const Alone& alone_;
  std::set<std::pair<Time, ClientId>> deadlines_;
};

}  // namespace rota::scheduler
