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
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/client/bell.h"
#include "runtime/client/budget.h"
#include "runtime/client/conversation.h"
#include "runtime/client/gang_evidence.h"
#include "runtime/client/introductions.h"
#include "runtime/client/next_rotad.h"
#include "runtime/client/published.h"
#include "runtime/client/room_requests.h"
#include "runtime/client/service.h"
#include "runtime/client/usage.h"
#include "runtime/client/waiting.h"
#include "runtime/core/function_ref.h"
#include "runtime/core/guarded.h"
#include "runtime/driver/contexts.h"
#include "runtime/gate/gate.h"
#include "runtime/gate/graph_reach.h"
#include "runtime/gate/reached.h"
#include "runtime/memory/residency.h"
#include "runtime/monitor/bring_back.h"
#include "runtime/monitor/gate_keeper.h"
#include "runtime/monitor/limits.h"
#include "runtime/monitor/memory_places.h"
#include "runtime/monitor/memory_turns.h"
#include "runtime/monitor/meter.h"
#include "runtime/monitor/now.h"
#include "runtime/monitor/out_of_memory.h"
#include "runtime/monitor/task.h"
#include "runtime/monitor/timing.h"
#include "runtime/turn/chores.h"
#include "runtime/turn/couplings.h"
#include "runtime/turn/host_pauses.h"
#include "runtime/turn/loads.h"
#include "runtime/turn/machine.h"
#include "runtime/turn/pace.h"
#include "runtime/turn/restores.h"
#include "scheduler/protocol/session_list.h"

