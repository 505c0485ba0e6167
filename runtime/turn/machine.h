// The turn machine: how one process takes turns. A pure state machine, like the scheduler's core: it takes events with
// the time (what the process and rotad do) and returns actions (what to do about it). It reads no clock, does no I/O,
// starts no thread and calls no driver; the monitor (monitor.h) feeds it and carries out its actions.
//
// README.md and GANGS.md in this folder describe a turn.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>
#include <variant>
#include <vector>

namespace rota::turn {

using Time = std::chrono::nanoseconds;  // since the epoch of CLOCK_MONOTONIC
using GpuMask = std::uint64_t;          // by rotad's index

// For the log.
inline long microseconds(Time time) {
  return std::chrono::duration_cast<std::chrono::microseconds>(time).count();
}

// The input of may_open(), the one predicate that opens the gate.
struct Claim {
  bool lease = false;     // the process holds the lease and is not giving it back
  bool covered = true;    // the lease promised enough for all memory that the process had when it was granted
  bool unserved = false;  // no rotad serves it: there is none, it has ended, or it does not serve these GPUs
  bool excused = false;   // it could not be drained, or its work continued while rotad was lost
  bool resident = true;   // all of its movable memory is where its work expects it
  bool moving = false;    // some of it is being moved now
};

// Whether the gate may be open: a grant, a lost rotad and a failed drain all ask here. Two things open it for good
// without asking: the end of the process, and the absence of a rotad at the start (monitor_life.cpp).
constexpr bool may_open(const Claim& claim) {
  return ((claim.lease && claim.covered) || claim.unserved || claim.excused) && claim.resident && !claim.moving;
}

// The result of an attempt to record events behind all submitted work.
enum class Marked {
  kYes,
  kCapturing,  // a capture is under way: nothing may be marked
  kBusy,       // a context is being created or destroyed
  kUnknown,    // the driver refused for some context
};

// The lease page.
struct Lease {
  std::uint32_t grant = 0;
  GpuMask held = 0;
  std::uint32_t waiters = 0;
  Time drain_at{0};
  Time give_back_by{0};  // when rotad revokes it; 0: no time is set
  // GPUs from which memory of this process has to be evicted: with the lease or, where it does not hold the GPU, at
  // once.
  GpuMask in_the_way = 0;
  // Not 0: the grant is a gang's (GpuLease::gang), which drains while `step` is not 0, and ends.
  std::uint32_t gang = 0;
  std::uint32_t step = 0;
  bool ends = false;
};

namespace event {
// rotad has welcomed this process, after kConnect or at the start; or the attempt failed.
struct Connected {};
struct NotConnected {};
// rotad closed the connection or died; or it has not answered for so long that the connection was closed.
struct Lost {
  bool silent = false;
};
// What rotad said about the GPUs that this process has touched.
struct Gpus {
  bool any = false;       // it has touched one
  bool answered = false;  // rotad has answered for each of them
  GpuMask served = 0;
  // ROTA_WAIT=1, and no rotad has served it yet: it does not run without a rotad.
  bool waits = false;
  friend bool operator==(const Gpus&, const Gpus&) = default;
};
// The task's GPUs are about to be another's: it gives back what it holds once its work has finished, and asks for
// nothing from then on.
struct Retire {};
// The answer to kMark: recorded behind every call that an earlier Look had seen leave the gate.
struct MarkMade {
  Marked result;
};
// The answer to kBringBack. If the process has more than it is promised, nothing was brought back, whatever `resident`
// says, and `lacking` names those GPUs. `some`: only a part fitted, and was restored. `lost`: the memory will never be
// restored, and all calls are refused from now on.
struct Brought {
  bool resident;
  GpuMask lacking = 0;
  bool some = false;
  bool lost = false;
};
// After kMoveOut: some memory that others asked for has been evicted.
struct Cleared {};
// One poll of everything below, in the order of the fields.
struct Look {
  Lease lease;
  std::uint64_t calls = 0;   // that have left the gate since the process began
  std::uint32_t inside = 0;  // threads inside the gate
  // Threads that wait until less of their own work is in flight, or have just been woken, there or at the gate.
  std::uint32_t about_to_call = 0;
  std::uint32_t standing = 0;     // threads that wait in front of the gate
  std::uint32_t not_at_gate = 0;  // of these, those that wait for free memory, or for memory of their own
  bool stand_elsewhere = false;   // others wait in front of other gates of this process
  bool interrupted = false;       // a signal handler has run in one of these since the gate closed
  bool looked = false;            // the next two are known (they are asked for while watches_gpu())
  bool done = false;              // all work before the last mark has finished
  std::uint64_t reached = 0;      // marks passed in the task's contexts
  bool resident = true;           // all movable memory is where work expects it; managed memory always is
  GpuMask lacking = 0;            // held GPUs on which the process has or is about to have more than it is promised
  GpuMask unasked = 0;            // held GPUs for which rotad must be told again how much that is
  bool measures = false;          // work that the program times is under way: the turn does not end before that is over
  bool alone = false;             // and others should stay off its GPUs during that time
  bool sharer_waits = false;      // a process waits for its GPUs that it may share memory or events with
};
}  // namespace event

using Event = std::variant<event::Connected, event::NotConnected, event::Lost, event::Gpus, event::Retire,
                           event::MarkMade, event::Brought, event::Cleared, event::Look>;

enum class Act {
  kOpen,       // the gate
  kClose,      // the gate
  kWant,       // tell rotad: `gpus` (none: withdrawn), `running`, `urgent` and `alone`
  kGiveBack,   // tell rotad: `grant`
  kConnect,    // find a rotad; answer with Connected or NotConnected
  kHangUp,     // rotad does not answer: close the connection; answer with Lost
  kMark,       // put events behind all work submitted so far; answer with MarkMade
  kBringBack,  // make the process's memory resident if it fits; answer with Brought
  kAskRoom,    // tell rotad how much the process needs: `gpus`
  kMoveOut,    // evict memory for others on `gpus`: the gate is closed, and no work of the process runs (see still())
  kCollect,    // free what the driver frees only when the GPU is idle: now, with the gate closed
  kReport,     // tell rotad what this member of a gang does: `word` (GpuUsage::gang_rest)
  kAdmit,      // let one call in through the closed gate; until it has left, Look::inside is not 0
  kDismiss,    // if no call has come in yet, none does
  kSay,        // log one line for the user: `note`
};

enum class Note {
  kRunsAlone,      // rotad is lost, and the grace period is over
  kRevoked,        // rotad took the lease before this process had drained
  kHeldBack,       // the GPU made no progress while calls waited at the gate: it was opened again
  kHeldCapturing,  // the same, and a capture is under way
  kBeside,         // that happened so often in a row that the process now runs concurrently with the others
  kBesideSharer,   // it runs concurrently with the others, one of which it may wait for
  kTriesAgain,     // it takes turns again, if it can be drained now
  kGaveBackIdle,
  kGaveBackBusy,    // at the end of its turn
  kGaveBackUnused,  // at the end of its turn, during which its memory never came back
  kNoRoom,          // its memory has not been restored for a long time
  kInterrupted,     // a signal handler has run in a thread that waits, and the process's memory is not on the GPU
};

struct Action {
  Act act;
  GpuMask gpus = 0;
  bool running = false;
  bool urgent = false;
  bool alone = false;
  std::uint32_t grant = 0;
  std::uint64_t word = 0;
  Note note{};
  Time held{0};      // kGaveBack…: since the grant
  Time draining{0};  // kGaveBack…: of that, since the gate closed
};

enum class Phase {
  kAlone,     // without a rotad: runs, or waits for the end of the grace period
  kUnserved,  // rotad serves none of its GPUs
  kResting,   // asks for nothing
  kWaiting,   // has asked
  kHolding,   // has the lease
  kDraining,  // has closed the gate and waits for its work to finish
  kBeside,    // could not be drained
};

class Machine {
 public:
  // --- durations; each is a judgment unless its comment says otherwise How long a process waits whose rotad is lost,
  // counted from the first loss since its last grant: long enough for an upgrade of rotad. Afterwards rotad counts as
  // dead.
  static constexpr Time kGrace = std::chrono::seconds(10);
  // The same where rotad does not answer: the process has waited for that already.
  static constexpr Time kSilentGrace = std::chrono::seconds(1);
  // How long a running process waits for the grant of a rotad that serves its GPU from now on before it closes its
  // gate; and of a new rotad, which may first wait for others (scheduler/server/returning.cpp).
  static constexpr Time kReclaim = std::chrono::milliseconds(200);
  static constexpr Time kReclaimFromNext = std::chrono::milliseconds(1200);
  // Between attempts to find rotad: doubled each time up to kOftenAttempt, after the grace period up to kLastAttempt,
  // and reset by a grant. An attempt costs microseconds; a new rotad waits a second for programs, and a program that
  // runs without turns is to take them within two seconds of a rotad's start. The very first is made at once: a rotad
  // that gives its GPUs to the machine's closes its connections when that one is there.
  static constexpr Time kFirstAttempt = std::chrono::milliseconds(50);
  static constexpr Time kOftenAttempt = std::chrono::milliseconds(250);
  static constexpr Time kLastAttempt = std::chrono::seconds(1);
  // So that programs do not all come at once, each is earlier by up to a quarter, and the first one is later by up to
  // this.
  static constexpr Time kSpread = std::chrono::milliseconds(5);
  // rotad answers for a GPU in microseconds.
  static constexpr Time kAnswer = std::chrono::seconds(5);
  // How often a waiting process asks again: rarely enough to cost rotad nothing.
  static constexpr Time kAskAgain = std::chrono::seconds(1);
  // How often a process that was interrupted while waiting asks to go first. rotad accepts that once a second; the
  // margin allows for differences between the clock readings.
  static constexpr Time kUrgentAgain = std::chrono::milliseconds(1010);
  // If its memory is evicted and it has had no turn after this time, the user is told how to end it anyway.
  static constexpr Time kSayInterrupted = std::chrono::milliseconds(500);
  // How long a drain waits for the GPU to make progress while calls wait at the gate; doubled by each drain that fails.
  static constexpr Time kPatience = std::chrono::seconds(1);
  static constexpr Time kMostPatience = std::chrono::seconds(8);
  // The same where a process with which this one shares memory or events waits for its GPU: the work may wait for that
  // process, so one failed drain is enough. And how long a turn lasts then, or twice as long as its memory took to come
  // back. Judgments.
  static constexpr Time kSharersPatience = std::chrono::milliseconds(50);
  static constexpr Time kSharersTurn = std::chrono::milliseconds(100);
  // After this many failed drains in a row the process runs concurrently with the others: this long, doubled each time.
  static constexpr int kMostFailures = 4;
  // The same where calls wait at another gate of the process: they may need a GPU whose holder waits for this one.
  static constexpr int kMostFailuresWithCallsElsewhere = 2;
  static constexpr Time kFirstVerdict = std::chrono::seconds(30);
  static constexpr Time kLastVerdict = std::chrono::minutes(10);
  // If a thread is inside the gate while the GPU is idle, it is working on the CPU (a compilation) and is waited for,
  // up to this time.
  static constexpr Time kLongestCall = std::chrono::seconds(30);
  // The shortest turn: without a minimum, a GPU could spend all its time on transfers.
  static constexpr Time kShortestTurn = std::chrono::milliseconds(5);
  // A lease page shows grant 0 for an instant while rotad replaces a grant.
  static constexpr Time kReplacing = std::chrono::milliseconds(1);
  // A turn may be over before its memory is restored, since others have to evict theirs first. The machine waits as
  // long as memory keeps arriving, up to a little before rotad would revoke the lease; once none has arrived for this
  // time, the processes that wait go first.
  static constexpr Time kNothingComes = std::chrono::milliseconds(500);
  // Memory that was restored is used for as long as restoring it took, up to this limit, and not so long that rotad
  // would revoke the lease.
  static constexpr Time kLongestUse = std::chrono::seconds(5);
  // A holder whose memory took long to restore keeps its lease during pauses that are shorter than that, but not longer
  // than this.
  static constexpr Time kLongestPauseSatOut = std::chrono::milliseconds(500);
  // If its last few pauses were worth two moves of its memory, it waits only for this part of one move. Pauses that are
  // shorter than that part do not count.
  static constexpr int kPausesThatTell = 3;
  static constexpr int kPartSatOut = 8;
  // When the user is told that the memory cannot be restored, counted over all turns in which that happened.
  static constexpr Time kSayNoRoom = std::chrono::seconds(10);

