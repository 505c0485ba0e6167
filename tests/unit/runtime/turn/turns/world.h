// A small world for the turn property test: programs with their machines, one rotad with the scheduler's core, clients
// that follow no rules, and time. The seed determines everything that happens, and every step is checked:
//
//   the core    grants a GPU to no client that conflicts with its holders (except, by a rotad that has just started, to
//               work that is already running)
//   programs work only with a lease that the core knows, or *loose*: for a reason, and only until their work has
//   finished
//   the gate opens only for reasons that the world has itself seen, and with all memory on the GPU
//   room        a program that asks for it and works under a lease never has more than it is promised
//   swapping    some programs have memory that is on a GPU until they move it themselves, and a full GPU takes no more,
//               whatever the core thinks; some of that memory may never leave; a program that rotad does not know may
//               have some, which in some worlds a meter reports to the core, as long as it answers, and for which there
//               is then room. No memory moves of a program whose work may run; no holder of a GPU is asked to clear
//               one, and all together are asked for no more than is missing
//   at the end  once nothing surprising happens any more, every program that waits at a gate gets through it in time
#pragma once

#include <array>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "tests/unit/scheduler/limits/limits_beside_books.h"
#include "turns/program.h"

namespace rota::turns {

class World {
 public:
  // `verbose`: a failure prints the last events.
  World(unsigned seed, scheduler::Mode mode, bool verbose, bool swapping);

  void run(long steps) {
    for (long i = 0; i < steps; ++i) advance();
  }
  // No more surprises: rotad lives and programs are not stopped. Every program that waits at its gate gets through in
  // time.
  void everybody_gets_a_turn();

  long machine_steps() const { return machine_steps_; }
  long grants() const { return grants_; }
  long revoked() const { return revoked_; }
  long reclaimed() const { return reclaimed_; }
  long drains_failed() const { return drains_failed_; }
  long beside() const { return beside_; }
  long waits_for_room() const { return waits_for_room_; }
  long grants_that_lacked() const { return grants_that_lacked_; }
  long moves_out() const { return moves_out_; }
  long cleared() const { return cleared_; }
  long refusals() const { return refusals_; }
  long unused() const { return unused_; }
  long stopped() const { return stopped_; }
  long took_fixed() const { return took_fixed_; }
  long refused_by_quota() const { return refused_by_quota_; }
  long outside_learned() const { return outside_learned_; }
  long outside_measured() const { return outside_measured_; }
  long meter_fell_silent() const { return meter_fell_silent_; }
  long alone() const { return alone_; }
  long held_by_measurement() const { return held_by_measurement_; }

 private:
  // Random choices.
  unsigned pick(unsigned below) { return std::uniform_int_distribution<unsigned>(0, below - 1)(random_); }
  bool one_in(unsigned n) { return pick(n) == 0; }
  // Mostly short, rarely long.
  Time some_time(Time most);

  // rotad.
  void start_rotad();
  void tell_activity(scheduler::ClientId client);
  void rotad_dies();
  void some_liar();
  void hung_up(Program& program);
  void connect(Program& program);
  void leave(const Program& program);
  void core_step(const scheduler::Event& event);
  void show_lease(Program& program, const scheduler::ClientState& state);
  void receive(Program& program);
  Program* of_client(scheduler::ClientId client);

  // A program.
  std::unique_ptr<Program> new_program();
  void wake(Program& program, Time after);
  void send(Program& program, Message message);
  void feed(Program& program, const turn::Event& event);
  void carry_out(Program& program, const turn::Action& action);
  void gate_opens(Program& program);
  void lose(Program& program);
  void look(Program& program);
  void thread_goes_on(Program& program, Thread& thread);
  void start_work(Program& program);
  void work_finishes(Program& program);

  // Room (room.cpp).
  void tell_usage(const Program& program);
  void grow_or_shrink(Program& program, Thread& thread);
  void publish_room(Program& program);
  std::uint64_t lacking(const Program& program) const;
  std::uint64_t unasked(const Program& program) const;
  void ask_room(Program& program, std::uint64_t gpus);
  void check_room(const Program& program, const scheduler::ClientState& state);

