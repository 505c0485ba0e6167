// Begins and ends the core's clients that a client's tasks are, and couples tasks as its wants say.
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

Server::OfTask Server::find_task(ClientId id) const {
  const auto owner = owners_.find(id);
  const auto client = owner == owners_.end() ? clients_.end() : clients_.find(owner->second);
  if (client == clients_.end()) return {};
  return {client->second.get(), client->second->tasks.with_id(id)};
}

scheduler::ClientState Server::state_of(const Task& task) const {
  const scheduler::ClientState* const state = core_.client(task.id);
  return state == nullptr ? scheduler::ClientState{} : *state;
}

bool Server::holds(const Task& task) const {
  return state_of(task).held != 0 && !task.gave_back;
}

Bytes Server::context_bytes(const Client& client, GpuIndex gpu) const {
  const Task* const task = client.tasks.on(gpu);
  if (task == nullptr) return 0;
  return task->gang == 0 ? core_.context_bytes(task->id, gpu) : task->parts.at(gpu).context;
}

// The limits' lines in the event log have the client's number, the core's have the task's.
void Server::join(const Client& client, const Task& task) {
  owners_[task.id] = client.id;
  event_log_.remark(fmt::format("task {} client {} pid {}", task.id, client.id, client.pid), modelled_now());
  step(event::Join{task.id, true, client.domain_number, task.last_grant});
  const auto session = sessions_.find(client.session);
  if (session != sessions_.end()) step(event::Session{task.id, session->second.number});
}

void Server::on_want(Client& client, const protocol::Want& want) {
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
    task.wants = true;
    if (task.gave_back) gangs_due_.insert(gang->number);
    want_together(*gang, want.urgent != 0);
    publish_changes(modelled_now());
    return;
  }
  if (Task& task = *client.tasks.of(together); is_to_join(client, task) && !holds(task)) {
    task.wants = true;  // of the gang's next turn, which is about to begin
    gangs_due_.insert(client.gang);
    publish_changes(modelled_now());
    return;
  }
  const bool young = now() - started_ < std::chrono::seconds(protocol::kReclaimSeconds);
  step(event::Want{client.tasks.of(together)->id, gpus, want.running != 0 && young, want.urgent != 0, want.alone != 0});
}

// Whether the GPUs are one task now.
bool Server::couple(Client& client, GpuMask gpus) {
  for (const Task& task : client.tasks) {
    if ((task.gpus & gpus) == 0 || !holds(task)) continue;
    log::debug("client {}: its GPUs are coupled once it has given back those that it holds", client.id);
    return false;
  }
  if (!leave_gang_to_couple(client)) return false;
  if (!reserve_.is_whole()) return false;
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

// The core's new clients are told all that is known before the old ones leave, so nobody gets in between. For that long
// what they have counts twice, which keeps others out rather than letting them in.
void Server::replace(Client& client, const Tasks::Change& change,
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
  for (const GpuIndex gpu : GpuSet(told)) publish_too_much(gpu);
}

}  // namespace rota::server