  // How long a call may take to come that is let in while the gang drains: after kAdmits if no thread waits any more
  // that could make it, and after kAdmitsAtMost even if threads wait. Judgments.
  static constexpr Time kAdmits = std::chrono::milliseconds(5);
  static constexpr Time kAdmitsAtMost = std::chrono::milliseconds(100);

  // Connected to a rotad, the gate closed, no GPU touched yet. `seed`: which part of a spread this process takes; 0:
  // none.
  explicit Machine(std::uint32_t seed = 0);

  // Takes one event at a time; time never runs backwards. The caller carries out the actions in order, each before it
  // gathers the next event. They live until the next call.
  const std::vector<Action>& step(const Event& event, Time now);

  // When the next Look is due, if nothing happens before.
  Time look_at() const { return look_at_; }
  // Whether a Look should check the GPU's progress.
  bool watches_gpu() const { return watches_gpu_; }

  Phase phase() const { return phase_; }
  // The beginning of a drain, or the last call that was let in during it.
  Time draining_since() const { return std::max(drain_.begun, admitted_at_); }
  bool connected() const { return connected_; }
  // Whether work of a turn that was revoked is waited for, with the gate closed.
  bool finishes() const { return finishes_; }
  bool gate_open() const { return gate_open_; }
  // Whether its work runs, or what it submitted has not been seen to be over.
  bool runs() const { return gate_open_ || !still_ || phase_ == Phase::kHolding || phase_ == Phase::kDraining; }
  Claim claim() const;
  // Whether it is proven that no work of this process runs on a GPU: a drain has shown it, or the gate has never been
  // open; and the gate has not been opened since. Only then may its memory move. While the process is neither quiesced
  // nor holds the lease, its memory cannot be evicted.
  bool still() const { return still_; }
  // Whether the lease would have gone back by now if the program were not timing its work.
  bool held_by_measurement() const { return phase_ == Phase::kHolding && held_by_measurement_; }
  // When a drain has to begin that is to end before rotad revokes the lease: Time::max() if it would not.
  Time last_moment(const Lease& lease) const;
  std::uint32_t grant() const { return grant_; }  // in force, as far as this process knows; 0: none
  // Since when it has been without rotad, counted from the first loss since its last grant, or since rotad had been
  // back for a while.
  std::optional<Time> lost_since() const { return lost_since_; }
  // Whether it has nothing and wants nothing, with no work on a GPU.
  bool rests() const { return phase_ == Phase::kResting && !gate_open_ && !moving_ && still_ && wanted_ == 0; }
  bool retires() const { return retires_; }
  // Whether it has drained, and waits for its gang: nothing of it has to be polled.
  bool rests_in_gang() const { return phase_ == Phase::kDraining && drain_.rests; }

