// The monitor: rota's only thread in a program. It tells the turn machine (machine.h) of each task what happens on the
// socket, the lease page, the gates and the GPUs, and carries out what the machines decide.
//
// It is started at the first context, with all signals blocked. The program's threads only ring its bell. It sleeps on
// two futex words at once, its bell and the event word of the lease page.
#pragma once

#include <pthread.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/client/bell.h"
#include "runtime/client/budget.h"
#include "runtime/client/connection.h"
#include "runtime/client/gang_evidence.h"
#include "runtime/client/service.h"
#include "runtime/client/usage.h"
#include "runtime/client/waiting.h"
#include "runtime/core/function_ref.h"
#include "runtime/driver/contexts.h"
#include "runtime/gate/gate.h"
#include "runtime/gate/graph_reach.h"
#include "runtime/gate/reached.h"
#include "runtime/memory/memory.h"
#include "runtime/monitor/bring_back.h"
#include "runtime/monitor/gate_keeper.h"
#include "runtime/monitor/memory_places.h"
#include "runtime/monitor/meter.h"
#include "runtime/monitor/task.h"
#include "runtime/monitor/timing.h"
#include "runtime/turn/couplings.h"
#include "runtime/turn/machine.h"
#include "scheduler/protocol/session_list.h"

namespace rota::turn {

inline Time now() {
  return std::chrono::steady_clock::now().time_since_epoch();  // CLOCK_MONOTONIC, like rotad's times
}

class Monitor final : public gate::Attendant {
 public:
  // Closes the gate: the first submitting call starts the monitor. Opens no socket and starts no thread.
  // `for_now_patience`: how long a call for which the driver has no room waits for memory of others that cannot leave
  // for now. Longer than rota takes to find that a process cannot be drained and to try again (Machine::kFirstVerdict),
  // since without the room the call fails. A judgment.
  Monitor(gate::Gate& gate, gate::Contexts& contexts, memory::Memory& memory,
          std::chrono::nanoseconds for_now_patience = std::chrono::minutes(1));
  ~Monitor() override;  // only in tests; in a program it is never destroyed

