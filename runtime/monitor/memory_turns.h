// What memory asks of turns (runtime/memory/turns.h), answered by the parts that know.
#pragma once

#include "runtime/client/bell.h"
#include "runtime/client/budget.h"
#include "runtime/client/published.h"
#include "runtime/client/usage.h"
#include "runtime/driver/contexts.h"
#include "runtime/gate/gate.h"
#include "runtime/memory/residency.h"
#include "runtime/memory/turns.h"
#include "runtime/monitor/gate_keeper.h"
#include "runtime/monitor/limits.h"
#include "runtime/monitor/now.h"
#include "runtime/monitor/out_of_memory.h"

namespace rota::monitor {

class Monitor;

class MemoryTurns final : public memory::Turns {
 public:
  struct Parts {
    Monitor& monitor;
    gate::Gate& gate;
    driver::Contexts& contexts;
    memory::Residency& memory;
    GateKeeper& keeper;
    client::Usage& usage;
    client::Budget& budget;
    client::Published& published;
    Limits& limits;
    OutOfMemory& out_of_memory;
    client::Bell& bell;
  };
  explicit MemoryTurns(const Parts& parts) : parts_(parts) {}

  void if_our_turn(int device, memory::OwnWork work) override { parts_.gate.run_if_open(device, work); }
  std::optional<api::CUresult> synchronize(api::CUcontext context) override {
    return parts_.contexts.synchronize(context);
  }
  bool may_take(int device, std::uint64_t bytes, memory::Kind kind, FunctionRef<void()> release,
                bool& for_others) override {
    if (gate::self == nullptr) gate::register_this_thread();  // a thread that may free memory again
    if (!parts_.budget.may_take(device, bytes, kind, release, &for_others)) return false;
    if (!parts_.budget.covered(device)) wait_for_promise(device);
    return true;
  }
  bool may_take_extents(int device, std::uint64_t bytes, std::uint64_t uncounted, FunctionRef<void()> release,
                        bool& for_others) override {
    return parts_.budget.may_take_extents(device, bytes, uncounted, release, &for_others);
  }
  bool wait_for_others(int device) override { return parts_.budget.wait_for_others(device); }
  void explain_refusal(int device) override { parts_.budget.explain(device); }
  void wait_until_served_is_known(int device) override;
  void make_room(int device, std::uint64_t pending, FunctionRef<bool()> again) override {
    parts_.out_of_memory.retry(device, again, {}, pending);
  }
  bool may_wait(int device, std::uint64_t bytes) override { return parts_.out_of_memory.may_wait(device, bytes); }
  void await_room(int device, const memory::Refused& what, FunctionRef<bool()> again) override {
    parts_.out_of_memory.await(device, what, again);
  }
  bool close_gate(int device, FunctionRef<void()> begin) override {
    parts_.out_of_memory.close_gate(device, begin);
    return true;
  }
  bool others_closed(int device) override;
  bool others_leave(int device) override { return parts_.published.others_leave(device); }
  bool overcommitted(int device) override { return parts_.published.crowded(device, now()); }
  void say_full(int device) override { parts_.out_of_memory.say_full(device); }
  std::uint64_t context_bytes(int device) override { return parts_.published.context_bytes(device); }
  std::uint64_t all_context_bytes(int device) override { return parts_.published.all_context_bytes(device); }
  std::uint64_t fixed_of_others_bytes(int device) override { return parts_.published.fixed_of_others_bytes(device); }
  bool limited() override { return parts_.published.limited(); }
  memory::SharedLimit shared_limit(int device) override { return parts_.limits.of(device); }
  void refresh(int device) override { parts_.limits.refresh(device); }
  void changed(int device) override {
    parts_.usage.changed(device);
    parts_.budget.changed();
  }
  void resident_changed(int device) override { parts_.usage.changed(device); }
  void out_of_place(int device) override { parts_.keeper.begin_moving(gate::bit_of(device)); }

 private:
  void wait_for_promise(int device);
  const Parts parts_;
};

}  // namespace rota::monitor