 private:
  struct Drain {
    bool idle = false;  // the reason is that the GPU is idle, not that the turn is over
    Time begun{0};
    Time deadline{0};
    bool empty = false;      // every thread has left the gate since it closed
    bool proof = false;      // a mark was made after that
    bool capturing = false;  // the last mark was refused because of a capture
    bool marked = false;     // a mark has been made
    Time next_mark{0};
    std::uint64_t reached = 0;
    std::uint64_t calls = 0;
    Time pause{0};
    bool joint = false;  // with the gang
    bool rests = false;  // all that the process has submitted has finished
  };

  void on(const event::Connected&, Time now);
  void on(const event::NotConnected&, Time now);
  void on(const event::Lost&, Time now);
  void on(const event::Gpus&, Time now);
  void on(const event::Retire&, Time now);
  void on(const event::MarkMade&, Time now);
  void on(const event::Brought&, Time now);
  void on(const event::Cleared&, Time now);
  void on(const event::Look&, Time now);

  Time grace() const { return silent_ ? kSilentGrace : kGrace; }
  void try_later(Time now);
  Time spread(Time most);
  void look_alone(Time now);
  void look_connected(Time now);
  void look_resting(Time now);
  void look_waiting(Time now);
  void look_holding(Time now);
  void look_draining(Time now);
  bool reads_lease(Time now);
  void ask_alone();
  bool measures(Time now);
  bool is_new_grant() const;
  int most_failures() const { return seen_.stand_elsewhere ? kMostFailuresWithCallsElsewhere : kMostFailures; }
  bool covers(const Lease& lease) const { return (lease.held & served_) == served_; }
  void take(Time now);
  void want(bool running, Time now);
  void withdraw();
  void give_back(std::uint32_t grant);
  void begin_drain(bool idle, Time now);
  void drained(Time now);
  void drain_failed(Time now);
  bool turn_is_over(Time now) const;
  bool idle_long_enough(Time now);
  void pause_ended(Time now);
  void bring_back(Time now);
  void came_back(Time now);
  void hold_without_memory(Time now);
  void wait_for_memory(Time now);
  void say_interrupted(Time now);
  void move_out_of_the_way(Time now);
  void begin_to_finish(Time now);
  void finish(Time now);
  void settle_gate();
  bool proven(Time now);
  void prove(Time now);
  // the gang (machine_gang.cpp)
  bool keeps_gang_grant(Time now);
  void hold_in_gang(Time now);
  void drain_with_gang(Time now);
  void admit(Time now);
  bool has_memory(Time now);
  bool next_step() const;
  void report(std::uint32_t flags);
  void act(Act which) { actions_.push_back({.act = which}); }
  void say(Note note, std::uint32_t grant = 0) { actions_.push_back({.act = Act::kSay, .grant = grant, .note = note}); }

