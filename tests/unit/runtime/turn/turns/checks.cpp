// What must hold after every step, and what a failure prints.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdlib>

#include "turns/world.h"

namespace rota::turns {

using namespace std::chrono_literals;
using turn::Phase;

std::map<scheduler::ClientId, std::uint64_t> World::held() const {
  std::map<scheduler::ClientId, std::uint64_t> held;
  const auto add = [&](scheduler::ClientId client) {
    if (const scheduler::ClientState* state = core_->client(client)) held[client] = state->held;
  };
  for (const auto& program : programs_) add(program->client);
  for (const scheduler::ClientId liar : liars_) add(liar);
  return held;
}

// No client is granted a GPU while clients hold it with which it conflicts. One exception by design: a rotad that has
// just started grants at once to work that continued without a rotad, whoever holds the GPU.
void World::check_grants(const scheduler::Event& event, const std::vector<scheduler::Decision>& decisions,
                         std::map<scheduler::ClientId, std::uint64_t> before) {
  const auto* want = std::get_if<scheduler::event::Want>(&event);
  const std::map<scheduler::ClientId, std::uint64_t> after = held();
  for (const scheduler::Decision& decision : decisions) {
    if (decision.change == scheduler::Change::kEnded || decision.change == scheduler::Change::kRevoked) {
      before[decision.client] = 0;
    }
    if (decision.change != scheduler::Change::kGranted) continue;
    if (want != nullptr && want->running && want->client == decision.client) {
      ++reclaimed_;
      continue;
    }
    for (unsigned gpu = 0; gpu < kGpus; ++gpu) {
      if (((after.at(decision.client) & ~before[decision.client]) >> gpu & 1) == 0) continue;
      unsigned holders = 0;
      scheduler::Bytes together = core_->gpu(gpu).clients * kContext + others_[gpu];
      for (const auto& [client, gpus] : after) {
        if ((gpus >> gpu & 1) == 0) continue;
        ++holders;
        if (client != decision.client && core_->client(client)->alone_until != Time{0}) {
          fail(of_client(decision.client),
               "GPU " + std::to_string(gpu) + " was granted beside one that measures alone");
        }
        together += core_->counted_bytes(client, gpu);
      }
      const bool conflict = holders > 1 && (mode_ == scheduler::Mode::kExclusive || together > kTotal);
      if (!conflict) continue;
      fail(of_client(decision.client), "GPU " + std::to_string(gpu) + " was granted to client " +
                                           std::to_string(decision.client) + " beside others, with " +
                                           std::to_string(together) + " bytes together");
    }
  }
}

// After every event of a program's machine. The reasons are what the world itself has seen: this does not ask
// may_open().
void World::check_gate(const Program& program) {
  if (program.open != program.machine->gate_open()) fail(&program, "the machine is wrong about its gate");
  if (!program.open) return;
  if (!program.resident) fail(&program, "its gate is open and its memory is away");
  switch (program.machine->phase()) {
    case Phase::kHolding:  // look() has checked whether the page still shows it
      break;
    case Phase::kAlone:
      if (!program.ran && (program.alone_since == kNever || now_ - program.alone_since < Machine::kGrace)) {
        fail(&program, "its gate is open without rotad before the grace is over");
      }
      break;
    case Phase::kUnserved:
      if ((program.answered & kServed) != 0) fail(&program, "its gate is open as if rotad did not serve it");
      break;
    case Phase::kWaiting:
      if (!program.reclaims) fail(&program, "its gate is open while it waits");
      break;
    case Phase::kBeside:  // gate_opens() has checked how it came to that
      break;
    case Phase::kResting:
    case Phase::kDraining:
      fail(&program, "its gate is open without a claim");
  }
}

// After every step of the world.
void World::check_work() {
  for (auto& program : programs_) {
    if (!program->works()) program->loose = false;
    // No rotad knows of it: its lease is from one that has died, whether it has noticed or not. It continues to work by
    // design.
    if (program->works() && program->client == 0) program->loose = true;
    if (!program->works() || program->loose) continue;
    const scheduler::ClientState* state = core_ ? core_->client(program->client) : nullptr;
    if (state == nullptr) fail(program.get(), "works without a lease");
    if ((program->uses & ~state->held) != 0) fail(program.get(), "works on a GPU that it does not hold");
    check_room(*program, *state);
  }
}

void World::note(std::string what) {
  if (!verbose_) return;
  notes_.push_back(std::to_string(now_.count()) + " " + std::move(what));
  if (notes_.size() > 200) notes_.pop_front();
}

std::string World::describe(const Program& program) const {
  const scheduler::ClientState* state = core_ ? core_->client(program.client) : nullptr;
  const auto number = [](auto value) { return std::to_string(value); };
  return "program " + number(program.pid) + ": manner " + number(static_cast<int>(program.manner)) + ", phase " +
         number(static_cast<int>(program.machine->phase())) + ", memory " + number(program.memory) + ", taken " +
         number(program.taken) + ", touched " + number(program.touched) + ", answered " + number(program.answered) +
         ", uses " + number(program.uses) + ", grant " + number(program.machine->grant()) + ", page " +
         number(program.page.grant) + " for " + number(program.page.held) + ", gate " +
         (program.open ? "open" : "closed") + (program.works() ? ", works" : "") + (program.loose ? ", loose" : "") +
         (program.connected ? ", connected" : "") + (program.lost_at != kNever ? ", rotad has gone" : "") +
         ", client " + number(program.client) + " holds " + (state != nullptr ? number(state->held) : "nothing") +
         ", standing " + number(program.count(Thread::kStanding)) + ", inside " +
         number(program.count(Thread::kInside)) + ", work " + number(program.submitted - program.finished) + "\n";
}

void World::fail(const Program* program, const std::string& what) {
  std::string all;
  for (const auto& one : programs_) all += describe(*one);
  for (const scheduler::ClientId liar : liars_) {
    const scheduler::ClientState* state = core_ ? core_->client(liar) : nullptr;
    if (state != nullptr)
      all += "liar, client " + std::to_string(liar) + " holds " + std::to_string(state->held) + "\n";
  }
  for (const std::string& line : notes_) all += line + "\n";
  FAIL((program != nullptr ? "program " + std::to_string(program->pid) + ": " : "")
       << what << "\nin mode " << scheduler::mode_name(mode_) << ", at " << now_.count()
       << " ns. The same again, with the last events: ROTA_TURNS_SEED=" << seed_ << " tests/turns_property_test\n"
       << all);
  std::abort();  // FAIL throws
}

}  // namespace rota::turns
