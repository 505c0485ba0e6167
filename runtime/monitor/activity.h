// What a task tells rotad about how it uses its GPUs while others touch them: how many calls submit work, whether its
// GPUs are busy while it holds them, and how long it takes until a turn begins. Only the monitor uses it.
#pragma once

#include <atomic>
#include <cstdint>
#include <random>

#include "runtime/driver/contexts.h"
#include "runtime/gate/gate.h"
#include "runtime/turn/machine.h"
#include "scheduler/protocol/pages.h"

namespace rota::turn {

class Activity {
 public:
  Activity(gate::Gate& gate, gate::Contexts& contexts) : gate_(gate), contexts_(contexts) {}

  // Null: rotad is gone. What has been counted so far counts for the next one.
  void connected(protocol::UsagePage* page);
  // The task's GPUs, by rotad's indices of them and by the driver's ordinals.
  void serve(GpuMask gpus, gate::Devices devices);
  // granted(): the lease with this grant came, or none is held. opened(): the gate has opened.
  void granted(std::uint32_t grant, Time now);
  void opened(Time now);
  void closed(Time now);
  // `watch`: what rotad wants to know. `accounts`: whether samples are taken for this process's account as well.
  // `holds`: the gate is open under a lease.
  void look(std::uint32_t watch, bool accounts, bool holds, Time now);
  // Writes down how many calls there have been.
  void count_calls(Time now);
  // When the next look is due.
  Time look_at() const { return look_at_; }

 private:
  enum class Found { kNothing, kIdle, kBusy };
  Found sample();
  void tell_sample(bool busy);
  void tell_all();
  void tell(std::atomic<std::uint64_t> protocol::GpuUsage::* what, std::uint64_t value);

  gate::Gate& gate_;
  gate::Contexts& contexts_;
  protocol::UsagePage* page_ = nullptr;
  GpuMask gpus_ = 0;
  gate::Devices devices_ = gate::kAllDevices;
  Time look_at_ = Time::max();
  Time sample_at_{0};
  Time sampled_at_{0};  // 0: the gate was closed meanwhile, or nobody wanted samples
  Time between_{0};     // samples, on average
  Time sampled_{0};     // that samples for the account stand for
  std::minstd_rand jitter_;
  std::uint64_t samples_ = 0;
  std::uint64_t busy_ = 0;
  std::uint64_t spell_ = 0;  // busy samples in a row,
  std::uint64_t in_spells_ = 0;
  std::uint64_t calls_marked_ = 0;
  std::uint32_t grant_ = 0;
  bool opens_ = false;  // the grant's turn has not begun yet
  Time granted_at_{0};
  Time open_since_{0};  // since when the gate is open under a lease; 0: it is not
  Time open_{0};        // the time it was open under leases before that
  std::uint64_t switches_ = 0;
  std::uint64_t switching_ns_ = 0;
};

}  // namespace rota::turn
