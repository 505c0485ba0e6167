// Processes with turn machines, and the leases that rotad's server keeps for them, in simulated time: ranks of jobs,
// whose kernels wait for each other's, and programs by themselves. They come late, die, are stopped, couple GPUs, say
// wrong sizes and take other users' names; some lie about everything. Everything is chosen by a seed.
//
// What has to hold is in checks.cpp.
#pragma once

#include <array>
#include <bit>
#include <catch2/catch.hpp>
#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "runtime/turn/machine.h"
#include "scheduler/server/gangs.h"
#include "scheduler/server/leases.h"

namespace rota::test::gangs {

using namespace std::chrono_literals;
using scheduler::ClientId;
using scheduler::GpuIndex;
using scheduler::GpuMask;
using scheduler::Time;

constexpr Time kNever = Time::max();
constexpr GpuIndex kGpus = 5;
constexpr scheduler::Bytes kTotal = scheduler::Bytes{80} << 30;

// What a program does on GPUs that it holds at the same time. Its thread makes calls, each of which is a kernel.
struct Rank {
  GpuMask gpus = 0;
  turn::Machine machine;
  Time look_at{};
  // The thread.
  long to_make = 0;  // calls
  long made = 0;     // submitted
  long left = 0;     // calls that have returned
  Time enters{};
  Time leaves{};
  bool inside = false;
  bool waits = false;   // that call returns only once its kernel has finished
  bool let_in = false;  // by an admission
  Time stands_since = kNever;
  // The GPU.
  long finished = 0;
  long marked = -1;  // how many had been submitted at the last mark
  Time busy_until{};
  // What it has said, and what rotad shows it.
  std::uint64_t told = 0;
  std::uint32_t grant = 0;
  std::uint32_t gang = 0;
  std::uint32_t step = 0;
  bool ends = false;
  ClientId holder = 0;  // the core's client that its task is
};

struct Process : server::Program {
  std::string job;                // empty: none
  bool waits_for_others = false;  // every third kernel waits for that of each other rank of the job
  bool liar = false;
  bool dead = false;
  bool regroups = false;                          // its GPUs are to be one task, or no longer
  bool leaves = false;                            // it ends once its work is done
  bool was_silent = false;                        // as last seen
  std::array<std::uint32_t, kGpus> given_back{};  // the last grant there
  Time stopped_until{};
  Time sent_until{};  // when the last of its messages arrives
  scheduler::Bytes used = 0;
  scheduler::Bytes resident = 0;
  scheduler::Bytes lacking = 0;
  std::uint32_t refusals = 0;
  std::vector<std::unique_ptr<Rank>> ranks;
};

class World : private server::Leases {
 public:
  World(unsigned seed, const scheduler::Settings& settings)
      : Leases(settings), random_(seed), memory_lacks_(seed % 4 == 3) {}

  // Without surprises: these ranks always have work.
  void add_job(const std::string& job, const std::vector<GpuMask>& ranks);
  // Adds random programs and jobs, and plans their surprises.
  void populate();
  void run(Time length, bool surprises);
  // From here on there are no surprises, and every program gets a turn.
  void everybody_gets_a_turn();
  void everybody_leaves();

  struct Seen {
    long steps = 0;  // of the core
    long grants = 0;
    long gang_grants = 0;
    long admitted = 0;  // calls during a joint drain
    long drained = 0;   // gangs whose work finished together
    long futile = 0;    // drains of a gang that were given up as futile
    long revoked = 0;
    long apart = 0;
    long crowded = 0;
    long short_of = 0;  // gangs that began with fewer ranks than their size
    long coupled = 0;
    long died = 0;
    long linked_grants = 0;  // of gangs of programs that have opened memory
    long silent = 0;         // times that a program was left out of its gang
    Time longest_wait{};
    double held = 0;  // GPU seconds
  };
  const Seen& seen() const { return seen_; }