  // --- program's threads
  // A context was created (or first seen). Connects at the first one; without a rotad, opens the gate permanently.
  void context_made(api::CUcontext context, int device, bool primary);
  // make_room() for a context that the driver refused because it was out of memory: this process may have no context on
  // the GPU yet.
  void make_room_for_context(int device, FunctionRef<bool()> again);
  // Under the lock that contexts end under.
  void context_ended(api::CUcontext context) {
    meter_.forget(context);
    timing_.context_ended();
  }
  // What the program times. record() makes the call, some form of cuEventRecord, which opens or closes a pair of the
  // stream. If the pair counts, it may first wait until others have left the GPU.
  Timing& timing() { return timing_; }
  api::CUresult record(api::CUevent event, api::CUstream stream, bool per_thread, FunctionRef<api::CUresult()> call);
  // This process has handed memory or events to others, which may have to run at the same time: tells rotad.
  void shares();
  bool shared() const { return shares_.load(); }
  // What may make it a member of a gang, which rotad is then told: it has looked up a kernel by name, shares GPU memory
  // with another process, or has registered host memory.
  void kernel_found(const char* name) {
    if (gang_.kernel_found(name)) bell_.ring();
  }
  void memory_shared() {
    if (gang_.memory_shared()) bell_.ring();
  }
  void host_registered(const void* address) {
    if (gang_.host_registered(address)) bell_.ring();
  }
  void arrived() override;
  void interrupted(int device) override;
  gate::Devices reached(const gate::Call& call) override;
  gate::Devices reached(const void* first, const void* second) override { return reached_.at(first, second); }
  void couples(gate::Devices devices) override;
  gate::Devices with_memory(gate::Devices devices) const;
  GraphReach& graphs() { return graphs_; }
  // A capture is about to begin: its calls are looked at.
  void capture_begins() {
    if (several()) gate_.set_sorted(true);
  }
  // Work of some GPUs may use memory of others from now on: returns once none can run whose memory is out of place.
  void settle_reach();
  bool may_submit(const gate::Call& call) override;
  bool submits_nothing(const gate::Call& call) override;
  void unseen() override { memory_.swap().pin(); }
  // For so long no memory leaves from now on. What is leaving or out comes back.
  void keep_in_place(Time so_long);
  // The same for as long as a library takes to load, by which memory may be reached: returns once all memory is in
  // place, or after half a minute, and a line says so.
  void bring_back_for(std::string_view library);
  std::optional<std::chrono::nanoseconds> stands(std::chrono::nanoseconds so_long) override {
    return waiting_.stands(so_long);
  }
  // The driver has refused a call on this GPU because it was out of memory: waits until only this process holds the
  // GPU, and calls `again`, repeatedly while memory of others is leaving. Does nothing where that cannot help: the
  // process wants more than there is, or rotad promises nothing. Does not wait inside the gate or during a capture.
  void make_room(int device, FunctionRef<bool()> again);
  void make_room(FunctionRef<bool()> again) override;  // for the GPU of the current context
  void make_room(int device, FunctionRef<bool()> again, Time patience);
  void usage_changed(int device) {
    usage_.changed(device);
    budget_.changed();
  }
  // The driver has no room for memory that may be out of place. Where others may make room later, calls `begin`, from
  // which on not all memory is in place, and returns once the gate is closed or never will be; the monitor closes it
  // without waiting for work when it sees that. Otherwise, inside the gate, and during a capture, it returns at once.
  void close_for_room(int device, FunctionRef<void()> begin);
  // Whether the calling thread may wait for what rotad promises: not inside the gate, nor during a capture, since an
  // allocation that a capture forbids must fail with the driver's error. rotad is asked in those cases, too.
  bool may_wait_for_room(int device);
  // Returns once rotad has said whether it serves this process on a GPU, but waits no longer than rotad takes that has
  // to ask another one for the GPU; with ROTA_WAIT=1 until a rotad serves it.
  void wait_until_served_is_known(int device);
  // Budget::may_take() for any device.
  bool may_take(int device, std::uint64_t bytes, memory::Kind kind);
  memory::Room::Limit limit(int device);
  bool limited() const;
  // The program asks what is free: waits for what rotad says of the GPU, at most a quarter of a second and only the
  // first time after a context was made there.
  void refresh(int device);
  // What this process has there besides its allocations, as rotad counts it; 0 where it has no context.
  std::uint64_t context_bytes(int device) const;
  // The same for all of rotad's clients together, and what programs that rotad does not know have; 0 where it does not
  // say.
  std::uint64_t all_context_bytes(int device) const;
  // What other processes have reserved there that cannot leave the GPU; 0 where rotad does not say.
  std::uint64_t fixed_of_others_bytes(int device) const;

  // The process is exiting: from now on the monitor makes no driver calls and no thread waits; or, while memory is out
  // of place, as soon as it is back.
  void at_exit();
  // In the child of a fork, before a new runtime is created: the parent's monitor thread does not exist here. Takes no
  // lock.
  static void forget_in_child();

  // Whether this process has had a context on the GPU.
  bool touches(int device) const {
    return device >= 0 && device < memory::kMaxDevices &&
           (devices_seen_.load(std::memory_order_acquire) >> device & 1) != 0;
  }
  bool served() const { return served_.load(std::memory_order_acquire); }
  // The GPUs on which it has had one.
  gate::Devices touched() const { return devices_seen_.load(std::memory_order_acquire); }
  bool several() const { return (touched() & (touched() - 1)) != 0; }

 private:
  struct Gpu {
    int device = -1;
    protocol::AddGpu description{};
    int index = -1;         // rotad's; -1 until it answered
    bool told = false;      // add_gpu was sent on this connection
    bool refused = false;   // rotad does not serve it for now: the process runs there without turns
    std::string said_why;   // the reason, as the user was last told
    bool unusable = false;  // rotad is not asked: its size is not known
    // What rotad was last told that this process needs, and under which grant.
    std::uint64_t asked = 0;
    std::uint32_t asked_grant = 0;
  };