  std::vector<Action> actions_;
  Time look_at_{0};
  bool watches_gpu_ = false;

  Phase phase_ = Phase::kResting;
  bool gate_open_ = false;
  bool resident_ = true;
  bool moving_ = false;
  bool covered_ = true;
  bool still_ = true;
  bool looked_at_memory_ = false;  // by the event of this step

  // memory that cannot be restored or evicted at once
  Time bring_again_at_{0};
  std::optional<Time> away_since_;   // when the attempts to restore it began
  Time came_at_{0};                  // when the last part was restored
  Time memory_took_{0};              // how long it took in this turn until all of it was restored
  std::optional<Time> lacks_since_;  // since when it has been missing, including before this grant
  bool lost_ = false;                // it will never be restored
  bool said_no_room_ = false;
  bool moved_out_ = false;  // managed memory was moved to the host, and the gate has not been opened since
  std::optional<Time> interrupted_since_;
  bool said_interrupted_ = false;
  Time move_again_at_{0};
  Time move_pause_{0};

  // rotad
  bool connected_ = true;
  bool runs_ = false;  // kAlone: the process ran when rotad went away, or the grace period is over
  std::optional<Time> lost_since_;
  std::optional<Time> back_since_;    // rotad has answered again, without a grant yet
  std::optional<Time> next_attempt_;  // empty: one is under way
  Time attempt_pause_ = kFirstAttempt;
  bool silent_ = false;         // the rotad that was lost did not answer
  std::uint32_t seed_;          // 0: nothing is spread
  bool tried_at_once_ = false;  // to find another rotad, since the last grant
  event::Gpus gpus_;
  GpuMask served_ = 0;
  std::optional<Time> unanswered_since_;

