// Who may run beside whom: by the mode, and in automatic mode by whether their memory fits the GPU together.
//
// Two questions with one answer between them. May a waiter join those who hold a GPU? And have those who hold it grown
// too large together, so that some of them have to go although nobody waits?
#pragma once

#include "scheduler/core/bookkeeping.h"

namespace rota::scheduler {

class Admission {
 public:
  // Both outlive it; the settings may change.
  Admission(const Settings& settings, Bookkeeping& books) : settings_(settings), books_(books) {}

  // Whether the client cannot run on this GPU beside those that hold it now.
  bool conflicts(const Client& client, GpuIndex gpu);

  // Looks again at the holders of a GPU: marks (Client::yields) those that have to go.
  void find_excess(GpuIndex gpu);
  // GPUs with holders that have to go although nobody waits.
  GpuMask excess() const { return excess_; }

 private:
  const Settings& settings_;
  Bookkeeping& books_;
  GpuMask excess_ = 0;
};

}  // namespace rota::scheduler
