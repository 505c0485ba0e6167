// Counts and samples what a task does on its GPUs, as its Activity says, and writes the sums into the usage page. Only
// the monitor uses it.
#pragma once

#include <atomic>
#include <cstdint>

#include "runtime/driver/contexts.h"
#include "runtime/gate/gate.h"
#include "runtime/turn/activity.h"
#include "scheduler/protocol/pages.h"

namespace rota::monitor {

class Sampler {
 public:
  Sampler(gate::Gate& gate, driver::Contexts& contexts) : gate_(gate), contexts_(contexts) {}

  // Null: there is no rotad.
  void connected(protocol::UsagePage* page);
  // The task's GPUs, by rotad's indices of them and by the driver's ordinals.
  void serve(turn::GpuMask gpus, gate::Devices devices);
  void granted(std::uint32_t grant, turn::Time now) { activity_.granted(grant, now); }
  void opened(turn::Time now);
  void closed(turn::Time now) { activity_.closed(now); }
  // `watch`: what rotad wants to know (protocol::kWatch…). `accounts` and `holds`: as in Activity.
  void look(std::uint32_t watch, bool accounts, bool holds, turn::Time now);
  // Writes down how many calls there have been.
  void count_calls(turn::Time now);
  turn::Time look_at() const { return activity_.look_at(); }

 private:
  turn::Activity::Found sample();
  void tell(std::atomic<std::uint64_t> protocol::GpuUsage::* what, std::uint64_t value);
  void tell_samples();
  void tell_switches();

  gate::Gate& gate_;
  driver::Contexts& contexts_;
  turn::Activity activity_;
  protocol::UsagePage* page_ = nullptr;
  turn::GpuMask gpus_ = 0;
  gate::Devices devices_ = gate::kAllDevices;
  std::uint64_t calls_marked_ = 0;
};

}  // namespace rota::monitor
