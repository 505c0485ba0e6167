// The machine as a member of a gang: its grants are those of all members, and it drains together with them. A kernel of
// one member may wait on the GPU for a call that another has yet to make. So the turn ends for all at once, and while
// it ends each member lets single calls in, as long as the work of some other has not finished.
#include <algorithm>

#include "runtime/turn/machine.h"
#include "scheduler/protocol/pages.h"

namespace rota::turn {

using namespace std::chrono_literals;
using protocol::kGangMayEnd;
using protocol::kGangRests;
using protocol::kGangStands;

namespace {

// How often the page is checked in case a wake-up was lost.
constexpr Time kLookForStep = 250ms;

}  // namespace

void Machine::report(std::uint32_t flags) {
  const std::uint64_t word = std::uint64_t{seen_.lease.step} << 32 | flags;
  if (word == told_) return;
  told_ = word;
  actions_.push_back({.act = Act::kReport, .word = word});
}

// It has said that it rests, but for an earlier step: rotad will not end the gang's turn before this process has said
// that it rests in this step.
bool Machine::next_step() const {
  const std::uint32_t told = static_cast<std::uint32_t>(told_ >> 32);
  return (told_ & kGangRests) != 0 && told != 0 && told != seen_.lease.step;
}

// A grant that this process has not taken, and may not have asked for. Calls that come now need no request. False: it
// has to go back.
bool Machine::keeps_gang_grant(Time now) {
  const Lease& lease = seen_.lease;
  if (!covers(lease) || lost_ || retires_) return false;
  if (!gate_open_) {
    if (lease.ends) return false;
    const bool stands = seen_.standing > seen_.not_at_gate;
    const bool takes = lease.step == 0 ? stands || phase_ == Phase::kWaiting : stands && next_step();
    if (!takes) {
      const std::uint32_t may_end = lease.step == 0 ? kGangMayEnd : 0;
      report(still_ ? kGangRests | may_end | (stands ? kGangStands : 0) : 0);
      if (!still_ && !finishes_) begin_to_finish(now);  // rotad went away during a drain
      finish(now);                                      // work of an earlier turn
      return true;
    }
  }
  take(now);
  return true;
}

// rotad decides when the turn ends, since it knows the other members: the drain begins once all of them can.
void Machine::hold_in_gang(Time now) {
  may_open_ = true;
  bool may_end = false;
  if (watches_gpu_) {
    const Time drain_at = seen_.lease.drain_at;
    look_at_ = now + std::max<Time>(idle_grace_ / 2, 500us);
    if (drain_at > now) look_at_ = std::min(look_at_, drain_at);
    const bool idle = !seen_.measures && !seen_.alone && idle_long_enough(now);
    may_end = idle || (turn_is_over(now) && !measures(now));
  }
  report(may_end ? kGangMayEnd : 0);
}

// There is no limit for it: if the members do not all come to rest, rotad revokes the grant.
void Machine::drain_with_gang(Time now) {
  drain_.joint = true;
  const bool stands = seen_.standing > seen_.not_at_gate;
  if (admitting_ && now - admitted_at_ >= (stands ? kAdmitsAtMost : kAdmits)) {
    admitting_ = false;  // either that call is inside, or none comes
    act(Act::kDismiss);
  }
  // A gate that has not been open since the last proof needs no new one.
  drain_.rests = still_ || proven(now);
  if (!drain_.rests) {
    report(0);
    return prove(now);
  }
  admitting_ = false;
  if (seen_.lease.ends) return drained(now);
  look_at_ = now + kLookForStep;
  const bool may_admit = stands && has_memory(now);
  if (may_admit && next_step()) return admit(now);
  report(kGangRests | (may_admit ? kGangStands : 0));
}

// First says that it does not rest any more, and then lets one call in, whose work has to finish before it says again
// that it rests.
void Machine::admit(Time now) {
  report(0);
  act(Act::kAdmit);
  const Drain before = drain_;
  begin_drain(false, now);
  drain_.begun = before.begun;
  drain_.joint = true;
  still_ = moved_out_ = finishes_ = false;
  admitting_ = true;
  admitted_at_ = now;
}

// Whether the memory that a call may use is resident. If not, it is restored meanwhile: others may wait for that call.
bool Machine::has_memory(Time now) {
  if (moving_ || lost_) return false;
  if (seen_.unasked != 0) actions_.push_back({.act = Act::kAskRoom, .gpus = seen_.unasked});
  if (!covers(seen_.lease)) return false;
  if (!covered_) {
    if (seen_.lacking == 0) bring_back(now);
    return false;
  }
  if (!resident_) wait_for_memory(now);
  return resident_ && !moving_;
}

}  // namespace rota::turn