namespace rota::monitor {

class Monitor final : public gate::Attendant, client::Conversation::Listener {
 public:
  // Closes the gate: the first submitting call starts the monitor. Opens no socket and starts no thread.
  // `for_now_patience`: see OutOfMemory.
  Monitor(gate::Gate& gate, driver::Contexts& contexts, memory::Residency& memory,
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
  // This process has handed memory or events to others (protocol::kSharesOwn) or opened theirs (kSharesOfOthers), so
  // both may have to run at the same time: tells rotad.
  void shares(std::uint32_t what);
  std::uint32_t shared() const { return shares_.load(); }
  // Evidence that the process may be a member of a gang, which rotad is then told: it has looked up a kernel by name,
  // shares GPU memory with another process, or has registered host memory.
  void kernel_found(const char* name) {
    if (gang_.kernel_found(name)) bell_.ring();
  }
  void memory_shared() {
    if (gang_.memory_shared()) bell_.ring();
  }
  void host_registered(const void* address) {
    if (gang_.host_registered(address)) bell_.ring();
  }
  // This process has exported memory by handles of rota's, which name it by this number: returns once rotad knows.
  void announce(const protocol::ProcessNumber& number);
  // A socket to the process of this number, by that time. Not inside the gate.
  client::Introductions::Answer introduce(const protocol::ProcessNumber& number,
                                          std::chrono::steady_clock::time_point until);
  // It has memory of the process with this number open, or has it no longer: tells rotad. With any locks held.
  void opened(const protocol::ProcessNumber& number, bool is) {
    if (introductions_.opened(number, is)) bell_.ring();
  }
  void arrived() override;
  void interrupted(int device) override;
  gate::Devices reached(const driver::Call& call) override;
  gate::Devices reached_at_once(const driver::Call& call) override;
  gate::Devices reached(const void* first, const void* second) override { return reached_.at(first, second); }
  void couples(gate::Devices devices) override;
  gate::Devices with_memory(gate::Devices devices) const;
  gate::GraphReach& graphs() { return graphs_; }
  // A capture is about to begin: its calls are looked at.
  void capture_begins() {
    if (several()) gate_.set_sorted(true);
  }
  // Work of some GPUs may use memory of others from now on: returns once none can run whose memory is out of place.
  void settle_reach();
  bool may_submit(const driver::Call& call) override;
  bool submits_nothing(const driver::Call& call) override;
  void unseen() override { memory_.pin_all(protocol::PinAll::kUnseen); }
  // No memory is evicted for this long from now on. What is being or has been evicted is restored.
  void keep_in_place(turn::Time so_long);
  // The same while a library loads through which memory may be reached: returns once all memory is in place, or after
  // half a minute, and a line says so.
  void bring_back_for(std::string_view library);
  std::optional<std::chrono::nanoseconds> stands(std::chrono::nanoseconds so_long) override {
    return waiting_.stands(so_long);
  }
  void make_room(FunctionRef<bool()> again) override;  // for the GPU of the current context
  // Returns once rotad has said whether it serves this process on a GPU. Waits no longer than rotad takes to ask
  // another rotad for the GPU; with ROTA_WAIT=1 until a rotad serves it.
  void wait_until_served_is_known(int device);
  // What memory asks of turns (runtime/memory/turns.h).
  bool others_closed(int device);
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
  void touch(int device);
  void start();
  void stop();
  bool swaps() const;
  bool stops_at_exit();
  void start_thread();
  bool make_known(const driver::Call& call);

  // --- the monitor's thread
  void run();
  void look_at_tasks();
  void feed(Task& task, const turn::Event& event);
  void carry_out(Task& task, const turn::Action& action);
  void to_all(const turn::Event& event);
  turn::event::Look look(Task& task);
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
  void move_out_of_the_way(Task& task, turn::GpuMask gpus);
  memory::Exchange exchange(int device);
  turn::event::Brought bring_memory_back(Task& task);
  void swap_out_of_the_way(Task& task, const std::vector<Destination>& from);
  void send_news();
  void publish_pins(Task& task);
  bool pins_what_is_reached();
  void look_outside();
  // Opens the task's gates, unless an allocation has just ended up out of place.
  bool open(Task& task);
  void collect_if_idle();
  bool being_checkpointed();
  void lose_memory(api::CUresult error, turn::Time refused_for);
  void give_host_back_if_low();
  // What is known of whether work of this process runs, while the gate stays closed: repeated questions make only one
  // mark.
  struct Resting {
    std::optional<bool> marked;
    bool proven = false;
  };
  bool rests(Resting& asked);
  bool only_calls(std::optional<bool>& marked);
  turn::HostPauses::Rest rests_within(turn::Time pause);
  bool prepare_host();
  void keep_to_host_share();
  // The host needs memory that this process could give back.
  bool has_unneeded_host() { return memory_.host_low() || memory_.host_excess() != 0; }
  void meter();
  Timing::Wish look_at_timing();
  void look_at_activity(Task& task);
  void sort_calls();
  void answer_account();
  bool opens(api::CUevent event, const Timing::Key& stream, gate::Devices devices);
  void sleep(std::uint32_t heard, std::uint32_t event_seen);
  void add_gpus();
  void tell_gpus();
  std::string awaited() const;
  void publish_room();
  // Conversation::Listener
  void rotad_came(client::Connection& connection) override;
  void rotad_went() override;
  void rotad_is_back(bool is) override;
  void serves(int device, bool is) override;
  void count_freed() override { memory_.sweep_deferred(); }
  void introduced(Descriptor&& socket) override;
  bool stops_waiting();
  bool rotad_is_awaited() const;
  void say(Task& task, const turn::Action& action);
  void waits_for_others(const Task& task);
  bool kept() const { return now() < kept_until_.load(); }
  // The process exits, and no thread waits for a turn: the driver may shut down at any moment, so no memory is evicted.
  bool may_be_gone() const { return exits_.load() && gate_.standing() == 0; }
  bool stopping() const { return stopping_.load(std::memory_order_acquire); }

  gate::Gate& gate_;
  driver::Contexts& contexts_;
  memory::Residency& memory_;
  GateKeeper keeper_{gate_, memory_};

  const std::vector<protocol::SessionEntry> sessions_;

  // Shared with the program's threads.
  std::mutex start_mutex_;
  std::atomic<bool> started_{false};
  std::atomic<bool> served_{false};
  std::atomic<bool> stopping_{false};
  std::atomic<bool> exits_{false};
  std::atomic<bool> knows_exit_{false};  // the monitor has seen that
  client::Service service_;
  // GPUs in front of whose gates a signal handler has run in a thread, since they closed.
  std::atomic<gate::Devices> interrupted_{0};
  std::atomic<std::uint32_t> shares_{0};
  LedgerPlaces places_;
  gate::Reached reached_;
  gate::GraphReach graphs_;
  Guarded<turn::Couplings> couplings_;
  client::GangEvidence gang_;
  client::Introductions introductions_;
  client::RoomRequests rooms_;
  std::atomic<std::uint64_t> devices_seen_{0};
  std::atomic<std::uint64_t> unusable_devices_{0};  // that rotad is not asked for
  client::Bell bell_;
  client::Usage usage_;
  client::Budget budget_;
  client::Published published_;
  Limits limits_{memory_, budget_, published_, sessions_, started_};
  OutOfMemory out_of_memory_;
  MemoryTurns memory_turns_{
      {*this, gate_, contexts_, memory_, keeper_, usage_, budget_, published_, limits_, out_of_memory_, bell_}};
  std::mutex new_gpus_mutex_;
  std::vector<client::Conversation::Gpu> new_gpus_;

  pthread_t thread_{};
  bool thread_runs_ = false;

  // The monitor's own.
  client::Conversation rotad_{
      {usage_, budget_, service_, gang_, introductions_, rooms_, published_, shares_}, sessions_, *this};
  client::NextRotad next_rotad_;
  std::atomic<turn::Time> kept_until_{turn::Time{0}};  // keep_in_place()
  Guarded<turn::Loads> loads_;
  turn::HostPauses host_pauses_;
  turn::Restores restores_;
  bool prepares_ = false;              // prepares room on the host
  bool took_over_ = false;             // has had memory that other processes handed over
  bool reached_from_outside_ = false;  // memory can be accessed without calls that rota sees
  turn::Chores chores_;
  client::Waiting waiting_{[this] { return awaited(); }};
  Meter meter_;                               // shared with the program's threads
  Timing timing_;                             // the same
  Timing::Wish measured_;                     // as last seen
  std::vector<std::unique_ptr<Task>> tasks_;  // at least one; each GPU that was touched is in one of them
};

}  // namespace rota::monitor
