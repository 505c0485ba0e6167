// Begins and ends the core's clients, one for each task of a client, and couples tasks as the client requests.
#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "scheduler/server/gangs.h"
#include "scheduler/server/log.h"

namespace rota::server {

using scheduler::Bytes;
using scheduler::ClientId;
using scheduler::GpuIndex;
using scheduler::GpuMask;
namespace event = scheduler::event;

Leases::OfTask Leases::find_task(ClientId id) const {
  const auto owner = owners_.find(id);
  Program* const found = owner == owners_.end() ? nullptr : program(owner->second);
  return found == nullptr ? OfTask{} : OfTask{found, found->tasks.with_id(id)};
}

scheduler::ClientState Leases::state_of(const Task& task) const {
  const scheduler::ClientState* const state = core_.client(task.id);
  return state == nullptr ? scheduler::ClientState{} : *state;
}

bool Leases::holds(const Task& task) const {
  return state_of(task).held != 0 && !task.gave_back;
}

Bytes Leases::context_bytes(const Program& client, GpuIndex gpu) const {
  const Task* const task = client.tasks.on(gpu);
  if (task == nullptr) return 0;
  return task->gang == 0 ? core_.context_bytes(task->id, gpu) : task->parts.at(gpu).context;
}

// In the event log the limits' lines have the client's number, the core's lines the task's.
void Leases::join(const Program& client, const Task& task) {
  owners_[task.id] = client.id;
  remark(fmt::format("task {} client {} pid {}", task.id, client.id, client.pid));
  enter_core(task.id, client, task.last_grant);
}

void Leases::enter_core(ClientId id, const Program& whose, std::uint32_t last_grant) {
  step(event::Join{id, whose.domain_number, last_grant});
  if (const scheduler::SessionId session = session_of(whose); session != 0) step(event::Session{id, session});
}

void Leases::on_want(Program& client, const protocol::Want& want, bool reclaims) {
  const GpuMask added = client.gpus().mask();
  const GpuMask gpus = want.gpus & added;
  if (gpus == 0) {
    for (Task& task : client.tasks) {
      if (want.task != 0 && (task.gpus & want.task) == 0) continue;
      if (Gang* const gang = gang_of(task)) {
        task.wants = false;
        want_together(*gang, false);
      } else {
        step(event::Want{task.id, 0, false, false, false});
      }
    }
    return;
  }
  const GpuMask together = want.task & added;
  if (client.tasks.of(together) == nullptr && !couple(client, together)) return;
  if (Task& task = *client.tasks.of(together); Gang* const gang = gang_of(task)) {
    begin_to_want(task);
    if (task.gave_back) gangs_due_.insert(gang->number);
    want_together(*gang, want.urgent != 0, want.running != 0 && reclaims);
    publish_changes(modelled_now());
    return;
  }
  if (Task& task = *client.tasks.of(together); is_to_join(client, task) && !holds(task)) {
    begin_to_want(task);  // in the gang's next turn, which is about to begin
    gangs_due_.insert(client.gang);
    publish_changes(modelled_now());
    return;
  }
  step(event::Want{client.tasks.of(together)->id, gpus, want.running != 0 && reclaims, want.urgent != 0,
                   want.alone != 0});
}

// Makes the GPUs one task. Returns whether they are.
bool Leases::couple(Program& client, GpuMask gpus) {
  for (const Task& task : client.tasks) {
    if ((task.gpus & gpus) == 0 || !holds(task)) continue;
    log::debug("client {}: its GPUs are coupled once it has given back those that it holds", client.id);
    return false;
  }
  if (!leave_gang_to_couple(client)) return false;
  if (!may_grow()) return false;
  std::vector<std::pair<GpuIndex, Bytes>> contexts;
  for (const GpuIndex gpu : client.gpus()) contexts.emplace_back(gpu, context_bytes(client, gpu));
  {
    const Within changing(coupling_);
    replace(client, client.tasks.couple(gpus, [this] { return ++last_number_; }), contexts);
  }
  changed_.insert(client.id);
  publish_changes(modelled_now());
  return true;
}

// The core is told all that is known of its new clients before the old ones leave, so that no other client is granted a
// GPU in between. Meanwhile what they have counts twice, which keeps others out rather than letting them in.
void Leases::replace(Program& client, const Tasks::Change& change,
                     const std::vector<std::pair<GpuIndex, Bytes>>& contexts) {
  GpuMask told = change.came;
  for (const Task& task : change.begun) {
    join(client, task);
    told |= task.gpus;
  }
  for (const auto& [gpu, context] : contexts) {
    if (!scheduler::has(told, gpu)) continue;
    say_gpu(client, gpu, core_.gpu(gpu).total, context);
    tell_usage(client, gpu);
  }
  read_activity(client);
  for (const Task& task : change.ended) {
    step(event::Leave{task.id});
    owners_.erase(task.id);
  }
  coupled(told);
}

}  // namespace rota::server