 private:
  // --- what leases need
  server::Program* program(ClientId id) const override;
  Time now() const override { return now_; }
  Time modelled_now() const override { return now_; }
  Time real(Time modelled) const override { return modelled; }
  bool may_grow() override { return now_ >= no_memory_until_; }
  std::optional<Time> withdraw_by() const override { return std::nullopt; }
  scheduler::SessionId session_of(const server::Program& program) const override { return program.id % 3; }
  scheduler::event::Usage usage_of(const server::Program& program, GpuIndex gpu) const override;
  scheduler::GangDrain::Word rest_of(const server::Program& program, const server::Task& task) const override;
  void read_activity(server::Program&) override {}
  void coupled(GpuMask) override { ++seen_.coupled; }
  void stepped(const scheduler::Event& event, Time time, const std::vector<scheduler::Decision>& decisions) override;
  void decided(server::Program&, const scheduler::Decision&) override {}
  void remark(const std::string&) override {}
  unsigned number_of(GpuIndex gpu) const override { return gpu; }
  void publish_all(Time time) override;

  // --- processes
  unsigned pick(unsigned below) { return std::uniform_int_distribution<unsigned>(0, below - 1)(random_); }
  bool one_in(unsigned times) { return pick(times) == 0; }
  Time some_time(Time most);
  Process& add(const std::string& job, uid_t user, const std::vector<GpuMask>& ranks);
  void add_rank(Process& process, GpuMask gpus);
  void name_gang(Process& process, std::uint32_t size);
  void some_process();
  void surprise();
  void befalls(Process& process);
  void open_or_close(Process& process);
  void lie(Process& process);
  void die(Process& process);
  void remove(ClientId id);
  void send(Process& process, std::function<void(Process&)> message);
  void heard(Process& process);

  void advance(Time end);
  void act(Process& process, Rank& rank);
  void look(Process& process, Rank& rank);
  void feed(Process& process, Rank& rank, const turn::Event& event);
  void call(Process& process, Rank& rank);
  void work(Process& process, Rank& rank);
  bool is_over(const Process& process, const Rank& rank, long kernel) const;
  void regroup(Process& process);
  void read_page(const Process& process, Rank& rank) const;
  Time when(const Process& process, const Rank& rank) const;
  template <typename Visit>
  void for_each_rank(const Visit& visit) const {
    for (const auto& [id, process] : processes_) {
      for (const auto& rank : process->ranks) visit(*process, *rank);
    }
  }
  static bool gave_back(const Process& process, const server::Task& task, std::uint32_t grant);
  const Rank* rank_on(const Process& process, GpuIndex gpu) const;

  // --- checks
  void check();
  void check_membership(const Process& process);
  void check_gang(const Gang& gang);
  void check_waits();
  void check_left(ClientId client);
  void check_gave_back(const scheduler::event::GiveBack& given);
  void check_granted(const scheduler::Decision& decision);
  Time longest_wait_allowed() const;
  std::string who_has_what() const;  // for a failure

  std::mt19937 random_;
  const bool memory_lacks_;  // to rotad, now and then
  Time now_ = 1000s;
  std::map<ClientId, std::unique_ptr<Process>> processes_;
  std::multimap<Time, std::function<void()>> due_;  // messages, and what rotad learns of the dead
  pid_t last_pid_ = 0;
  Time surprise_at_ = kNever;
  Time waits_checked_at_{};
  Time no_memory_until_{};
  std::size_t most_ranks_ = 0;                                      // at any time
  std::map<ClientId, std::uint32_t> granted_;                       // by the core's client: what it holds
  std::map<ClientId, std::set<ClientId>> members_;                  // whose tasks each of the core's clients is
  std::map<std::uint32_t, std::pair<std::uint32_t, Time>> drains_;  // by gang: the grant, and since when it drains
  struct Size {
    std::set<ClientId> programs;
    std::uint32_t said = 0;
    Time since{};
    bool were_there = false;  // all of them
  };
  bool all_there(const Size& size) const;
  std::map<std::string, Size> sizes_;     // by the gang's key
  std::map<ClientId, Time> joins_since_;  // by the core's client: a task that could be a member
  std::map<std::uint32_t, Time> apart_;   // by gang: until when, as last seen
  Seen seen_;
};

}  // namespace rota::test::gangs