  // Swap memory (swapping.cpp).
  scheduler::Bytes free_on(unsigned gpu) const;
  bool all_there(const Program& program) const;
  bool bring(Program& program);
  bool clear(Program& program, std::uint64_t gpus);
  void say_state(const Program& program, unsigned gpu);
  bool granted(const Program& program, std::uint64_t gpus, scheduler::Bytes more, scheduler::Bytes fixed);
  void take_fixed(Program& program);
  bool may_touch(const Program& program, std::uint64_t gpus);
  void stop_some();
  void stop_others(const Program& program);
  scheduler::event::Usage usage(const Program& program, unsigned gpu) const;
  void show_clear(Program& program);
  void remember(const scheduler::event::Usage& usage);
  void measure();
  void check_clearing();

  // What happens next.
  void advance();
  void chaos();

  // Checks (checks.cpp).
  std::map<scheduler::ClientId, std::uint64_t> held() const;
  void check_grants(const scheduler::Event& event, const std::vector<scheduler::Decision>& decisions,
                    std::map<scheduler::ClientId, std::uint64_t> before);
  void check_gate(const Program& program);
  void check_work();
  void note(std::string what);
  std::string describe(const Program& program) const;
  [[noreturn]] void fail(const Program* program, const std::string& what);

  const unsigned seed_;
  const scheduler::Mode mode_;
  const bool verbose_;
  std::deque<std::string> notes_;
  std::mt19937 random_;
  const bool quiet_;  // few surprises, and rotad is patient
  const bool swapping_;
  std::map<scheduler::ClientId, scheduler::event::Activity> activity_;
  const bool metered_;
  Time now_ = std::chrono::seconds(1000);
  bool calm_ = false;
  int same_ = 0;  // steps since the time last changed
  Time chaos_at_{0};
  std::unique_ptr<scheduler::Core> core_;  // null: rotad is dead
  std::unique_ptr<scheduler::LimitsBesideBooks> quota_;
  std::map<std::pair<scheduler::ClientId, unsigned>, std::uint32_t> answered_;  // by quota_: the latest number
  std::uint32_t asks_ = 0;
  Time rotad_since_{0};
  Time rotad_back_at_ = kNever;
  std::vector<std::unique_ptr<Program>> programs_;
  unsigned last_pid_ = 0;
  scheduler::ClientId last_client_ = 0;
  std::vector<scheduler::ClientId> liars_;
  Time liar_at_ = kNever;
  long machine_steps_ = 0;
  long grants_ = 0;
  long revoked_ = 0;
  long reclaimed_ = 0;
  long drains_failed_ = 0;
  long beside_ = 0;
  long waits_for_room_ = 0;
  long grants_that_lacked_ = 0;
  long moves_out_ = 0;
  long cleared_ = 0;              // moves of swap memory for others
  long refusals_ = 0;             // attempts to restore it for which the GPU had no room
  long stopped_ = 0;              // programs stopped permanently, with memory that others ask for
  long unused_ = 0;               // turns given back because it was not restored
  long took_fixed_ = 0;           // times that a program took memory that cannot be evicted
  long refused_by_quota_ = 0;     // because some client's memory could not have been restored
  long outside_learned_ = 0;      // times that the core found out about a ballast
  long outside_measured_ = 0;     // readings that showed one
  long alone_ = 0;                // times that one program had a GPU alone to measure
  long held_by_measurement_ = 0;  // checks of a turn that did not end because of that
  long meter_fell_silent_ = 0;    // for so long that its readings no longer count
  BytesOfGpus ballast_{};         // of another program
  BytesOfGpus outside_{};         // what the core assumes it to be
  // What the meter has reported to the core, as long as that counts.
  BytesOfGpus others_{};
  std::array<Time, kGpus> listed_at_{};
  Time measure_at_{0};
  Time measured_at_ = kNever;  // kNever: no reading
  Time meter_silent_until_{0};
  // What clients last reported to the core.
  std::map<std::pair<scheduler::ClientId, unsigned>, scheduler::event::Usage> told_;
  Time usage_read_at_{0};
};

}  // namespace rota::turns
