#include "scheduler/server/tasks.h"

#include <algorithm>

namespace rota::server {

using scheduler::ClientId;
using scheduler::GpuIndex;
using scheduler::GpuMask;

GpuSet Tasks::gpus() const {
  GpuMask all = 0;
  for (const Task& task : tasks_) all |= task.gpus;
  return GpuSet(all);
}

Task* Tasks::on(GpuIndex gpu) {
  const auto found = std::ranges::find_if(tasks_, [&](const Task& task) { return GpuSet(task.gpus).contains(gpu); });
  return found == tasks_.end() ? nullptr : &*found;
}

const Task* Tasks::on(GpuIndex gpu) const {
  return const_cast<Tasks*>(this)->on(gpu);
}

ClientId Tasks::id_on(GpuIndex gpu) const {
  const Task* task = on(gpu);
  return task == nullptr ? 0 : task->id;
}

Task* Tasks::of(GpuMask gpus) {
  const auto found = std::ranges::find(tasks_, gpus, &Task::gpus);
  return found == tasks_.end() ? nullptr : &*found;
}

Task* Tasks::with_id(ClientId id) {
  const auto found = std::ranges::find(tasks_, id, &Task::id);
  return found == tasks_.end() ? nullptr : &*found;
}

Task& Tasks::add(ClientId id, GpuIndex gpu) {
  return tasks_.emplace_back(Task{.id = id, .gpus = GpuMask{1} << gpu});
}

void Tasks::forget(GpuIndex gpu) {
  for (Task& task : tasks_) task.gpus &= ~(GpuMask{1} << gpu);
  std::erase_if(tasks_, [](const Task& task) { return task.gpus == 0; });
}

Tasks::Change Tasks::couple(GpuMask gpus, const std::function<ClientId()>& new_number) {
  Change change;
  std::vector<Task> stays;
  for (const Task& task : tasks_) ((task.gpus & gpus) != 0 ? change.ended : stays).push_back(task);
  const auto highest = std::ranges::max_element(change.ended, {}, &Task::last_grant);
  if (highest != change.ended.end() && (highest->gpus & ~gpus) == 0) {
    change.grown = highest->id;
    change.came = gpus & ~highest->gpus;
    stays.push_back(*highest);
    stays.back().gpus = gpus;
    change.ended.erase(highest);
  }
  const auto begin = [&](GpuMask of_task) {
    Task task{.gpus = of_task};
    for (const Task& before : change.ended) {
      if ((before.gpus & of_task) != 0) task.last_grant = std::max(task.last_grant, before.last_grant);
    }
    if (numbers_.empty()) numbers_.push_back(new_number());
    task.id = numbers_.back();
    numbers_.pop_back();
    change.begun.push_back(task);
  };
  if (change.grown == 0) begin(gpus);
  for (const Task& task : change.ended) {
    for (const GpuIndex gpu : GpuSet(task.gpus & ~gpus)) begin(GpuMask{1} << gpu);
  }
  for (const Task& task : change.ended) numbers_.push_back(task.id);
  stays.insert(stays.end(), change.begun.begin(), change.begun.end());
  tasks_ = std::move(stays);
  return change;
}

}  // namespace rota::server
