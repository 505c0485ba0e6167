// Which clients may run concurrently: by the mode, and in automatic mode by whether their memory fits the GPU together,
// and if it does, by how they share it best (sharing.h).
//
// Three questions are answered together. May a waiter join the clients that hold a GPU? May a holder that asks for
// memory take it? And do the holders no longer fit together, so that some must yield although nobody waits?
//
// A holder counts with the bytes that it is promised. One that asks for more gets it at once if it fits with the
// others, or if there are no others: a single holder may be as large as it likes. Otherwise others yield, those granted
// last first. The asker itself never yields, since its thread may be what its own kernel waits for. Askers are served
// in the order in which they asked, and nobody yields to a later ask: if two wait for each other's memory, the later
// one gives its GPUs back, and its next grant covers what it asked for.
#pragma once

#include <functional>

#include "scheduler/core/bookkeeping.h"
#include "scheduler/core/policy/alone.h"
#include "scheduler/core/policy/sharing.h"

namespace rota::scheduler {

class Admission {
 public:
  // The arguments must outlive this object; the settings may change.
  Admission(const Settings& settings, Bookkeeping& books, const Sharing& sharing, const Alone& alone)
      : settings_(settings), books_(books), sharing_(sharing), alone_(alone) {}

  // Whether the client cannot run on this GPU concurrently with those that hold it now.
  bool conflicts(const Client& client, GpuIndex gpu);

  // Checks the holders of a GPU again, and marks (Client::yields) those that must yield.
  void find_excess(GpuIndex gpu);
  // Called after find_excess(). Raises the promises of askers that can have what they ask for, and marks the holders
  // that must yield to one that cannot yet. Returns whether any ask was answered.
  bool serve_asks(GpuIndex gpu, const std::function<void(Client&, Bytes promised)>& promised);
  // GPUs with holders that must yield although nobody waits.
  GpuMask excess() const { return excess_; }

 private:
  void press_others(GpuIndex gpu, const Client& asker);
  void yield(Client& holder, GpuIndex gpu);

  const Settings& settings_;
  Bookkeeping& books_;
  const Sharing& sharing_;
  const Alone& alone_;
  GpuMask excess_ = 0;
};

}  // namespace rota::scheduler
