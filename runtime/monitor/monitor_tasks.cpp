// The process's tasks: which GPUs form one, and how tasks are joined and split.
#include <algorithm>
#include <bit>
#include <thread>

#include "runtime/core/log.h"
#include "runtime/driver/gpu_number.h"
#include "runtime/monitor/monitor.h"

namespace rota::monitor {

using namespace std::chrono_literals;

namespace {

// The interval of checks whether gates have closed that another thread closes.
constexpr auto kOthersClose = 50us;
// How long a call may wait for that before a line says so. A judgment.
constexpr turn::Time kSayOthers = 2s;

}  // namespace

// --- the program's threads

// Work of other tasks that may use memory of this GPU must not run while that is out of place: from now on those are
// one task with this GPU's.
bool Monitor::others_closed(int device) {
  const gate::Devices own = gate::bit_of(device);
  const gate::Devices others = memory_.reachers(device) & touched() & ~own;
  const auto settled = [&] { return stopping() || !gate_.closed(own) || gate_.all_closed(others); };
  if (settled()) return true;
  if (couplings_->ask(own | others, turn::Couplings::When::kAtOnce, now())) bell_.ring();
  if (gate::may_not_wait() || contexts_.captures() != 0) return true;
  static log::Once once;
  for (const turn::Time begun = now(); !settled(); std::this_thread::sleep_for(kOthersClose)) {
    if (now() - begun < kSayOthers || !once.first()) continue;
    log::warn("a call of this program waits until its work on other GPUs, which may use memory of GPU {}, has finished",
              driver::gpu_number(device));
  }
  return gate_.closed(own);
}

void Monitor::settle_reach() {
  for (gate::Devices out = gate::out_of_place.load(); out != 0; out &= out - 1) others_closed(std::countr_zero(out));
}

// --- the monitor's thread

// The first one is there before there is a GPU.
void Monitor::add_task(int device) {
  Task* task = tasks_.front().get();
  if (task->devices != 0) {
    const std::optional<turn::Time> alone =
        task->machine.phase() == turn::Phase::kAlone ? task->machine.lost_since() : std::nullopt;
    task = tasks_.emplace_back(std::make_unique<Task>(gate_, contexts_)).get();
    task->sampler.connected(rotad_ ? rotad_->usage() : nullptr);
    // It has been without rotad for as long as the others.
    if (alone) task->machine.step(turn::event::Lost{.silent = rotad_.said_silent()}, *alone);
  }
  task->devices = gate::bit_of(device);
}

bool Monitor::all_still() const {
  return std::ranges::all_of(tasks_, [](const auto& task) { return task->machine.still(); });
}

// Whether nothing of it runs, and rotad knows that it holds and wants nothing.
bool Monitor::may_recouple(const Task& task) const {
  return task.machine.rests() && task.due.empty() && rotad_->lease(task.served).grant == 0;
}

// Joins GPUs that have to be held at the same time into tasks, and splits others. The tasks concerned first give back
// what they hold: there is nothing else that could be lost.
void Monitor::recouple() {
  if (std::popcount(touched()) < 2) return;
  for (const auto& task : tasks_) {
    if (task->machine.rests()) couplings_->at_rest(task->devices);
  }
  for (const auto& task : tasks_) {
    if (!rotad_) return;
    const std::vector<Task*> concerned = to_recouple(*task);
    gate::Devices all = 0;
    for (const Task* const each : concerned) all |= each->devices;
    if (concerned.size() > 1 && !may_gather(concerned, all)) continue;
    bool rest = !concerned.empty();
    for (Task* const each : concerned) {
      // A task that may be split is not urgent.
      if (!each->machine.retires() && (concerned.size() > 1 || each->machine.rests()))
        feed(*each, turn::event::Retire{});
      rest = rest && rotad_ && each->machine.retires() && may_recouple(*each);
    }
    if (rest) return regroup(all);
  }
}

// Whether these become one task now: none of them may run. Work of one may be waiting for the program, which waits for
// another's GPU: while a turn lasts, that other task asks for its GPU by itself.
bool Monitor::may_gather(const std::vector<Task*>& concerned, gate::Devices all) const {
  if ((all & ~couplings_->with(concerned.front()->devices, now(), turn::Couplings::When::kAtOnce)) == 0) return true;
  return std::ranges::none_of(concerned,
                              [](const Task* each) { return each->machine.runs() && !each->machine.retires(); });
}

// The tasks that are to be formed anew with this one; none: it stays as it is.
std::vector<Task*> Monitor::to_recouple(Task& task) {
  const gate::Devices wanted = couplings_->with(task.devices, now());
  std::vector<Task*> concerned;
  for (const auto& other : tasks_) {
    // A task that runs concurrently with the others has its gate open and will not rest for minutes: the others take
    // their turns.
    const bool open = other->served == 0 || other->machine.phase() == turn::Phase::kBeside;
    if ((other->devices & wanted) != 0 && !open) concerned.push_back(other.get());
  }
  // A task whose coupling is no longer needed is formed anew by itself.
  const bool changes = concerned.size() > 1 || parts(task) || task.machine.retires();
  const bool among = std::ranges::find(concerned, &task) != concerned.end();
  return changes && among ? concerned : std::vector<Task*>{};
}

// Whether it has GPUs that need no longer be held at the same time.
bool Monitor::parts(const Task& task) const {
  const gate::Devices first = task.devices & -task.devices;
  return (task.devices & ~couplings_->with(first, now())) != 0;
}

// Their tasks rest: others take their places.
void Monitor::regroup(gate::Devices all) {
  std::erase_if(tasks_, [&](const auto& task) { return (task->devices & all) != 0; });
  for (gate::Devices rest = all; rest != 0;) {
    const gate::Devices together = couplings_->with(rest & -rest, now()) & all;
    tasks_.push_back(std::make_unique<Task>(gate_, contexts_));
    tasks_.back()->devices = together;
    tasks_.back()->sampler.connected(rotad_->usage());
    rest &= ~together;
    log::debug("{} GPUs are one task from now on", std::popcount(together));
  }
}

// The GPU made no progress while calls waited: if they waited at the gates of other tasks, its work may wait for them.
void Monitor::waits_for_others(const Task& task) {
  gate::Devices together = task.devices;
  for (const auto& other : tasks_) {
    if (other.get() != &task && gate_.standing(other->devices) != 0) together |= other->devices;
  }
  if (together != task.devices) couplings_->ask_after_drain(together, now());
}

}  // namespace rota::monitor
