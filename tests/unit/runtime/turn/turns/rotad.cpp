// The world's rotad: the scheduler's core, what programs and liars report to it, and what programs see of it.
#include "turns/world.h"

namespace rota::turns {

using namespace std::chrono_literals;

namespace {

constexpr Time kYoung = std::chrono::seconds(protocol::kReclaimSeconds);

}  // namespace

void World::start_rotad() {
  scheduler::Settings settings;
  settings.mode = mode_;
  settings.quantum = 100ms;
  settings.measured_turns = seed_ / 4 % 2 != 0;
  // By default shorter than a drain that fails, or long enough for one drain to fail after another.
  settings.grace = quiet_ ? 60s : one_in(2) ? 500ms : 10s;
  note("rotad starts");
  core_ = std::make_unique<scheduler::Core>(settings);
  quota_ = std::make_unique<scheduler::LimitsBesideBooks>();
  answered_.clear();
  rotad_since_ = now_;
  rotad_back_at_ = kNever;
  liars_.clear();
  told_.clear();
  others_ = {};
  measured_at_ = kNever;
  for (unsigned i = pick(3); i > 0; --i) {
    liars_.push_back(++last_client_);
    core_step(scheduler::event::Join{last_client_});
    core_step(scheduler::event::AddGpu{last_client_, pick(kGpus), kTotal, kContext});
    core_step(scheduler::event::Usage{last_client_, pick(kGpus), pick(kTotal), pick(kTotal)});
  }
  liar_at_ = now_;
}

// A client that follows no rules except those that rotad enforces.
void World::some_liar() {
  liar_at_ = now_ + some_time(3s);
  if (liars_.empty()) return;
  const scheduler::ClientId liar = liars_[pick(static_cast<unsigned>(liars_.size()))];
  switch (pick(4)) {
    case 0:
      core_step(scheduler::event::AddGpu{liar, pick(kGpus), kTotal, kContext});
      break;
    case 1:
      core_step(scheduler::event::GiveBack{liar, pick(4)});
      break;
    default:
      core_step(scheduler::event::Want{liar, pick(1u << kGpus), false, false, one_in(3)});
      break;
  }
}

// What a program reports about its turns, true or not.
void World::tell_activity(scheduler::ClientId client) {
  scheduler::event::Activity& activity = activity_[client];
  activity.client = client;
  activity.calls += pick(1000);
  activity.open += some_time(100ms);
  activity.counted = now_;
  const unsigned samples = pick(100);
  activity.samples += samples;
  activity.busy += pick(samples + 1);
  ++activity.switches;
  activity.switching += some_time(500ms);
  core_step(activity);
}

void World::rotad_dies() {
  note("rotad dies");
  core_.reset();
  quota_.reset();
  liars_.clear();
  for (auto& program : programs_) {
    program->client = 0;
    hung_up(*program);
  }
  rotad_back_at_ = now_ + some_time(one_in(3) ? 20s : 1s);
}

// The program's end of its connection is dead: it notices at its next check of the socket.
void World::hung_up(Program& program) {
  if (!program.connected || program.lost_at != kNever) return;
  program.lost_at = now_ + some_time(250ms);
  program.outbox.clear();
  program.answer_at = kNever;
}

void World::connect(Program& program) {
  leave(program);  // reconnected: the old connection is gone
  program.client = ++last_client_;
  program.connected = true;
  program.lost_at = kNever;
  program.told = program.answered = program.answers = 0;
  program.answer_at = kNever;
  program.outbox.clear();
  program.page = {};
  program.clear = program.clear_from = {};
  program.page_whole_at = kNever;
  core_step(scheduler::event::Join{program.client});
  quota_->join(program.client, {});
}

void World::leave(const Program& program) {
  if (program.client == 0) return;
  core_step(scheduler::event::Leave{program.client});
  quota_->leave(program.client, now_);
}

Program* World::of_client(scheduler::ClientId client) {
  for (auto& program : programs_) {
    if (program && program->client == client) return program.get();
  }
  return nullptr;
}

void World::core_step(const scheduler::Event& event) {
  const std::map<scheduler::ClientId, std::uint64_t> before = held();
  const std::vector<scheduler::Decision> decisions = core_->step(event, now_);
  if (const auto* usage = std::get_if<scheduler::event::Usage>(&event)) remember(*usage);
  for (unsigned gpu = 0; gpu < kGpus; ++gpu) {
    if (core_->gpu(gpu).clients == 0) others_[gpu] = 0;
  }
  check_clearing();
  std::visit(
      [&](const auto& which) {
        if constexpr (requires { which.client; }) {
          note("core: event " + std::to_string(event.index()) + " of client " + std::to_string(which.client));
        }
      },
      event);
  for (const scheduler::Decision& decision : decisions) {
    note("core: decision " + std::to_string(static_cast<int>(decision.change)) + " for client " +
         std::to_string(decision.client) + ", grant " + std::to_string(decision.grant));
    if (decision.change == scheduler::Change::kGranted) ++grants_;
    if (decision.change == scheduler::Change::kRevoked) ++revoked_;
    if (decision.change == scheduler::Change::kAlone && decision.bytes != 0) ++alone_;
    Program* program = of_client(decision.client);
    if (program == nullptr) continue;
    if (decision.change == scheduler::Change::kRevoked) program->loose = true;
    const scheduler::ClientState* state = core_->client(decision.client);
    if (state != nullptr && program->connected) {
      show_clear(*program);
      show_lease(*program, *state);
    }
  }
  check_grants(event, decisions, before);
}

void World::show_lease(Program& program, const scheduler::ClientState& state) {
  for (unsigned gpu = 0; gpu < kGpus; ++gpu) program.promised[gpu] = core_->promised_bytes(program.client, gpu);
  turn::Lease lease{state.grant, state.held, state.waiters, state.drain_at, core_->give_back_by(program.client)};
  for (unsigned gpu = 0; gpu < kGpus; ++gpu) {
    if (core_->bytes_to_clear(program.client, gpu) != 0) lease.in_the_way |= std::uint64_t{1} << gpu;
  }
  if (program.page.grant != 0 && lease.grant != 0 && program.page.grant != lease.grant) {
    // A grant that replaces another one shows none for an instant.
    program.page_then = lease;
    program.page_whole_at = now_ + some_time(100us);
    program.page.grant = 0;
  } else if (program.page_whole_at != kNever) {
    program.page_then = lease;
  } else {
    program.page = lease;
  }
  // The futex wakes it at some time, or its own check of the page finds it.
  if (!one_in(20)) wake(program, some_time(1ms));
}

void World::receive(Program& program) {
  const Message message = program.outbox.front();
  program.outbox.pop_front();
  switch (message.kind) {
    case Message::kAddGpu:
      for (unsigned gpu = 0; gpu < kGpus; ++gpu) {
        if ((message.gpus >> gpu & 1) == 0) continue;
        core_step(scheduler::event::AddGpu{program.client, gpu, kTotal, kContext});
        core_step(usage(program, gpu));
        if (program.swaps) say_state(program, gpu);
      }
      program.answers |= message.gpus;
      program.answer_at = now_ + some_time(1ms);
      break;
    case Message::kRoom:
      core_step(scheduler::event::Ask{program.client, static_cast<scheduler::GpuIndex>(message.gpus), message.bytes});
      break;
    case Message::kWant:
      tell_usage(program);
      core_step(scheduler::event::Want{program.client, message.gpus, message.running && now_ - rotad_since_ < kYoung,
                                       message.urgent, message.alone});
      break;
    case Message::kGiveBack:
      tell_usage(program);
      tell_activity(program.client);
      core_step(scheduler::event::GiveBack{program.client, message.grant});
      break;
  }
}

}  // namespace rota::turns
