// How the machine decides: each event updates its state, a Look decides by phase; then may_open() sets the gate.
#include "runtime/turn/machine.h"

#include <algorithm>
#include <utility>

#include "scheduler/protocol/pages.h"
#include "scheduler/protocol/protocol.h"

namespace rota::turn {

using namespace std::chrono_literals;

namespace {

// The interval while nothing but a bell is expected.
constexpr Time kFarAway = 1s;
// How often the page is checked in case a wake-up was lost.
constexpr Time kLookAtPage = 250ms;
constexpr Time kLookForAnswer = 50ms;
// The interval of marks while threads are inside, which only show that the GPU makes progress.
constexpr Time kBetweenMarks = 10ms;

}  // namespace

Machine::Machine(std::uint32_t seed) : seed_(seed) {}

const std::vector<Action>& Machine::step(const Event& event, Time now) {
  actions_.clear();
  may_open_ = false;
  looked_at_memory_ = std::holds_alternative<event::Look>(event) || std::holds_alternative<event::Brought>(event);
  std::visit([&](const auto& which) { on(which, now); }, event);
  if (admitting_ && phase_ != Phase::kDraining) {
    admitting_ = false;
    act(Act::kDismiss);
  }
  settle_gate();
  return actions_;
}

Claim Machine::claim() const {
  return {.lease = phase_ == Phase::kHolding,
          .covered = covered_,
          .unserved = phase_ == Phase::kUnserved || (phase_ == Phase::kAlone && runs_),
          .excused = phase_ == Phase::kBeside || (phase_ == Phase::kWaiting && runs_until_),
          .resident = resident_,
          .moving = moving_};
}

// The one place that opens and closes the gate.
void Machine::settle_gate() {
  const bool open = may_open(claim());
  if (open == gate_open_) return;
  // The program may have allocated since memory was last checked: memory without a place on the GPU is not resident.
  if (open && !looked_at_memory_) return;
  // Nor is it known whether the gang has begun to drain, unless the page was just read.
  if (open && phase_ == Phase::kHolding && gang_ != 0 && !may_open_) return;
  gate_open_ = open;
  if (open) still_ = moved_out_ = finishes_ = false;
  act(open ? Act::kOpen : Act::kClose);
}

// ---- requests

void Machine::want(bool running, Time now) {
  asked_at_ = now;
  wanted_ = served_;
  phase_ = Phase::kWaiting;
  const bool urgent = seen_.interrupted && now >= urgent_from_;
  if (urgent) urgent_from_ = now + kUrgentAgain;
  actions_.push_back({.act = Act::kWant, .gpus = served_, .running = running, .urgent = urgent});
}

void Machine::withdraw() {
  if (std::exchange(wanted_, 0) != 0) actions_.push_back({.act = Act::kWant});
}

void Machine::give_back(std::uint32_t grant) {
  given_back_ = grant;
  grant_ = gang_ = 0;
  actions_.push_back({.act = Act::kGiveBack, .grant = grant});
}

// ---- a look around

void Machine::on(const event::Look& look, Time now) {
  seen_ = look;
  resident_ = look.resident;
  if (connected_) {
    look_connected(now);
  } else {
    look_alone(now);
  }
  // With a lease, look_holding() handles this. A process that may run without a lease needs its memory as well.
  const Claim needs = claim();
  if ((needs.unserved || needs.excused) && !needs.resident && !needs.moving && !lost_) wait_for_memory(now);
  say_interrupted(now);
}

void Machine::look_alone(Time now) {
  if (!runs_ && !gpus_.waits && now - *lost_since_ >= grace()) {
    runs_ = true;
    say(Note::kRunsAlone);
  }
  if (next_attempt_ && now >= *next_attempt_) {
    next_attempt_.reset();
    act(Act::kConnect);
  }
  look_at_ = next_attempt_.value_or(now + kFarAway);
  if (!runs_ && !gpus_.waits) look_at_ = std::min(look_at_, *lost_since_ + grace());
}

void Machine::look_connected(Time now) {
  look_at_ = now + kFarAway;  // unless one of the functions below sets an earlier time
  if (!gpus_.any) return;
  if (!gpus_.answered) {
    if (now - *unanswered_since_ >= kAnswer && !gpus_.waits) {
      unanswered_since_ = now;
      act(Act::kHangUp);
      return;
    }
    if (phase_ == Phase::kAlone || phase_ == Phase::kResting) {
      if (phase_ == Phase::kAlone && now - *lost_since_ >= grace() && !gpus_.waits) runs_ = true;
      look_at_ = now + kLookForAnswer;
      return;
    }
  } else if (served_ == 0) {
    // rotad said why.
    phase_ = Phase::kUnserved;
    return;
  }
  if (phase_ == Phase::kAlone) {
    // rotad is back. Running work continues while the lease is requested; threads at the gate wait for their turn.
    phase_ = Phase::kResting;
    back_since_ = now;
    if (gate_open_) {
      runs_until_ = now + kReclaimFromNext;
      want(true, now);
      look_at_ = *runs_until_;
      return;
    }
  }
  switch (phase_) {
    case Phase::kAlone:
    case Phase::kUnserved:
      return;
    case Phase::kResting:
      return look_resting(now);
    case Phase::kWaiting:
      return look_waiting(now);
    case Phase::kHolding:
      return look_holding(now);
    case Phase::kDraining:
      return look_draining(now);
    case Phase::kBeside:
      // A grant that was already on its way when the request was withdrawn.
      if (is_new_grant()) give_back(seen_.lease.grant);
      if (now >= beside_until_) {
        say(Note::kTriesAgain);
        begin_drain(false, now);
      } else {
        look_at_ = beside_until_;
      }
      return;
  }
}

bool Machine::is_new_grant() const {
  const std::uint32_t grant = seen_.lease.grant;
  return grant != 0 && grant != given_back_ && grant != grant_;
}

void Machine::look_resting(Time now) {
  if (is_new_grant()) {
    if (seen_.lease.gang != 0 && keeps_gang_grant(now)) return;
    give_back(seen_.lease.grant);  // the request was withdrawn
  }
  finish(now);
  move_out_of_the_way(now);
  if (seen_.standing == 0 || lost_ || retires_) return;
  if (gave_back_idle_at_) {
    // A program that comes back at once should not have given up its turn: it waits longer next time, and less long
    // after a long rest.
    const Time away = now - *gave_back_idle_at_;
    if (away < 4 * idle_grace_) idle_grace_ = std::min<Time>(idle_grace_ * 2, 16ms);
    if (away > 20 * idle_grace_) idle_grace_ = std::max<Time>(idle_grace_ / 2, 1ms);
    gave_back_idle_at_.reset();
    pause_ended(now);
  }
  want(false, now);
  look_at_ = std::min(look_at_, now + kLookAtPage);
}

void Machine::look_waiting(Time now) {
  if (retires_) {
    if (runs_until_) return begin_drain(false, now);
    withdraw();
    phase_ = Phase::kResting;
    return look_resting(now);
  }
  if (is_new_grant()) {
    const bool of_gang = seen_.lease.gang != 0;
    if (of_gang && keeps_gang_grant(now)) return;
    if (!of_gang && covers(seen_.lease)) return take(now);
    // The grant covers fewer GPUs than this process has touched by now. Nothing has run under it, and keeping it would
    // make others wait until rotad revokes it. The request ends with it: a gang's grant ends requests, and rotad
    // ignores a request for GPUs of which some are held by one of the tasks that this one is made of.
    if (!gate_open_) {
      give_back(seen_.lease.grant);
      wanted_ = 0;
    }
  }
  // The request is also repeated from time to time: if this process was stopped, or its monitor delayed, a grant may
  // have come and been revoked unnoticed, and the request with it. If rotad still has the request, repeating it changes
  // nothing; it keeps its place in the queue.
  const bool urgent = seen_.interrupted && now >= urgent_from_;
  if (urgent || wanted_ != served_ || now - asked_at_ >= kAskAgain) want(false, now);
  look_at_ = now + kLookAtPage;
  if (seen_.interrupted) look_at_ = std::min(look_at_, urgent_from_);
  finish(now);
  move_out_of_the_way(now);
  if (!runs_until_) return;
  if (now >= *runs_until_) return begin_drain(false, now);  // rotad lets others go first
  look_at_ = std::min(*runs_until_, now + kReclaim / 10);
}

void Machine::take(Time now) {
  phase_ = Phase::kHolding;
  grant_ = seen_.lease.grant;
  gang_ = seen_.lease.gang;
  if (gang_ != 0) report(0);
  wanted_ = 0;
  runs_until_.reset();
  lost_since_ = back_since_ = std::nullopt;
  attempt_pause_ = kFirstAttempt;
  tried_at_once_ = false;
  no_grant_since_.reset();
  idle_since_.reset();
  idle_proof_ = false;
  mark_due_ = true;
  taken_at_ = retry_at_ = now;
  earliest_yield_ = now + kShortestTurn;
  watches_gpu_ = false;
  look_at_ = now;
  covered_ = true;
  asked_alone_ = held_by_measurement_ = false;
  away_since_.reset();
  memory_took_ = Time{0};
  if (!gate_open_) bring_back(now);
}

// ---- holding

// Whether the grant is still in force. If it is not, this turn is over.
bool Machine::reads_lease(Time now) {
  const std::uint32_t grant = seen_.lease.grant;
  if (grant != 0) {
    gang_ = seen_.lease.gang;
    grant_ = grant;  // possibly a replacement, because the set of GPUs grew
    no_grant_since_.reset();
    return true;
  }
  if (!no_grant_since_) no_grant_since_ = now;
  if (now - *no_grant_since_ < kReplacing) {
    look_at_ = *no_grant_since_ + kReplacing;
    return false;
  }
  say(Note::kRevoked, grant_);
  grant_ = gang_ = 0;
  phase_ = Phase::kResting;
  begin_to_finish(now);
  return false;
}

void Machine::look_holding(Time now) {
  held_by_measurement_ = false;
  if (!reads_lease(now) || moving_) return;
  const Lease& lease = seen_.lease;
  if (gang_ != 0 && (lease.step != 0 || lease.ends)) return begin_drain(false, now);
  // A gang ends when others wait: otherwise that may take for ever.
  const bool ends_itself = gang_ == 0 || lease.waiters == 0;
  if (retires_ && ends_itself && now >= retry_at_) return begin_drain(false, now);
  ask_alone();
  if (seen_.unasked != 0) actions_.push_back({.act = Act::kAskRoom, .gpus = seen_.unasked});
  if (!covered_ && seen_.lacking != 0) {
    // The process allocated between its request and the grant. If it fits, rotad answers at once. If others have to
    // evict memory first and some process waits for this one, this one gives the lease back: its next grant covers all
    // of its memory.
    const bool gives_way = lease.waiters != 0 && gang_ == 0;
    if (gives_way && now - taken_at_ >= idle_grace_ && now >= retry_at_) return begin_drain(false, now);
    if (gang_ != 0) report(lease.waiters != 0 && now - taken_at_ >= idle_grace_ ? protocol::kGangMayEnd : 0);
    look_at_ = now + (lease.waiters != 0 ? idle_grace_ : kLookAtPage);
    return;
  }
  if (!covers(lease)) {
    // The process has touched another GPU. GPUs are granted all at once, so the smaller set goes back first.
    if (now >= retry_at_) return begin_drain(false, now);
    look_at_ = retry_at_;
    return;
  }
  if (!covered_) return bring_back(now);
  if (!resident_) return hold_without_memory(now);
  if (away_since_) came_back(now);  // the last part came with another GPU's turn, or there was nothing to restore
  watches_gpu_ = lease.waiters != 0;
  if (!watches_gpu_) {
    // Nobody gives anything back while nobody waits: no event is recorded and nothing is queried.
    idle_since_.reset();
    idle_proof_ = false;
    mark_due_ = true;
  }
  if (gang_ != 0) return hold_in_gang(now);
  if (!watches_gpu_) return;
  const bool over = turn_is_over(now);
  // A process that waits for this one's GPU may be what this one's work waits for.
  const bool long_enough = now - taken_at_ >= std::max(kSharersTurn, 2 * memory_took_);
  const bool gives_way = over || (seen_.sharer_waits && long_enough);
  if (gives_way && now >= retry_at_ && !measures(now)) return begin_drain(false, now);
  if (!seen_.measures && !seen_.alone && idle_long_enough(now)) return begin_drain(true, now);
  if (held_by_measurement_) return;
  Time pause = std::max<Time>(idle_grace_ / 2, 500us);
  if (lease.drain_at > now) pause = std::min(pause, lease.drain_at - now);
  look_at_ = now + std::max<Time>(pause, 100us);
}

bool Machine::turn_is_over(Time now) const {
  const Lease& lease = seen_.lease;
  const Time end = std::min(std::max(lease.drain_at, earliest_yield_), last_moment(lease));
  return lease.drain_at != Time{0} && now >= end;
}

// Idle: for a while there has been no call since the last mark, no thread is inside or about to be, and the mark has
// been reached. Marks also follow calls while threads are inside: they show a drain whether the GPU makes progress.
bool Machine::idle_long_enough(Time now) {
  const bool nobody = seen_.inside + seen_.about_to_call == 0;
  if (seen_.calls != calls_marked_ || (nobody && !idle_proof_)) mark_due_ = true;
  if (mark_due_ || !nobody) idle_proof_ = false;
  if (mark_due_) {
    act(Act::kMark);
    calls_marked_ = seen_.calls;
  }
  if (!idle_proof_ || !seen_.looked || !seen_.done) {
    pause_ended(now);
    return false;
  }
  if (!idle_since_) idle_since_ = now;
  // Giving the GPU up costs two moves of the memory, so the lease is kept during a pause that is no longer than one
  // move, unless the turn is ending or this program's pauses are known to be longer.
  const Time drain_at = seen_.lease.drain_at;
  const bool nearly_over = drain_at != Time{0} && (drain_at - now) * protocol::kLastPart <= now - taken_at_;
  const Time most = long_pauses_ >= kPausesThatTell ? memory_took_ / kPartSatOut : memory_took_;
  const Time sat_out = nearly_over ? Time{0} : std::min(most, kLongestPauseSatOut);
  return now - *idle_since_ >= std::max(idle_grace_, sat_out) && now >= retry_at_;
}

// The pause that began at `idle_since_`, if any: of a holder, or of a process that has given its turn up for it.
void Machine::pause_ended(Time now) {
  if (!idle_since_) return;
  const Time length = now - *idle_since_;
  idle_since_.reset();
  if (memory_took_ == Time{0} || length < memory_took_ / kPartSatOut) return;
  long_pauses_ = length >= 2 * memory_took_ ? long_pauses_ + 1 : 0;
}

void Machine::on(const event::MarkMade& mark, Time now) {
  seen_.looked = false;  // the GPU's state in this Look is from before this mark
  if (phase_ == Phase::kHolding) {
    mark_due_ = mark.result != Marked::kYes;
    idle_proof_ = !mark_due_ && seen_.inside + seen_.about_to_call == 0;
  } else if (phase_ == Phase::kDraining || finishes_) {
    drain_.capturing = mark.result == Marked::kCapturing;
    if (mark.result == Marked::kYes) {
      drain_.marked = true;
      drain_.proof = drain_.empty;
      drain_.next_mark = now + kBetweenMarks;
    } else if (mark.result == Marked::kUnknown) {
      drain_.next_mark = now + kBetweenMarks;
    }
  }
}

// ---- draining

void Machine::begin_drain(bool idle, Time now) {
  phase_ = Phase::kDraining;
  drain_ = {.idle = idle,
            .begun = now,
            .deadline = now + patience_,
            .next_mark = now,
            .reached = seen_.reached,
            .calls = seen_.calls,
            .pause = 20us};
  runs_until_.reset();
  watches_gpu_ = true;
  look_at_ = now;
}

void Machine::look_draining(Time now) {
  if (grant_ != 0) {
    const std::uint32_t before = grant_;
    if (!reads_lease(now)) return;
    const bool joint = gang_ != 0 && (seen_.lease.step != 0 || seen_.lease.ends);
    // The gang drains no more, or it has been granted anew before this process noticed the end.
    if (drain_.joint && (!joint || grant_ != before)) return take(now);
    if (joint) return drain_with_gang(now);
  } else if (wanted_ != 0 && is_new_grant() && covers(seen_.lease)) {
    return take(now);
  }
  if (proven(now)) return drained(now);

  const bool reached_marks = seen_.looked && seen_.done;
  // There is progress: the GPU passes marks, calls return, or a thread inside works on the CPU while the GPU is idle.
  const bool works_on_cpu = !drain_.empty && drain_.marked && reached_marks && now - drain_.begun < kLongestCall;
  if ((seen_.looked && seen_.reached != drain_.reached) || seen_.calls != drain_.calls || works_on_cpu) {
    drain_.deadline = now + patience_;
  }
  if (seen_.looked) drain_.reached = seen_.reached;
  drain_.calls = seen_.calls;
  const Time patience = seen_.sharer_waits ? std::min(patience_, kSharersPatience) : patience_;
  if (now >= drain_.deadline - (patience_ - patience)) {
    // There has been no progress for a long time. If no thread waits at the gate, the gate holds nothing back: it is a
    // long kernel. Unless the GPU may be waiting for work of a process that waits for this lease.
    if (seen_.standing > 0 || seen_.stand_elsewhere || seen_.sharer_waits) return drain_failed(now);
    drain_.deadline = now + 100ms;
  }
  prove(now);
}

// Whether all work has finished that was submitted before the gate closed.
bool Machine::proven(Time now) {
  // This Look was taken after the gate had closed: threads that are inside now may submit, later ones cannot.
  if (seen_.inside == 0 && !drain_.empty) {
    drain_.empty = true;
    drain_.next_mark = now;
  }
  return drain_.proof && seen_.looked && seen_.done;
}

void Machine::prove(Time now) {
  if (!drain_.proof && now >= drain_.next_mark) act(Act::kMark);
  look_at_ = now + drain_.pause;
  // The shorter a drain, the more it costs to notice its end late.
  const Time longest = std::clamp<Time>((now - draining_since()) / 100, 30us, 500us);
  drain_.pause = std::min<Time>(drain_.pause * 3 / 2, longest);
}

void Machine::drained(Time now) {
  still_ = true;
  finishes_ = false;
  failed_drains_ = 0;
  patience_ = kPatience;
  verdict_ = kFirstVerdict;
  watches_gpu_ = false;
  look_at_ = now;
  gave_back_idle_at_.reset();
  act(Act::kCollect);
  if (grant_ == 0) {
    phase_ = wanted_ != 0 ? Phase::kWaiting : Phase::kResting;
    return;
  }
  say(drain_.idle ? Note::kGaveBackIdle : Note::kGaveBackBusy, grant_);
  actions_.back().held = now - taken_at_;
  actions_.back().draining = now - drain_.begun;
  if (drain_.idle) gave_back_idle_at_ = now;
  // Part of the hand-over: the next process would have to wait for it anyway.
  if (seen_.lease.in_the_way != 0) {
    actions_.push_back({.act = Act::kMoveOut, .gpus = seen_.lease.in_the_way});
    moved_out_ = true;
  }
  give_back(grant_);
  phase_ = Phase::kResting;
}

void Machine::drain_failed(Time now) {
  if (!drain_.capturing) ++failed_drains_;
  patience_ = std::min(patience_ * 2, kMostPatience);
  retry_at_ = now + patience_;
  watches_gpu_ = false;
  look_at_ = now;
  const bool tried_enough = failed_drains_ >= most_failures() || (grant_ == 0 && wanted_ == 0);
  if (!tried_enough && !seen_.sharer_waits) {
    say(drain_.capturing ? Note::kHeldCapturing : Note::kHeldBack);
    if (grant_ != 0) {
      phase_ = Phase::kHolding;
    } else {
      phase_ = Phase::kWaiting;
      runs_until_ = retry_at_;
    }
    return;
  }
  // Others take their turns concurrently. It requests nothing during that time: a grant would only keep them waiting.
  if (verdict_ == kFirstVerdict) say(tried_enough ? Note::kBeside : Note::kBesideSharer);
  if (grant_ != 0) give_back(grant_);
  withdraw();
  phase_ = Phase::kBeside;
  beside_until_ = now + verdict_;
  verdict_ = std::min(verdict_ * 2, kLastVerdict);
  patience_ = kPatience;
}

}  // namespace rota::turn
