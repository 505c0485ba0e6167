// The core's steps, and what programs are told of them.
#include "scheduler/server/leases.h"

#include <algorithm>

#include "scheduler/server/gangs.h"

namespace rota::server {

using scheduler::ClientId;
using scheduler::GpuIndex;
namespace event = scheduler::event;

Leases::Leases(const scheduler::Settings& settings) : core_(settings) {}

Leases::~Leases() = default;

void Leases::step(const scheduler::Event& event) {
  sums_.clear();
  const scheduler::Time time = modelled_now();
  const std::vector<scheduler::Decision>& decisions = core_.step(event, time);
  stepped(event, time, decisions);
  for (const scheduler::Decision& decision : decisions) {
    if (const auto gang = gangs_in_core_.find(decision.client); gang != gangs_in_core_.end()) {
      decided(*gangs_.at(gang->second), decision);
      continue;
    }
    const auto [program, task] = find_task(decision.client);
    if (program == nullptr) continue;
    changed_.insert(program->id);
    if (program->gang != 0) gangs_due_.insert(program->gang);
    if (decision.change == scheduler::Change::kGranted && task != nullptr) task->last_grant = decision.grant;
    decided(*program, decision);
    if (task != nullptr &&
        (decision.change == scheduler::Change::kEnded || decision.change == scheduler::Change::kRevoked))
      task->withdrawn = false;
  }
  publish_changes(time);
}

void Leases::publish_changes(scheduler::Time time) {
  if (coupling_ || checking_gangs_) return;
  check_gangs();
  sums_.clear();
  const Within writing(keeps_sums_);
  publish_all(time);
}

Leases::Lease Leases::lease_of(const Program& program, const Task& task) const {
  Lease lease{.state = state_of(task), .give_back_by = core_.give_back_by(task.id)};
  scheduler::ClientState& state = lease.state;
  if (const Gang* const gang = gang_of(task)) {
    lease.gang_ends = gang->drain.ended() ? state.grant : 0;
    lease.gang_step = gang->drain.step();
  }
  const std::optional<scheduler::Time> by = withdraw_by();
  if (state.held == 0 || !by) return lease;
  // As if another client waited and the turn were over: another rotad is to have the GPUs.
  state.waiters = std::max<std::uint32_t>(state.waiters, 1);
  if (state.drain_at.count() == 0 || state.drain_at > modelled_now()) state.drain_at = modelled_now();
  if (lease.give_back_by.count() == 0 || lease.give_back_by > *by) lease.give_back_by = *by;
  return lease;
}

std::uint32_t Leases::shown_grant(const Task& task, GpuIndex gpu) const {
  const scheduler::ClientState state = state_of(task);
  const bool taken = (withdraw_by() && task.overdue) || task.gave_back;
  return scheduler::has(state.held, gpu) && !taken ? state.grant : 0;
}

void Leases::begin_task(Program& program, GpuIndex gpu, std::uint32_t last_grant) {
  Task& task = program.tasks.add(++last_number_, gpu);
  task.last_grant = last_grant;
  join(program, task);
  if (program.gang != 0) gangs_due_.insert(program.gang);
}

void Leases::end_tasks(const Program& program) {
  leave_gang(program);
  for (const Task& task : program.tasks) {
    if (task.gang != 0) continue;
    step(event::Leave{task.id});
    owners_.erase(task.id);
  }
  publish_changes(modelled_now());
}

void Leases::on_give_back(Program& program, const protocol::GiveBack& given) {
  if (!program.gpus().contains(given.gpu)) return;
  scheduler::GpuMask rest = (given.task & program.gpus().mask()) | scheduler::bit(given.gpu);
  while (rest != 0) {
    Task& task = *program.tasks.on(*GpuSet(rest).begin());
    rest &= ~task.gpus;
    if (gang_of(task) != nullptr) {
      gave_back(program, task, given.grant);
    } else {
      step(event::GiveBack{task.id, given.grant});
    }
  }
}

void Leases::tell_usage(Program& program, GpuIndex gpu) {
  Task* const task = program.tasks.on(gpu);
  if (task != nullptr) say_usage(*task, usage_of(program, gpu));
}

}  // namespace rota::server
