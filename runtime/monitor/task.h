// A task takes turns: this process on one GPU, or on several that it needs at the same time.
#pragma once

#include <unistd.h>

#include <deque>
#include <optional>
#include <vector>

#include "runtime/driver/contexts.h"
#include "runtime/gate/gate.h"
#include "runtime/monitor/sampler.h"
#include "runtime/turn/machine.h"

namespace rota::monitor {

struct Task {
  Task(gate::Gate& gate, driver::Contexts& contexts)
      : machine(static_cast<std::uint32_t>(getpid()) * 2654435761U), sampler(gate, contexts) {}

  bool has(int device) const { return (devices & gate::bit_of(device)) != 0; }
  bool holds() const { return machine.phase() == turn::Phase::kHolding && machine.gate_open(); }
  // With the gate open, under a lease or concurrently with the others.
  bool runs() const { return holds() || (machine.phase() == turn::Phase::kBeside && machine.gate_open()); }

  gate::Devices devices = 0;  // by the driver's ordinals; none: the process has touched no GPU yet
  turn::GpuMask served = 0;   // those that rotad serves, by its indices
  turn::Machine machine;
  Sampler sampler;
  std::optional<turn::event::Gpus> told;  // what the machine knows of rotad's answers
  std::deque<turn::Event> due;
  std::vector<turn::Action> actions;
  turn::Time opened_at{0};  // when the gates last opened
  // Extents that the driver refused to release: they count as pinned until the next grant or this time.
  turn::Time stuck_until{0};
};

}  // namespace rota::monitor