  void say_full(int device) const;
  std::uint64_t limit_before_contexts();
  static protocol::Message message_of(const protocol::SessionEntry& session);
  memory::Room::Limit unanswered_limit(int device, std::uint64_t said) const;
  void touch(int device);
  void start();
  void stop();
  bool swaps() const;
  bool stops_at_exit();
  std::optional<bool> connect_first();
  void start_thread();
  bool make_known(const gate::Call& call);
  // Whether others are making room on the GPU, and whether they have anything that could leave it.
  bool others_clear(int device) const;
  bool turn_ends(int device) const;
  bool others_can_clear(int device) const;
  bool crowded(int device);
  Time time_to_load(std::string_view library);
  // Whether they have something that cannot leave it yet.
  bool others_can_later(int device) const;
  bool wait_for_later(int device, std::chrono::steady_clock::time_point until);
  // The index of a GPU in rotad's page; nothing: it is not there.
  struct OnPage {
    const protocol::GpuLease& lease;
    int index;
  };
  std::optional<OnPage> on_page(int device) const;

  bool others_closed(int device);

  // --- the monitor's thread
  void run();
  void look_at_tasks();
  void feed(Task& task, const Event& event);
  void carry_out(Task& task, const Action& action);
  void to_all(const Event& event);
  event::Look look(Task& task);
  void add_task(int device);
  void recouple();
  std::vector<Task*> to_recouple(Task& task);
  bool parts(const Task& task) const;
  void regroup(gate::Devices all);
  bool may_recouple(const Task& task) const;
  void undo_what_was_left();
  bool may_gather(const std::vector<Task*>& concerned, gate::Devices all) const;
  bool all_still() const;
  void collect();
  void move_out_of_the_way(Task& task, GpuMask gpus);
  memory::Exchange exchange(int device);
  event::Brought bring_memory_back(Task& task);
  void swap_out_of_the_way(Task& task, const std::vector<Destination>& from);
  void send_news();
  void publish_pins(Task& task);
  bool pins_what_is_reached();
  void look_outside();
  // Its gates, unless an allocation has just ended up out of place.
  bool open(Task& task);
  void collect_if_idle();
  bool lose_memory(api::CUresult error);
  void give_host_back_if_low();
  // Whether others have needed host memory of this process's for a while.
  bool host_presses() const;
  // What is known of whether work of this process runs, while the gate stays closed: one who asks again and again marks
  // only once.
  struct Resting {
    std::optional<bool> marked;
    bool proven = false;
  };
  bool rests(Resting& asked);
  bool only_calls(std::optional<bool>& marked);
  enum class Rest {
    kProven,
    kNotYet,
    kCannotTell,  // it will not be known before a capture, or a call that takes long, is over
  };
  Rest rests_within(Time pause);
  bool prepare_host();
  void keep_to_host_share();
  // The host lacks memory that this process could give back.
  bool has_unneeded_host() { return memory_.swap().host().low() || memory_.swap().host().excess() != 0; }
  void meter();
  Timing::Wish look_at_timing();
  void look_at_activity(Task& task);
  void sort_calls();
  void tell_shares();
  void tell_gang();
  void answer_account();
  bool opens(api::CUevent event, const Timing::Key& stream, gate::Devices devices);
  void sleep(std::uint32_t heard, std::uint32_t event_seen);
  void read_messages();
  void add_gpus();
  void announce_gpus();
  void tell_gpus();
  void is_served(Gpu& gpu);
  void is_refused(Gpu& gpu, const std::string& why);
  std::string awaited() const;
  void publish_room();
  GpuMask lacking(const Task& task) const;
  GpuMask unasked(const Task& task) const;
  void ask_room(const Task& task, GpuMask gpus);
  void connect();
  void look_for_welcome();
  void rotad_is_back();
  void hang_up();
  void hang_up_if_unread();
  void connected();
  bool stops_waiting();
  void send_asks();
  void say_state(const Gpu& gpu);
  void lost_rotad();
  void send(const protocol::Message& message);
  void say(Task& task, const Action& action);
  void waits_for_others(const Task& task);
  bool kept() const { return now() < kept_until_.load(); }
  // The process exits, and no thread waits for a turn: the driver may shut down at any moment, so no memory leaves.
  bool may_be_gone() const { return exits_.load() && gate_.standing() == 0; }
  bool stopping() const { return stopping_.load(std::memory_order_acquire); }