  // the lease
  event::Look seen_;
  std::uint32_t grant_ = 0;
  std::uint32_t given_back_ = 0;
  GpuMask wanted_ = 0;
  bool retires_ = false;
  Time asked_at_{0};
  Time urgent_from_{0};  // when the process may ask again to go first
  std::optional<Time> no_grant_since_;
  std::optional<Time> runs_until_;  // kWaiting, with the gate open: its work runs, and this is when it begins to drain
  Time taken_at_{0};
  Time earliest_yield_{0};
  Time retry_at_{0};
  bool asked_alone_ = false;  // under this grant
  bool held_by_measurement_ = false;

  // idle detection and drains
  std::uint64_t calls_marked_ = 0;
  bool mark_due_ = true;
  bool idle_proof_ = false;  // a mark was made with nobody about to call, and no call has left since
  std::optional<Time> idle_since_;
  Time idle_grace_ = std::chrono::milliseconds(2);
  std::optional<Time> gave_back_idle_at_;
  int long_pauses_ = 0;  // how many of its last pauses in a row were worth two moves of its memory
  Drain drain_;
  bool finishes_ = false;  // drain_ is about work of a turn that was revoked
  Time patience_ = kPatience;
  int failed_drains_ = 0;
  Time verdict_ = kFirstVerdict;
  Time beside_until_{0};

  // the gang
  std::uint32_t gang_ = 0;  // whose grant is in force; 0: of none
  std::uint64_t told_ = 0;  // the last report on this connection
  bool may_open_ = false;   // the event of this step shows that the gang does not drain
  bool admitting_ = false;  // a call has been let in, or may still come
  Time admitted_at_{0};
};

}  // namespace rota::turn
