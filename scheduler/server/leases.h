// Which client of the core each task is, also where GPUs are coupled or tasks are in a gang (gangs.h), and what its
// lease is. A state machine without a clock, sockets or pages: the server provides those (server.h), and so does a
// test.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "scheduler/core/core.h"
#include "scheduler/core/gang_drain.h"
#include "scheduler/protocol/protocol.h"
#include "scheduler/server/tasks.h"
#include "scheduler/server/trust_domain.h"

namespace rota::server {

// A client, as far as its leases go.
struct Program {
  scheduler::ClientId id = 0;  // in limits and messages; the core knows its tasks
  pid_t pid = 0;
  std::string name;
  TrustDomain domain{0};
  scheduler::DomainId domain_number = 0;  // the domain whose share of a GPU its tasks use
  std::uint32_t named = 0;                // the gang that it has named; 0: none
  bool gangless = false;                  // it has said that it is to be of none
  std::uint32_t gang = 0;                 // of which its tasks are to be members; 0: none
  std::set<scheduler::ClientId> linked;   // programs with which it shares open memory (gang_membership.cpp)
  bool heard = false;                     // since its gang's turn began or, if that is later, began to drain
  bool silent = false;                    // it left such a turn to be revoked, and has said nothing since
  // As in its latest gang: a gang that links make again and again keeps the verdict.
  protocol::GangApart apart{};
  scheduler::Time apart_until{};
  Tasks tasks;
  GpuSet gpus() const { return tasks.gpus(); }  // that it has added
};

// What has become of a gang's turns.
struct GangVerdict {
  protocol::GangApart apart{};  // why its members take their turns by themselves,
  scheduler::Time left{};       // and for how long
  unsigned revoked = 0;         // turns in a row
  unsigned members = 0;         // programs that it still had once all had come; 0: they had not
};

class Leases {
 protected:  // for the owner, and for tests of its state
  struct Gang;
  struct OfTask {
    Program* program = nullptr;
    Task* task = nullptr;
  };

  explicit Leases(const scheduler::Settings& settings);
  ~Leases();
  Leases(const Leases&) = delete;
  Leases& operator=(const Leases&) = delete;

  // ---- what the owner provides

  virtual Program* program(scheduler::ClientId id) const = 0;  // null: it has ended
  virtual scheduler::Time now() const = 0;                     // real
  virtual scheduler::Time modelled_now() const = 0;            // the core's
  virtual scheduler::Time real(scheduler::Time modelled) const = 0;
  // Whether there is memory to begin and end tasks with.
  virtual bool may_grow() = 0;
  // If another rotad is to have the GPUs: by when holders have to give back, in the core's time; otherwise nothing.
  virtual std::optional<scheduler::Time> withdraw_by() const = 0;
  virtual scheduler::SessionId session_of(const Program& program) const = 0;
  // What a program says of its memory on a GPU (`client` is not set); and, if its task is in a gang, how far it has
  // come to rest.
  virtual scheduler::event::Usage usage_of(const Program& program, scheduler::GpuIndex gpu) const = 0;
  virtual scheduler::GangDrain::Word rest_of(const Program& program, const Task& task) const = 0;
  // Tells the core what the program has done on its GPUs.
  virtual void read_activity(Program& program) = 0;
  // Memory on these GPUs belongs to other clients of the core than before.
  virtual void coupled(scheduler::GpuMask gpus) = 0;
  // A task of this program on this GPU has become a member of a gang, which is this client of the core from now on.
  virtual void joined_gang(const Program& /*member*/, scheduler::GpuIndex /*gpu*/, scheduler::ClientId /*gang*/) {}
  // For the logs: each event with what the core has decided, decisions about single programs, and what becomes of
  // tasks.
  virtual void stepped(const scheduler::Event& event, scheduler::Time time,
                       const std::vector<scheduler::Decision>& decisions) = 0;
  virtual void decided(Program& program, const scheduler::Decision& decision) = 0;
  virtual void remark(const std::string& text) = 0;
  virtual unsigned number_of(scheduler::GpuIndex gpu) const = 0;  // as nvidia-smi's
  // Writes the pages of the programs in `changed_`.
  virtual void publish_all(scheduler::Time time) = 0;

  // ---- leases.cpp

  void step(const scheduler::Event& event);
  void publish_changes(scheduler::Time time);
  // What the page of a task shows of its lease.
  struct Lease {
    scheduler::ClientState state;
    scheduler::Time give_back_by{};
    std::uint32_t gang_ends = 0;
    std::uint32_t gang_step = 0;
  };
  Lease lease_of(const Program& program, const Task& task) const;
  std::uint32_t shown_grant(const Task& task, scheduler::GpuIndex gpu) const;  // 0: nothing, or not any more
  // Begins the core's client for a GPU that the program names for the first time; say_gpu() follows. `last_grant`: the
  // latest that an earlier rotad gave.
  void begin_task(Program& program, scheduler::GpuIndex gpu, std::uint32_t last_grant = 0);
  // For a program that has ended.
  void end_tasks(const Program& program);
  void on_give_back(Program& program, const protocol::GiveBack& given);
  void tell_usage(Program& program, scheduler::GpuIndex gpu);

  // ---- coupling.cpp

  OfTask find_task(scheduler::ClientId id) const;  // nulls: it has ended, or its program has
  scheduler::ClientState state_of(const Task& task) const;
  bool holds(const Task& task) const;
  scheduler::Bytes context_bytes(const Program& program, scheduler::GpuIndex gpu) const;
  // `reclaims`: a program that says that its work runs there has its GPUs at once.
  void on_want(Program& program, const protocol::Want& want, bool reclaims);

  // ---- gang_membership.cpp

