// Who may run beside whom: by the mode, and in automatic mode by whether their memory fits the GPU together, and if it
// does, by how they share it best (sharing.h).
//
// Three questions with one answer between them. May a waiter join those who hold a GPU? May a holder that asks for room
// take it? And have those who hold it grown too large together, so that some of them have to go although nobody waits?
//
// Holders count with what they are promised. Who asks for more gets it at once if it fits with the others, or if there
// are no others: one holder may be as large as it likes. Else others yield, those granted last first; never the one who
// asks, since its thread may hold what its own kernel waits for. Of several the one who asked first is served first,
// and nobody yields to a younger ask: of two that wait for each other's room the younger gives its GPUs back, and its
// next grant covers what it asked for.
#pragma once

#include <functional>

#include "scheduler/core/alone.h"
#include "scheduler/core/bookkeeping.h"
#include "scheduler/core/sharing.h"

namespace rota::scheduler {

class Admission {
 public:
  // All outlive it; the settings may change.
  Admission(const Settings& settings, Bookkeeping& books, const Sharing& sharing, const Alone& alone)
      : settings_(settings), books_(books), sharing_(sharing), alone_(alone) {}

  // Whether the client cannot run on this GPU beside those that hold it now.
  bool conflicts(const Client& client, GpuIndex gpu);

  // Looks again at the holders of a GPU: marks (Client::yields) those that have to go.
  void find_excess(GpuIndex gpu);
  // After that: raises the promises of those who ask and can have it, and marks those who yield to one that cannot yet.
  // Whether somebody's ask has been answered.
  bool serve_asks(GpuIndex gpu, const std::function<void(Client&, Bytes promised)>& promised);
  // GPUs with holders that have to go although nobody waits.
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
