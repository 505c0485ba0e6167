// Room, as the world's programs ask for it: what the monitor does for the machine, and what must hold.
#include <algorithm>

#include "turns/world.h"

namespace rota::turns {

using namespace std::chrono_literals;

// As rotad reads the usage page.
void World::tell_usage(const Program& program) {
  for (unsigned gpu = 0; gpu < kGpus && program.client != 0; ++gpu) {
    core_step(usage(program, gpu));
  }
}

// A thread frees memory, or reserves some and checks whether it may take it.
void World::grow_or_shrink(Program& program, Thread& thread) {
  if (one_in(2)) {
    if (program.fixed != 0 && one_in(3)) {
      const scheduler::Bytes less = std::min<scheduler::Bytes>(pick(100), program.fixed);
      program.memory -= less;
      program.taken -= less;
      program.fixed -= less;
    }
    const scheduler::Bytes less = std::min<scheduler::Bytes>(pick(300), program.taken - program.fixed);
    program.memory -= less;
    program.taken -= less;
    publish_room(program);  // waiting threads check again
    return;
  }
  if (program.captures_until > now_) return;  // would not wait
  if (program.swaps && one_in(3)) return take_fixed(program);
  const scheduler::Bytes more = std::min<scheduler::Bytes>(pick(200), kTotal - std::min(program.memory, kTotal));
  if (program.swaps && !granted(program, program.touched, more, 0)) return;
  program.memory += more;
  if (lacking(program) == 0) {
    program.taken += more;
    return;
  }
  thread = {Thread::kWaitsForRoom, kNever};
  ++waits_for_room_;
  if (program.waits_for_room_since == kNever) program.waits_for_room_since = now_;
  wake(program, some_time(1ms));
}

// As the monitor does after each step of the machine and before each check.
void World::publish_room(Program& program) {
  const bool promised = program.connected && program.machine->grant() != 0;
  for (unsigned gpu = 0; gpu < kGpus; ++gpu) {
    const bool limited = promised && (program.page.held >> gpu & 1) != 0;
    program.allowed[gpu] = limited ? program.promised[gpu] : kUnlimited;
  }
  if (program.count(Thread::kWaitsForRoom) == 0 || lacking(program) != 0) return;
  program.taken = program.memory;
  program.waits_for_room_since = kNever;
  for (Thread& thread : program.threads) {
    if (thread.where == Thread::kWaitsForRoom) thread = {Thread::kAway, now_};
  }
}

std::uint64_t World::lacking(const Program& program) const {
  std::uint64_t lacking = 0;
  for (unsigned gpu = 0; gpu < kGpus; ++gpu) {
    if ((program.answered >> gpu & 1) != 0 && program.memory > program.allowed[gpu]) lacking |= 1u << gpu;
  }
  return lacking;
}

std::uint64_t World::unasked(const Program& program) const {
  std::uint64_t unasked = 0;
  for (unsigned gpu = 0; gpu < kGpus; ++gpu) {
    if ((program.answered >> gpu & 1) == 0 || program.allowed[gpu] == kUnlimited) continue;
    const scheduler::Bytes asked = program.asked_grant == program.machine->grant() ? program.asked[gpu] : 0;
    if (std::max(program.memory, asked) > program.allowed[gpu] && program.memory != asked) unasked |= 1u << gpu;
  }
  return unasked;
}

void World::ask_room(Program& program, std::uint64_t gpus) {
  for (unsigned gpu = 0; gpu < kGpus; ++gpu) {
    if ((gpus >> gpu & 1) == 0) {
      if (program.asked_grant != program.machine->grant()) program.asked[gpu] = 0;
      continue;
    }
    program.asked[gpu] = program.memory;
    send(program, {.kind = Message::kRoom, .gpus = gpu, .bytes = program.memory});
  }
  program.asked_grant = program.machine->grant();
}

// For a program that works under its lease.
void World::check_room(const Program& program, const scheduler::ClientState& state) {
  for (unsigned gpu = 0; gpu < kGpus; ++gpu) {
    if (((program.uses & state.held) >> gpu & 1) == 0) continue;
    const scheduler::Bytes promised = core_->promised_bytes(program.client, gpu);
    if (program.taken <= promised) continue;
    fail(&program, "has taken " + std::to_string(program.taken) + " bytes and is promised " + std::to_string(promised));
  }
}

}  // namespace rota::turns