  void on_gang(Program& program, const protocol::Gang& named);
  // One of the two has memory of the other open, or neither has any longer.
  void link_programs(Program& one, Program& another);
  void unlink_programs(Program& one, Program& another);
  // A message has come from it.
  void heard(Program& program);

  // ---- gangs.cpp

  Gang* gang_of(const Task& task) const;  // null: it is a member of none
  template <typename Visit>
  void for_each_member(const Gang& gang, const Visit& visit) const;
  void for_each_task_of(scheduler::ClientId id, const std::function<void(Program&, Task&)>& visit) const;
  bool holds(const Gang& gang) const;
  bool is_apart(const Gang& gang) const;
  // Whether a member waits that the core does not know to wait, since its gang cannot have a turn yet.
  bool waits_for_gang(const Task& member) const;
  // Whether any does on this GPU.
  bool any_waits(const Gang& gang, scheduler::GpuIndex gpu) const;
  void check_gangs();
  // When some gang has to be checked although nothing happens, in real time.
  std::optional<scheduler::Time> next_check() const;
  void check_if_due();

  // ---- gang_memory.cpp

  void say_gpu(Program& program, scheduler::GpuIndex gpu, scheduler::Bytes total, scheduler::Bytes context);
  void say_asked(Task& task, scheduler::GpuIndex gpu, scheduler::Bytes bytes);
  scheduler::Bytes promised_bytes(const Task& task, scheduler::GpuIndex gpu) const;
  scheduler::Bytes resident_bytes(const Task& task, scheduler::GpuIndex gpu) const;
  scheduler::Bytes bytes_to_clear(const Program& program, const Task& task, scheduler::GpuIndex gpu) const;
  bool others_can_evict(const Program& program, scheduler::GpuIndex gpu) const;
  Program* deficit_on(scheduler::ClientId id, scheduler::GpuIndex gpu) const;

  scheduler::Core core_;
  std::map<std::uint32_t, std::unique_ptr<Gang>> gangs_;
  std::set<std::uint32_t> gangs_due_;      // that have to be checked
  std::set<scheduler::ClientId> changed_;  // whose pages have to be written, within one step
  std::uint32_t last_number_ = 0;          // of the core's clients, and of others whose numbers differ from theirs
  bool coupling_ = false;                  // pages are written once all has been carried out
  mutable bool keeps_sums_ = false;        // all members' pages or rows are being written

  void join(const Program& program, const Task& task);
  // Makes a client of the core that has the program's domain and session.
  void enter_core(scheduler::ClientId id, const Program& whose, std::uint32_t last_grant);
  bool couple(Program& program, scheduler::GpuMask gpus);
  void replace(Program& program, const Tasks::Change& change,
               const std::vector<std::pair<scheduler::GpuIndex, scheduler::Bytes>>& contexts);

  Gang& gang_named(const Program& program, const std::string& name);
  bool may_be_moved(const Program& program) const;
  std::set<scheduler::ClientId> connected_with(const Program& program) const;
  Gang* gang_for(const std::set<scheduler::ClientId>& together);
  void move(Program& program, Gang* to);
  void regroup(std::set<scheduler::ClientId> programs);
  void add_members(std::uint32_t gang, std::set<scheduler::ClientId>& to) const;
  void leave_named(const Program& program);
  void leave_gang(const Program& program);
  void take_in_linked(const Gang& gang);
  void let_go(Gang& gang);
  static bool has_members_of(const Program& program, const Gang& gang);
  bool leave_gang_to_couple(Program& program);
  bool is_to_join(const Program& program, const Task& task) const;
  bool is_needed(const Gang& gang) const;
  void withdraw(Task& task, scheduler::Time within);
  void stays_alone(Task& task);
  bool is_whole(Gang& gang);
  void form(Gang& gang);
  void rebuild(Gang& gang, const std::vector<OfTask>& members);
  void become_alone(Program& program, Task& task);
  void begin_to_want(Task& member) const {
    if (!std::exchange(member.wants, true)) member.wants_since = modelled_now();
  }
  void want_together(Gang& gang, bool urgent, bool running = false);
  void part_if_overcommitted(Gang& gang);
  void check(Gang& gang);
  void check_later(Gang& gang, scheduler::Time in);
  void gave_back(const Program& program, Task& task, std::uint32_t grant);
  void decided(Gang& gang, const scheduler::Decision& decision);
  void leave_out_silent(const Gang& gang);
  void part(Gang& gang, protocol::GangApart why);

  void say_usage(Task& task, const scheduler::event::Usage& usage);
  struct OnGpu {
    scheduler::Bytes needs = 0;  // they have, or have asked for
    std::size_t can_leave = 0;   // members whose memory can be evicted
  };
  OnGpu all_on(const Gang& gang, scheduler::GpuIndex gpu) const;
  template <typename Of>
  scheduler::Bytes sum(const Gang& gang, scheduler::GpuIndex gpu, const Of& of) const;

  std::map<scheduler::ClientId, scheduler::ClientId> owners_;  // of tasks: their programs
  std::map<std::string, std::uint32_t> gang_numbers_;          // by key
  // By key: what an earlier rotad knew of gangs, until their programs are back or count as dead.
  std::map<std::string, GangVerdict> earlier_verdicts_;
  std::map<scheduler::ClientId, std::uint32_t> gangs_in_core_;  // by the core's client
  std::set<std::pair<scheduler::Time, std::uint32_t>> checks_;  // when which gang has to be checked
  // all_on(): of gangs, by their numbers, as long as `keeps_sums_` and no step has been taken.
  mutable std::map<std::pair<std::uint32_t, scheduler::GpuIndex>, OnGpu> sums_;
  bool checking_gangs_ = false;
  std::uint32_t last_gang_ = 0;
};

}  // namespace rota::server