  gate::Gate& gate_;
  gate::Contexts& contexts_;
  memory::Memory& memory_;
  GateKeeper keeper_{gate_, memory_.swap()};

  const std::vector<protocol::SessionEntry> sessions_;
  const std::chrono::nanoseconds for_now_patience_;

  // Shared with the program's threads.
  std::mutex start_mutex_;
  bool told_no_rotad_ = false;  // under it: the user
  std::mutex early_limit_mutex_;
  std::optional<std::uint64_t> early_limit_;  // rotad's answer from before there was a context
  std::atomic<bool> silent_{false};           // it gave none
  std::atomic<bool> started_{false};
  std::atomic<bool> served_{false};
  std::atomic<bool> stopping_{false};
  std::atomic<bool> exits_{false};
  std::atomic<bool> knows_exit_{false};  // the monitor has seen that
  Service service_;
  // GPUs in front of whose gates a signal handler has run in a thread, since they closed.
  std::atomic<gate::Devices> interrupted_{0};
  std::atomic<bool> shares_{false};
  LedgerPlaces places_;
  Reached reached_;
  GraphReach graphs_;
  Couplings couplings_;
  GangEvidence gang_;
  std::atomic<std::uint64_t> devices_seen_{0};
  std::atomic<std::uint64_t> unusable_devices_{0};  // that rotad is not asked for
  Bell bell_;
  Usage usage_;
  Budget budget_;
  // The page where rotad publishes what limits leave, and the GPUs' indices there; null and -1 where there is none.
  std::atomic<const protocol::LeasePage*> limits_{nullptr};
  std::array<std::atomic<int>, memory::kMaxDevices> limits_index_;
  std::array<std::atomic<Time>, memory::kMaxDevices> crowded_until_{};
  std::array<std::atomic<std::uint64_t>, memory::kMaxDevices> total_bytes_{};  // of GPUs that were touched
  std::mutex new_gpus_mutex_;
  std::vector<Gpu> new_gpus_;

  pthread_t thread_{};
  bool thread_runs_ = false;

  // The monitor's own.
  std::unique_ptr<Connection> connection_;
  std::unique_ptr<Connection> unanswered_;  // to a rotad that has not answered yet
  bool said_silent_ = false;                // the user knows that rotad does not answer
  std::vector<Gpu> gpus_;
  std::uint32_t round_ = 0;                  // of tightening, on this connection
  std::atomic<Time> kept_until_{Time{0}};    // keep_in_place()
  std::mutex loads_mutex_;                   // the field below
  std::map<std::string, Time> brought_for_;  // when bring_back_for() last returned
  // For what a busy process has of the host: how long its gate closes the next time that it does for longer, when that
  // is, and how long after the last time. Kept while others need nothing: they may the moment after.
  Time pause_{0};
  Time longer_pause_at_{0};
  Time between_pauses_{0};
  std::optional<Time> exceeds_host_since_;  // since when this process has had more of the host's memory than its share
  std::optional<Time> lacks_host_since_;    // since when the host has had no memory for what others ask for
  // Attempts to bring memory back that the driver refused for reasons other than room, since all of it was last there.
  int refused_ = 0;
  Time refused_since_{0};
  bool lost_ = false;                  // and that was the last attempt
  bool prepares_ = false;              // prepares room on the host
  bool reached_from_outside_ = false;  // memory can be accessed without calls that rota sees
  Time next_look_outside_{0};
  Time next_collect_{0};
  Time next_sweep_{0};
  Time next_undo_{0};
  Time next_count_{0};  // of what could be given back to the host
  Waiting waiting_{[this] { return awaited(); }};
  Meter meter_;                               // shared with the program's threads
  Timing timing_;                             // the same
  Timing::Wish measured_;                     // as last seen
  std::vector<std::unique_ptr<Task>> tasks_;  // at least one; each GPU that was touched is in one of them
};

}  // namespace rota::turn
