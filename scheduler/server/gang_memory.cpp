// The memory of gangs' members: the core is told of all of it as of one client, and each member is told its own part of
// what the core decides.
#include <algorithm>

#include "scheduler/server/gangs.h"

namespace rota::server {

using scheduler::Bytes;
using scheduler::ClientId;
using scheduler::GpuIndex;
namespace event = scheduler::event;

template <typename Of>
Bytes Leases::sum(const Gang& gang, GpuIndex gpu, const Of& of) const {
  Bytes all = 0;
  for_each_member(gang, [&](const Program&, const Task& task) {
    if (const auto part = task.parts.find(gpu); part != task.parts.end()) all += of(part->second);
  });
  return all;
}

// The program with the largest deficit on a GPU that a client of the core holds; null: none has one.
Program* Leases::deficit_on(ClientId id, GpuIndex gpu) const {
  const auto gang = gangs_in_core_.find(id);
  if (gang == gangs_in_core_.end()) return find_task(id).program;
  Program* most = nullptr;
  Bytes deficit = 0;
  for_each_member(*gangs_.at(gang->second), [&](Program& client, const Task& task) {
    const auto part = task.parts.find(gpu);
    if (part == task.parts.end() || part->second.usage.shortage <= deficit) return;
    most = &client;
    deficit = part->second.usage.shortage;
  });
  return most;
}

// ---- what its members have, as the core is told

void Leases::say_gpu(Program& client, GpuIndex gpu, Bytes total, Bytes context) {
  Task& task = *client.tasks.on(gpu);
  context = std::max<Bytes>(context, 1);  // 0 would mean unknown
  if (const Gang* gang = gang_of(task)) {
    task.parts[gpu].context = context;
    context = sum(*gang, gpu, [](const Task::Part& part) { return part.context; });
  }
  step(event::AddGpu{task.id, gpu, total, context});
}

void Leases::say_usage(Task& task, const event::Usage& usage) {
  event::Usage all = usage;
  if (Gang* const gang = gang_of(task)) {
    task.parts[usage.gpu].usage = usage;
    all = {.client = 0, .gpu = usage.gpu, .used = 0};
    Bytes needed = 0;
    std::size_t swappers = 0;
    for_each_member(*gang, [&](const Program&, const Task& other) {
      const auto part = other.parts.find(usage.gpu);
      if (part == other.parts.end()) return;
      const event::Usage& its = part->second.usage;
      all.used += its.used;
      all.fixed += its.fixed;
      all.resident += its.resident;
      all.shortage += its.shortage;
      all.free = std::max(all.free, its.free);
      all.refusals += its.refusals;
      all.fixed_for_now += its.fixed_for_now;
      // A member that lacks some may lack more than the driver has refused, if it was out before it joined. All that it
      // has counts then, also managed memory of its own, which need not be there: better apart than stuck.
      needed += part->second.context + std::max(its.resident + its.shortage, its.shortage != 0 ? its.used : 0);
      swappers += its.resident != 0 || its.shortage != 0 ? 1 : 0;
    });
    // What the driver has refused does not fit together with what is there, programs without rota included. Unified
    // Memory counts in neither.
    const scheduler::GpuState there = core_.gpu(usage.gpu);
    if (swappers > 1 && all.shortage != 0 && needed + there.outside > there.total) {
      gang->overcommitted = usage.gpu;
      gangs_due_.insert(gang->number);
    }
  }
  all.client = task.id;
  step(all);
}

void Leases::say_asked(Task& task, GpuIndex gpu, Bytes bytes) {
  if (const Gang* gang = gang_of(task)) {
    task.parts[gpu].asked = bytes;
    bytes = sum(*gang, gpu, [](const Task::Part& part) { return std::max(part.asked, part.usage.used); });
  }
  step(event::Ask{task.id, gpu, bytes});
}

// ---- and what the core says, as each member is told

namespace {

Bytes needs(const Task::Part& part) {
  return std::max(part.asked, part.usage.used);
}

bool can_leave(const Task::Part& part) {
  return part.usage.resident > part.usage.fixed;
}

}  // namespace

// While all members' pages are written nothing changes: so the sums are computed once, not once for each member.
Leases::OnGpu Leases::all_on(const Gang& gang, GpuIndex gpu) const {
  const auto count = [&] {
    OnGpu all;
    for_each_member(gang, [&](const Program&, const Task& task) {
      const auto part = task.parts.find(gpu);
      if (part == task.parts.end()) return;
      all.needs += needs(part->second);
      all.can_leave += can_leave(part->second) ? 1 : 0;
    });
    return all;
  };
  if (!keeps_sums_) return count();
  const auto [kept, is_new] = sums_.try_emplace({gang.number, gpu});
  if (is_new) kept->second = count();
  return kept->second;
}

// What the gang is promised, less what its other members on this GPU have or have asked for.
Bytes Leases::promised_bytes(const Task& task, GpuIndex gpu) const {
  const Bytes promised = core_.promised_bytes(task.id, gpu);
  const Gang* const gang = gang_of(task);
  if (gang == nullptr) return promised;
  return promised - std::min(promised, all_on(*gang, gpu).needs - needs(task.parts.at(gpu)));
}

Bytes Leases::resident_bytes(const Task& task, GpuIndex gpu) const {
  return task.gang == 0 ? core_.resident_bytes(task.id, gpu) : task.parts.at(gpu).usage.resident;
}

// Whether memory of others can be evicted while this program holds the GPU. Other members can evict theirs once they
// take turns by themselves, as they will if memory is missing here (say_usage).
bool Leases::others_can_evict(const Program& program, GpuIndex gpu) const {
  if (scheduler::has(core_.movable_gpus(), gpu)) return true;
  const Task* const task = program.tasks.on(gpu);
  const Gang* const gang = task == nullptr ? nullptr : gang_of(*task);
  if (gang == nullptr) return false;
  return all_on(*gang, gpu).can_leave > (can_leave(task->parts.at(gpu)) ? 1U : 0U);
}

// Members evict in their order: the first ones first.
Bytes Leases::bytes_to_clear(const Program& client, const Task& task, GpuIndex gpu) const {
  Bytes bytes = core_.bytes_to_clear(task.id, gpu);
  const Gang* const gang = gang_of(task);
  if (gang == nullptr || bytes == 0) return bytes;
  const auto can_leave = [&](const Task& its) {
    const event::Usage& usage = its.parts.at(gpu).usage;
    const Bytes most = usage.resident != 0 ? usage.resident : usage.used;
    return most - std::min(most, usage.fixed);
  };
  bool before = true;
  for_each_member(*gang, [&](const Program& other, const Task& its) {
    before = before && other.id != client.id;
    if (before && its.parts.contains(gpu)) bytes -= std::min(bytes, can_leave(its));
  });
  return std::min(bytes, can_leave(task));
}

}  // namespace rota::server
