// How the world proceeds: programs, time and surprises.
#include "turns/world.h"

#include <algorithm>

namespace rota::turns {

using namespace std::chrono_literals;
using turn::Act;
using turn::Phase;

namespace {

// How long a program that looks for rotad may take to find it, and to be answered.
constexpr Time kToFindRotad = 20s;

}  // namespace

World::World(unsigned seed, scheduler::Mode mode, bool verbose, bool swapping)
    : seed_(seed),
      mode_(mode),
      verbose_(verbose),
      random_(seed),
      quiet_(one_in(4)),
      swapping_(swapping),
      metered_(one_in(2)) {
  for (unsigned gpu = 0; gpu < kGpus && (swapping_ || metered_); ++gpu)
    ballast_[gpu] = one_in(2) ? pick(kMostBallast) : 0;
  start_rotad();
  const unsigned count = 2 + pick(5);
  for (unsigned i = 0; i < count; ++i) programs_.push_back(new_program());
  chaos_at_ = now_ + 10ms;
}

void World::everybody_gets_a_turn() {
  note("no more surprises");
  calm_ = true;
  for (auto& program : programs_) program->stopped_until = program->pinned_until = Time{0};
  if (swapping_ && !one_in(5)) stop_some();
  if (!core_) start_rotad();
  const Time begun = now_;
  // Each of the others takes a turn, and has it revoked.
  const bool measured = core_->settings().measured_turns;
  const Time quantum = measured ? scheduler::Sharing::kLongestWithMoves : core_->settings().quantum;
  const Time turn = quantum + core_->settings().grace;
  const Time bound = kToFindRotad + 3 * static_cast<int>(programs_.size() + liars_.size()) * turn;
  const auto had_a_turn = [&](const auto& program) {
    const bool had = (program->opened_at >= begun || program->open) && program->waits_for_room_since == kNever;
    return had || program->stopped_until == kNever;
  };
  while (!std::all_of(programs_.begin(), programs_.end(), had_a_turn)) {
    advance();
    for (const auto& program : programs_) {
      if (program->stopped_until == kNever) continue;
      const auto waits_for_ever = [&](Time since) { return since != kNever && now_ - std::max(since, begun) >= bound; };
      if (waits_for_ever(program->standing_since)) fail(program.get(), "stands at its gate for ever");
      if (waits_for_ever(program->waits_for_room_since)) fail(program.get(), "waits for room for ever");
    }
    if (now_ - begun > 10 * bound) fail(nullptr, "somebody never comes to its gate");
  }
}

Time World::some_time(Time most) {
  const Time part = most / (1u << pick(12));
  return Time(std::uniform_int_distribution<std::int64_t>(1, std::max<std::int64_t>(part.count(), 1))(random_));
}

// --- a program

std::unique_ptr<Program> World::new_program() {
  auto program = std::make_unique<Program>();
  program->pid = ++last_pid_;
  if (one_in(5)) program->manner = Manner::kLate;
  if (one_in(6)) program->manner = Manner::kUndrainable;
  program->swaps = swapping_ && program->manner != Manner::kUndrainable && !one_in(4);
  // Swap memory is taken as rotad grants it.
  program->memory = program->taken = program->swaps ? 0 : 50 + pick(700);
  program->touched = one_in(4) ? kServed : 1 + pick(2);
  if (one_in(10)) program->touched = kUnservedGpu;
  connect(*program);
  program->wake_at = now_;
  for (Thread& thread : program->threads) thread.until = now_ + some_time(50ms);
  return program;
}

void World::wake(Program& program, Time after) {
  program.wake_at = std::min(program.wake_at, std::max(now_ + after, program.stopped_until));
}

void World::send(Program& program, Message message) {
  if (!program.connected || program.lost_at != kNever) return;
  const Time before = program.outbox.empty() ? now_ : program.outbox.back().at;
  message.at = std::max(before, now_) + some_time(5ms);
  program.outbox.push_back(message);
}

// Like the monitor: carries out every action before the next event, including an answer to one of them.
void World::feed(Program& program, const turn::Event& event) {
  program.due.push_back(event);
  if (program.due.size() > 1) return;  // an answer: its turn comes below
  for (; !program.due.empty(); program.due.pop_front()) {
    ++machine_steps_;
    const std::vector<turn::Action> actions = program.machine->step(program.due.front(), now_);
    publish_room(program);
    for (const turn::Action& action : actions) {
      note("program " + std::to_string(program.pid) + " does " + std::to_string(static_cast<int>(action.act)) +
           " in phase " + std::to_string(static_cast<int>(program.machine->phase())) + ", grant " +
           std::to_string(action.grant));
      carry_out(program, action);
    }
    if (program.machine->phase() == Phase::kHolding) {
      program.alone_since = kNever;
      program.reclaims = false;
    } else if (program.open) {
      program.loose = true;  // check_gate() says whether it may be open
    }
    check_gate(program);
  }
  program.wake_at = std::max(program.machine->look_at(), now_ + 20us);
}

void World::carry_out(Program& program, const turn::Action& action) {
  switch (action.act) {
    case Act::kOpen:
      gate_opens(program);
      break;
    case Act::kClose:
      program.open = false;
      program.closed_at = now_;
      program.draining = program.machine->phase() == Phase::kDraining ? program.machine->grant() : 0;
      break;
    case Act::kWant:
      if (action.running && !program.open) fail(&program, "asks for work that does not run");
      program.reclaims = action.running || (program.reclaims && action.gpus != 0);
      send(program, {.kind = Message::kWant,
                     .gpus = action.gpus,
                     .running = action.running,
                     .urgent = action.urgent,
                     .alone = action.alone});
      break;
    case Act::kGiveBack:
      // Work of a turn that was revoked may still be running while a later grant is given back unused.
      if (program.submitted != program.finished && program.machine->phase() != Phase::kBeside && !program.loose) {
        fail(&program, "gives back with work on the GPU");
      }
      program.refused = {};
      send(program, {.kind = Message::kGiveBack, .grant = action.grant});
      break;
    case Act::kConnect:
      if (core_) {
        connect(program);
        feed(program, turn::event::Connected{});
      } else {
        feed(program, turn::event::NotConnected{});
      }
      break;
    case Act::kHangUp:
      lose(program);
      break;
    case Act::kMark: {
      turn::Marked result = turn::Marked::kYes;
      if (program.captures_until > now_) result = turn::Marked::kCapturing;
      if (!calm_ && one_in(50)) result = one_in(2) ? turn::Marked::kBusy : turn::Marked::kUnknown;
      if (result == turn::Marked::kYes) program.marks.push_back(program.submitted);
      feed(program, turn::event::MarkMade{result});
      break;
    }
    case Act::kAskRoom:
      ask_room(program, action.gpus);
      break;
    case Act::kBringBack: {
      if (const std::uint64_t without_room = lacking(program); without_room != 0) {
        ++grants_that_lacked_;
        feed(program, turn::event::Brought{true, without_room});
        break;
      }
      if (program.open) fail(&program, "brings its memory back with its gate open");
      // The copy takes time, during which the monitor does nothing else; sometimes there is no room.
      const bool some = program.swaps && bring(program);
      program.resident = program.swaps ? all_there(program) : calm_ || !one_in(4);
      now_ += calm_ ? 1us : some_time(2ms);
      feed(program, turn::event::Brought{.resident = program.resident, .some = some});
      break;
    }
    case Act::kMoveOut:
      if (program.open || program.works()) fail(&program, "moves out memory that its work may use");
      if (program.swaps) {
        const bool some = clear(program, action.gpus);
        now_ += calm_ ? 1us : some_time(50ms);
        if (some) feed(program, turn::event::Cleared{});
        break;
      }
      if ((action.gpus & ~program.page.held) != 0 && !program.loose)
        fail(&program, "makes room where it holds nothing");
      ++moves_out_;
      now_ += calm_ ? 1us : some_time(50ms);
      break;
    case Act::kCollect:
      if (program.works()) fail(&program, "takes its GPU for idle, and it works");
      break;
    case Act::kReport:  // there are no gangs
    case Act::kAdmit:
    case Act::kDismiss:
      break;
    case Act::kSay:
      if (action.note == turn::Note::kGaveBackUnused) ++unused_;
      break;
  }
}

void World::gate_opens(Program& program) {
  const Phase phase = program.machine->phase();
  const bool drain_failed = phase == Phase::kBeside || (phase == Phase::kHolding && program.draining != 0 &&
                                                        program.draining == program.machine->grant());
  if (drain_failed) ++drains_failed_;
  if (phase == Phase::kBeside) ++beside_;
  if (drain_failed && now_ - program.closed_at < Machine::kPatience) fail(&program, "gives up a drain early");
  program.draining = 0;
  if (program.swaps && !all_there(program)) fail(&program, "its gate opens and its memory is away");
  program.open = true;
  program.opened_at = now_;
  // With a lease, what it covers: if a drain for one more GPU has failed, the gate opens again with what is held.
  program.uses = (phase == Phase::kHolding ? program.page.held : program.answered) & kServed;
  if (program.manner == Manner::kLate) program.stuck_until = now_ + some_time(5s);
  program.standing_since = kNever;
  for (Thread& thread : program.threads) {
    if (thread.where == Thread::kStanding) thread = {Thread::kAway, now_};
  }
}

void World::lose(Program& program) {
  const Phase phase = program.machine->phase();
  program.ran = program.open || phase == Phase::kHolding || phase == Phase::kDraining;
  if (program.alone_since == kNever) program.alone_since = now_;
  program.reclaims = false;
  program.draining = 0;
  program.connected = false;
  program.lost_at = program.answer_at = kNever;
  program.outbox.clear();
  program.page = {};
  program.clear = program.clear_from = {};
  program.page_whole_at = kNever;
  if (program.works()) program.loose = true;
  feed(program, turn::event::Lost{});
}

void World::look(Program& program) {
  if (program.lost_at <= now_) lose(program);
  if (program.connected && program.lost_at == kNever) {
    if (program.answer_at <= now_) {
      program.answered = program.answers;
      program.answer_at = kNever;
    }
    if (program.told != program.touched) {
      send(program, {.kind = Message::kAddGpu, .gpus = program.touched & ~program.told});
      program.told = program.touched;
    }
    feed(program, turn::event::Gpus{.any = program.touched != 0,
                                    .answered = program.answered == program.touched,
                                    .served = program.answered & kServed});
  }
  while (!program.marks.empty() && program.marks.front() <= program.finished) {
    program.marks.pop_front();
    ++program.reached;
  }
  if (!program.connected || program.page.grant != 0) {
    program.page_empty_since = kNever;
  } else if (program.page_empty_since == kNever) {
    program.page_empty_since = now_;
  }
  turn::event::Look seen;
  if (program.connected) seen.lease = program.page;
  seen.calls = program.calls;
  seen.inside = program.count(Thread::kInside);
  publish_room(program);
  seen.lacking = lacking(program);
  seen.unasked = unasked(program);
  const bool counts = program.machine->grant() != 0;
  seen.standing = program.count(Thread::kStanding) + (counts ? program.count(Thread::kWaitsForRoom) : 0);
  seen.interrupted = seen.standing != 0 && one_in(10);
  // Timed work finishes by itself, whatever others do.
  if (!calm_ && program.measures_until <= now_ && one_in(20)) {
    program.measures_until = now_ + some_time(250ms);
    program.wants_alone = one_in(2);
  }
  seen.measures = program.measures_until > now_;
  seen.alone = seen.measures && program.wants_alone;
  if (program.machine->held_by_measurement()) ++held_by_measurement_;
  seen.looked = program.machine->watches_gpu() && (calm_ || !one_in(30));
  seen.done = program.marks.empty();
  seen.reached = program.reached;
  if (program.swaps) program.resident = all_there(program);
  seen.resident = program.resident;
  feed(program, seen);
  if (program.open && program.machine->phase() == Phase::kHolding && program.page_empty_since != kNever &&
      now_ - program.page_empty_since > Machine::kReplacing) {
    fail(&program, "its gate is open by a lease that it has seen withdrawn");
  }
}

void World::thread_goes_on(Program& program, Thread& thread) {
  if (thread.where == Thread::kInside) {
    // A synchronous call returns once the work has finished.
    if (program.submitted != program.finished && one_in(3)) {
      thread.until = now_ + some_time(20ms);
      return;
    }
    ++program.calls;
    thread = {Thread::kAway, now_ + (one_in(30) ? some_time(2s) : some_time(5ms))};
    return;
  }
  if (one_in(20)) {  // does not need an open gate
    grow_or_shrink(program, thread);
    if (thread.where == Thread::kWaitsForRoom) return;
  }
  if (!program.open) {
    thread = {Thread::kStanding, kNever};
    if (program.standing_since == kNever) program.standing_since = now_;
    wake(program, some_time(1ms));
    return;
  }
  const bool waits = program.manner == Manner::kUndrainable && one_in(program.pid % 2 == 0 ? 20 : 1);
  program.queue.push_back({one_in(50) ? some_time(400ms) : some_time(4ms), waits});
  ++program.submitted;
  start_work(program);
  thread = {Thread::kInside, now_ + (one_in(40) ? some_time(100ms) : some_time(20us))};
}

void World::start_work(Program& program) {
  if (program.finishes_at != kNever || program.queue.empty()) return;
  if (program.queue.front().waits_for_next && program.queue.size() < 2) return;
  program.finishes_at = now_ + program.queue.front().takes;
}

void World::work_finishes(Program& program) {
  program.finishes_at = kNever;
  program.queue.pop_front();
  ++program.finished;
  start_work(program);
}

void World::advance() {
  Time next = chaos_at_;
  if (calm_) next = kNever;
  next = std::min(next, rotad_back_at_);
  if (core_ && core_->next_deadline()) next = std::min(next, *core_->next_deadline());
  if (core_) next = std::min(next, liar_at_);
  for (const auto& program : programs_) {
    const Time asleep = std::max(program->stopped_until, program->stuck_until);
    next = std::min({next, std::max(program->wake_at, asleep), program->finishes_at, program->page_whole_at});
    if (!program->outbox.empty()) next = std::min(next, program->outbox.front().at);
    if (program->answer_at != kNever) next = std::min(next, std::max(program->answer_at, asleep));
    if (program->lost_at != kNever) next = std::min(next, std::max(program->lost_at, asleep));
    for (const Thread& thread : program->threads) {
      if (thread.until != kNever) next = std::min(next, std::max(thread.until, program->stopped_until));
    }
  }
  same_ = next > now_ ? 0 : same_ + 1;
  if (same_ > 10'000) fail(nullptr, "time stands still");
  now_ = std::max(now_, next);
  if (!calm_ && chaos_at_ <= now_) chaos();
  if (rotad_back_at_ <= now_) start_rotad();
  if (core_ && liar_at_ <= now_) some_liar();
  if (core_ && usage_read_at_ <= now_) {
    usage_read_at_ = now_ + 200ms;
    for (const auto& program : programs_) tell_usage(*program);
  }
  if (core_ && metered_ && measure_at_ <= now_) measure();
  if (core_ && core_->next_deadline() && *core_->next_deadline() <= now_) core_step(scheduler::event::Tick{});
  for (auto& program : programs_) {
    if (program->page_whole_at <= now_) {
      program->page = program->page_then;
      program->page_whole_at = kNever;
    }
    while (core_ && !program->outbox.empty() && program->outbox.front().at <= now_) receive(*program);
    if (program->finishes_at <= now_) work_finishes(*program);
    if (program->stopped_until > now_) continue;
    for (Thread& thread : program->threads) {
      if (thread.until <= now_) thread_goes_on(*program, thread);
    }
    if (program->stuck_until > now_) continue;
    if (program->wake_at <= now_ || program->answer_at <= now_ || program->lost_at <= now_) look(*program);
  }
  check_work();
}

void World::chaos() {
  chaos_at_ = now_ + some_time(quiet_ ? Time(20s) : 500ms);
  const unsigned chosen = pick(static_cast<unsigned>(programs_.size()));
  Program& program = *programs_[chosen];
  switch (pick(12)) {
    case 0:
      if (core_ && one_in(4)) rotad_dies();
      break;
    case 1:
      if (core_) hung_up(program);  // rotad hangs up on it, and keeps its turn until the process is back
      break;
    case 2:
      // The process dies: its memory, its work and its turn are gone.
      if (!core_) break;
      leave(program);
      programs_[chosen] = new_program();
      break;
    case 3:
      program.stopped_until = now_ + some_time(one_in(3) ? 15s : 2s);
      break;
    case 4:
      program.captures_until = now_ + some_time(3s);
      break;
    case 5:
      if ((program.touched & kServed) != kServed && may_touch(program, kServed & ~program.touched)) {
        program.touched |= kServed;
        wake(program, Time{0});
      }
      break;
    case 6:
    case 7:
      // Another process needs the room. The monitor evicts idle memory, and its next check reports that.
      if (program.swaps) {
        program.pinned_until = now_ + some_time(10s);
        break;
      }
      if (core_ && program.connected && program.lost_at == kNever && !program.works() &&
          (program.machine->phase() == Phase::kResting || program.machine->phase() == Phase::kWaiting)) {
        program.resident = false;
        look(program);
      }
      break;
    case 8:
      // Another program that rotad does not know comes or goes.
      if ((swapping_ || metered_) && one_in(4)) {
        const unsigned gpu = pick(kGpus);
        const scheduler::Bytes more = std::min<scheduler::Bytes>(pick(kMostBallast), ballast_[gpu] + free_on(gpu));
        ballast_[gpu] = one_in(2) ? more : 0;
      }
      break;
    default:
      break;
  }
}

}  // namespace rota::turns
