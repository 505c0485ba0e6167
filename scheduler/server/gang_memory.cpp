// What the members of gangs have: the core is told of all of it as of one client, and each of them what of that is its
// own.
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

// Whose memory is missing on a GPU that a client of the core holds; null: nobody's.
Program* Leases::lacking_on(ClientId id, GpuIndex gpu) const {
  const auto gang = gangs_in_core_.find(id);
  if (gang == gangs_in_core_.end()) return find_task(id).program;
  Program* most = nullptr;
  Bytes lacking = 0;
  for_each_member(*gangs_.at(gang->second), [&](Program& client, const Task& task) {
    const auto part = task.parts.find(gpu);
    if (part == task.parts.end() || part->second.usage.shortage <= lacking) return;
    most = &client;
    lacking = part->second.usage.shortage;
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
    const auto add = [&](auto event::Usage::* field) {
      all.*field = sum(*gang, usage.gpu, [&](const Task::Part& part) { return part.usage.*field; });
    };
    add(&event::Usage::used);
    add(&event::Usage::fixed);
    add(&event::Usage::resident);
    add(&event::Usage::shortage);
    add(&event::Usage::refusals);
    add(&event::Usage::fixed_for_now);
    std::size_t swappers = 0;
    for_each_member(*gang, [&](const Program&, const Task& other) {
      const auto part = other.parts.find(usage.gpu);
      if (part == other.parts.end()) return;
      all.free = std::max(all.free, part->second.usage.free);
      swappers += part->second.usage.resident != 0 ? 1 : 0;
    });
    // What the driver has refused does not fit beside what is there, programs without rota included. Of Unified Memory
    // neither counts.
    const Bytes contexts = sum(*gang, usage.gpu, [](const Task::Part& part) { return part.context; });
    const scheduler::GpuState there = core_.gpu(usage.gpu);
    const Bytes needed = all.resident + all.shortage + contexts;
    if (swappers > 1 && all.shortage != 0 && needed + there.outside > there.total) {
      gang->crowded = usage.gpu;
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

// ---- and what it says, as each of them is told

// Of what the gang is promised, what the others of its members on this GPU have or have asked for is theirs.
Bytes Leases::promised_bytes(const Program& client, const Task& task, GpuIndex gpu) const {
  const Bytes promised = core_.promised_bytes(task.id, gpu);
  const Gang* const gang = gang_of(task);
  if (gang == nullptr) return promised;
  Bytes others = 0;
  for_each_member(*gang, [&](const Program& other, const Task& its) {
    const auto part = its.parts.find(gpu);
    if (other.id == client.id || part == its.parts.end()) return;
    others += std::max(part->second.asked, part->second.usage.used);
  });
  return promised - std::min(promised, others);
}

Bytes Leases::resident_bytes(const Task& task, GpuIndex gpu) const {
  return task.gang == 0 ? core_.resident_bytes(task.id, gpu) : task.parts.at(gpu).usage.resident;
}

// Whether memory of others can leave the GPU while this program holds it. Of other members that is so once they take
// their turns by themselves, as they will if it is missing here (say_usage).
bool Leases::others_can_clear(const Program& program, GpuIndex gpu) const {
  if (scheduler::has(core_.movable_gpus(), gpu)) return true;
  const Task* const task = program.tasks.on(gpu);
  const Gang* const gang = task == nullptr ? nullptr : gang_of(*task);
  if (gang == nullptr) return false;
  bool any = false;
  for_each_member(*gang, [&](const Program& other, const Task& its) {
    const auto part = its.parts.find(gpu);
    if (other.id == program.id || part == its.parts.end()) return;
    any = any || part->second.usage.resident > part->second.usage.fixed;
  });
  return any;
}

// The first members clear theirs first.
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
