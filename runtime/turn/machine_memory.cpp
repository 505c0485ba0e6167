// The machine's decisions about memory: when it is restored, when it is evicted for others, and what happens if it
// cannot be restored.
#include <algorithm>

#include "runtime/turn/machine.h"
#include "scheduler/protocol/pages.h"

namespace rota::turn {

using namespace std::chrono_literals;

namespace {

// How long to wait before restoring memory is tried again; or a sixteenth of the time in which none has been restored,
// which may be minutes.
constexpr Time kNoRoom = 10ms;
constexpr Time kLongestPause = 250ms;
// How much of the time that rotad allows for giving a lease back is reserved for a drain: half, but no more than this.
constexpr Time kLongestReserve = 50ms;
// The interval of polls of work of a turn that was revoked.
constexpr Time kFinishing = 5ms;

}  // namespace

// Others need memory on a GPU that this process does not hold. Memory that cannot be evicted at once is tried again
// after a while: it may be pinned, or the host has no memory for it.
void Machine::move_out_of_the_way(Time now) {
  // What it held is evicted with the give-back, which rotad may not have seen yet.
  if (seen_.lease.in_the_way == 0 || seen_.lease.grant != 0) {
    move_again_at_ = move_pause_ = Time{0};
    return;
  }
  if (gate_open_ || !still_) return;
  if (now >= move_again_at_) {
    actions_.push_back({.act = Act::kMoveOut, .gpus = seen_.lease.in_the_way});
    resident_ = false;  // until the next Look says otherwise
    move_pause_ = std::clamp(move_pause_ * 2, kNoRoom, kLongestPause);
    move_again_at_ = now + move_pause_;
  }
  look_at_ = std::min(look_at_, move_again_at_);
}

void Machine::say_interrupted(Time now) {
  if (!seen_.interrupted || gate_open_) {
    interrupted_since_.reset();
    return;
  }
  if (said_interrupted_ || (resident_ && !moved_out_)) return;
  if (!interrupted_since_) interrupted_since_ = now;
  if (now - *interrupted_since_ < kSayInterrupted) {
    look_at_ = std::min(look_at_, *interrupted_since_ + kSayInterrupted);
    return;
  }
  said_interrupted_ = true;
  say(Note::kInterrupted);
}

// The turn was revoked before its work had finished. The gate is closed and stays so: once that work has finished, this
// process's memory can be evicted without another turn, even if it asks for none. Only others that need the memory wait
// for this, so it is polled rarely, and without a time limit.
void Machine::begin_to_finish(Time now) {
  finishes_ = !still_;
  watches_gpu_ = finishes_;
  drain_ = {.begun = now, .next_mark = now, .pause = kFinishing};
  look_at_ = now;
}

void Machine::finish(Time now) {
  if (!finishes_ || gate_open_) return;
  if (seen_.inside == 0 && !drain_.empty) {
    drain_.empty = true;
    drain_.next_mark = now;
  }
  if (drain_.proof && seen_.looked && seen_.done) {
    still_ = true;
    finishes_ = watches_gpu_ = false;
    act(Act::kCollect);
    look_at_ = now;
    return;
  }
  if (!drain_.proof && now >= drain_.next_mark) {
    act(Act::kMark);
    drain_.next_mark = now + drain_.pause;
  }
  watches_gpu_ = true;
  look_at_ = std::min(look_at_, now + drain_.pause);
}

void Machine::bring_back(Time now) {
  if (!away_since_) away_since_ = came_at_ = now;
  if (!lacks_since_) lacks_since_ = now;
  moving_ = true;
  settle_gate();  // the gate may be open if a holder now needs more memory
  act(Act::kBringBack);
}

Time Machine::last_moment(const Lease& lease) const {
  if (lease.give_back_by == Time{0}) return Time::max();
  const Time allowed = lease.give_back_by - std::max(lease.drain_at, taken_at_);
  return std::max(lease.drain_at, lease.give_back_by - std::min(allowed / 2, kLongestReserve));
}

// It keeps trying while memory arrives or nobody waits, but not until rotad would revoke the lease.
void Machine::hold_without_memory(Time now) {
  const Lease& lease = seen_.lease;
  const bool over = lease.waiters != 0 && lease.drain_at != Time{0} && now >= lease.drain_at && now >= retry_at_;
  const Time latest = std::min(away_since_ ? came_at_ + kNothingComes : now, last_moment(lease));
  const bool futile = over && now >= latest;
  if (gang_ != 0) report(futile ? protocol::kGangMayEnd : 0);
  if (!futile || gang_ != 0) {
    wait_for_memory(now);
    if (over && !futile) look_at_ = std::min(look_at_, latest);
    return;
  }
  // It has run in this turn and now needs more memory.
  if (!still_) return begin_drain(false, now);
  say(Note::kGaveBackUnused, grant_);
  actions_.back().held = now - taken_at_;
  give_back(grant_);
  phase_ = Phase::kResting;
  look_at_ = now;
}

// Another process has to evict memory first, or too much of the GPU's memory is unmanaged.
void Machine::wait_for_memory(Time now) {
  if (lacks_since_ && now - *lacks_since_ >= kSayNoRoom && !said_no_room_) {
    said_no_room_ = true;
    say(Note::kNoRoom);
  }
  if (now >= bring_again_at_) return bring_back(now);
  look_at_ = std::min(look_at_, bring_again_at_);
}

// Some of it was evicted, so more may be: for example, the host has memory again.
void Machine::on(const event::Cleared&, Time now) {
  move_pause_ = Time{0};
  move_again_at_ = std::min(move_again_at_, now + kNoRoom);
  look_at_ = std::min(look_at_, move_again_at_);
}

void Machine::on(const event::Brought& brought, Time now) {
  moving_ = false;
  if (brought.lost) {
    // None of its work will run any more, so it is in nobody's way.
    lost_ = true;
    resident_ = false;
    runs_until_.reset();
    away_since_.reset();
    if (grant_ != 0) give_back(grant_);
    withdraw();
    if (phase_ == Phase::kHolding || phase_ == Phase::kWaiting) phase_ = Phase::kResting;
    look_at_ = now;
    return;
  }
  covered_ = brought.lacking == 0;
  look_at_ = now;
  if (!covered_) {
    earliest_yield_ = now + std::max(now - taken_at_, kShortestTurn);
    taken_at_ = now;
    away_since_.reset();
    return;
  }
  resident_ = brought.resident;
  if (!resident_) {
    if (brought.some) came_at_ = now;
    bring_again_at_ = look_at_ = now + std::clamp((now - came_at_) / 16, kNoRoom, kLongestPause);
    return;
  }
  came_back(now);
}

// All of it: the turn begins now.
void Machine::came_back(Time now) {
  memory_took_ = away_since_ ? now - *away_since_ : Time{0};
  earliest_yield_ = now + std::clamp(memory_took_, kShortestTurn, kLongestUse);
  taken_at_ = now;
  away_since_.reset();
  lacks_since_.reset();
  bring_again_at_ = Time{0};
  said_no_room_ = false;
}

}  // namespace rota::turn
