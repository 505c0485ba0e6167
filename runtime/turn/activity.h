// How a task uses its GPUs while others touch them, as rotad is told: how many calls submit work, whether the GPUs are
// busy while the task holds them, and how long it takes until a turn begins. A pure machine: grants, the opening and
// closing of the gate, samples and the time in; what to count and to sample, and the sums, out.
#pragma once

#include <cstdint>
#include <random>

#include "runtime/turn/machine.h"

namespace rota::turn {

class Activity {
 public:
  // Sums since the process began.
  struct Sums {
    std::uint64_t samples = 0;
    std::uint64_t busy_samples = 0;
    std::uint64_t spell_samples = 0;  // of them, in busy periods of several samples
    std::uint64_t switches = 0;       // turns that have begun,
    std::uint64_t switch_ns = 0;      // and how long after their grants
  };
  const Sums& sums() const { return sums_; }
  // How long the gate has been open under leases.
  Time open(Time now) const { return open_ + (open_since_ != Time{0} ? now - open_since_ : Time{0}); }

  // rotad has connected, or is lost. What has been counted so far is reported to the next rotad.
  void connected(bool is);
  // granted(): the lease with this grant came, or none is held. opened(): the gate has opened; returns whether a turn
  // has begun with it.
  void granted(std::uint32_t grant, Time now);
  bool opened(Time now);
  void closed(Time now);

  // Called at each poll: returns which of the following are to be done now. `counts` and `samples`: what rotad wants to
  // know. `accounts`: whether samples are taken for this process's account as well. `holds`: the gate is open under a
  // lease.
  struct Wants {
    bool counts = false;
    bool samples = false;
    bool accounts = false;
    bool holds = false;
  };
  struct Todo {
    bool count = false;
    bool sample = false;  // then say sampled()
  };
  Todo look(const Wants& wants, Time now);
  enum class Found { kNothing, kIdle, kBusy };
  // Returns how much time the sample represents in this process's account; 0: it is not one for the account.
  Time sampled(const Wants& wants, Found found, Time now);

  // When the next poll is due.
  Time look_at() const { return look_at_; }

 private:
  bool connected_ = false;
  Sums sums_;
  Time look_at_ = Time::max();
  Time sample_at_{0};
  Time sampled_at_{0};  // 0: the gate was closed meanwhile, or nobody wanted samples
  Time between_{0};     // samples, on average
  Time sampled_{0};     // that samples for the account represent
  std::minstd_rand jitter_;
  std::uint64_t busy_in_a_row_ = 0;  // busy samples in a row
  std::uint32_t grant_ = 0;
  bool opens_ = false;  // the grant's turn has not begun yet
  Time granted_at_{0};
  Time open_since_{0};  // since when the gate is open under a lease; 0: it is not
  Time open_{0};        // the time it was open under leases before that
};

}  // namespace rota::turn
