// Swap memory in the world: GPUs that can be full, and what programs do about it. The core knows only what it is told.
#include <algorithm>

#include "turns/world.h"

namespace rota::turns {

using namespace std::chrono_literals;

// What the driver would report. Unified Memory is evicted when room is needed.
scheduler::Bytes World::free_on(unsigned gpu) const {
  scheduler::Bytes taken = ballast_[gpu];
  for (const auto& program : programs_) {
    if (!program) continue;
    if ((program->touched >> gpu & 1) != 0) taken += kContext + program->fixed;
    taken += program->there[gpu];
  }
  return taken < kTotal ? kTotal - taken : 0;
}

bool World::all_there(const Program& program) const {
  for (unsigned gpu = 0; gpu < kGpus; ++gpu) {
    if ((program.answered >> gpu & 1) != 0 && program.there[gpu] < program.taken - program.fixed) return false;
  }
  return true;
}

// Restores memory as far as there is room. Returns whether some was restored.
bool World::bring(Program& program) {
  const bool holds = program.machine->phase() == turn::Phase::kHolding;
  bool some = false;
  for (unsigned gpu = 0; gpu < kGpus; ++gpu) {
    program.refused[gpu] = 0;
    const scheduler::Bytes moves = program.taken - program.fixed;
    if ((program.answered >> gpu & 1) == 0 || program.there[gpu] >= moves) continue;
    const scheduler::Bytes comes = std::min(moves - program.there[gpu], free_on(gpu));
    program.there[gpu] += comes;
    some = some || comes != 0;
    if (program.there[gpu] == moves) continue;
    ++refusals_;
    if (!holds) continue;
    program.free_then[gpu] = free_on(gpu);
    program.refused[gpu] = moves - program.there[gpu];
    ++program.refusals[gpu];
    if (!calm_ && one_in(6)) stop_others(program);
  }
  if (!one_in(3)) tell_usage(program);  // otherwise rotad reads the page at its own time
  return some;
}

// Evicts as much as the page asks for, less what was evicted since. Returns whether some was evicted now.
bool World::clear(Program& program, std::uint64_t gpus) {
  if (program.machine->grant() != 0) fail(&program, "clears while it holds a lease");
  bool some = false;
  for (unsigned gpu = 0; gpu < kGpus; ++gpu) {
    if ((gpus >> gpu & 1) == 0 || program.pinned_until > now_) continue;
    const scheduler::Bytes from = program.clear_from[gpu];
    const scheduler::Bytes gone = from > program.resident_on(gpu) ? from - program.resident_on(gpu) : 0;
    scheduler::Bytes goes = program.clear[gpu] > gone ? program.clear[gpu] - gone : 0;
    // A new rotad that has not heard that a client swaps wants room from it as from any holder. And memory taken since
    // then that cannot be evicted hides what was evicted.
    if (goes > program.there[gpu] && from != 0 && program.fixed == 0) fail(&program, "is to clear more than is there");
    goes = std::min(goes, program.there[gpu]);
    if (!calm_ && one_in(5)) goes /= 2;  // an extent could not be moved
    program.there[gpu] -= goes;
    if (goes != 0) ++cleared_;
    some = some || goes != 0;
  }
  if (!one_in(3)) tell_usage(program);
  return some;
}

// What it has, as a client reports it.
void World::say_state(const Program& program, unsigned gpu) {
  if ((program.answers >> gpu & 1) == 0) quota_->add_gpu(program.client, gpu, kForSwap, 0);
  quota_->state(program.client, gpu, program.reservation(), answered_[{program.client, gpu}], quota_->round(), now_);
}

// Whether rotad grants this much more on these GPUs. Nobody asks before all have reported what they have: a new rotad
// waits for them.
bool World::granted(const Program& program, std::uint64_t gpus, scheduler::Bytes more, scheduler::Bytes fixed) {
  const auto known = [&](const auto& one) {
    return !one || !one->swaps || (one->client != 0 && one->answers == one->touched);
  };
  if (!core_ || !std::all_of(programs_.begin(), programs_.end(), known)) return false;
  scheduler::Reservation wanted = program.reservation();
  wanted.device += more;
  wanted.fixed += fixed;
  wanted.movable = wanted.swapped = wanted.device - wanted.fixed;
  for (unsigned gpu = 0; gpu < kGpus; ++gpu) {
    if ((gpus >> gpu & 1) == 0) continue;
    const auto answer_in = [&](const scheduler::Quota::Outcome& outcome) -> std::optional<bool> {
      if (outcome.answers.empty()) return std::nullopt;
      answered_[{program.client, gpu}] = outcome.answers.front().number;
      return outcome.answers.front().granted;
    };
    const auto asked = quota_->reserve(program.client, gpu, ++asks_, wanted, now_);
    std::optional<bool> answer = answer_in(asked);
    for (const auto& other : programs_) {
      if (answer || !other->swaps || (other->answers >> gpu & 1) == 0) continue;
      answer = answer_in(quota_->state(other->client, gpu, other->reservation(), answered_[{other->client, gpu}],
                                       quota_->round(), now_));
    }
    // All may have been asked a moment ago: then they are asked once more before the answer.
    for (auto due = quota_->next_deadline(); !answer && due; due = quota_->next_deadline()) {
      answer = answer_in(quota_->tick(*due));
    }
    if (!answer) fail(&program, "is not answered");
    if (*answer) continue;
    ++refused_by_quota_;
    return false;
  }
  return true;
}

// Only if the driver has memory for it; otherwise a program would wait, and others would evict theirs.
void World::take_fixed(Program& program) {
  const scheduler::Bytes more = 1 + pick(100);
  if (program.memory != program.taken) return;
  for (unsigned gpu = 0; gpu < kGpus; ++gpu) {
    if ((program.touched >> gpu & 1) != 0 && free_on(gpu) < more) return;
  }
  if (!granted(program, program.touched, more, more)) return;
  program.memory += more;
  if (lacking(program) != 0) {
    program.memory -= more;
    return;
  }
  program.taken += more;
  program.fixed += more;
  ++took_fixed_;
}

// Whether a program may have its memory on these GPUs as well.
bool World::may_touch(const Program& program, std::uint64_t gpus) {
  if (!program.swaps || program.memory == 0) return true;
  if (program.client == 0 || !core_) return false;
  for (unsigned gpu = 0; gpu < kGpus; ++gpu) {
    if ((gpus >> gpu & 1) == 0) continue;
    if (free_on(gpu) < program.fixed + kContext) return false;
    quota_->add_gpu(program.client, gpu, kForSwap, 0);
  }
  return granted(program, gpus, 0, 0);
}

// While it waits for them to evict; so its turn may end before its memory has been restored.
void World::stop_others(const Program& program) {
  const Time until = now_ + 3s;
  for (const auto& other : programs_) {
    if (other.get() != &program && other->swaps) other->stopped_until = std::max(other->stopped_until, until);
  }
}

// Stops some permanently, with memory on GPUs, but so little that each of the others fits in addition.
void World::stop_some() {
  scheduler::Bytes most = kMostStopped;
  for (const auto& program : programs_) {
    const scheduler::Bytes there = *std::max_element(program->there.begin(), program->there.end());
    if (!program->swaps || there == 0 || there > most) continue;
    program->stopped_until = kNever;
    most -= there;
    ++stopped_;
  }
}

// As the usage page says. Memory that may be in use cannot be evicted.
scheduler::event::Usage World::usage(const Program& program, unsigned gpu) const {
  scheduler::event::Usage usage{.client = program.client, .gpu = gpu, .used = program.memory};
  if (!program.swaps) return usage;
  const bool fixed = program.pinned_until > now_ || (program.machine->grant() == 0 && !program.machine->still());
  usage.resident = program.resident_on(gpu);
  usage.fixed = fixed ? std::max(usage.resident, program.fixed) : program.fixed;
  usage.shortage = program.machine->grant() != 0 ? program.refused[gpu] : 0;
  usage.free = usage.shortage != 0 ? program.free_then[gpu] : 0;
  usage.refusals = static_cast<std::uint32_t>(program.refusals[gpu]);
  return usage;
}

void World::show_clear(Program& program) {
  for (unsigned gpu = 0; gpu < kGpus; ++gpu) {
    program.clear[gpu] = core_->bytes_to_clear(program.client, gpu);
    program.clear_from[gpu] = core_->resident_bytes(program.client, gpu);
  }
}

void World::remember(const scheduler::event::Usage& usage) {
  if (core_->client(usage.client) == nullptr) return;
  told_[{usage.client, usage.gpu}] = usage;
}

// What the driver reports about each GPU, now and then without saying whose memory it is; or nothing for a while.
void World::measure() {
  measure_at_ = now_ + 1s;
  if (!calm_ && one_in(20)) meter_silent_until_ = now_ + (one_in(2) ? Time(15s) : some_time(10s));
  if (now_ < meter_silent_until_) {
    if (measured_at_ == kNever || now_ - measured_at_ < 10s) return;
    measured_at_ = kNever;
    ++meter_fell_silent_;
    others_ = {};
    for (unsigned gpu = 0; gpu < kGpus; ++gpu) core_step(scheduler::event::Unmeasured{gpu});
    return;
  }
  measured_at_ = now_;
  for (unsigned gpu = 0; gpu < kGpus; ++gpu) {
    scheduler::Bytes unified = 0;  // any part of which may be there
    for (const auto& program : programs_) {
      if (!program->swaps && (program->touched >> gpu & 1) != 0) unified += program->taken;
    }
    const scheduler::Bytes free = free_on(gpu);
    scheduler::event::Measured reading{.gpu = gpu, .free = free, .others = std::nullopt};
    reading.free -= pick(static_cast<unsigned>(std::min(free, unified)) + 1);
    if (!one_in(5)) {
      reading.others = others_[gpu] = ballast_[gpu];
      listed_at_[gpu] = now_;
    } else if (now_ - listed_at_[gpu] >= scheduler::Outside::kListKept) {
      others_[gpu] = 0;
    }
    core_step(reading);
    if (others_[gpu] != 0) ++outside_measured_;
  }
}

// After every step of the core, based on what it was told and not on its sums.
void World::check_clearing() {
  for (unsigned gpu = 0; gpu < kGpus; ++gpu) {
    scheduler::Bytes needed = core_->gpu(gpu).clients * kContext + core_->gpu(gpu).outside;
    scheduler::Bytes refused = 0;
    scheduler::Bytes asked = 0;
    for (const auto& [place, usage] : told_) {
      const scheduler::ClientState* state = core_->client(usage.client);
      if (place.second != gpu || state == nullptr || (state->touched >> gpu & 1) == 0) continue;
      const bool holds = (state->held >> gpu & 1) != 0;
      const scheduler::Bytes clears = core_->bytes_to_clear(usage.client, gpu);
      if (holds) {
        needed += core_->counted_bytes(usage.client, gpu);
        refused += usage.shortage;
        if (clears != 0 && usage.resident != 0) fail(of_client(usage.client), "is asked to clear what it holds");
        continue;
      }
      needed += std::max(usage.resident, std::min(usage.fixed, std::max(usage.used, usage.resident)));
      if (clears != 0 && state->held != 0) fail(of_client(usage.client), "is asked to clear while it holds a GPU");
      if (clears + usage.fixed > usage.resident && clears != 0) {
        fail(of_client(usage.client), "is asked to clear what is fixed");
      }
      asked += clears;
    }
    if (!metered_ && outside_[gpu] == 0 && core_->gpu(gpu).outside != 0) ++outside_learned_;
    outside_[gpu] = core_->gpu(gpu).outside;
    const scheduler::Bytes missing = std::max(needed > kTotal ? needed - kTotal : 0, refused);
    if (asked > missing) {
      fail(nullptr, "on GPU " + std::to_string(gpu) + " " + std::to_string(asked) + " bytes are to be cleared and " +
                        std::to_string(missing) + " are missing");
    }
  }
}

}  // namespace rota::turns
